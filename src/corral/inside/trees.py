"""Process trees without cgroups: found by /proc, ended by signals.

On Linux each program runs below a child subreaper, so that all its orphans stay below that. Elsewhere, processes that
lost their parent are found by their process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

from corral.inside.processes import Process, list_processes

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable, Iterable, Mapping

_PARENT_DEATH, _DUMPABLE, _SUBREAPER = 1, 4, 36
_ROUNDS = 200


def find_below(
    roots: Iterable[int], *, groups: Iterable[int] = (), among: Mapping[int, Process] | None = None
) -> set[int]:
    """All living processes that descend from these, or from a member of these groups. Never this process."""
    processes, known, wanted = list_processes() if among is None else among, set(roots), set(groups)
    roots = frozenset(known)
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
        if process.group in wanted:
            known.add(pid)
    stack = list(known)
    while stack:
        for child in children.get(stack.pop(), ()):
            if child not in known:
                known.add(child)
                stack.append(child)
    return {pid for pid in known - roots if pid in processes} - {os.getpid()}


def own_children() -> list[int]:
    """Our direct children, also those that are hidden from other processes."""
    with contextlib.suppress(OSError, ValueError), open("/proc/thread-self/children") as file:
        return [int(word) for word in file.read().split()]
    me = os.getpid()
    return [pid for pid, process in list_processes().items() if process.parent == me]


def send_signal(pids: Iterable[int], number: int) -> None:
    """Signal each process that still exists, if we may."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_below(roots: Iterable[int], *, groups: Iterable[int] = ()) -> None:
    """End all processes that `find_below` finds. All are stopped first, so that none escapes by forking."""
    roots, groups = tuple(roots), tuple(groups)
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = find_below(roots, groups=groups) - stopped
        if not fresh:
            break
        send_signal(fresh, signal.SIGSTOP)
        stopped |= fresh
    send_signal(stopped, signal.SIGKILL)


def become_subreaper() -> None:
    """Orphans below us become our children, and processes of the same user can't read our memory or descriptors."""
    _control(_SUBREAPER, 1)
    _control(_DUMPABLE, 0)


def become_dumpable() -> None:
    """Undo the second part, for a process that is about to become a program: else it does not own its /proc files."""
    _control(_DUMPABLE, 1)


def end_with_parent(number: int, parent: int) -> None:
    """Have the kernel send us a signal when our parent ends; if it has ended already, send it now.

    `parent` is its pid as it was before the fork: by now we may have another one.
    """
    _control(_PARENT_DEATH, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # without it, processes that left their group are not found
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def reap_all(
    program: int,
    tell: Callable[[int, resource.struct_rusage], object],
    *,
    after_each: Callable[[], object] = lambda: None,
) -> None:
    """Wait for all our children, and call `tell` when the program ends. Returns when no child is left."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return
        after_each()
        if pid == program:
            tell(status, usage)


def read_status(status: int) -> tuple[int, int]:
    """The exit code as shells report it, and the signal or 0, from a status of `wait`."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, number
    return os.WEXITSTATUS(status), 0
