"""Following the log of a run that another process writes, or has written."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from corral.forge.events import Listener
from corral.forge.runfolder import CHUNK_BYTES, EventParser, open_plain

_POLL_SECONDS = 0.2


class Tail:
    """Reads a log, and then what is added to it."""

    def __init__(self, path: Path, listener: Listener) -> None:
        self._path = path
        self._listener = listener
        self._at = 0
        self._parser = EventParser()

    async def follow(self, *, caught_up: Callable[[], None] = lambda: None) -> None:
        """Follow the log until this is cancelled. `caught_up` is called whenever the end is reached."""
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
                    self._at, self._parser = file.tell(), EventParser()
                file.seek(self._at)
                data = file.read(CHUNK_BYTES)
        except OSError:  # not there yet
            return b""
        self._at += len(data)
        return data

    def take(self, data: bytes) -> None:
        """Parse the next bytes of the log and call the listener."""
        for event in self._parser.feed(data):
            # An event that was written by hand may lack anything; the rest of the log is shown all the same.
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                self._listener(event)
