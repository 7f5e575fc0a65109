"""Output pipes that tell the order of two streams.

Each pipe starts with room for a single packet, so that a program which writes to both in turn waits until the first
piece is taken; edge-triggered epoll then reports the pipes in the order in which they were written. Once a program has
printed much, its pipes get large, small writes share a page, and speed comes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import termios
from typing import Literal

_HAS_PACKETS = sys.platform == "linux"
"""Elsewhere the order between two streams is only close."""
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_ONE_PACKET_BYTES = 4096
_TERMINAL_PIECE_BYTES = 4095
"""A terminal gives no more at once, however much it holds."""
EXACT_BYTES = 64 * 1024
"""So much output is read in exact order; beyond it, pipes are enlarged."""
_LARGE_PIPE_BYTES = (1024 * 1024, 256 * 1024, 64 * 1024)
READ_BYTES = _LARGE_PIPE_BYTES[0]
NAP_SECONDS = 0.001
"""How long output may collect, once a program has printed much: a turn for each line would cost more than the line."""


Turn = Literal["edge", "again", "later", "rearm"]
"""When a descriptor is to be looked at again: when it tells of something new, after the others had their turn, after a
nap, or when it is found readable, which it must be asked to tell."""


class OutputReading:
    """How the output of one program is read: first in exact order, then with speed. Not for two threads at once."""

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
        """What is there: None if nothing is, nothing at the end. In exact order, a single packet.

        With `most`, not much more than that; it may not be less than a packet.
        """
        limit = READ_BYTES if most is None else min(most, READ_BYTES)
        try:
            data = os.read(descriptor, limit)
            if not terminal or self.exact:
                return data
            pieces = [data]
            total = len(data)
            with contextlib.suppress(OSError):  # nothing more, or its end, which will be told again
                while len(pieces[-1]) >= _TERMINAL_PIECE_BYTES and total < limit:
                    pieces.append(os.read(descriptor, READ_BYTES))
                    total += len(pieces[-1])
            return b"".join(pieces)
        except BlockingIOError:
            return None
        except OSError:
            return b""  # EIO: the last program has let go of the terminal

    def count(self, size: int) -> bool:
        """So much was printed. True if this is the moment to `loosen` every descriptor."""
        self._printed += size
        return self.exact and self._printed > EXACT_BYTES

    def loosen(self, descriptors: list[int]) -> None:
        """From exact order to speed: large pipes that small writes share. Each descriptor is then to be rearmed."""
        self.exact = False
        self.close_writers()
        for descriptor in descriptors:
            self._capacity[descriptor] = _enlarge(descriptor)

    def close_writers(self) -> None:
        """Leave the program's ends to the program; what it writes from now on is no packet any more. Idempotent."""
        writers, self._writers = self._writers, []
        for writer in writers:
            if _HAS_PACKETS:
                with contextlib.suppress(OSError):
                    fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) & ~os.O_DIRECT)
            os.close(writer)

    def next_turn(self, descriptor: int, data: bytes | None, *, most: int | None = None) -> Turn:
        """After a read that gave this, of at most so much."""
        if self.exact:
            # A pipe with room for one packet makes an edge for each: asking again would only overtake the other stream.
            return "again" if data and waiting_bytes(descriptor) > 0 and not _holds_one_packet(descriptor) else "edge"
        if data is None:
            return "rearm"
        if most is not None and len(data) >= min(most, READ_BYTES):
            return "again"  # there may be more than was asked for
        capacity = self._capacity.get(descriptor, 0)
        # A pipe that could not be enlarged is soon full, and the program waits: no nap then.
        return "again" if capacity < _LARGE_PIPE_BYTES[-1] or len(data) > capacity // 4 else "later"


def _holds_one_packet(reader: int) -> bool:
    """Whether a pipe is still as we made it: then each packet makes an edge of its own."""
    try:
        return fcntl.fcntl(reader, _F_GETPIPE_SZ) <= _ONE_PACKET_BYTES
    except OSError:
        return False


def _enlarge(reader: int) -> int:
    """Give a pipe as much room as the user's allowance has; how much it holds now."""
    for size in _LARGE_PIPE_BYTES:
        with contextlib.suppress(OSError):
            return fcntl.fcntl(reader, _F_SETPIPE_SZ, size)
    return _LARGE_PIPE_BYTES[-1] if os.isatty(reader) else _ONE_PACKET_BYTES


def waiting_bytes(descriptor: int) -> int:
    """How much can be read without waiting."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    except OSError:
        return 0
    return int(count)
