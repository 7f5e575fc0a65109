"""Disk use of a folder that has no quota, measured a little at a time so that the launcher's loop never waits."""

from __future__ import annotations

import contextlib
import os

_ENTRIES_PER_LOOK = 3000
_REST_SECONDS = 1.0


class DiskWatch:
    """Walks one sandbox's uppers again and again. Soft: between two rounds more can be written."""

    def __init__(self, path: str, limit_bytes: int, limit_inodes: int) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._limit_inodes = limit_inodes
        self._stack: list[str] = []
        self._bytes = self._inodes = 0
        self._next_round = 0.0
        self._hidden = False
        self.used_bytes = 0

    def _count(self, folder: str) -> int:
        seen = 0
        try:
            with os.scandir(folder) as scan:
                for entry in scan:
                    seen += 1
                    with contextlib.suppress(FileNotFoundError):
                        self._bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            self._stack.append(entry.path)
        except FileNotFoundError:
            pass  # it was removed meanwhile
        except OSError:
            # Made unreadable, or too deep for a path: what can't be measured counts as too much.
            if not _is_overlay_work(folder):
                self._hidden = True
        return seen

    def look(self, now: float) -> bool:
        """Walk on; True when the limit has been passed."""
        if not self._stack:
            if now < self._next_round:
                return False
            self._stack, self._bytes, self._inodes, self._hidden = [self._path], 0, 0, False
        seen = 0
        while self._stack and seen < _ENTRIES_PER_LOOK:
            seen += self._count(self._stack.pop())
        self._inodes += seen
        over = self._hidden or self._bytes > self._limit_bytes or self._inodes > self._limit_inodes
        if not self._stack or over:
            self.used_bytes = self._bytes
            self._next_round = now + _REST_SECONDS
            self._stack = []
        return over


def _is_overlay_work(folder: str) -> bool:
    """The kernel's own folder in each overlay, which nobody may read and nothing inside can reach."""
    return os.path.basename(folder) == "work" and os.path.basename(os.path.dirname(folder)) == "w"
