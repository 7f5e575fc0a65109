"""The gate of a run: asks by a callback or by an approval of Pydantic AI, and refuses with a failed call."""

from __future__ import annotations

import inspect
import posixpath
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed

from corral.adapters.pydantic_ai.rules import AskCallback, AskFallback
from corral.base.files import AsyncFiles
from corral.client.sandbox import AsyncSandbox
from corral.errors import PolicyError, SandboxFileError
from corral.tools.gate import Entered, Gate, Question
from corral.tools.permission import Operation, Permissions, normal_path, real_path
from corral.tools.render import quote
from corral.tools.view import View, make_view_of_rules

_MOST_WAITING = 1000


@dataclass(frozen=True, slots=True)
class RunRules:
    """The rules of a toolset, and how it asks."""

    permissions: Permissions | None = None
    ask_callback: AskCallback | None = None
    ask_fallback: AskFallback = "error"
    hide_denied: bool = False
    shown: dict[str, str] = field(default_factory=dict, repr=False)
    """Calls that wait for an approval → the target of their path when the approval was requested."""


class RunGate(Gate):
    """The gate for one call of a tool. A refusal is a `ToolFailed`; a question may be an `ApprovalRequired`."""

    def __init__(self, rules: RunRules, ctx: RunContext[Any], *, workdir: str) -> None:
        super().__init__(rules.permissions)
        self._rules = rules
        self._ctx = ctx
        self._workdir = workdir
        self._files: AsyncFiles | None = None

    @property
    def follows(self) -> bool:
        """True if links of a path are followed: an approval is for the target."""
        return self.permissions is not None or self._ctx.tool_call_approved

    async def enter(
        self, files: AsyncFiles, operation: Operation, path: str, *more: Operation, workdir: str
    ) -> Entered:
        """The path to use. Raises: ToolFailed if it is denied; ApprovalRequired if a person must decide."""
        try:
            self._files = files
            entered = await super().enter(files, operation, path, *more, workdir=workdir)
        except SandboxFileError as error:
            if not self.follows:
                raise
            # Its target is unknown, so no rule can allow it.
            raise self.refuse(operation, path, quote(str(error))) from error
        if self._ctx.tool_call_approved and await self._name(path, entered.named, entered.path) != path:
            self._check_approved(operation, path, entered.path)
        return entered

    def _check_approved(self, operation: Operation, path: str, real: str) -> None:
        """Refuse an approval of a link that led elsewhere when it was approved. Raises: ToolFailed."""
        metadata = self._ctx.tool_call_metadata
        approved = metadata.get("target") if isinstance(metadata, dict) else None
        if (self._rules.shown.pop(self._ctx.tool_call_id or "", None) or approved) != real:
            raise self.refuse(operation, path, f"it is a link to '{quote(real)}': use that path")

    async def _name(self, given: str, named: str, real: str) -> str:
        """The path to show in a question: as given, or its target if a link leads elsewhere."""
        if real == named:
            return given
        assert self._files is not None, "a path was entered"
        root = await real_path(self._files, ".", workdir=self._workdir)  # the working folder may be behind a link
        below = posixpath.relpath(named, normal_path(".", workdir=self._workdir))
        return given if posixpath.normpath(posixpath.join(root, below)) == real else real

    async def settle(self, question: Question) -> None:
        """Apply the decision, and ask if it says so. Raises: ToolFailed, ApprovalRequired."""
        operation, given, note = question.operation, question.given, question.note
        if question.decision.action == "ask":
            if self._ctx.tool_call_approved:
                return
            target = given if operation == "execute" else await self._name(given, question.named, question.real)
            if self._rules.ask_callback is not None:
                answer = self._rules.ask_callback(operation, target, note)
                if await answer if inspect.isawaitable(answer) else answer:
                    return
            elif self._rules.ask_fallback == "error":
                shown = self._rules.shown
                while len(shown) >= _MOST_WAITING:
                    shown.pop(next(iter(shown)))
                shown[self._ctx.tool_call_id or ""] = question.real
                raise ApprovalRequired({"operation": operation, "target": target, "reason": note})
        # The model sees the name that it gave, not the target of a link that it may not follow.
        raise self.refuse(operation, given, note)

    async def make_view(self, box: AsyncSandbox, *, workdir: str) -> View:
        """The view that limits what a command may write and see. Raises: PolicyError."""
        if not self._rules.hide_denied or self.permissions is None:
            return View()
        try:
            return await make_view_of_rules(box, self.permissions, workdir=workdir)
        except (PolicyError, SandboxFileError) as error:
            raise PolicyError(error.message, op="execute", hint=error.hint) from error

    def refuse(self, operation: Operation, given: str, why: str) -> Exception:
        """The error for a denied operation."""
        return ToolFailed(f"Permission denied for {operation} on '{quote(given)}'{f': {why}' if why else ''}")
