"""Exit codes: of the command line, of programs, and of what Corral itself could not do (docs/configuration.md)."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from corral.backends.memory import MemoryBackend

Corral = Callable[..., Any]
MEMORY = ("--backend", "memory")
NO_SERVER = ("--url", "http://127.0.0.1:1/api", "--key", "k")
"""And no SDK, so that nothing is tried."""
OURS, USAGE, BESIDE_A_PROGRAM = 1, 2, 125

RUN_PROGRAMS = [("run", "-c", "1"), ("shell", "-c", "true"), ("sandbox", "exec", "gone", "true")]
"""Commands that end with a program's exit code: every small number may be the program's."""
OTHERS = [
    ("sandbox", "create"), ("sandbox", "list"), ("sandbox", "rm", "gone"), ("sandbox", "rm", "--all"),
    ("sandbox", "cp", "gone:a", "."), ("sandbox", "logs", "gone"), ("sandbox", "stop", "gone"),
    ("sandbox", "start", "gone"), ("sandbox", "snapshot", "gone"), ("sandbox", "snapshots"),
    ("sandbox", "fork", "gone"),
]  # fmt: skip
NAMING = [
    (("sandbox", "exec", "gone", "true"), BESIDE_A_PROGRAM),
    (("shell", "gone", "-c", "true"), BESIDE_A_PROGRAM),
    (("sandbox", "rm", "gone"), OURS),
    (("sandbox", "cp", "gone:a", "."), OURS),
    (("sandbox", "cp", "-", "gone:a"), OURS),
]

TABLE = [
    *((words, MEMORY, code) for words, code in NAMING),
    *((words, NO_SERVER, BESIDE_A_PROGRAM) for words in RUN_PROGRAMS),
    *((words, NO_SERVER, OURS) for words in OTHERS),
    *((words, ("--no-such-option",), USAGE) for words in (*RUN_PROGRAMS, *OTHERS)),
    *((words, ("--backend", "no-such-backend"), USAGE) for words in (*RUN_PROGRAMS, *OTHERS)),
    *((words, ("--url", "no address", "--key", "k"), USAGE) for words in (*RUN_PROGRAMS, *OTHERS)),
    (("run",), ("no-such-file.py", *MEMORY), USAGE),
    (("run",), (f"{'long' * 100}.py", *MEMORY), USAGE),
    (("run", "-c", "exit 3", "-l", "sh"), MEMORY, 3),
    (("shell", "-c", "exit 3"), MEMORY, 3),
]


@pytest.mark.parametrize(("words", "more", "code"), TABLE, ids=[" ".join((*row[0], *row[1]))[:80] for row in TABLE])
def test_exit_codes(
    corral: Corral, memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...],
    more: tuple[str, ...], code: int,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "daytona", None)
    group = 2 if words[0] == "sandbox" else 1
    ended = corral(*words[:group], *more, *words[group:])
    assert ended.code == code, ended.stderr
    assert ended.stderr.startswith("corral: error: ") == (code in (OURS, USAGE, BESIDE_A_PROGRAM))


@pytest.mark.parametrize("words", [*RUN_PROGRAMS, *OTHERS], ids=" ".join)
def test_settings_that_can_not_be_read_are_no_exit_code_of_a_program(
    corral: Corral, memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CORRAL_CONFIG", str(tmp_path))  # a folder
    ended = corral(*words, *MEMORY)
    assert ended.code == USAGE, ended.stderr


def test_exec_gives_the_code_of_its_program(corral: Corral, memory: MemoryBackend) -> None:
    box = corral("sandbox", "create", *MEMORY).stdout.strip()
    assert corral("sandbox", "exec", *MEMORY, box, "exit 3").code == 3
