"""The known class that asks rules: its methods, its errors, their messages."""

import pickle
import subprocess
import sys

import pytest

from corral.adapters.pydantic_ai import (
    DEFAULT_RULESET,
    PERMISSIVE_RULESET,
    READONLY_RULESET,
    STRICT_RULESET,
    OperationPermissions,
    PermissionAskError,
    PermissionChecker,
    PermissionDeniedError,
    PermissionRule,
    PermissionRuleset,
    create_ruleset,
)

RULES = PermissionRuleset(
    default="ask",
    read=OperationPermissions(
        "allow",
        [PermissionRule("/data/public/**", "allow"), PermissionRule("/data/**", "deny", "Data is private")],
    ),
    execute=OperationPermissions("deny", [PermissionRule("git *", "allow"), PermissionRule("make *", "ask")]),
)


@pytest.mark.parametrize(
    ("operation", "target", "action"),
    [
        ("read", "/home/a.txt", "allow"),
        ("read", "/data/x/secret.csv", "deny"),
        ("read", "/data/public/a.csv", "allow"),  # the first that matches decides
        ("write", "/home/a.txt", "ask"),  # no rules of its own: the default
        ("execute", "git log --oneline /data/x", "allow"),
        ("execute", "make all", "ask"),
        ("execute", "rm -rf /", "deny"),
    ],
)
def test_what_the_rules_say(operation: str, target: str, action: str) -> None:
    checker = PermissionChecker(RULES)
    assert checker.check_sync(operation, target) == action  # type: ignore[arg-type]
    said = (
        checker.is_allowed(operation, target),  # type: ignore[arg-type]
        checker.requires_approval(operation, target),  # type: ignore[arg-type]
        checker.is_denied(operation, target),  # type: ignore[arg-type]
    )
    assert said == (action == "allow", action == "ask", action == "deny")


async def test_check_allows_or_says_why_not() -> None:
    checker = PermissionChecker(ruleset=RULES)
    assert checker.ruleset is RULES
    assert await checker.check("read", "/home/a.txt") is True
    with pytest.raises(PermissionDeniedError) as denied:
        await checker.check("read", "/data/x.csv")
    assert str(denied.value) == "Permission denied for read on '/data/x.csv': Data is private"
    assert (denied.value.operation, denied.value.target) == ("read", "/data/x.csv")
    assert denied.value.rule == PermissionRule("/data/**", "deny", "Data is private")
    with pytest.raises(PermissionDeniedError) as denied:
        await checker.check("execute", "reboot")
    assert str(denied.value) == "Permission denied for execute on 'reboot'"
    assert denied.value.rule is None


async def test_check_asks_whom_it_was_given() -> None:
    asked: list[tuple[str, str, str]] = []

    async def answer(operation: str, target: str, reason: str) -> bool:
        asked.append((operation, target, reason))
        return target == "yes"

    checker = PermissionChecker(RULES, answer)
    assert await checker.check("write", "yes", "to save") is True
    with pytest.raises(PermissionDeniedError):
        await checker.check("write", "no")
    assert asked == [("write", "yes", "to save"), ("write", "no", "")]
    assert await PermissionChecker(RULES, lambda *_: True).check("write", "x") is True


async def test_check_with_nobody_to_ask() -> None:
    with pytest.raises(PermissionAskError) as error:
        await PermissionChecker(RULES).check("write", "/a", "to save")
    assert str(error.value) == "Permission required for write on '/a': to save"
    assert (error.value.operation, error.value.target, error.value.reason) == ("write", "/a", "to save")
    assert str(PermissionAskError("write", "/a")) == "Permission required for write on '/a'"
    with pytest.raises(PermissionDeniedError):
        await PermissionChecker(RULES, ask_fallback="deny").check("write", "/a")
    with pytest.raises(ValueError, match="unknown ask_fallback"):
        PermissionChecker(RULES, ask_fallback="allow")  # type: ignore[arg-type]


def test_the_errors_survive_a_pickle_and_are_no_os_error() -> None:
    rule = PermissionRule("/x", "deny", "why")
    denied = pickle.loads(pickle.dumps(PermissionDeniedError("read", "/x", rule)))
    assert (denied.operation, denied.target, denied.rule, str(denied)[-3:]) == ("read", "/x", rule, "why")
    asked = pickle.loads(pickle.dumps(PermissionAskError("read", "/x", "why")))
    assert (asked.target, asked.reason) == ("/x", "why")
    assert not isinstance(denied, OSError)


@pytest.mark.parametrize(
    ("rules", "read", "env", "write", "run"),
    [
        (DEFAULT_RULESET, "allow", "deny", "ask", "ask"),
        (PERMISSIVE_RULESET, "allow", "deny", "allow", "allow"),
        (READONLY_RULESET, "allow", "deny", "deny", "deny"),
        (STRICT_RULESET, "ask", "deny", "ask", "ask"),
        (create_ruleset(allow_write=True), "allow", "deny", "allow", "ask"),
        (create_ruleset(deny_secrets=False, default="deny"), "allow", "allow", "deny", "deny"),
    ],
    ids=["default", "permissive", "readonly", "strict", "made", "made-without-secrets"],
)
def test_the_presets(rules: PermissionRuleset, read: str, env: str, write: str, run: str) -> None:
    checker = PermissionChecker(rules)
    assert checker.check_sync("read", "/project/a.py") == read
    assert checker.check_sync("read", "/project/.env") == env
    assert checker.check_sync("write", "/project/a.py") == write
    assert checker.check_sync("execute", "ls") == run


def test_the_rules_of_an_operation() -> None:
    assert RULES.get_operation_permissions("read") is RULES.read
    assert RULES.get_operation_permissions("ls") == OperationPermissions("ask")


def test_it_needs_no_pydantic_ai() -> None:
    script = """
import sys
sys.modules["pydantic_ai"] = None
from corral.adapters.pydantic_ai import DEFAULT_RULESET, PermissionChecker, SessionManager, create_ruleset
print(PermissionChecker(DEFAULT_RULESET).check_sync("read", "/a/.env"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "deny\n"
