"""The gate that asks the rules before anything is done.

A rule is asked for the path a model named and for the path that this leads to, so that a link does not go round it; and
for every path in a result, so that a search does not show what may not be read.
"""

from __future__ import annotations

import functools
import inspect
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed

from corral.adapters.pydantic_ai.rules import AskCallback, AskFallback
from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox, RealPath
from corral.errors import SandboxFileError
from corral.paths import inside
from corral.tools.permission import Action, Decision, Operation, Permissions, Rule
from corral.tools.render import quote

_MOST_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Gate:
    """Asks the rules. Without rules everything may be done."""

    permissions: Permissions | None = None
    ask_callback: AskCallback | None = None
    ask_fallback: AskFallback = "error"
    _order: dict[Action, int] = field(default_factory=lambda: {"allow": 0, "ask": 1, "deny": 2}, repr=False)
    _shown: dict[str, str] = field(default_factory=dict, repr=False)
    """Calls that wait for an approval → where their path led when it was asked for."""

    def shows(self, operation: Operation) -> bool:
        """Whether a tool is worth showing: not if nothing could ever be allowed."""
        return self.permissions is None or not self.permissions.never(operation)

    async def check_path(
        self, ctx: RunContext[Any], sandbox: AsyncCorralSandbox, operation: Operation, path: str, *more: Operation
    ) -> Sight:
        """What may be seen from there, and the real path, which is the one to use. `more` is needed for it as well.

        Raises: ToolFailed if it is denied; ApprovalRequired if somebody must be asked, and nobody is there.
        """
        if self.permissions is None and not ctx.tool_call_approved:
            return Sight(self, path)
        named, real = await self._resolve(sandbox, operation, path)
        target = await self._name_target(sandbox, path, named, real)
        if ctx.tool_call_approved and target != path and self._find_shown(ctx) != real:
            # Whoever approved has seen the name, not where it leads now.
            text = f"it is a link, and leads to '{quote(real)}': name that file itself"
            raise ToolFailed(f"Permission denied for {operation} on '{quote(path)}': {text}")
        if self.permissions is None:
            return Sight(self, RealPath(path, real=real))
        root = sandbox.normal(".")
        real_root = await sandbox.real_path(".") if self.permissions.needs_workdir else root
        here = replace(self, permissions=self.permissions.within(root, real_root))
        decisions = here.decide(operation, named, real)
        strictest = self._strictest(decisions)
        others = [self._strictest(here.decide(other, named, real)) for other in more]
        # One question is enough for one call; it is that of the operation itself, if that has one.
        asked = [decision for decision in (strictest, *others) if decision.action != "allow"]
        worst = self._strictest(asked) if asked else strictest
        try:
            await self._carry_out(ctx, operation, target, worst, given=path)
        except ApprovalRequired:
            while len(self._shown) >= _MOST_WAITING:
                self._shown.pop(next(iter(self._shown)))
            self._shown[ctx.tool_call_id or ""] = real
            raise
        if worst.action == "ask" and (await self._resolve(sandbox, operation, real))[1] != real:
            text = "what was asked about is a link to something else by now"
            raise ToolFailed(f"Permission denied for {operation} on '{quote(path)}': {text}")
        granted = tuple(found.rule for found in decisions if found.rule is not None and found.action == "ask")
        roots = (inside(path, workdir=sandbox.work_dir), named, real)
        return Sight(here, RealPath(path, real=real), roots, (operation, granted))

    def _find_shown(self, ctx: RunContext[Any]) -> str | None:
        """Where the path of an approved call led when it was asked for: as we remember it, or as the caller does."""
        told = ctx.tool_call_metadata.get("target") if isinstance(ctx.tool_call_metadata, dict) else None
        return self._shown.pop(ctx.tool_call_id or "", None) or told

    @staticmethod
    async def _resolve(sandbox: AsyncCorralSandbox, operation: Operation, path: str) -> tuple[str, str]:
        """The path as it is named and as it really is. Raises: ToolFailed."""
        try:
            return sandbox.normal(path), await sandbox.real_path(path)
        except SandboxFileError as error:
            # Nobody knows where it leads, so no rule can allow it.
            raise ToolFailed(f"Permission denied for {operation} on '{quote(path)}': {quote(str(error))}") from error

    @staticmethod
    async def _name_target(sandbox: AsyncCorralSandbox, path: str, named: str, real: str) -> str:
        """What to show to whoever is asked: the path as it was given, unless a link leads elsewhere."""
        if real == named:
            return path
        root = await sandbox.real_path(".")  # the working folder may be behind a link, which is nobody's trick
        below = posixpath.relpath(named, sandbox.normal("."))
        return path if posixpath.normpath(posixpath.join(root, below)) == real else real

    async def check_command(self, ctx: RunContext[Any], command: str) -> None:
        """Raises: as `check_path`."""
        if self.permissions is not None:
            words = " ".join(command.split())
            decisions = self.decide("execute", command.strip(), words)
            await self._carry_out(ctx, "execute", command, self._strictest(decisions))

    def hides(self, operation: Operation, *targets: str, granted: Sequence[Rule] = ()) -> bool:
        """Whether a path of a result may not be shown: it is denied, or a rule of its own says to ask for it.

        Nobody is asked once more for each result; a rule that was asked about for this call holds for all of it.
        """
        if self.permissions is None:
            return False
        return any(
            found.action == "deny" or (found.action == "ask" and found.rule is not None and found.rule not in granted)
            for found in self.decide(operation, *targets)
        )

    def decide(self, operation: Operation, *targets: str) -> list[Decision]:
        """What the rules say of each."""
        assert self.permissions is not None
        return [self.permissions.decide(operation, target) for target in targets]

    def _strictest(self, decisions: Sequence[Decision]) -> Decision:
        return max(decisions, key=lambda decision: self._order[decision.action])

    async def _carry_out(
        self, ctx: RunContext[Any], operation: Operation, target: str, decision: Decision, *, given: str | None = None
    ) -> None:
        note = decision.rule.note if decision.rule is not None else ""
        if decision.action == "allow" or (decision.action == "ask" and ctx.tool_call_approved):
            return
        if decision.action == "ask":
            if self.ask_callback is not None:
                answer = self.ask_callback(operation, target, note)
                if await answer if inspect.isawaitable(answer) else answer:
                    return
            elif self.ask_fallback == "error":
                raise ApprovalRequired({"operation": operation, "target": target, "reason": note})
        reason = f": {note}" if note else ""
        # A model is told of the name that it gave, not where a link leads that it may not follow.
        raise ToolFailed(f"Permission denied for {operation} on '{quote(given or target)}'{reason}")


@dataclass(frozen=True, slots=True)
class Sight:
    """What may be shown of a search that began at a path: as it was given, as it is named, and where it really is."""

    gate: Gate
    path: str
    """What to use: the real path behind the name, where there are rules."""
    roots: tuple[str, ...] = ()
    asked: tuple[Operation, tuple[Rule, ...]] | None = None
    """For which operation which rules were asked about, and answered."""

    def filter(self, *operations: Operation) -> Callable[[str], bool] | None:
        """`shows` for these operations; None where everything may be shown."""
        if self.gate.permissions is None:
            return None
        return functools.partial(self._shows, operations)

    def _shows(self, operations: tuple[Operation, ...], path: str) -> bool:
        return self.shows(path, *operations)

    def shows(self, path: str, *operations: Operation) -> bool:
        """Whether no rule hides a path of the result for any of the operations, by any of its names."""
        if self.gate.permissions is None:
            return True
        names = {posixpath.normpath(path)}
        for root in self.roots:
            bare = root.rstrip("/")
            if path == root or path.startswith(f"{bare}/"):
                names |= {f"{other.rstrip('/')}{path[len(bare) :]}" for other in self.roots[1:]}
        return not any(
            self.gate.hides(
                operation, *names, granted=self.asked[1] if self.asked and operation == self.asked[0] else ()
            )
            for operation in operations
        )
