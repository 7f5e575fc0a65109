"""PermissionChecker: the known class that asks rules, for code of one's own. It needs no Pydantic AI."""

from __future__ import annotations

import inspect

from corral.adapters.pydantic_ai.rules import (
    AskCallback,
    AskFallback,
    PermissionRule,
    PermissionRuleset,
    as_permissions,
)
from corral.tools.permission import Action, Operation, Permissions, Rule


class PermissionAskError(Exception):
    """Somebody must be asked, and there is nobody."""

    def __init__(self, operation: Operation, target: str, reason: str = "") -> None:
        self.operation = operation
        self.target = target
        self.reason = reason
        super().__init__(_describe("Permission required", operation, target, reason))

    def __reduce__(self) -> tuple[type[PermissionAskError], tuple[Operation, str, str]]:
        return type(self), (self.operation, self.target, self.reason)


class PermissionDeniedError(Exception):
    """A rule forbids it, or whoever was asked did; `rule` is the rule, if one decided."""

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
            raise ValueError(f"ask_fallback={ask_fallback!r} is neither 'error' nor 'deny'")
        self._ruleset = ruleset
        self._permissions = as_permissions(ruleset)
        self._ask_callback = ask_callback
        self._ask_fallback = ask_fallback

    @property
    def ruleset(self) -> PermissionRuleset | Permissions:
        """The rules."""
        return self._ruleset

    def check_sync(self, operation: Operation, target: str) -> Action:
        """What the rules say. Nobody is asked."""
        return self._permissions.decide(operation, target).action

    async def check(self, operation: Operation, target: str, reason: str = "") -> bool:
        """True if it may be done; asks where the rules say so.

        Raises:
            PermissionDeniedError: it may not.
            PermissionAskError: there is nobody to ask, and `ask_fallback` is "error".
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
        """Whether somebody must be asked."""
        return self.check_sync(operation, target) == "ask"


def _describe(what: str, operation: Operation, target: str, reason: str) -> str:
    return f"{what} for {operation} on '{target}'{f': {reason}' if reason else ''}"


def _as_known(rule: Rule | None) -> PermissionRule | None:
    return None if rule is None else PermissionRule(rule.pattern, rule.action, rule.note)
