"""Every `Raises:` line of the contract, and every rule, has a check behind it."""

import ast
import re
from pathlib import Path

import pytest

from corral import protocol
from corral.testing.conformance import ALL_CHECKS, check_names

OWNERS = {"Process": "Process.", "AsyncFiles": "files.", "AsyncSandbox": "", "Backend": "Backend."}
NO_CHECK = {
    "Backend.create:BackendUnavailableError": "no machine that can't is at hand; the engine's tests take powers away",
    "start:ExitError": "start has no check=",
    "start:ExecTimeoutError": "start has no check=",
    "files.read_text:SandboxFileKindError": "as read, which it calls",
    "run_code:CapabilityError": "it takes neither user nor view",
}


def promised() -> set[str]:
    """Each `Raises:` of the contract as `method:ErrorClass`; "as `other`" is followed."""
    tree = ast.parse(Path(protocol.__file__).read_text(encoding="utf-8"))
    found: dict[str, set[str]] = {}
    links: dict[str, str] = {}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in OWNERS):
        for method in (node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            name = OWNERS[cls.name] + method.name
            text = (ast.get_docstring(method) or "").partition("Raises:")[2]
            found[name] = set(re.findall(r"\b[A-Z]\w+Error\b", text))
            if link := re.search(r"as `(\w+)`", text):
                links[name] = OWNERS[cls.name] + link[1]
    for name, other in links.items():
        found[name] |= found[other]
    return {f"{name}:{error}" for name, errors in found.items() for error in errors}


def kept() -> set[str]:
    return {line for item in ALL_CHECKS for line in item.raises}


def test_the_contract_is_read() -> None:
    assert {"exec:WorkdirError", "files.edit:EditConflictError", "Process.wait:TimeoutError"} <= promised()


@pytest.mark.parametrize("promise", sorted(promised() - {"files.read_text:UnicodeDecodeError"}))
def test_promise_has_a_check(promise: str) -> None:
    if promise in NO_CHECK or promise.partition(":")[0] in ("files.read_text", "files.read_stream"):
        return  # those are `read` in other clothes
    assert promise in kept(), f"no check says raises=({promise!r},)"


@pytest.mark.parametrize("rule", range(1, 11))
def test_rule_has_a_check(rule: int) -> None:
    assert any(item.promise == str(rule) for item in ALL_CHECKS)


def test_checks_are_told_apart() -> None:
    assert len({item.title for item in ALL_CHECKS}) == len(ALL_CHECKS)
    assert all(
        item.title[0].isupper() or item.title[0] in "*0123456789" or item.title.split("(")[0] for item in ALL_CHECKS
    )


def test_list_of_excuses_does_not_rot() -> None:
    with pytest.raises(ValueError, match="no_such_check"):
        check_names({"no_such_check": "because"})
    assert set(NO_CHECK) - {"files.read_text:SandboxFileKindError"} <= promised() | {"run_code:CapabilityError"}
