"""Resources that the kernel counts for the machine or for a user, and not for a sandbox: init counts them for its own.

These are soft limits, and reported as such: between two looks a program can hold more. A look without a shortage costs
a few system calls; what the sandbox holds is only added up in a shortage.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import socket
from collections.abc import Iterator

from corral.engine import syscalls, wire
from corral.inside.nolinks import opened
from corral.inside.processes import list_pids, thread_folders

LOOK_SECONDS = 0.25
MOST_LOCKS = 4096
"""SQLite has five for a connection, apt and dpkg a handful."""
_BLAMED = (
    (4.0, {"pipes": 128, "descriptors": 1, "watches": 1024}),
    (2.0, {"pipes": 128, "descriptors": 8, "watches": 4096}),
    (0.0, {"pipes": 512, "descriptors": 128, "watches": 65536}),
)
"""After so many seconds of a shortage, a sandbox that holds so much is blamed. First those that hold much; later also
those that seem to hold little, since sockets that are in flight themselves can hide the descriptors in them."""
_PAUSE_SECONDS = 1.0
_ROOM_IN_FLIGHT = 512
_F_GETPIPE_SZ = 1032
_EPOLL = "anon_inode:[eventpoll]"
_ENOUGH_WATCHES = 65536
"""A holder of so many is to blame in any case: no need to count further."""


class LockWatch:
    """POSIX locks and those of flock, in all processes of a sandbox.

    `/proc/locks` shows those of processes of its own PID namespace. None can hide from it: the filter refuses locks of
    open files, which belong to no process, and processes that share one table of descriptors, of which the dead one
    would seem to hold the locks.
    """

    def __init__(self, locks_fd: int) -> None:
        self._file = locks_fd
        self._next_look = 0.0
        self._put_off = False

    def look(self, now: float) -> bool:
        """True if there are too many.

        The kernel takes milliseconds to list them, which a short call should not have to wait for: after a silence the
        look is postponed. Only once, since a starved init sees silence too.
        """
        if now < self._next_look:
            return False
        silence = now - self._next_look > LOOK_SECONDS
        self._next_look = now + LOOK_SECONDS
        self._put_off = silence and not self._put_off
        if self._put_off:
            return False
        os.lseek(self._file, 0, os.SEEK_SET)
        seen = 0
        while seen <= MOST_LOCKS and (text := os.read(self._file, 65536)):
            seen += text.count(b"\n") - text.count(b"OFDLCK ")  # those are the host's
        return seen > MOST_LOCKS


class SharedWatch:
    """Limits of a user, for a sandbox that shares its user id with the host's user and other sandboxes.

    There are three: descriptors in flight through sockets, memory for pipes, and watches of epoll. Each is checked by
    trying to get one more.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = wire.make_pair()
        self._next_look = 0.0
        self._short_since: dict[str, float] = {}

    def look(self, now: float) -> str | None:
        """The resource that is short while this sandbox holds too much of it, or None."""
        if now < self._next_look:
            return None
        if now - self._next_look > _PAUSE_SECONDS:
            self._short_since.clear()  # nothing has run meanwhile: that was another shortage
        self._next_look = now + LOOK_SECONDS
        short = {
            "pipes": _are_pipes_short,
            "descriptors": self._are_descriptors_short,
            "watches": self._are_watches_short,
        }
        for name, is_short in short.items():
            if not is_short():
                self._short_since.pop(name, None)
                continue
            seconds = now - self._short_since.setdefault(name, now)
            blamed = next(much for least, much in _BLAMED if seconds >= least)
            if _holds_so_much(blamed, name):
                return name
        return None

    def _are_descriptors_short(self) -> bool:
        """The kernel compares the user's descriptors in flight with the sender's own limit of open files."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_ROOM_IN_FLIGHT, hard), hard))
        try:
            socket.send_fds(self._ours, [b"x"], [self._ours.fileno()])
        except OSError as error:
            return error.errno == errno.ETOOMANYREFS
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        _, received, _, _ = socket.recv_fds(self._theirs, 1, 1)
        wire.close_all(received)
        return False

    def _are_watches_short(self) -> bool:
        """The kernel limits a user's watches to a twenty-fifth of the memory."""
        try:
            with select.epoll() as epoll:
                epoll.register(self._theirs.fileno(), select.EPOLLIN)
        except OSError as error:
            return error.errno == errno.ENOSPC
        return False


def _are_pipes_short() -> bool:
    """Beyond its allowance, a user gets new pipes of two pages."""
    try:
        reader, writer = os.pipe2(os.O_CLOEXEC)
    except OSError:
        return True  # there is a hard limit here as well
    with opened(reader), opened(writer):
        return fcntl.fcntl(writer, _F_GETPIPE_SZ) < 16 * resource.getpagesize()


def _holds_so_much(blamed: dict[str, int], name: str) -> bool:
    held = count_held()
    if held["descriptors"] >= blamed["descriptors"]:
        return True  # pipes and epolls can be among them as well
    return held[name] >= blamed[name]


def count_held() -> dict[str, int]:
    """How many pipes the threads inside hold, how many descriptors wait in their sockets, how much their epolls watch.

    Threads are checked, not processes: a thread can have its own table of descriptors.
    """
    pipes: set[str] = set()
    waiting: dict[str, int] = {}
    watches = 0
    folders = (folder for pid in list_pids() if pid != 1 for folder in _table_folders(pid))
    for folder in folders:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for number in os.listdir(f"{folder}/fd"):
                with contextlib.suppress(OSError):
                    goal = os.readlink(f"{folder}/fd/{number}")
                    if goal.startswith("pipe:"):
                        pipes.add(goal)
                    elif goal.startswith("socket:") and goal not in waiting:
                        waiting[goal] = _count_waiting(f"{folder}/fdinfo/{number}")
                    elif goal == _EPOLL and watches < _ENOUGH_WATCHES:
                        watches += count_watches(f"{folder}/fdinfo/{number}")
    return {"pipes": len(pipes), "descriptors": sum(waiting.values()), "watches": watches}


def _count_waiting(path: str) -> int:
    with open(path, "rb") as file:
        for line in file:
            if line.startswith(b"scm_fds:"):
                return int(line.split()[1])
    return 0


def count_watches(path: str) -> int:
    """How much an epoll watches. Those that processes share are counted for each: nothing tells them apart."""
    found = 0
    with open(path, "rb", buffering=0) as file:
        while found < _ENOUGH_WATCHES and (text := file.read(65536)):
            found += text.count(b"tfd:")
    return found


def _table_folders(pid: int) -> Iterator[str]:
    """As `thread_folders`, without threads that share the table of descriptors of the first or of the one before.

    Nearly all do. With more comparisons, thousands of threads with their own tables would keep init busy.
    """
    first = last = 0
    for folder in thread_folders(pid):
        thread = int(os.path.basename(folder))
        with contextlib.suppress(OSError):  # it has ended meanwhile, or the kernel does not compare
            if first and (syscalls.share_descriptors(thread, first) or syscalls.share_descriptors(thread, last)):
                continue
        first, last = first or thread, thread
        yield folder
