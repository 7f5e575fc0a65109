"""The one line about what a program lacked: what was refused comes first, and only plain names are repeated."""

import pytest

from corral.base.needs import describe_needs
from corral.results import Denial, ExecResult, Usage
from corral.spec import NetworkPolicy

PYTHON = (
    "Traceback (most recent call last):\n  File \"x\", line 1\nModuleNotFoundError: No module named 'numpy.linalg'\n"
)
NODE = (
    "node:internal/modules/cjs/loader:1\nError: Cannot find module '@scope/left-pad'\nRequire stack:\n- /x\n\nNode.js\n"
)


def line(
    stderr: str, *denied: Denial, network: str | None = None, door: str = "library", flag: str = "--network"
) -> str:
    result = ExecResult(1, "exited", Usage(0.0), stderr_bytes=stderr.encode(), denied=denied)
    return describe_needs(result, NetworkPolicy.parse(network), door=door, flag=flag)  # type: ignore[arg-type]


def test_speaks_in_the_words_of_its_door() -> None:
    begin = "python: there is no module 'numpy'; if it is a package, "
    assert line(PYTHON) == f"{begin}add it with packages=['numpy']"
    assert line(PYTHON, door="command line") == f"{begin}add it with --package numpy"
    exec_flag = "corral sandbox network box"
    assert line(PYTHON, door="command line", flag=exec_flag) == (
        f"{begin}run pip install numpy before it, with corral sandbox network box packages"
    )
    assert line(PYTHON, door="model") == f"{begin}ask the user to add it, or to allow pip install numpy"
    assert line(PYTHON, door="model", network="packages") == f"{begin}run pip install numpy before it"


def test_knows_what_node_says() -> None:
    begin = "node: there is no module '@scope/left-pad'; if it is a package, "
    assert line(NODE) == f'{begin}run npm install @scope/left-pad before it, with network="packages"'
    assert line(NODE, door="command line").endswith("before it, with --network packages")
    assert line(NODE, door="model", network="open") == f"{begin}run npm install @scope/left-pad before it"


def test_what_was_refused_comes_first() -> None:
    assert line(PYTHON, Denial("a.org", None, "no network")).startswith("network: blocked a.org")


@pytest.mark.parametrize(
    "stderr",
    [
        "", "ModuleNotFoundError", "Cannot find module './mine'", "Cannot find module '/x/y'",
        "ModuleNotFoundError: No module named '\x1b[2J'", "ModuleNotFoundError: No module named 'x; rm -rf'",
        "Cannot find module 'x y'", f"Cannot find module '{'x' * 200}'",
    ],
)  # fmt: skip
def test_says_nothing_about_what_is_no_plain_name(stderr: str) -> None:
    assert line(stderr) == ""


def test_python_says_it_for_a_module_that_is_run_too() -> None:
    assert "'pytest'" in line("/usr/bin/python3: No module named pytest\n")


def test_a_program_that_succeeds_lacks_nothing() -> None:
    result = ExecResult(0, "exited", Usage(0.0), stderr_bytes=PYTHON.encode())
    assert describe_needs(result, NetworkPolicy()) == ""
