"""`BackgroundTools`: commands that a model starts in one call, and reads, feeds and ends in later ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corral.client.sandbox import AsyncSandbox
from corral.tools.background import (
    ShellInfo,
    ShellOutput,
    kill_shell,
    list_shells,
    read_shell,
    start_shell,
    write_shell,
)
from corral.tools.render import DEFAULT_MAX_CHARS, ToolText, bound, make_harmless, quote
from corral.tools.schema import Parameter
from corral.tools.tool import Source, Tool

MAX_WAIT_SECONDS = 60.0
_FOOTER_CHARS = 200


class BackgroundTool(Tool):
    """One of the tools of `BackgroundTools`."""

    def __init__(
        self,
        environment: Source,
        *,
        name: str,
        description: str,
        parameters: Sequence[Parameter],
        max_chars: int,
        env: Mapping[str, str],
        cwd: str | None,
        act: Callable[[BackgroundTool, AsyncSandbox, Mapping[str, Any]], Awaitable[ToolText]],
    ) -> None:
        super().__init__(environment, name=name, description=description, parameters=parameters, max_chars=max_chars)
        self.env = env
        self.cwd = cwd
        self._act = act

    async def run(self, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
        """See `Tool`."""
        return await self._act(self, box, values)


class BackgroundTools:
    """Tools for commands that go on: start, read, write, kill and list. Iterate over them, or take one by its name.

    No rules of a `ShellTool` hold for them: a model that may only run certain commands should not have these.
    """

    def __init__(
        self,
        environment: Source,
        *,
        max_chars: int = DEFAULT_MAX_CHARS,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self._tools = {
            name: BackgroundTool(
                environment,
                name=name,
                description=row.description,
                parameters=row.parameters,
                max_chars=max_chars,
                env=dict(env or {}),
                cwd=cwd,
                act=row.act,
            )
            for name, row in _TABLE.items()
        }

    def __iter__(self) -> Iterator[BackgroundTool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> BackgroundTool:
        return self._tools[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that there are."""
        return tuple(self._tools)


# The texts, for our own tools and for those of frameworks.


def render_output(output: ShellOutput, *, max_chars: int = DEFAULT_MAX_CHARS) -> ToolText:
    """What is new, and how the command stands; the last line is always ours."""
    lost = f"[about {output.lost_bytes} bytes before this were not kept]\n" if output.lost_bytes else ""
    # It was read to fit; only what is full of control characters, each shown by several, has to be cut.
    text, cut = bound(
        make_harmless(output.output.decode("utf-8", "replace")),
        max_chars=max_chars - _FOOTER_CHARS,
        hint="let it print into a file",
    )
    return ToolText(
        f"{lost}{text.rstrip(chr(10)) or '(nothing new)'}\n[{_describe_state(output)}]",
        truncated=cut or output.waiting or bool(output.lost_bytes),
        result=output,
    )


def render_shells(shells: Sequence[ShellInfo]) -> ToolText:
    """A list of commands."""
    if not shells:
        return ToolText("No background commands")
    lines = [f"{shell.shell_id}: {_say(shell.running, shell.exit_code)}: {quote(shell.command)}" for shell in shells]
    return ToolText("\n".join(lines), result=tuple(shells))


def fit_bytes(max_chars: int) -> int:
    """How many bytes of output to read for a text of that length."""
    return max(1, max_chars - _FOOTER_CHARS)


def _describe_state(output: ShellOutput) -> str:
    said = f"{output.shell_id}: {_say(output.running, output.exit_code)}"
    if output.reason not in (None, "exited"):
        said += f" ({output.reason})"
    return f"{said}; there is more: read again" if output.waiting else said


def _say(running: bool, exit_code: int | None) -> str:  # noqa: FBT001 - one place, two values of one thing
    return "running" if running else f"ended, exit code: {'unknown' if exit_code is None else exit_code}"


# What each does.


async def _start(tool: BackgroundTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    handle = await start_shell(box, values["command"], cwd=tool.cwd, env=tool.env)
    return ToolText(f"Started {handle.shell_id}. Read what it prints with read_background.", result=handle)


async def _read(tool: BackgroundTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    output = await read_shell(
        box,
        values["shell_id"],
        wait_seconds=values["wait_seconds"],
        newest=values["newest"],
        max_bytes=fit_bytes(tool.max_chars),
    )
    return render_output(output, max_chars=tool.max_chars)


async def _write(tool: BackgroundTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    await write_shell(box, values["shell_id"], values["text"], close=values["close"])
    return ToolText(f"Wrote {len(values['text'])} characters to {quote(values['shell_id'])}")


async def _kill(tool: BackgroundTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    was_running = await kill_shell(box, values["shell_id"])
    return ToolText(f"{quote(values['shell_id'])} {'was ended' if was_running else 'had ended already'}")


async def _list(tool: BackgroundTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    return render_shells(await list_shells(box))


@dataclass(frozen=True, slots=True)
class _Row:
    description: str
    act: Callable[[BackgroundTool, AsyncSandbox, Mapping[str, Any]], Awaitable[ToolText]]
    parameters: tuple[Parameter, ...]


_SHELL = Parameter("shell_id", "string", "the command's id, as execute_background gave it", required=True)
_TABLE: dict[str, _Row] = {
    "execute_background": _Row(
        "Start a shell command that goes on in the background, such as a server, and get its id.",
        _start,
        (Parameter("command", "string", "the command", required=True),),
    ),
    "read_background": _Row(
        "Read what a background command has printed since the last time, and whether it still runs.",
        _read,
        (
            _SHELL,
            Parameter(
                "wait_seconds",
                "number",
                f"wait so long for something new (at most {MAX_WAIT_SECONDS:g})",
                default=0,
                least=0,
                most=MAX_WAIT_SECONDS,
            ),
            Parameter("newest", "boolean", "skip to the newest output", default=False),
        ),
    ),
    "write_background": _Row(
        "Type into a background command: its standard input.",
        _write,
        (
            _SHELL,
            Parameter("text", "string", "what to type; a line needs its newline", required=True),
            Parameter("close", "boolean", "end the input afterwards", default=False),
        ),
    ),
    "kill_background": _Row(
        "End a background command with all that it has started; what it printed can still be read.",
        _kill,
        (_SHELL,),
    ),
    "list_background": _Row("List the background commands, those that have ended too.", _list, ()),
}
