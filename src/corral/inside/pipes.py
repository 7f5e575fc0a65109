"""Output pipes that keep the order of two streams.

Each pipe starts with room for a single packet, so that a program which writes to both in turn waits until the first
piece is read; edge-triggered epoll then reports the pipes in the order of the writes. Once a program has printed much,
its pipes are enlarged, small writes share a page, and speed matters more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import termios
import time
from typing import TYPE_CHECKING, Literal

from corral.inside.ready import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_HAS_PACKETS = sys.platform == "linux"
"""Elsewhere the order between two streams is only close."""
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_ONE_PACKET_BYTES = 4096
_TERMINAL_PIECE_BYTES = 4095
"""The most that one read of a terminal returns."""
EXACT_BYTES = 64 * 1024
"""How much output is read in exact order; then pipes are enlarged."""
_LARGE_PIPE_BYTES = (1024 * 1024, 256 * 1024, 64 * 1024)
READ_BYTES = _LARGE_PIPE_BYTES[0]
NAP_SECONDS = 0.001
"""How long output may collect, once a program has printed much: a read for each line would cost more than the line."""


Turn = Literal["edge", "again", "later", "rearm"]
"""When to read a descriptor again: at its next edge, after the other descriptors, after a nap, or when it is readable,
for which it must be armed again."""


class OutputReading:
    """How the output of one program is read: first in exact order, then fast. For one thread."""

    def __init__(self) -> None:
        self.exact = True
        self._printed = 0
        self._writers: list[int] = []
        self._capacity: dict[int, int] = {}

    def open_pipe(self) -> tuple[int, int]:
        """A pipe that holds one packet: our end, and the program's.

        A copy of the program's end is kept, since packet mode is switched off there; so there is no end of file before
        `close_writers`.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_DIRECT) if _HAS_PACKETS else os.pipe()
        try:
            self._writers.append(os.dup(writer))
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        os.set_blocking(reader, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(reader, _F_SETPIPE_SZ, _ONE_PACKET_BYTES)
        return reader, writer

    def read(self, descriptor: int, *, terminal: bool = False, most: int | None = None) -> bytes | None:
        """The output that is there: None if there is nothing now, empty at the end. In exact order, a single packet.

        With `most`, not much more than that; it may not be less than a packet.
        """
        limit = READ_BYTES if most is None else min(most, READ_BYTES)
        try:
            data = os.read(descriptor, limit)
            if not terminal or self.exact:
                return data
            pieces = [data]
            total = len(data)
            with contextlib.suppress(OSError):  # nothing more, or its end, which the next read reports again
                while len(pieces[-1]) >= _TERMINAL_PIECE_BYTES and total < limit:
                    pieces.append(os.read(descriptor, READ_BYTES))
                    total += len(pieces[-1])
            return b"".join(pieces)
        except BlockingIOError:
            return None
        except OSError:
            return b""  # EIO: the last program has closed the terminal

    def count(self, size: int, outputs: Collection[int], loop: Loop) -> None:
        """Count printed bytes. After `EXACT_BYTES`, change from exact order to speed: enlarge the pipes."""
        self._printed += size
        if self.exact and self._printed > EXACT_BYTES:
            self.exact = False
            self.close_writers()
            for descriptor in outputs:
                self._capacity[descriptor] = _enlarge(descriptor)
                loop.loosen(descriptor)

    def close_writers(self) -> None:
        """Close our copies of the program's ends, and switch packet mode off. Idempotent."""
        writers, self._writers = self._writers, []
        for writer in writers:
            if _HAS_PACKETS:
                with contextlib.suppress(OSError):
                    fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) & ~os.O_DIRECT)
            os.close(writer)

    def read_on(
        self, loop: Loop, descriptor: int, data: bytes | None, read: Callable[[], None], *, most: int | None = None
    ) -> None:
        """Have the loop call `read` when it is time, after a read of at most `most` bytes that returned `data`."""
        turn = self.next_turn(descriptor, data, most=most)
        if turn == "again":
            loop.again(read)
        elif turn == "later":
            loop.call_at((self, descriptor), time.monotonic() + NAP_SECONDS, read)
        elif turn == "rearm":
            loop.loosen(descriptor)

    def next_turn(self, descriptor: int, data: bytes | None, *, most: int | None = None) -> Turn:
        """When to read again, after a read of at most `most` bytes that returned `data`."""
        if self.exact:
            # A pipe with room for one packet has an edge for each: reading again would only overtake the other stream.
            return "again" if data and waiting_bytes(descriptor) > 0 and not _holds_one_packet(descriptor) else "edge"
        if data is None:
            return "rearm"
        if most is not None and len(data) >= min(most, READ_BYTES):
            return "again"  # there may be more than was asked for
        capacity = self._capacity.get(descriptor, 0)
        # A pipe that could not be enlarged is soon full, and the program waits: no nap then.
        return "again" if capacity < _LARGE_PIPE_BYTES[-1] or len(data) > capacity // 4 else "later"


def _holds_one_packet(reader: int) -> bool:
    """True if a pipe still has room for one packet only: then each packet has its own edge."""
    try:
        return fcntl.fcntl(reader, _F_GETPIPE_SZ) <= _ONE_PACKET_BYTES
    except OSError:
        return False


def _enlarge(reader: int) -> int:
    """Enlarge a pipe as far as the user's allowance permits; returns its size."""
    for size in _LARGE_PIPE_BYTES:
        with contextlib.suppress(OSError):
            return fcntl.fcntl(reader, _F_SETPIPE_SZ, size)
    return _LARGE_PIPE_BYTES[-1] if os.isatty(reader) else _ONE_PACKET_BYTES


def waiting_bytes(descriptor: int) -> int:
    """How many bytes can be read without waiting."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    except OSError:
        return 0
    return int(count)
