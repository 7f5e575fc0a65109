"""Permission rules under the known names, and `PermissionChecker`. Nothing here needs Pydantic AI."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    Operation,
    OperationRules,
    Permissions,
    Rule,
)

AskCallback = Callable[[Operation, str, str], Awaitable[bool] | bool]
"""Called with the operation, the path or command, and the reason; returns True to allow it."""

AskFallback = Literal["error", "deny"]
"""What `ask` means without a callback: an approval of Pydantic AI is required, or the operation is denied."""

SECRETS_PATTERNS = list(SECRETS)
SYSTEM_PATTERNS = list(SYSTEM)
DANGEROUS_COMMANDS = list(DANGEROUS)


@dataclass(frozen=True, slots=True)
class PermissionRule:
    """A pattern and its action."""

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
    """The rules of every operation; `default` is for operations without rules."""

    default: Action = "ask"
    read: OperationPermissions | None = None
    write: OperationPermissions | None = None
    edit: OperationPermissions | None = None
    execute: OperationPermissions | None = None
    glob: OperationPermissions | None = None
    grep: OperationPermissions | None = None
    ls: OperationPermissions | None = None

    def get_operation_permissions(self, operation: Operation) -> OperationPermissions:
        """The rules of one operation, or its default action if it has no rules."""
        found: OperationPermissions | None = getattr(self, operation)
        return found if found is not None else OperationPermissions(self.default)


def as_permissions(rules: Permissions | PermissionRuleset) -> Permissions:
    """The rules in Corral's own terms."""
    if isinstance(rules, Permissions):
        return rules
    own: dict[str, Any] = {name: _as_rules(getattr(rules, name)) for name in OPERATIONS}
    return Permissions(default=rules.default, **own)


def _as_rules(given: OperationPermissions | None) -> OperationRules | None:
    if given is None:
        return None
    rules = tuple(Rule(rule.pattern, rule.action, rule.description) for rule in given.rules)
    return OperationRules(given.default, rules)


def _as_ruleset(permissions: Permissions) -> PermissionRuleset:
    own: dict[str, Any] = {}
    for name in OPERATIONS:
        rules = permissions.rules_of(name)
        if rules is not None:
            own[name] = OperationPermissions(rules.default, [_as_known(rule) for rule in rules.rules])
    return PermissionRuleset(default=permissions.default, **own)


def _as_known(rule: Rule) -> PermissionRule:
    return PermissionRule(rule.pattern, rule.action, rule.note)


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
    """Rules from flags: operations that are not allowed get the `default` action, and secrets are denied."""
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


class PermissionAskError(Exception):
    """The rules say "ask", and there is no callback."""

    def __init__(self, operation: Operation, target: str, reason: str = "") -> None:
        self.operation = operation
        self.target = target
        self.reason = reason
        super().__init__(_describe("Permission required", operation, target, reason))

    def __reduce__(self) -> tuple[type[PermissionAskError], tuple[Operation, str, str]]:
        return type(self), (self.operation, self.target, self.reason)


class PermissionDeniedError(Exception):
    """A rule or the callback denied the operation; `rule` is the rule that decided, if any."""

    def __init__(self, operation: Operation, target: str, rule: PermissionRule | None = None) -> None:
        self.operation = operation
        self.target = target
        self.rule = rule
        super().__init__(_describe("Permission denied", operation, target, rule.description if rule else ""))

    def __reduce__(self) -> tuple[type[PermissionDeniedError], tuple[Operation, str, PermissionRule | None]]:
        return type(self), (self.operation, self.target, self.rule)


class PermissionChecker:
    """Checks operations on paths and commands against a ruleset; the first rule that matches decides.

    The target is compared as given. The tools of `CorralToolset` also check the target of links.
    """

    def __init__(
        self,
        ruleset: PermissionRuleset | Permissions,
        ask_callback: AskCallback | None = None,
        ask_fallback: AskFallback = "error",
    ) -> None:
        if ask_fallback not in ("error", "deny"):
            raise ValueError(f"unknown ask_fallback={ask_fallback!r}; use 'error' or 'deny'")
        self._ruleset = ruleset
        self._permissions = as_permissions(ruleset)
        self._ask_callback = ask_callback
        self._ask_fallback = ask_fallback

    @property
    def ruleset(self) -> PermissionRuleset | Permissions:
        """The rules."""
        return self._ruleset

    def check_sync(self, operation: Operation, target: str) -> Action:
        """The action according to the rules, without calling the callback."""
        return self._permissions.decide(operation, target).action

    async def check(self, operation: Operation, target: str, reason: str = "") -> bool:
        """True if the operation is allowed; calls the callback if the rules say "ask".

        Raises:
            PermissionDeniedError: it is denied.
            PermissionAskError: there is no callback, and `ask_fallback` is "error".
        """
        decision = self._permissions.decide(operation, target)
        if decision.action == "allow":
            return True
        if decision.action == "deny":
            raise PermissionDeniedError(operation, target, _as_known(decision.rule) if decision.rule else None)
        if self._ask_callback is not None:
            answer = self._ask_callback(operation, target, reason)
            if await answer if inspect.isawaitable(answer) else answer:
                return True
        elif self._ask_fallback == "error":
            raise PermissionAskError(operation, target, reason)
        raise PermissionDeniedError(operation, target)

    def is_allowed(self, operation: Operation, target: str) -> bool:
        """True if it is allowed without asking."""
        return self.check_sync(operation, target) == "allow"

    def is_denied(self, operation: Operation, target: str) -> bool:
        """True if it is denied."""
        return self.check_sync(operation, target) == "deny"

    def requires_approval(self, operation: Operation, target: str) -> bool:
        """True if the callback must decide."""
        return self.check_sync(operation, target) == "ask"


def _describe(what: str, operation: Operation, target: str, reason: str) -> str:
    return f"{what} for {operation} on '{target}'{f': {reason}' if reason else ''}"
