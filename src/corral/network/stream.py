"""One side of a connection: what was read ahead is kept, and what is sent is sent whole."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from abc import ABC, abstractmethod
from typing import Final

from corral.network.limits import Meter

READ_BYTES: Final = 64 * 1024
BUFFER_BYTES: Final = 128 * 1024
"""Of the kernel, which doubles it, for what waits in a socket."""
FAST_CONNECTIONS: Final = 16
"""So many have buffers that grow, as long ways and fast programs need them; all further ones have small ones."""
_RESET: Final = struct.pack("ii", 1, 0)

Bytes = bytes | bytearray | memoryview


class SpentError(Exception):
    """The sandbox has used all the bytes that it may."""


class Stream(ABC):
    """For one task that reads, and one that writes."""

    def __init__(self) -> None:
        self.ahead = bytearray()
        """What was read but not used yet. Bounded by whoever fills it."""

    async def receive(self, most: int = READ_BYTES) -> bytes:
        """The next bytes; empty at the end. Raises: OSError, SpentError."""
        if self.ahead:
            piece = bytes(self.ahead[:most])
            del self.ahead[:most]
            return piece
        return await self._receive(most)

    async def fill(self) -> bool:
        """Read more into `ahead`; False at the end. Raises: as `receive`."""
        piece = await self._receive(READ_BYTES)
        self.ahead += piece
        return bool(piece)

    async def take(self, size: int) -> bytes:
        """Exactly so many bytes. Raises: EOFError, and as `receive`."""
        while len(self.ahead) < size:
            if not await self.fill():
                raise EOFError
        return await self.receive(size)

    @abstractmethod
    async def _receive(self, most: int) -> bytes: ...

    @abstractmethod
    async def readable(self) -> None:
        """Wait until there is something to receive, or the end. May be cancelled, and then has taken nothing."""

    @abstractmethod
    async def send(self, data: Bytes) -> None:
        """Send all of it. Raises: OSError, SpentError."""

    @abstractmethod
    async def end(self) -> None:
        """Tell the other side that no more comes. It may still send."""

    @abstractmethod
    def close(self) -> None:
        """Close it. Idempotent."""

    @abstractmethod
    def reset(self) -> None:
        """Close it so that the other side sees an error. Idempotent."""


def bound_buffers(sock: socket.socket) -> None:
    """Keep the kernel from holding much for a socket. It counts that for the whole machine, and not as the sandbox's:
    unbounded, it is some 10 MiB for each connection whose reader was fast and then stopped."""
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


class SocketStream(Stream):
    """A connected TCP socket. With a meter, what passes is counted and slowed down: for the side outside."""

    def __init__(self, sock: socket.socket, *, meter: Meter | None = None) -> None:
        super().__init__()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket = sock
        self.meter = meter
        self.passed = 0
        """How many bytes were received from it."""
        self._loop = asyncio.get_running_loop()

    async def _receive(self, most: int) -> bytes:
        piece = await self._loop.sock_recv(self.socket, most)
        self.passed += len(piece)
        if self.meter is not None:
            await self._pause(self.meter.count_in(len(piece)))
        return piece

    async def send(self, data: Bytes) -> None:
        """As in `Stream`."""
        await self._loop.sock_sendall(self.socket, data)
        if self.meter is not None:
            await self._pause(self.meter.count_out(len(data)))

    async def _pause(self, seconds: float) -> None:
        if self.meter is not None and self.meter.is_spent:
            raise SpentError
        if seconds:
            await asyncio.sleep(seconds)

    async def readable(self) -> None:
        """As in `Stream`."""
        if self.ahead:
            return
        ready = self._loop.create_future()
        self._loop.add_reader(self.socket, _settle, ready)
        try:
            await ready
        finally:
            if self.socket.fileno() >= 0:  # closed by another task
                self._loop.remove_reader(self.socket)

    async def end(self) -> None:
        """As in `Stream`."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """As in `Stream`."""
        if self.socket.fileno() >= 0:
            self._loop.remove_reader(self.socket)
            self._loop.remove_writer(self.socket)
            self.socket.close()

    def reset(self) -> None:
        """As in `Stream`."""
        if self.socket.fileno() >= 0:
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            finally:
                self.close()


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


_DRAIN_SECONDS: Final = 2.0
_DRAIN_BYTES: Final = 1024 * 1024


async def part(stream: Stream) -> None:
    """End our side after the last answer. What the client may still send would make the kernel reset the connection,
    and with it what the client has not read yet: so that is read, for a moment."""
    with contextlib.suppress(OSError, TimeoutError):
        await stream.end()
        async with asyncio.timeout(_DRAIN_SECONDS):
            drained = 0
            while drained < _DRAIN_BYTES and (piece := await stream.receive()):
                drained += len(piece)


async def wait_for_any(*streams: Stream, seconds: float | None = None) -> list[Stream]:
    """Wait until one of them is readable, or so long; returns those that are."""
    waiting = {asyncio.ensure_future(stream.readable()): stream for stream in streams}
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=seconds)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return [waiting[task] for task in done]
