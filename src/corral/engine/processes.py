"""The processes that init sees, as /proc tells them.

A process goes on when its first thread has ended, and /proc then shows that thread under the number of the process: a
zombie without memory, descriptors or arguments. So what a process does and holds is asked of all its threads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from corral.engine import syscalls

_STATE, _PARENT, _FAULTS, _THREADS = 0, 1, 7, 17


class Process(NamedTuple):
    """What /proc says about one."""

    parent: int
    state: bytes
    faults: int


def list_pids() -> list[int]:
    """Every process, dead ones that nobody has waited for as well."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def list_processes() -> dict[int, Process]:
    """Every live process, by pid."""
    processes: dict[int, Process] = {}
    for pid in list_pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = read_stat(f"/proc/{pid}")
            state = fields[_STATE]
            if is_dead(fields):
                continue
            if state == b"Z":
                states = [read_stat(folder)[_STATE] for folder in thread_folders(pid)]
                state = next((other for other in states if other != b"Z"), state)
            processes[pid] = Process(int(fields[_PARENT]), state, int(fields[_FAULTS]))
    return processes


def is_dead(stat: list[bytes]) -> bool:
    """True if no thread of a process lives any more; its first thread may be a zombie before that."""
    return stat[_STATE] == b"Z" and int(stat[_THREADS]) <= 1


def read_stat(folder: str) -> list[bytes]:
    """The fields of a `stat` file that follow the name. Raises: OSError."""
    with open(f"{folder}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def thread_folders(pid: int) -> Iterator[str]:
    """Where /proc has each thread of a process; none once it has ended."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            yield f"/proc/{pid}/task/{thread}"


def table_folders(pid: int) -> Iterator[str]:
    """As `thread_folders`, without threads that share the table of descriptors of the first or of the one before.

    Nearly all do. With more comparisons, thousands of threads with tables of their own would keep init busy.
    """
    first = last = 0
    for folder in thread_folders(pid):
        thread = int(os.path.basename(folder))
        with contextlib.suppress(OSError):  # it has ended meanwhile, or the kernel does not compare
            if first and (syscalls.share_descriptors(thread, first) or syscalls.share_descriptors(thread, last)):
                continue
        first, last = first or thread, thread
        yield folder
