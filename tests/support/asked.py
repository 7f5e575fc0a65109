"""A child process that answers one question at a time: so that tests with a common, costly start can be run one by one.

The child reads a name a line from standard input and writes one line of JSON for each. It is started by the first
question and once more after it has died, so that one bad test does not take the answers of the others with it.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ANSWER_SECONDS = 110.0
"""A guard against hanging, below the time limit of a test, so that the failure says what was asked."""
END_SECONDS = 60.0

Start = Callable[..., "subprocess.Popen[str]"]
"""Starts the child; gets `stdin`, `stdout`, `stderr` and `text` as `subprocess.Popen` does."""


class Asked:
    """The child, and what it says."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._child: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - until `close`
        self._lines: queue.Queue[str | None] = queue.Queue()

    def ask(self, name: str) -> dict[str, Any]:
        """The answer to one name. Raises: AssertionError when the child died or said nothing."""
        if self._child is None or self._child.poll() is not None:
            self._begin()
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(f"{name}\n")
        self._child.stdin.flush()
        try:
            line = self._lines.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            self._child.kill()
            raise AssertionError(f"{name}: no answer after {ANSWER_SECONDS:.0f} s\n{self._tail()}") from None
        if line is None:
            code = self._child.wait(timeout=END_SECONDS)
            raise AssertionError(f"{name}: the child ended with {code}\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End of input, and the child's end."""
        if self._child is not None:
            self._end(self._child)
        self._errors.close()

    def _begin(self) -> None:
        if self._child is not None:
            self._end(self._child)
        self._lines = queue.Queue()
        self._child = self._start(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        threading.Thread(target=_read, args=(self._child, self._lines), daemon=True).start()

    def _end(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        try:
            child.stdin.close()
        except BrokenPipeError:
            pass  # it had ended already
        try:
            child.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _tail(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-3000:]


def _read(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            if line.startswith("{"):
                lines.put(line)
    lines.put(None)


@contextmanager
def asking(start: Start) -> Iterator[Asked]:
    """One that is ended at the end of the block."""
    asked = Asked(start)
    try:
        yield asked
    finally:
        asked.close()
