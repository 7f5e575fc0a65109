"""What is sent inside as text: it stands alone, runs on old Pythons, and its parts don't take each other's names."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral.inside
from corral.base.agent.channel import AGENT_PARTS
from corral.inside.bundle import bundle
from corral.sessions.interpreter.bundle import DRIVER_PARTS

HERE = Path(corral.inside.__file__).parent
BUNDLES = {"agent": AGENT_PARTS, "driver": DRIVER_PARTS, "charts": ("interpreter.charts",)}
NEWER = {"pairwise", "batched", "removeprefix", "removesuffix", "aiter", "anext", "to_thread", "TaskGroup", "bit_count"}
"""Names of Python 3.9 and later that come to mind first."""


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@pytest.mark.parametrize("name", BUNDLES)
def test_text_stands_alone_and_defines_no_name_twice(name: str) -> None:
    tree = ast.parse(bundle(*BUNDLES[name]), feature_version=(3, 8))
    foreign = {module for module in imported(tree) if module.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign == set()
    assert [word for word, count in Counter(defined(tree)).items() if count > 1] == []


@pytest.mark.parametrize("path", sorted(HERE.rglob("*.py")), ids=lambda path: str(path.relative_to(HERE)))
def test_module_runs_on_old_pythons_and_imports_nothing_else_of_ours(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 8))
    for module in imported(tree):
        top = module.partition(".")[0]
        assert module.startswith("corral.inside") or (top in sys.stdlib_module_names and top != "corral"), module
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert used & NEWER == set()
    assert not any(isinstance(node, ast.Match | ast.TryStar) for node in ast.walk(tree))
