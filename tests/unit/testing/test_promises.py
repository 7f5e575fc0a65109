"""Every `Raises:` line of the contract, and every rule, has a check behind it."""

import ast
import re
from pathlib import Path

import pytest

from corral import protocol
from corral.base import files, process
from corral.client import sandbox
from corral.testing.conformance import ALL_CHECKS, check_names

OWNERS = {"AsyncProcess": "Process.", "AsyncFiles": "files.", "AsyncSandbox": "", "Backend": "Backend."}
MODULES = (protocol, files, process, sandbox)
NO_CHECK = {
    "apply:ApplyConflictError": "only the user of the host lists folders to mount: the engine's tests do",
    "Backend.create:BackendUnavailableError": "no machine that can't is at hand; the engine's tests take powers away",
    "start:ExitError": "start has no check=",
    "start:ExecTimeoutError": "start has no check=",
    "files.read_text:SandboxFileKindError": "as read, which it calls",
    "run_code:CapabilityError": "it takes neither user nor view",
    "files.read_text:UnicodeDecodeError": "as decode, which is Python's",
}
AS_READ = ("files.read_text", "files.read_stream")  # `read` in other clothes
DERIVED = re.compile(
    r"(connect|find_\w+|open_\w+|start_recorded|resolve|files\.(\w+_batches|find_linked)):"  # on others
    r"|(snapshot|fork|resize|wait_until_gone|Backend\.(need|lacks|\w+_detached)):"  # powers
)


def promised() -> set[str]:
    """Each `Raises:` of the contract as `method:ErrorClass`; "as `other`" is followed."""
    classes = [
        node
        for module in MODULES
        for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name in OWNERS
    ]
    found: dict[str, set[str]] = {}
    links: dict[str, str] = {}
    for cls in classes:
        for method in (node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            name = OWNERS[cls.name] + method.name
            text = (ast.get_docstring(method) or "").partition("Raises:")[2]
            found[name] = set(re.findall(r"\b[A-Z]\w+Error\b", text))
            if link := re.search(r"as `(\w+)`", text):
                links[name] = OWNERS[cls.name] + link[1]
    for name, other in links.items():
        found[name] |= found[other]
    told = {f"{name}:{error}" for name, errors in found.items() for error in errors}
    return {promise for promise in told if not DERIVED.match(promise)}


def kept() -> set[str]:
    return {line for item in ALL_CHECKS for line in item.raises}


def test_the_contract_is_read() -> None:
    assert {"exec:WorkdirError", "files.edit:EditConflictError", "Process.wait:TimeoutError"} <= promised()


def test_every_promise_has_a_check() -> None:
    asked = {promise for promise in promised() - set(NO_CHECK) if promise.partition(":")[0] not in AS_READ}
    assert sorted(asked - kept()) == [], "no check says raises="


def test_every_rule_has_a_check() -> None:
    assert {str(rule) for rule in range(1, 11)} - {item.promise for item in ALL_CHECKS} == set()


def test_checks_are_told_apart() -> None:
    assert len({item.title for item in ALL_CHECKS}) == len(ALL_CHECKS)


def test_list_of_excuses_does_not_rot() -> None:
    with pytest.raises(ValueError, match="no_such_check"):
        check_names({"no_such_check": "because"})
    assert set(NO_CHECK) - {"files.read_text:SandboxFileKindError"} <= promised() | {"run_code:CapabilityError"}
