"""The map in ARCHITECTURE.md is the tree, and the rooms are as small and as closed as we say.

The map is a fenced block whose first line begins with `src/corral/`. Below it stands one line for each folder and each
module, indented under its folder, with a few words on what it is for:

    src/corral/
      errors.py     the whole error tree
      engine/       the embedded engine
        plan.py     what will be done to the kernel, as a list

A folder's own `__init__.py` is described by the folder's line; only the front door's is listed. Rules drawn with
`├──` and the like are welcome.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

from support.project import ROOT, SOURCE, list_files, read_blocks

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
HARD_LIMIT_LINES = 500
MODULES = sorted(SOURCE.rglob("*.py"))


def read_map() -> dict[str, str]:
    """Return the map's entries, path from src/corral to description; a folder's path ends in a slash."""
    maps = [block for block in read_blocks(ARCHITECTURE) if block.text.startswith("src/corral/")]
    assert len(maps) == 1, "ARCHITECTURE.md has one fenced block that begins with src/corral/"
    entries: dict[str, str] = {}
    folders: list[tuple[int, str]] = []
    for line in maps[0].text.splitlines()[1:]:
        found = re.match(r"(?P<indent>[\s│├└─]*)(?P<name>[\w.-]+/?)(?P<what>.*)$", line)
        if found is None:
            continue
        column = len(found["indent"])
        while folders and folders[-1][0] >= column:
            folders.pop()
        path = f"{folders[-1][1] if folders else ''}{found['name']}"
        assert path not in entries, f"{path} stands twice on the map"
        entries[path] = found["what"].strip()
        if path.endswith("/"):
            folders.append((column, path))
    return entries


def list_tree() -> set[str]:
    tree: set[str] = set()
    for path in list_files(".py"):
        if not path.is_relative_to(SOURCE):
            continue
        relative = path.relative_to(SOURCE)
        tree.update(f"{folder}/" for folder in relative.parents if folder.name)
        if relative.name != "__init__.py" or len(relative.parts) == 1:
            tree.add(str(relative))
    return tree


def test_map_is_the_tree() -> None:
    on_map = {path for path in read_map() if path.endswith(("/", ".py"))}
    tree = list_tree()
    assert sorted(on_map - tree) == [], "on the map, but not there"
    assert sorted(tree - on_map) == [], "there, but not on the map"


def test_map_says_what_each_is_for() -> None:
    assert [path for path, what in read_map().items() if not what] == []


def test_files_on_the_map_that_are_no_modules_exist() -> None:
    assert [path for path in read_map() if not (SOURCE / path).exists()] == []


def test_no_python_file_passes_the_hard_limit() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in list_files(".py")}
    assert {str(path.relative_to(ROOT)): lines for path, lines in sizes.items() if lines > HARD_LIMIT_LINES} == {}


def list_imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("room", ["engine", "backends/embedded", "backends/memory", "testing"])
def test_room_imports_the_standard_library_only(room: str) -> None:
    own = sys.stdlib_module_names | {"corral"}
    # The bridge to pytest needs more, and nobody imports it but a backend's own test file. What reads wheels needs
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
