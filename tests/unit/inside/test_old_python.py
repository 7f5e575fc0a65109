"""What is sent into a sandbox may meet a foreign interpreter: it keeps to what Python 3.8 has, and to itself."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import corral.inside

ROOT = Path(corral.inside.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
NEWER = {
    "removeprefix", "removesuffix", "bit_count", "add_note", "ExceptionGroup", "BaseExceptionGroup", "aiter", "anext",
    "to_thread", "TaskGroup", "Runner", "aclosing", "pairwise", "batched", "lcm", "randbytes", "file_digest",
    "pidfd_open", "P_PIDFD", "waitstatus_to_exitcode", "eventfd", "splice", "unshare", "setns", "login_tty",
    "StrEnum", "EnumType", "Self", "TypeAlias", "ParamSpec", "Concatenate", "assert_never", "override", "UTC",
    "tomllib", "zoneinfo", "graphlib", "is_relative_to", "with_stem", "hardlink_to", "orig_argv",
    "stdlib_module_names", "unparse", "indent_tree", "get_annotations", "cancel_futures", "pidfd_send_signal",
    "cache",
}  # fmt: skip
"""Names that came after Python 3.8: of builtins, modules and methods that this code might want."""
OLDER = {"linecache.cache"}
"""What has a newer name, and is older."""
NEWER_OPTIONS = {
    ("realpath", "strict"), ("zip", "strict"), ("dataclass", "slots"), ("dataclass", "kw_only"), ("rmtree", "onexc"),
    ("Popen", "process_group"), ("Popen", "pipesize"), ("Popen", "user"), ("Popen", "group"), ("Popen", "umask"),
    ("extractall", "filter"), ("extract", "filter"), ("glob", "root_dir"), ("shutdown", "cancel_futures"),
}  # fmt: skip
GENERICS = {
    "dict", "list", "tuple", "set", "frozenset", "type", "deque", "Callable", "Iterator", "Sequence", "Mapping",
    "Iterable", "Generator", "Collection",
}  # fmt: skip


def name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Finder(ast.NodeVisitor):
    """What of a module Python 3.8 can't run. Annotations are not run: each module imports them from the future."""

    def __init__(self, from_typing: set[str]) -> None:
        self.found: list[str] = []
        self._from_typing = from_typing

    def say(self, node: ast.AST, what: str) -> None:
        self.found.append(f"line {getattr(node, 'lineno', 0)}: {what}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.body, *node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(part)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)  # type: ignore[arg-type]  # it has the same parts

    def visit_If(self, node: ast.If) -> None:
        for part in node.orelse if name(node.test) == "TYPE_CHECKING" else (node.test, *node.body, *node.orelse):
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in NEWER and ast.unparse(node) not in OLDER:
            self.say(node, node.attr)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in NEWER:
            self.say(node, node.id)

    def visit_Call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if (name(node.func), keyword.arg) in NEWER_OPTIONS:
                self.say(node, f"{name(node.func)}({keyword.arg}=…)")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if name(node.value) in GENERICS - self._from_typing:
            self.say(node, f"{name(node.value)}[…] is an expression from Python 3.9 on")
        self.generic_visit(node)


def look_at(text: str) -> list[str]:
    tree = ast.parse(text, feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    found, typed = [], set()
    for node in imports:
        where = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
        if isinstance(node, ast.ImportFrom) and where == "typing":
            typed = {alias.name for alias in node.names}
        if where.split(".")[0] == "corral" and not where.startswith("corral.inside"):
            found.append(f"line {node.lineno}: imports {where}")
        elif where.split(".")[0] not in {*sys.stdlib_module_names, "corral"}:
            found.append(f"line {node.lineno}: {where} is not of the standard library")
        found += [f"line {node.lineno}: {alias.name}" for alias in node.names if alias.name in NEWER]
    if tree.body[1:] and "annotations" not in {alias.name for node in imports for alias in node.names}:
        found.append("no `from __future__ import annotations`")
    finder = Finder(typed)
    finder.visit(tree)
    return found + finder.found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_runs_on_python_3_8(module: Path) -> None:
    assert look_at(module.read_text()) == []


def find_old_pythons() -> list[str]:
    """Those from 3.8 to 3.10 that this machine happens to have, of the system or of pyenv."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    names = ("python3.8", "python3.9", "python3.10")
    found = (next(map(str, versions.glob(f"*/bin/{name}")), shutil.which(name)) for name in names)
    return [path for path in found if path is not None]


def test_old_pythons_import_every_module() -> None:
    # None is needed, so nothing is skipped: the other tests judge the same by reading.
    modules = [f"corral.inside.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}" for path in MODULES]
    lines = ["import sys", f"sys.path.insert(0, {str(ROOT.parent.parent)!r})"]
    lines += [f"import {module.removesuffix('.__init__')}" for module in modules]
    for python in find_old_pythons():
        done = subprocess.run([python, "-I", "-B", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{python}: {done.stderr}"


HEAD = "'''Doc.'''\nfrom __future__ import annotations\n"


@pytest.mark.parametrize(
    "text",
    [
        "import corral.engine.wire",
        "import click",
        "'a'.removeprefix('b')",
        "def f():\n    return list[int]()",
        "import os\nos.path.realpath('/', strict=True)",
        "from contextlib import aclosing",
        "from functools import cache",
        "def f(a=dict[str, int]):\n    pass",
    ],
)
def test_what_is_newer_is_found(text: str) -> None:
    assert len(look_at(HEAD + text)) == 1


def test_newer_grammar_is_refused() -> None:
    with pytest.raises(SyntaxError):
        look_at(HEAD + "match 1:\n    case 1:\n        pass\n")
    assert (
        look_at(HEAD + "def f(a: dict[str, int] | None = None) -> list[int]:\n    b: list[int] = []\n    return b\n")
        == []
    )
