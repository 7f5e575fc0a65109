"""Disk use of a folder that has no quota, measured a little at a time so that the launcher's loop never waits."""

from __future__ import annotations

import contextlib
import os

from corral.engine import syscalls

_ENTRIES_PER_LOOK = 3000
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
        self.used_bytes = 0

    def set_limits(self, *, limit_bytes: int, limit_inodes: int) -> None:
        """From the next look on."""
        self._limit_bytes, self._limit_inodes = limit_bytes, limit_inodes

    def _count(self, folder: bytes) -> int:
        seen = 0
        try:
            descriptor = open_deep(self._path, folder)
        except (FileNotFoundError, NotADirectoryError):
            return seen  # it was removed or replaced meanwhile
        except OSError:
            # Made unreadable: what can't be measured counts as too much.
            self._hidden = self._hidden or not _is_overlay_work(folder)
            return seen
        try:
            with os.scandir(descriptor) as scan:
                for entry in scan:
                    seen += 1
                    with contextlib.suppress(FileNotFoundError):
                        self._bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            self._push(os.path.join(folder, os.fsencode(entry.name)))
        finally:
            os.close(descriptor)
        return seen

    def _push(self, folder: bytes) -> None:
        self._stack.append(folder)
        self._stack_bytes += len(folder)
        if self._stack_bytes > _STACK_BYTES:
            self._hidden = True  # nobody makes such a tree but to hide in it

    def look(self, now: float) -> bool:
        """Walk on; True when the limit has been passed."""
        if not self._stack:
            if now < self._next_round:
                return False
            self._stack, self._stack_bytes = [b""], 0
            self._bytes, self._inodes, self._hidden = 0, 0, False
        seen = 0
        while self._stack and seen < _ENTRIES_PER_LOOK:
            folder = self._stack.pop()
            self._stack_bytes -= len(folder)
            seen += self._count(folder)
        self._inodes += seen
        over = self._hidden or self._bytes > self._limit_bytes or self._inodes > self._limit_inodes
        if not self._stack or over:
            self.used_bytes = self._bytes
            self._next_round = now + _REST_SECONDS
            self._stack = []
        return over


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
