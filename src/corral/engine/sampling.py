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
        self.used_bytes = 0

    def look(self, now: float) -> bool:
        """Walk on; True when the limit has been passed."""
        if not self._stack:
            if now < self._next_round:
                return False
            self._stack, self._bytes, self._inodes = [self._path], 0, 0
        seen = 0
        while self._stack and seen < _ENTRIES_PER_LOOK:
            with contextlib.suppress(OSError), os.scandir(self._stack.pop()) as scan:
                for entry in scan:
                    seen += 1
                    with contextlib.suppress(OSError):
                        self._bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            self._stack.append(entry.path)
        self._inodes += seen
        over = self._bytes > self._limit_bytes or self._inodes > self._limit_inodes
        if not self._stack or over:
            self.used_bytes = self._bytes
            self._next_round = now + _REST_SECONDS
            self._stack = []
        return over
