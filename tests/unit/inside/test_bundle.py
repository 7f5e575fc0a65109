"""What is sent inside as text: it stands alone, and its parts don't take each other's names."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from corral.base.agent.channel import AGENT_PARTS
from corral.base.taskfiles import FILE_PARTS
from corral.inside.bundle import bundle
from corral.sessions.interpreter.oneshot import CHARTS_PART
from corral.sessions.interpreter.process import DRIVER_PARTS

BUNDLES = {"agent": AGENT_PARTS, "files": FILE_PARTS, "driver": DRIVER_PARTS, "charts": (CHARTS_PART,)}


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
