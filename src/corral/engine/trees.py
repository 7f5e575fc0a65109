"""The processes of each call, and how all of them are ended: two implementations of one interface.

`CgroupTrees`: a cgroup2 leaf per call, in which the program is started, ended by one write. `ReaperTrees`: where no
cgroup can be created, a child subreaper per call, which becomes the parent of all its orphans.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from corral.engine import syscalls
from corral.inside.nolinks import opened
from corral.inside.processes import list_processes
from corral.inside.trees import find_below, reap_all

Become = Callable[[], NoReturn]

_FIRST_WORD_SECONDS = 2.0
"""How long a subreaper may take to start, since the code may stop it. Then the call is refused."""
_FREEZE_SECONDS = 2.0
"""How long processes may take to freeze: one that waits for a disk can't freeze before it has its data."""
_BORN_SECONDS = 1.0
"""For how long after a kill we look for children that were forked in the stopped state."""
_BORN_FAULTS = 8
"""A process that has run has more page faults than this."""


class Started(NamedTuple):
    """A child of init. With `status_fd`, the program is *its* child: the end is read there, not by waiting."""

    pid: int
    program_pid: int
    status_fd: int | None


class Trees(abc.ABC):
    """The process trees of a sandbox, by number."""

    def __init__(self) -> None:
        self._helpers: set[int] = set()

    @abc.abstractmethod
    def start(self, number: int, become: Become) -> Started:
        """Fork; the child calls `become`."""

    @abc.abstractmethod
    def kill(self, number: int) -> None:
        """Kill every process of the call, however it hides."""

    @abc.abstractmethod
    def finish(self, number: int) -> bool:
        """Remove the tree if it is empty; False while a process of it still runs."""

    def cpu_seconds(self, number: int) -> float | None:
        """CPU time of the whole tree, None if it is not counted."""
        return None

    def protect(self, pid: int) -> None:
        """Register a helper of Corral, which belongs to no call and is not killed with one."""
        self._helpers.add(pid)

    def wake_helpers(self) -> None:
        """Continue stopped helpers: code with the same uid can stop them."""
        _signal_groups(self._helpers)

    def end_helpers(self) -> None:
        """Kill the helpers; they are started again on demand."""
        _signal_groups(self._helpers, signal.SIGKILL)

    def freeze(self) -> bool | None:
        """Stop every call where it is, and the helpers. None: there is no freezer. False: it took too long."""
        return None

    def thaw(self) -> bool:
        """Unfreeze. False if there is no freezer."""
        return False


class CgroupTrees(Trees):
    """One cgroup2 leaf per call."""

    def __init__(self, group_fd: int) -> None:
        super().__init__()
        self._group = group_fd

    def start(self, number: int, become: Become) -> Started:
        name = f"call{number}"
        os.mkdir(name, 0o755, dir_fd=self._group)
        leaf = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._group)
        try:
            pid = syscalls.clone(0, cgroup_fd=leaf)
            if pid == 0:
                become()
        except OSError:
            os.rmdir(name, dir_fd=self._group)
            raise
        finally:
            os.close(leaf)
        return Started(pid, pid, None)

    def kill(self, number: int) -> None:
        """The kernel's own kill passes over a process whose first thread has ended. A signal reaches that as well, and
        it does not fork meanwhile: it is frozen before."""
        with contextlib.suppress(OSError):
            self._write(f"call{number}/cgroup.freeze", "1")
        try:
            self._write(f"call{number}/cgroup.kill", "1")
        except FileNotFoundError:
            while self._signal_all(number):  # Linux before 5.14
                time.sleep(0.001)
        else:
            self._signal_all(number)

    def _signal_all(self, number: int) -> bool:
        """True if a process was killed."""
        pids = self._read(f"call{number}/cgroup.procs").split()
        for pid in pids:
            signal_one(int(pid), signal.SIGKILL)
        return bool(pids)

    def cpu_seconds(self, number: int) -> float | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(self._read(f"call{number}/cpu.stat").split()[1]) / 1e6
        return None

    def finish(self, number: int) -> bool:
        try:
            os.rmdir(f"call{number}", dir_fd=self._group)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return True

    def freeze(self) -> bool | None:
        leaves = self._leaves()
        try:
            for leaf in leaves:
                self._write(f"{leaf}/cgroup.freeze", "1")
        except FileNotFoundError:
            return None
        _signal_groups(self._helpers, signal.SIGSTOP)
        deadline = time.monotonic() + _FREEZE_SECONDS
        while not all("frozen 1" in self._read(f"{leaf}/cgroup.events") for leaf in leaves):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.0005)
        return True

    def thaw(self) -> bool:
        try:
            for leaf in self._leaves():
                self._write(f"{leaf}/cgroup.freeze", "0")
        except FileNotFoundError:
            return False
        _signal_groups(self._helpers)
        return True

    def _leaves(self) -> list[str]:
        return [name for name in os.listdir(self._group) if name.startswith("call")]

    def _read(self, name: str) -> str:
        with opened(os.open(name, os.O_RDONLY, dir_fd=self._group)) as descriptor:
            return os.read(descriptor, 65536).decode()

    def _write(self, name: str, value: str) -> None:
        with opened(os.open(name, os.O_WRONLY, dir_fd=self._group)) as descriptor:
            os.write(descriptor, value.encode())


class ReaperTrees(Trees):
    """One child subreaper per call. It waits for the program, passes its end on, and stays while orphans live."""

    def __init__(self) -> None:
        super().__init__()
        self._reapers: dict[int, int] = {}
        self._programs: dict[int, int] = {}
        self._stopped: set[int] = set()
        self._last_kill = -_BORN_SECONDS

    def wake_helpers(self) -> None:
        super().wake_helpers()
        _signal_groups(set(self._reapers.values()))
        if time.monotonic() < self._last_kill + _BORN_SECONDS:
            self._wake_newborn()

    def _wake_newborn(self) -> None:
        """A fork that was in progress while we stopped and continued all creates a child in the stopped state.

        The kernel keeps the stop for the child, but drops the continuation when its parent has no handler for it.
        """
        for pid, process in list_processes().items():
            if process.state == b"T" and process.faults <= _BORN_FAULTS and pid not in self._stopped:
                signal_one(pid, signal.SIGCONT)

    def start(self, number: int, become: Become) -> Started:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _reap(become, writer)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # as it does itself: whichever comes first
        os.close(writer)
        self._reapers[number] = pid
        said = _first_word(reader, pid)  # init can't see a process in /proc that has not been exec'd yet
        if not said.strip().isdigit():
            os.close(reader)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        os.set_blocking(reader, False)  # another process may hold the other end open: never wait for it
        self._programs[number] = int(said)
        return Started(pid, int(said), reader)

    def kill(self, number: int) -> None:
        reaper = self._reapers.get(number)
        others = [pid for other, pid in self._reapers.items() if other != number]
        program = [self._programs[number]] if number in self._programs and number in self._reapers else []
        self._stopped = _stop_and_kill(program, spared={reaper, os.getpid()}, others=[*others, *self._helpers])
        self._last_kill = time.monotonic()

    def finish(self, number: int) -> bool:
        pid = self._reapers.get(number)
        if pid is None:
            return True
        self._programs.pop(number, None)  # it has ended, and its number may be reused
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            del self._reapers[number]
            return True
        return False


def _signal_groups(leaders: set[int], number: signal.Signals = signal.SIGCONT) -> None:
    for pid in list(leaders):
        try:
            os.killpg(pid, number)  # each leads its own group
        except ProcessLookupError:
            leaders.discard(pid)


def _first_word(reader: int, pid: int) -> bytes:
    """The first report of a new subreaper. The code may stop it at once, and must not block us with that."""
    deadline = time.monotonic() + _FIRST_WORD_SECONDS
    while not select.select([reader], [], [], 0.02)[0]:
        if time.monotonic() >= deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # with the child that it may have
            return b""
        signal_one(pid, signal.SIGCONT)
    return os.read(reader, 32)


def answer_continuations() -> None:
    """Have a handler for SIGCONT, so that no child of ours starts stopped (see `ReaperTrees`)."""
    signal.set_wakeup_fd(-1)  # it is init's, and about to be closed
    signal.signal(signal.SIGCONT, lambda *_: None)


def _reap(become: Become, status_fd: int) -> NoReturn:
    """The subreaper: reports its child's pid, then "STATUS CPU PEAK_KIB" at its end; exits when no orphan is left."""
    try:
        answer_continuations()
        os.setpgid(0, 0)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        program = os.fork()
        if program == 0:
            become()
        syscalls.close_all_but((status_fd,))  # above all the program's pipes, which must not stay open
        os.write(status_fd, str(program).encode())
        reap_all(program, lambda status, usage: _tell_end(status_fd, status, usage))
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a forked helper must end here in any case
        os._exit(1)


def _tell_end(status_fd: int, status: int, usage: resource.struct_rusage) -> None:
    os.write(status_fd, f"{status} {usage.ru_utime + usage.ru_stime:.6f} {usage.ru_maxrss}".encode())
    os.close(status_fd)


def _stop_and_kill(program: list[int], *, spared: set[int | None], others: list[int]) -> set[int]:
    """Kill the program and all processes outside the other calls' trees.

    Everything is stopped first, in one step under the kernel's own lock, so that no process can escape meanwhile. The
    others continue afterwards, except those that were stopped before: they stay stopped, and are returned.
    """
    stopped = {pid for pid, process in list_processes().items() if process.state == b"T"}
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        return set()  # only this process is left
    try:
        # A program that has not been exec'd yet is not visible in /proc, but known by its number.
        processes = list_processes()
        outside = set(processes) - set(others) - find_below(others, among=processes)
        condemned = {*program, *outside} - spared
        for pid in condemned:
            signal_one(pid, signal.SIGKILL)
        stopped -= condemned
    finally:
        signal_one(-1, signal.SIGCONT)
    for pid in stopped:
        signal_one(pid, signal.SIGSTOP)
    return stopped


def signal_one(pid: int, number: signal.Signals) -> None:
    """Signal a process that may have ended, or with -1 all others.

    Raises PermissionError, unlike `inside.trees.send_signal`: init must be able to end every process.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
