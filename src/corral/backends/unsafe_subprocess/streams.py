"""Output pipes, and waiting for them in the order in which they were written.

On Linux each pipe begins with room for a single packet, so that a program which writes to both in turn waits until the
first piece is taken, and edge-triggered epoll tells the pipes in their order. After the first 64 KiB of a call speed
comes first. Elsewhere the order between the two streams is only close.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import struct
import sys
import termios
from typing import Any

READ_BYTES = 256 * 1024
EXACT_BYTES = 64 * 1024
NAP_SECONDS = 0.001
"""How long output may collect, once a program has printed much."""
_ONE_PACKET_BYTES = 4096
_LARGE_PIPE_BYTES = 1024 * 1024


def make_output_pipe(kept: list[int]) -> tuple[int, int]:
    """A pipe whose reader does not block. A copy of the writer is put into `kept`, for `end_packets`."""
    if sys.platform == "linux":
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_DIRECT)
        try:
            kept.append(os.dup(writer))
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        with contextlib.suppress(OSError):
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _ONE_PACKET_BYTES)
    else:
        reader, writer = os.pipe()
    os.set_blocking(reader, False)
    return reader, writer


def end_packets(kept: list[int]) -> None:
    """Small writes share a page from now on, and the program's ends are left to the program. Idempotent."""
    while kept:
        writer = kept.pop()
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) & ~os.O_DIRECT)
        os.close(writer)


def read_some(descriptor: int, limit: int = READ_BYTES, *, once: bool = False) -> bytes | None:
    """What can be read now, `once` a single packet; nothing at the end, None if there is nothing yet."""
    pieces: list[bytes] = []
    total = 0
    while total < limit:
        try:
            piece = os.read(descriptor, limit - total)
        except BlockingIOError:
            break
        except OSError:  # EIO: the last program has let go of the terminal
            piece = b""
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        total += len(piece)
        if once:
            break
    return b"".join(pieces) if pieces else None


def count_waiting(descriptor: int) -> int:
    """How much can be read without waiting."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    except OSError:
        return 0
    return int(count)


class Watch:
    """Waits for several descriptors. In one thread only."""

    def __init__(self) -> None:
        self._poll: Any  # `select.poll` is no type that could be named
        if sys.platform == "linux":
            self._poll = select.epoll()
            self._exact = select.EPOLLIN | select.EPOLLET
            self._plain = select.EPOLLIN
        else:
            self._poll = select.poll()
            self._exact = self._plain = select.POLLIN

    def add(self, descriptor: int, *, exact: bool = False) -> None:
        """Listen. `exact`: each packet is told once, in its order."""
        self._poll.register(descriptor, self._exact if exact else self._plain)

    def loosen(self, descriptor: int) -> bool:
        """From exact order to speed. Whether it has much room now."""
        large = False
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # over the user's allowance: then it stays slower
                large = fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _LARGE_PIPE_BYTES) >= _LARGE_PIPE_BYTES
            self._poll.modify(descriptor, self._plain)
        return large

    def remove(self, descriptor: int) -> None:
        """Listen no more; to be called before closing."""
        with contextlib.suppress(OSError, KeyError, ValueError):
            self._poll.unregister(descriptor)

    def wait(self, seconds: float | None) -> list[int]:
        """Who is ready, in the order in which they became so."""
        if seconds is not None and sys.platform != "linux":
            seconds *= 1000  # the one counts in seconds, the other in thousandths
        return [descriptor for descriptor, _ in self._poll.poll(seconds)]

    def close(self) -> None:
        """Let go."""
        if sys.platform == "linux":
            self._poll.close()


async def write_pipe(descriptor: int, data: bytes) -> None:
    """All of `data` into a pipe that does not block, in any event loop. Raises: OSError, above all BrokenPipeError."""
    loop = asyncio.get_running_loop()
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_writer(descriptor, _wake, ready)
            try:
                await ready
            finally:
                loop.remove_writer(descriptor)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
