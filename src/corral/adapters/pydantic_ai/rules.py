"""The known names of permission rules, and `PermissionChecker`, which asks them. Nothing here needs Pydantic AI."""

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
"""Is given the operation, the path or command, and why it is asked; gives whether it may be done."""

AskFallback = Literal["error", "deny"]
"""What `ask` means without a callback: Pydantic AI asks for an approval, or the operation is denied."""

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
        """The rules of one operation; where it has none, the default is all of them."""
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


class PermissionAskError(Exception):
    """The rules say to ask, and there is no callback to ask."""

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
    """Asks a ruleset about an operation and a path or command; the first rule that matches decides.

    A target is compared as it is given. The tools of `CorralToolset` ask besides for where a path really leads.
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
        """The action that the rules decide. The callback is not called."""
        return self._permissions.decide(operation, target).action

    async def check(self, operation: Operation, target: str, reason: str = "") -> bool:
        """True if it may be done; asks where the rules say so.

        Raises:
            PermissionDeniedError: it may not.
            PermissionAskError: there is no callback, and `ask_fallback` is "error".
        """
        decision = self._permissions.decide(operation, target)
        if decision.action == "allow":
            return True
        if decision.action == "deny":
            raise PermissionDeniedError(operation, target, _as_known(decision.rule))
        if self._ask_callback is not None:
            answer = self._ask_callback(operation, target, reason)
            if await answer if inspect.isawaitable(answer) else answer:
                return True
        elif self._ask_fallback == "error":
            raise PermissionAskError(operation, target, reason)
        raise PermissionDeniedError(operation, target)

    def is_allowed(self, operation: Operation, target: str) -> bool:
        """Whether it may be done without asking."""
        return self.check_sync(operation, target) == "allow"

    def is_denied(self, operation: Operation, target: str) -> bool:
        """Whether it may not be done at all."""
        return self.check_sync(operation, target) == "deny"

    def requires_approval(self, operation: Operation, target: str) -> bool:
        """Whether the callback must be asked."""
        return self.check_sync(operation, target) == "ask"


def _describe(what: str, operation: Operation, target: str, reason: str) -> str:
    return f"{what} for {operation} on '{target}'{f': {reason}' if reason else ''}"


def _as_known(rule: Rule | None) -> PermissionRule | None:
    return None if rule is None else PermissionRule(rule.pattern, rule.action, rule.note)
