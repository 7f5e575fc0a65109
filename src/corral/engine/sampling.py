"""Disk use of a folder that has no quota, measured a little at a time so that the launcher's loop never waits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from corral.engine import syscalls

ENTRIES_PER_LOOK = 500
"""A look takes a few milliseconds: whoever is asked for something else meanwhile does not wait for more."""
WALKING_SECONDS = 0.01
"""How soon to look again while a walk is under way."""
_REST_SECONDS = 1.0
_PATH_BYTES = 3000
_STACK_BYTES = 16 * 1024 * 1024


class DiskWatch:
    """Walks one sandbox's uppers again and again. Soft: between two rounds more can be written."""

    def __init__(self, path: str, limit_bytes: int, limit_inodes: int) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._limit_inodes = limit_inodes
        self._stack: list[bytes] = []
        self._stack_bytes = 0
        self._bytes = self._inodes = 0
        self._next_round = 0.0
        self._hidden = False
        self._scan: Iterator[int] | None = None
        self.used_bytes = 0
        self.looked = 0.0
        """When, so that several can take turns."""

    @property
    def walking(self) -> bool:
        """Whether a round is under way, and the next look goes on with it."""
        return self._scan is not None or bool(self._stack)

    def is_due(self, now: float) -> bool:
        """Whether a look would do anything."""
        return self.walking or now >= self._next_round

    def close(self) -> None:
        """Let go of the folder that is being read. Idempotent."""
        self._stack, self._scan = [], None

    def set_limits(self, *, limit_bytes: int, limit_inodes: int) -> None:
        """From the next look on."""
        self._limit_bytes, self._limit_inodes = limit_bytes, limit_inodes

    def _read(self, folder: bytes) -> Iterator[int]:
        """Count a folder's entries, one at each step: it may hold more than one look can see."""
        try:
            descriptor = open_deep(self._path, folder)
        except (FileNotFoundError, NotADirectoryError):
            return  # it was removed or replaced meanwhile
        except OSError:
            # Made unreadable: what can't be measured counts as too much.
            self._hidden = self._hidden or not _is_overlay_work(folder)
            return
        try:
            with os.scandir(descriptor) as scan:
                for entry in scan:
                    with contextlib.suppress(FileNotFoundError):
                        self._bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            self._push(os.path.join(folder, os.fsencode(entry.name)))
                    yield 1
        finally:
            os.close(descriptor)

    def _push(self, folder: bytes) -> None:
        self._stack.append(folder)
        self._stack_bytes += len(folder)
        if self._stack_bytes > _STACK_BYTES:
            self._hidden = True  # nobody makes such a tree but to hide in it

    def look(self, now: float) -> bool:
        """Walk on; True when the limit has been passed."""
        if not self.is_due(now):
            return False
        self.looked = now
        if not self.walking:
            self._stack, self._stack_bytes = [b""], 0
            self._bytes, self._inodes, self._hidden = 0, 0, False
        steps = ENTRIES_PER_LOOK
        while steps > 0 and self.walking:
            if self._scan is None:
                folder = self._stack.pop()
                self._stack_bytes -= len(folder)
                self._scan = self._read(folder)
            steps -= 1  # to open an empty folder is work too
            if next(self._scan, None) is None:
                self._scan = None
            else:
                self._inodes += 1
        over = self._hidden or self._bytes > self._limit_bytes or self._inodes > self._limit_inodes
        if over or not self.walking:
            self.used_bytes = self._bytes
            self._next_round = now + _REST_SECONDS
            self.close()
        return over


def next_in_turn(watches: Iterable[DiskWatch], now: float) -> DiskWatch | None:
    """The one to look at now: whoever has waited longest. One at a time: many sandboxes cost no more than one."""
    return min((watch for watch in watches if watch.is_due(now)), key=lambda watch: watch.looked, default=None)


def open_deep(root: str, relative: bytes) -> int:
    """Open a folder below another, by links never, and however long its path is."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    rest = relative
    while rest:
        cut = len(rest) if len(rest) <= _PATH_BYTES else rest.rindex(b"/", 0, _PATH_BYTES)
        part, rest = rest[:cut], rest[cut:].lstrip(b"/")
        try:
            inner = syscalls.openat2(
                descriptor, part, os.O_RDONLY | os.O_DIRECTORY, resolve=syscalls.RESOLVE_NO_SYMLINKS
            )
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _is_overlay_work(folder: bytes) -> bool:
    """The kernel's own folder in each overlay, which nobody may read and nothing inside can reach."""
    return os.path.basename(folder) == b"work" and os.path.basename(os.path.dirname(folder)) == b"w"
