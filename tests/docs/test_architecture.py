"""The map is up to date, the architecture fits on a page, and the layers are as documented."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import ROOT, SOURCE

MODULES = sorted(SOURCE.rglob("*.py"))
NOUNS = {
    "__init__", "__main__", "errors", "image", "languages", "mount", "paths", "protocol", "requirement", "secret",
    "results", "spec",
}  # fmt: skip


def test_map_is_up_to_date() -> None:
    assert subprocess.run([sys.executable, ROOT / "tools/map", "--check"]).returncode == 0, "run tools/map"


def test_architecture_is_a_page() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_top_level_has_the_nouns_of_the_contract_and_rooms() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == NOUNS


def list_imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("room", ["inside", "engine", "backends/embedded", "backends/memory", "testing"])
def test_room_imports_the_standard_library_only(room: str) -> None:
    own = sys.stdlib_module_names | {"corral"}
    # The bridge to pytest needs more, and only a backend's test file imports it. What reads wheels needs
    # packaging, which a bare install has, and is imported when there are packages to fetch.
    needing_more = {SOURCE / "testing/pytest.py", SOURCE / "backends/embedded/wheels.py"}
    modules = [path for path in MODULES if path.is_relative_to(SOURCE / room) and path not in needing_more]
    assert modules
    assert {str(path.relative_to(SOURCE)): found for path in modules if (found := list_imports(path) - own)} == {}


def test_every_module_says_what_it_is_for() -> None:
    trees = {path: ast.parse(path.read_bytes()) for path in MODULES}
    silent = [path for path, tree in trees.items() if tree.body and ast.get_docstring(tree) is None]
    assert [str(path.relative_to(ROOT)) for path in silent] == []


def test_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()
