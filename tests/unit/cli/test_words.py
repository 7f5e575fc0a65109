"""What the library says in Python, the command line says in flags and commands."""

import ast
import re
from collections.abc import Iterator

import pytest

from corral.cli.root import root
from corral.cli.words import FLAGS, begin_in_cli_words, in_cli_words
from corral.errors import all_error_classes
from support.project import SOURCE

# Rooms that the commands don't reach, or reach with hints of their own.
ELSEWHERE = ("adapters/", "environment/", "interpreter/", "server/", "testing/", "tools/", "forge/", "backends/memory/")
# What only a program can run into.
PYTHON_ONLY = (
    "use str(...)", "Spec(snapshot=", "replace=True", "wait=False", "Image.base(", "detach() it", "labels={",
    "packages=[\'numpy\']", "packages=['numpy']", "DaytonaBackend(os_user=", "aclose()", "keep()", "with_options",
)  # fmt: skip
PYTHON = re.compile(r"\b\w+\(\)|(?<![\w-])[a-z_]+=(?!=)|\bTrue\b|\bNone\b")


def list_hints() -> Iterator[tuple[str, str]]:
    """Where an error is made in the rooms below the command line, and what its hint says."""
    errors = {error.__name__ for error in all_error_classes()}
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE).as_posix()
        if relative.startswith((*ELSEWHERE, "cli/")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in errors:
                for keyword in node.keywords:
                    if keyword.arg == "hint":
                        text = re.sub(r"\{[^}]*\}", "…", ast.unparse(keyword.value)).removeprefix("f")
                        yield f"{relative}:{node.lineno}", text.strip("\"'")


def test_no_hint_speaks_python_at_a_terminal() -> None:
    hints = list(list_hints())
    assert len(hints) > 50
    found = [
        f"{where}: {said}"
        for where, hint in hints
        if not any(known in hint for known in PYTHON_ONLY) and PYTHON.search(said := in_cli_words(hint))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("start it: backend.start(id)", "`corral sandbox start ID` starts it"),
        ("packages=[…] or venv= for Python packages", "--package or --venv for Python packages"),
        ("backend='docker' runs images; ephemeral=True is hard", "--backend docker runs images; --ephemeral is hard"),
        ("packages=['a b', 'c'] or workdir='/my work'", "--package 'a b', c or --workdir '/my work'"),
        ("set CORRAL_X=1, write NAME=VALUE or --env name_of=…", "set CORRAL_X=1, write NAME=VALUE or --env name_of=…"),
    ],
)
def test_hints(said: str, shown: str) -> None:
    assert in_cli_words(said) == shown


def test_only_the_beginning_of_a_message_is_ours() -> None:
    message = "cpus=-1.0 is not a valid number of CPUs: name='x' memory=3"
    assert begin_in_cli_words(message) == "--cpus -1.0 is not a valid number of CPUs: name='x' memory=3"


def test_every_flag_is_one() -> None:
    flags: set[str] = set()

    def walk(command: object) -> None:
        flags.update(name for parameter in getattr(command, "params", ()) for name in parameter.opts)
        for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
            walk(command.get_command(None, name))

    walk(root)
    assert {flag for flag in FLAGS.values() if flag.startswith("--")} <= flags
