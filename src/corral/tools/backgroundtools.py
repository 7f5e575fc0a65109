"""`BackgroundTools`: commands that a model starts in one call, and reads, writes to and kills in later ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corral.client.sandbox import AsyncSandbox
from corral.spec import NetworkPolicy
from corral.tools.background import (
    BackgroundProcessInfo,
    ShellOutput,
    kill_shell,
    list_shells,
    read_shell,
    start_shell,
    write_shell,
)
from corral.tools.gate import Gate
from corral.tools.render import DEFAULT_MAX_CHARS, ToolText, bound, make_harmless, quote, render_denials
from corral.tools.schema import Parameter
from corral.tools.tool import Row, Source, ToolSet

MAX_WAIT_SECONDS = 60.0
_FOOTER_CHARS = 200


@dataclass(frozen=True, slots=True)
class BackgroundCommands:
    """Where commands run, and the rules for them. Input is checked like a command, since a shell would run it."""

    box: AsyncSandbox
    env: Mapping[str, str]
    cwd: str | None
    gate: Gate = field(default_factory=Gate)


class BackgroundTools(ToolSet[BackgroundCommands]):
    """Tools for background commands: start, read, write, kill and list. Iterate over them, or take one by its name.

    The rules of a `ShellTool` do not apply to them: don't give them to a model that may only run certain commands.
    """

    def __init__(
        self,
        environment: Source,
        *,
        max_chars: int = DEFAULT_MAX_CHARS,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        super().__init__(
            environment,
            BACKGROUND_TOOLS,
            max_chars=max_chars,
            prepare=lambda box: BackgroundCommands(box, dict(env or {}), cwd),
        )


# The texts.


def _render_output(output: ShellOutput, *, network: NetworkPolicy, max_chars: int) -> ToolText:
    """The new output and the state of the command; the last line is always ours."""
    lost = f"[about {output.lost_bytes} bytes before this were dropped]\n" if output.lost_bytes else ""
    # It was read to fit. It is only cut if it has many control characters, each of which is shown as several.
    text, cut = bound(
        make_harmless(output.output.decode("utf-8", "replace")),
        max_chars=max_chars - _FOOTER_CHARS,
        hint="redirect its output to a file",
    )
    state = _describe_state(output)
    if output.reason not in (None, "exited"):
        state += f" ({output.reason})"
    if output.waiting:
        state += "; more is waiting: read again"
    return ToolText(
        f"{lost}{text.rstrip(chr(10)) or '(nothing new)'}\n[{state}]{render_denials(output.denied, network)}",
        truncated=cut or output.waiting or bool(output.lost_bytes),
        result=output,
    )


def _describe_state(shell: ShellOutput | BackgroundProcessInfo) -> str:
    code = "unknown" if shell.exit_code is None else shell.exit_code
    return f"{shell.shell_id}: {'running' if shell.running else f'ended, exit code: {code}'}"


# What each does.


async def _start(commands: BackgroundCommands, values: Mapping[str, Any], max_chars: int) -> ToolText:
    await commands.gate.check_command(values["command"])
    handle = await start_shell(commands.box, values["command"], cwd=commands.cwd, env=commands.env)
    return ToolText(f"Started {handle.shell_id}. Read what it prints with read_background.", result=handle)


async def _read(commands: BackgroundCommands, values: Mapping[str, Any], max_chars: int) -> ToolText:
    output = await read_shell(
        commands.box,
        values["shell_id"],
        wait_seconds=values["wait_seconds"],
        newest=values["newest"],
        max_bytes=max(1, max_chars - _FOOTER_CHARS),
    )
    return _render_output(output, network=commands.box.spec.network, max_chars=max_chars)


async def _write(commands: BackgroundCommands, values: Mapping[str, Any], max_chars: int) -> ToolText:
    await commands.gate.check_command(values["text"])
    await write_shell(commands.box, values["shell_id"], values["text"], close=values["close"])
    return ToolText(f"Wrote {len(values['text'])} characters to {quote(values['shell_id'])}")


async def _kill(commands: BackgroundCommands, values: Mapping[str, Any], max_chars: int) -> ToolText:
    was_running = await kill_shell(commands.box, values["shell_id"])
    return ToolText(f"{quote(values['shell_id'])} {'was killed' if was_running else 'had already ended'}")


async def _list(commands: BackgroundCommands, values: Mapping[str, Any], max_chars: int) -> ToolText:
    shells = await list_shells(commands.box)
    lines = [f"{_describe_state(shell)}: {quote(shell.command)}" for shell in shells]
    return ToolText("\n".join(lines) or "No background commands", result=tuple(shells) or None)


_SHELL = Parameter("shell_id", "string", "the command's id, as execute_background gave it", required=True)
BACKGROUND_TOOLS: dict[str, Row[BackgroundCommands]] = {
    "execute_background": Row(
        "execute",
        """\
Start a shell command that keeps running in the background, such as a server or a watcher, and get its id.

It runs until it exits or you kill it with `kill_background`. Read what it prints with `read_background`, and
type into it with `write_background`.""",
        _start,
        (Parameter("command", "string", "the command", required=True),),
    ),
    "read_background": Row(
        "execute",
        """\
Read what a background command has printed since you last read it, and whether it still runs.

With `wait_seconds` it waits for something new, so that you need not poll.""",
        _read,
        (
            _SHELL,
            Parameter(
                "wait_seconds",
                "number",
                f"how many seconds to wait for new output (at most {MAX_WAIT_SECONDS:g})",
                default=0,
                least=0,
                most=MAX_WAIT_SECONDS,
            ),
            Parameter("newest", "boolean", "skip to the newest output", default=False),
        ),
    ),
    "write_background": Row(
        "execute",
        "Type into a background command: its standard input.",
        _write,
        (
            _SHELL,
            Parameter("text", "string", "what to type; a line needs its newline", required=True),
            Parameter("close", "boolean", "close the input afterwards", default=False),
        ),
    ),
    "kill_background": Row(
        "execute",
        "Kill a background command and everything it started. Its output can still be read.",
        _kill,
        (_SHELL,),
    ),
    "list_background": Row(
        "execute",
        "List the background commands: their ids, whether they are running, and their exit codes.",
        _list,
        (),
    ),
}
