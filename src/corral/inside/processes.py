"""The running processes, from /proc.

A process goes on when its first thread has ended, and /proc then shows that thread under the number of the process: a
zombie without memory, descriptors or arguments. So all threads of a process are looked at.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATE, _PARENT, _GROUP, _FAULTS, _THREADS = 0, 1, 2, 7, 17


class Process(NamedTuple):
    """What /proc shows of one process."""

    parent: int
    state: bytes
    faults: int
    group: int = 0


def list_pids() -> list[int]:
    """Every process, zombies included."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def list_processes() -> dict[int, Process]:
    """Every live process, by pid."""
    if sys.platform != "linux":
        return _ask_ps()
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
            processes[pid] = Process(int(fields[_PARENT]), state, int(fields[_FAULTS]), int(fields[_GROUP]))
    return processes


def _ask_ps() -> dict[int, Process]:
    """Ask `ps` where there is no /proc. Never in a sandbox of the engine, where hostile code may replace `ps`."""
    import subprocess  # not needed anywhere else, and init should start fast

    processes: dict[int, Process] = {}
    said = subprocess.run(["ps", "-axo", "pid=,ppid=,pgid=,state="], stdout=subprocess.PIPE, check=False).stdout
    for line in said.splitlines():
        words = line.split()
        if len(words) == 4 and all(word.isdigit() for word in words[:3]) and not words[3].startswith(b"Z"):
            processes[int(words[0])] = Process(int(words[1]), words[3][:1], 0, int(words[2]))
    return processes


def is_dead(stat: list[bytes]) -> bool:
    """True if all threads of a process have ended. Its first thread may be a zombie before that."""
    return stat[_STATE] == b"Z" and int(stat[_THREADS]) <= 1


def read_stat(folder: str) -> list[bytes]:
    """The fields of a `stat` file that follow the name. Raises: OSError."""
    with open(f"{folder}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def thread_folders(pid: int) -> Iterator[str]:
    """The folder in /proc of each thread of a process; nothing once it has ended."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            yield f"/proc/{pid}/task/{thread}"
