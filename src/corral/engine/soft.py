"""Memory without a cgroup: init adds up what its processes hold, and ends the largest when it is too much.

This is a soft limit, and reported as such: between two looks a program can hold more.
"""

from __future__ import annotations

import contextlib
import os
import signal

_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Looks at most every tenth of a second."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._next_look = 0.0
        self.kills = 0

    def look(self, now: float) -> None:
        """Add up; kill the largest process if the sum is over the limit."""
        if now < self._next_look:
            return
        self._next_look = now + 0.1
        held = _private_bytes()
        if sum(held.values()) <= self._limit:
            return
        largest = max(held, key=lambda pid: held[pid])
        with contextlib.suppress(ProcessLookupError):
            os.kill(largest, signal.SIGKILL)
            self.kills += 1


def _private_bytes() -> dict[int, int]:
    """Resident minus shared pages of each process but init."""
    held: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/statm", "rb") as file:
            words = file.read().split()
            held[int(name)] = (int(words[1]) - int(words[2])) * _PAGE
    return held
