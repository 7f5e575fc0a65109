"""Disk use of a folder that has no quota, measured a little at a time so that the launcher's loop never waits."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from typing import NoReturn

from corral.engine import syscalls
from corral.engine.forking import fork_reader
from corral.inside.nolinks import open_file, opened

ENTRIES_PER_LOOK = 500
"""One step takes a few milliseconds, so that other requests don't wait longer."""
WALKING_SECONDS = 0.01
"""How soon to look again while a walk is under way."""
_REST_SECONDS = 1.0
_STACK_BYTES = 16 * 1024 * 1024
_ANSWER_BYTES = 4096


class DiskWatch:
    """Walks one sandbox's uppers again and again. Soft: between two rounds more can be written.

    If our user may not read one of the folders, a child that may repeats the round (`fork_reader`).
    """

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
        self._answer: int | None = None
        """The pipe of the child that does this round."""
        self.used_bytes = 0
        self.looked = 0.0
        """The time of the last look, so that several watches can take turns."""

    @property
    def walking(self) -> bool:
        """True if a round is in progress, which the next step continues."""
        return self._scan is not None or bool(self._stack) or self._answer is not None

    def is_due(self, now: float) -> bool:
        """True if it is time for a look."""
        return self.walking or now >= self._next_round

    def close(self) -> None:
        """Close the folder that is being read, and stop the child that reads. Idempotent."""
        self._stack, self._scan = [], None
        if self._answer is not None:
            os.close(self._answer)
            self._answer = None

    def set_limits(self, *, limit_bytes: int, limit_inodes: int) -> None:
        """From the next look on."""
        self._limit_bytes, self._limit_inodes = limit_bytes, limit_inodes

    def _read(self, folder: bytes) -> Iterator[int]:
        """Count a folder's entries, one at each step: it may hold more than one look can see.

        Raises:
            PermissionError: its mode keeps our user out.
        """
        try:
            descriptor = open_deep(self._path, folder)
        except (FileNotFoundError, NotADirectoryError):
            return  # it was removed or replaced meanwhile
        except PermissionError:
            if _is_overlay_work(folder):
                return
            raise
        except OSError as error:
            # An unmeasurable folder counts as too much, unless it was replaced by a link meanwhile.
            self._hidden = self._hidden or error.errno != errno.ELOOP
            return
        with opened(descriptor), os.scandir(descriptor) as scan:
            for entry in scan:
                with contextlib.suppress(FileNotFoundError):
                    self._bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        self._push(os.path.join(folder, os.fsencode(entry.name)))
                yield 1

    def _push(self, folder: bytes) -> None:
        self._stack.append(folder)
        self._stack_bytes += len(folder)
        if self._stack_bytes > _STACK_BYTES:
            self._hidden = True  # such a tree has no other purpose than to hide its size

    def look(self, now: float) -> bool:
        """Walk on; True when the limit has been passed."""
        if not self.is_due(now):
            return False
        self.looked = now
        if self._answer is not None:
            self._hear(self._answer)
        else:
            if not self.walking:
                self._begin()
            try:
                self._walk()
            except PermissionError:
                self._ask_child()
        over = self._is_over()
        if over or not self.walking:
            self.used_bytes = self._bytes
            self._next_round = now + _REST_SECONDS
            self.close()
        return over

    def _begin(self) -> None:
        self._stack, self._stack_bytes = [b""], 0
        self._bytes, self._inodes, self._hidden = 0, 0, False

    def _walk(self) -> None:
        """A bounded piece of the round. Raises: PermissionError."""
        steps = ENTRIES_PER_LOOK
        while steps > 0 and self.walking:
            if self._scan is None:
                folder = self._stack.pop()
                self._stack_bytes -= len(folder)
                self._scan = self._read(folder)
            steps -= 1  # opening an empty folder is work too
            if next(self._scan, None) is None:
                self._scan = None
            else:
                self._inodes += 1

    def _is_over(self) -> bool:
        return self._hidden or self._bytes > self._limit_bytes or self._inodes > self._limit_inodes

    def _ask_child(self) -> None:
        """Have a child do the whole round. Not the locked folder alone: its mode may change at any moment."""
        self.close()
        try:
            self._answer = fork_reader(self._be_child)
            os.set_blocking(self._answer, False)
        except OSError:
            self._hidden = True  # what can't be measured counts as too much

    def _be_child(self, writer: int) -> NoReturn:
        try:
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            syscalls.close_all_but((0, 1, 2, writer))
            self._begin()
            while self.walking and not self._is_over():
                self._walk()
                time.sleep(WALKING_SECONDS)  # many sandboxes with such folders must not use up the host's processors
            os.write(writer, json.dumps([self._bytes, self._inodes, self._hidden]).encode())
        finally:
            os._exit(0)  # it must never return into its parent's loop

    def _hear(self, answer: int) -> None:
        """Take over what the child has measured, if it is done."""
        try:
            said = os.read(answer, _ANSWER_BYTES)
        except BlockingIOError:
            return
        if said:
            self._bytes, self._inodes, self._hidden = json.loads(said)
        else:
            self._hidden = True  # it was ended: what can't be measured counts as too much
        self.close()


def next_in_turn(watches: Iterable[DiskWatch], now: float) -> DiskWatch | None:
    """The next one to measure: the one that has waited longest. One at a time: many sandboxes cost no more than one."""
    return min((watch for watch in watches if watch.is_due(now)), key=lambda watch: watch.looked, default=None)


def open_deep(root: str, relative: bytes) -> int:
    """Open a folder below another, without following links; its path may be of any length."""
    return open_file(root, os.fsdecode(relative).split("/"), os.O_RDONLY | os.O_DIRECTORY)


def _is_overlay_work(folder: bytes) -> bool:
    """The kernel's own folder in each overlay (N/w/work), which no user may read and nothing inside can reach."""
    return folder.count(b"/") == 2 and folder.endswith(b"/w/work")  # by its depth: the code may use that name too
