"""`ShellTool`: a model gives a command, which is run if the rules permit it, and gets its output."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from corral.base.command import bash_text
from corral.client.sandbox import AsyncSandbox
from corral.errors import CapabilityError
from corral.paths import inside
from corral.results import Capabilities, ExecResult
from corral.tools.code import DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS
from corral.tools.permission import find_real
from corral.tools.policy import ShellPolicy
from corral.tools.render import DEFAULT_MAX_CHARS, OUTPUT_HINT, ToolText, render_result
from corral.tools.schema import Parameter
from corral.tools.tool import Source, Tool, open_source, timeout_parameter
from corral.tools.view import Viewer, run_in_view

Enforcement = Literal["both", "kernel"]
_PARTS = {
    "tail": ("tail -n +LINE", "tail -n +LINE FILE"),
    "head": ("head -n LINES", "head -n LINES FILE"),
    "grep": ("grep PATTERN", "grep PATTERN FILE"),
}
"""Programs that show a part of an output: how they are used in a pipe, and alone."""
_PROBE_SECONDS = 30.0

log = logging.getLogger("corral.tools")


@dataclass(frozen=True, slots=True)
class ShellCapabilities:
    """How the rules of a shell tool are enforced where it runs."""

    restricted: bool
    argv: bool
    """The words of a command are checked, and run without a shell."""
    kernel: bool
    """The kernel enforces the rules too, whatever the command starts."""
    notes: tuple[str, ...] = ()


class ShellTool(Tool):
    """Runs shell commands, each in a new bash (or sh, without a bash); files stay between them.

    With `allowed`, `blocked`, `ignore` or `readonly` it is restricted: see `ShellPolicy`. A restricted command is run
    without a shell, and on backends that support views the kernel enforces the rules as well. `enforcement="kernel"`
    does not check the words, so that a model has a whole shell; on a backend without views it raises.
    """

    def __init__(
        self,
        environment: Source,
        *,
        allowed: Sequence[str] | None = None,
        blocked: Sequence[str] | None = None,
        ignore: Sequence[str] | None = None,
        readonly: bool = False,
        enforcement: Enforcement = "both",
        name: str = "run_shell_command",
        description: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        max_timeout: float = MAX_TIMEOUT_SECONDS,
        max_chars: int = DEFAULT_MAX_CHARS,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self.policy = ShellPolicy.of(allowed=allowed, blocked=blocked, ignore=ignore, readonly=readonly)
        if enforcement not in get_args(Enforcement):
            raise ValueError(f"unknown enforcement={enforcement!r}; use 'both' or 'kernel'")
        if enforcement == "kernel" and any(len(p.split()) > 1 for p in (*(allowed or ()), *(blocked or ()))):
            raise ValueError(
                "enforcement='kernel' allows or blocks whole programs: use patterns of one word, or enforcement='both'"
            )
        self.enforcement: Enforcement = enforcement
        self._viewer = Viewer(self.policy, env=env, shell=enforcement == "kernel")
        self._timeout = min(timeout, max_timeout)
        self._env = dict(env or {})
        self._cwd = cwd
        self._views: weakref.WeakKeyDictionary[AsyncSandbox, bool] = weakref.WeakKeyDictionary()
        workdir = cwd or getattr(environment, "workdir", None) or "the sandbox's own"
        super().__init__(
            environment,
            name=name,
            description=description or f"Execute a shell command in the working directory: {workdir}{self._explain()}",
            parameters=[
                Parameter("command", "string", "the command", required=True),
                timeout_parameter(self._timeout, max_timeout),
            ],
            max_chars=max_chars,
        )

    def _explain(self) -> str:
        if not self.policy.restricted:
            return ""
        parts = []
        if self.enforcement == "both":
            parts.append("commands run without a shell: no pipes, redirections, variables or globs")
        commands = self.policy.commands if self.enforcement == "both" else self.policy.allowed
        if commands is not None:
            parts.append(f"allowed commands: {', '.join(commands)}")
        if self.policy.blocked:
            parts.append(f"not allowed: {', '.join(self.policy.blocked)}")
        if self.policy.readonly:
            parts.append("nothing can be written")
        return f". {'; '.join(parts)}." if parts else ""

    async def capabilities(self, context: Any = None) -> ShellCapabilities:
        """How the rules are enforced on the backend of this tool. Raises: as opening its environment."""
        if not self.policy.restricted:
            return ShellCapabilities(restricted=False, argv=False, kernel=False)
        kernel = await self._has_views(context)
        notes = []
        if not kernel:
            notes.append("argv only: on this backend, a program that starts others can bypass the rules")
        elif any(len(p.split()) > 1 for p in (*(self.policy.commands or ()), *self.policy.blocked)):
            notes.append("patterns of several words are checked by argv only; the kernel hides whole programs")
        return ShellCapabilities(restricted=True, argv=self.enforcement == "both", kernel=kernel, notes=tuple(notes))

    async def _has_views(self, context: Any) -> bool:
        ask = getattr(self.environment, "capabilities", None)
        if ask is not None:
            found: Capabilities = await ask(context)
            return "views" in found.powers
        async with open_source(self.environment, context) as box:
            return await self._can_view(box)

    async def _can_view(self, box: AsyncSandbox) -> bool:
        """True if this sandbox supports views, which is tried once."""
        if box not in self._views:
            try:
                await box.exec(["/bin/sh", "-c", ":"], read_only=["/"], timeout=_PROBE_SECONDS)
            except CapabilityError:
                if self.enforcement == "kernel":
                    raise
                log.warning(
                    "backend %s does not support views: the rules of %s are checked on the command line only",
                    box.backend,
                    self.name,
                )
                self._views[box] = False
            else:
                self._views[box] = True
        return self._views[box]

    async def run(self, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
        result = await self.execute(box, values["command"], timeout=values["timeout_seconds"] or self._timeout)
        return render_result(result, network=box.spec.network, max_chars=self.max_chars, hint=self.hint)

    @property
    def hint(self) -> str:
        """How a model gets the rest of an output that was cut, by means that the rules permit."""
        if not self.policy.restricted:
            return OUTPUT_HINT
        piped = self.enforcement == "kernel"
        if piped and not self.policy.readonly and self.policy.allowed is None:
            return OUTPUT_HINT
        part = "request a part of it"
        for program, use in _PARTS.items():
            if self.policy.lets(program):
                return f"{part}, for example with {f'| {use[0]}' if piped else use[1]}"
        return part

    async def execute(self, box: AsyncSandbox, command: str, *, timeout: float) -> ExecResult:
        """Run a command, if the rules permit it; for callers that render the result themselves.

        Raises:
            PolicyError: the rules forbid it.
        """
        if not self.policy.restricted:
            return await box.exec(bash_text(command), cwd=self._cwd, env=self._env, timeout=timeout)
        return await self._run_restricted(box, command, timeout)

    async def _run_restricted(self, box: AsyncSandbox, command: str, timeout: float) -> ExecResult:
        words = bash_text(command)  # where the rules hide bash, it is run by sh
        workdir = inside(self._cwd or ".", workdir=box.spec.workdir)
        if self.enforcement == "both":
            words = self.policy.check(command, workdir=workdir)
            for path in self.policy.name_paths(words, workdir=workdir):
                real_workdir = await find_real(box.files, workdir)
                self.policy.check_path(await find_real(box.files, path), workdir=real_workdir)
        if not await self._can_view(box):
            return await box.exec(words, cwd=self._cwd, env=self._env, timeout=timeout)
        make_view = functools.partial(self._viewer.make, box, workdir=workdir)
        return await run_in_view(box, words, make_view, cwd=self._cwd, env=self._env, timeout=timeout)
