"""Corral's own three streams, as descriptors: programs in sandboxes print bytes, not text."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from corral.cli.clean import make_cleaner
from corral.inside.writing import write_all
from corral.results import OutputChunk, StreamName

_CHUNK_BYTES = 64 * 1024
_READ_AHEAD = 4
_DESCRIPTORS: dict[StreamName, int] = {"stdout": 1, "stderr": 2}


class Outlet:
    """Streams a program's output: unchanged to files and pipes, cleaned to a terminal."""

    def __init__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._cleaners = {stream: make_cleaner() for stream, fd in _DESCRIPTORS.items() if os.isatty(fd)}

    def take(self, chunk: OutputChunk) -> None:
        """Write a chunk; for `on_output`."""
        self.write(chunk.stream, chunk.data)

    def write(self, stream: StreamName, data: bytes, *, final: bool = False) -> None:
        """Write a piece of one stream."""
        cleaner = self._cleaners.get(stream)
        write_all(_DESCRIPTORS[stream], data if cleaner is None else cleaner.clean(data, final=final).encode())

    def finish(self) -> None:
        """Write what was held back, at the end of the output."""
        for stream in self._cleaners:
            self.write(stream, b"", final=True)


def has_input(*, terminal: bool = False) -> bool:
    """True if stdin is a pipe or a file, or a terminal if that is wanted."""
    try:
        about = os.fstat(0)
    except OSError:
        return False  # closed
    if os.isatty(0):
        return terminal
    return not (stat.S_ISCHR(about.st_mode) and about.st_rdev == Path(os.devnull).stat().st_rdev)


async def read_input() -> AsyncIterator[bytes]:
    """Standard input in pieces.

    A separate thread reads it, and is abandoned at the end: an event loop can't wait for regular files, and a thread
    that waits for a terminal can't be stopped.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_READ_AHEAD)

    def read() -> None:
        data = b"-"
        while data:
            room.acquire()
            try:
                data = os.read(0, _CHUNK_BYTES)
            except OSError:
                data = b""
            try:
                loop.call_soon_threadsafe(queue.put_nowait, data)
            except RuntimeError:
                return  # the loop is closed

    threading.Thread(target=read, name="corral-stdin", daemon=True).start()
    while data := await queue.get():
        room.release()
        yield data


def read_all_input() -> bytes:
    """Standard input to its end."""
    with open(0, "rb", closefd=False) as stream:
        return stream.read()
