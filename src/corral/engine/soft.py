"""Memory without a cgroup: init adds up the memory of its processes, and kills the largest if it is too much.

This is a soft limit, and reported as such: between two looks a program can use more.
"""

from __future__ import annotations

import contextlib
import os
import signal

from corral.inside.processes import list_pids, read_stat, thread_folders

_TICKS = os.sysconf("SC_CLK_TCK")


class MemoryWatch:
    """Looks at most every tenth of a second."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._next_look = 0.0
        self.kills = 0

    def look(self, now: float) -> None:
        """Add up; kill the largest process if the sum is over the limit."""
        if now < self._next_look:
            return
        self._next_look = now + 0.1
        if sum(resident_bytes().values()) <= self.limit_bytes:
            return
        # Pages shared after fork were counted more than once: measure exactly before killing anything.
        held = proportional_bytes()
        if not held or sum(held.values()) <= self.limit_bytes:
            return
        largest = max(held, key=lambda pid: held[pid])
        with contextlib.suppress(ProcessLookupError):
            os.kill(largest, signal.SIGKILL)
            self.kills += 1


def count_processes() -> tuple[int, int, float]:
    """Memory, number and CPU seconds of the living processes, without init."""
    ticks, count = 0, 0
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = read_stat(f"/proc/{pid}")
            ticks += int(fields[11]) + int(fields[12])
            count += 1
    return sum(proportional_bytes().values()), count, ticks / _TICKS


def _pids() -> list[int]:
    return [pid for pid in list_pids() if pid != 1]


def resident_bytes() -> dict[int, int]:
    """A quick upper bound: shared pages are counted for each; page tables, which no rlimit sees, as well."""
    return {pid: _count_bytes(pid, "status", (b"RssAnon:", b"RssShmem:", b"VmPTE:")) for pid in _pids()}


def proportional_bytes() -> dict[int, int]:
    """Anonymous and shared memory of each process, pages that several share divided among them, and page tables."""
    pages, tables = (b"Pss_Anon:", b"Pss_Shmem:"), (b"VmPTE:",)
    return {pid: _count_bytes(pid, "smaps_rollup", pages) + _count_bytes(pid, "status", tables) for pid in _pids()}


def _count_bytes(pid: int, file: str, names: tuple[bytes, ...]) -> int:
    """The sizes of these names together. Threads share their memory: any of them shows it."""
    sizes = _read_kib(f"/proc/{pid}/{file}", names)
    if not sizes:
        others = (_read_kib(f"{folder}/{file}", names) for folder in thread_folders(pid))
        sizes = next((found for found in others if found), [])
    return sum(sizes)


def _read_kib(path: str, names: tuple[bytes, ...]) -> list[int]:
    with contextlib.suppress(OSError, ValueError, IndexError), open(path, "rb") as file:
        return [int(line.split()[1]) * 1024 for line in file if line.startswith(names)]
    return []
