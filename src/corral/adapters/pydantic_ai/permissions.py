"""The known names of permission rules, and the gate that asks them before anything is done.

A rule is asked for the path a model named and for the path that this leads to, so that a link does not go round it; and
for every path in a result, so that a search does not show what may not be read.
"""

from __future__ import annotations

import inspect
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed

from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.errors import SandboxFileError
from corral.paths import inside
from corral.tools.permission import (
    DANGEROUS,
    DEFAULT,
    OPERATIONS,
    PERMISSIVE,
    READONLY,
    SECRETS,
    STRICT,
    SYSTEM,
    Action,
    Decision,
    Operation,
    OperationRules,
    Permissions,
    Rule,
)
from corral.tools.render import quote

AskCallback = Callable[[Operation, str, str], Awaitable[bool] | bool]
"""Is given the operation, the path or command, and why it is asked; gives whether it may be done."""

AskFallback = Literal["error", "deny"]
"""What becomes of `ask` when there is nobody to ask: an approval of Pydantic AI's is required, or it is denied."""

SECRETS_PATTERNS = list(SECRETS)
SYSTEM_PATTERNS = list(SYSTEM)
DANGEROUS_COMMANDS = list(DANGEROUS)


@dataclass(frozen=True, slots=True)
class PermissionRule:
    """One pattern and what it decides."""

    pattern: str
    action: Action
    description: str = ""


@dataclass(frozen=True, slots=True)
class OperationPermissions:
    """The rules of one operation; the first that matches decides."""

    default: Action = "allow"
    rules: Sequence[PermissionRule] = ()


@dataclass(frozen=True, slots=True)
class PermissionRuleset:
    """The rules of every operation; `default` is for operations that have none."""

    default: Action = "ask"
    read: OperationPermissions | None = None
    write: OperationPermissions | None = None
    edit: OperationPermissions | None = None
    execute: OperationPermissions | None = None
    glob: OperationPermissions | None = None
    grep: OperationPermissions | None = None
    ls: OperationPermissions | None = None


def as_permissions(rules: Permissions | PermissionRuleset) -> Permissions:
    """The rules in Corral's own terms."""
    if isinstance(rules, Permissions):
        return rules
    own: dict[str, Any] = {name: _as_rules(getattr(rules, name)) for name in OPERATIONS}
    return Permissions(default=rules.default, **own)


def _as_rules(given: OperationPermissions | None) -> OperationRules | None:
    if given is None:
        return None
    return OperationRules(
        given.default, tuple(Rule(rule.pattern, rule.action, rule.description) for rule in given.rules)
    )


def _as_ruleset(permissions: Permissions) -> PermissionRuleset:
    own: dict[str, Any] = {}
    for name in OPERATIONS:
        rules = permissions.rules_of(name)
        if rules is not None:
            known = [PermissionRule(rule.pattern, rule.action, rule.note) for rule in rules.rules]
            own[name] = OperationPermissions(rules.default, known)
    return PermissionRuleset(default=permissions.default, **own)


DEFAULT_RULESET = _as_ruleset(DEFAULT)
PERMISSIVE_RULESET = _as_ruleset(PERMISSIVE)
READONLY_RULESET = _as_ruleset(READONLY)
STRICT_RULESET = _as_ruleset(STRICT)


def create_ruleset(
    *,
    default: Action = "ask",
    allow_read: bool = True,
    allow_write: bool = False,
    allow_edit: bool = False,
    allow_execute: bool = False,
    allow_glob: bool = True,
    allow_grep: bool = True,
    allow_ls: bool = True,
    deny_secrets: bool = True,
) -> PermissionRuleset:
    """Rules from a few answers: what is not allowed falls to `default`, and secrets are denied."""
    secrets = (
        [PermissionRule(pattern, "deny", "Protect sensitive files") for pattern in SECRETS] if deny_secrets else []
    )

    def rules(allowed: object, own: Sequence[PermissionRule] = ()) -> OperationPermissions:
        return OperationPermissions("allow" if allowed else default, list(own))

    return PermissionRuleset(
        default=default,
        read=rules(allow_read, secrets),
        write=rules(allow_write, secrets),
        edit=rules(allow_edit, secrets),
        execute=rules(allow_execute),
        glob=rules(allow_glob),
        grep=rules(allow_grep),
        ls=rules(allow_ls),
    )


@dataclass(frozen=True, slots=True)
class Gate:
    """Asks the rules. Without rules everything may be done."""

    permissions: Permissions | None = None
    ask_callback: AskCallback | None = None
    ask_fallback: AskFallback = "error"
    _order: dict[Action, int] = field(default_factory=lambda: {"allow": 0, "ask": 1, "deny": 2}, repr=False)

    def shows(self, operation: Operation) -> bool:
        """Whether a tool is worth showing: not if nothing could ever be allowed."""
        return self.permissions is None or not self.permissions.never(operation)

    async def check_path(
        self, ctx: RunContext[Any], sandbox: AsyncCorralSandbox, operation: Operation, path: str
    ) -> Sight:
        """Raises: ToolFailed if it is denied; ApprovalRequired if somebody must be asked, and nobody is there."""
        if self.permissions is None:
            return Sight(self)
        try:
            named = sandbox.normal(path)
            sight = Sight(self, inside(path, workdir=sandbox.work_dir), named, await sandbox.real_path(path))
        except SandboxFileError as error:
            # Nobody knows where it leads, so no rule can allow it.
            raise ToolFailed(f"Permission denied for {operation} on '{quote(path)}': {quote(str(error))}") from error
        await self._carry_out(ctx, operation, path, self._strictest(operation, named, sight.real))
        return sight

    async def check_command(self, ctx: RunContext[Any], command: str) -> None:
        """Raises: as `check_path`."""
        if self.permissions is not None:
            words = " ".join(command.split())
            await self._carry_out(ctx, "execute", command, self._strictest("execute", command.strip(), words))

    def denies(self, operation: Operation, *targets: str) -> bool:
        """Whether a path of a result may not be shown."""
        return self.permissions is not None and self._strictest(operation, *targets).action == "deny"

    def _strictest(self, operation: Operation, *targets: str) -> Decision:
        assert self.permissions is not None
        decisions = [self.permissions.decide(operation, target) for target in targets]
        return max(decisions, key=lambda decision: self._order[decision.action])

    async def _carry_out(self, ctx: RunContext[Any], operation: Operation, target: str, decision: Decision) -> None:
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
        raise ToolFailed(f"Permission denied for {operation} on '{quote(target)}'{reason}")


@dataclass(frozen=True, slots=True)
class Sight:
    """What may be shown of a search that began at a path: as it was given, as it is named, and where it really is."""

    gate: Gate
    given: str = ""
    named: str = ""
    real: str = ""

    def shows(self, path: str, *operations: Operation) -> bool:
        """Whether no rule denies any of the operations on a path of the result, by any of its names."""
        if self.gate.permissions is None:
            return True
        names = {posixpath.normpath(path)}
        for root in (self.given.rstrip("/"), self.named.rstrip("/")):
            if path == root or path.startswith(f"{root}/"):
                below = path[len(root) :]
                names |= {f"{self.named.rstrip('/')}{below}", f"{self.real.rstrip('/')}{below}"}
        return not any(self.gate.denies(operation, *names) for operation in operations)
