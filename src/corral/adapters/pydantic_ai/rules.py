"""The known names of permission rules: data, with nothing of Pydantic AI."""

from __future__ import annotations

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
