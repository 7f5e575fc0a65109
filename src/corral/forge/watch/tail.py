"""Following the log of a run that another process writes, or has written."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from corral.forge.events import ForgeEvent, Listener
from corral.forge.runfolder import open_plain

_POLL_SECONDS = 0.2
_CHUNK_BYTES = 256 * 1024
_MAX_LINE_BYTES = 16 * 1024 * 1024
"""As long as a reader of runs takes them. A longer line is passed over."""


class Tail:
    """Reads what is there, then what is added, line by line; a line counts when its end is there."""

    def __init__(self, path: Path, listener: Listener) -> None:
        self._path = path
        self._listener = listener
        self._at = 0
        self._parts: list[bytes] = []
        self._held = 0
        self._skipping = False

    async def follow(self, *, caught_up: Callable[[], None] = lambda: None) -> None:
        """For ever: cancel it. `caught_up` is called each time when nothing more is there for the moment."""
        while True:
            data = await asyncio.to_thread(self._read)
            if not data:
                caught_up()
                await asyncio.sleep(_POLL_SECONDS)
                continue
            self.take(data)
            await asyncio.sleep(0)  # a long log must not keep the others waiting

    def _read(self) -> bytes:
        try:
            with os.fdopen(open_plain(self._path, os.O_RDONLY), "rb") as file:
                if file.seek(0, 2) < self._at:
                    # A torn last line was cut off before the run went on.
                    self._at, self._parts, self._held, self._skipping = file.tell(), [], 0, False
                file.seek(self._at)
                data = file.read(_CHUNK_BYTES)
        except OSError:  # not there yet
            return b""
        self._at += len(data)
        return data

    def take(self, data: bytes) -> None:
        """Some more of the log."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._hold(line)
            if not self._skipping:
                self._pass_on(b"".join(self._parts))
            self._parts, self._held, self._skipping = [], 0, False
        self._hold(rest)

    def _hold(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > _MAX_LINE_BYTES:
            self._parts, self._skipping = [], True
        elif part:
            self._parts.append(part)

    def _pass_on(self, line: bytes) -> None:
        # A line that somebody wrote by hand may hold anything; the rest of the log is shown all the same.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._listener(ForgeEvent.from_line(line.decode("utf-8", "replace")))
