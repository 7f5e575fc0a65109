"""One connection to a program in a sandbox: one request, one response. It is never used for another client."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator

from corral.concurrency.waiting import breathe
from corral.server.preview.heads import MAX_HEAD_BYTES, Head, MalformedError, read_head

PIECE_BYTES = 64 * 1024
_MAX_INTERIM = 8
_MAX_CHUNK_LINE_BYTES = 1024
_MAX_TRAILER_BYTES = 16 * 1024
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?")


class Upstream:
    """A connected, non-blocking socket. At most one piece of it is held, besides a head."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._held = bytearray()

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it. Raises: OSError."""
        await self._loop.sock_sendall(self._connection, data)
        await breathe()

    def give_up(self) -> None:
        """Let whoever reads or sends find the connection closed."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    async def _fill(self) -> bool:
        piece = await self._loop.sock_recv(self._connection, PIECE_BYTES)
        await breathe()
        self._held += piece
        return bool(piece)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken

    async def _until(self, mark: bytes, *, limit: int) -> bytes:
        """Up to a mark, which is taken too. Raises: MalformedError, OSError."""
        looked = 0
        while (at := self._held.find(mark, looked, limit + len(mark))) < 0:
            if len(self._held) >= limit:
                raise MalformedError("a line or a head is too long")
            looked = max(0, len(self._held) - len(mark) + 1)
            if not await self._fill():
                raise MalformedError("it closed the connection in the middle of its response")
        return self._take(at + len(mark))[: -len(mark)]

    async def head(self) -> Head:
        """The head of the response; interim ones are left out. Raises: MalformedError, OSError."""
        for _ in range(_MAX_INTERIM):
            head = read_head(await self._until(b"\r\n\r\n", limit=MAX_HEAD_BYTES))
            if head.status >= 200 or head.status == 101:
                return head
        raise MalformedError("too many interim responses")

    def body(self, head: Head, *, method: str) -> AsyncIterator[bytes]:
        """The body in pieces. Raises: MalformedError if it ends too early, OSError."""
        if method == "HEAD" or head.status in (204, 304):
            return self._exactly(0)
        if head.chunked:
            return self._chunks()
        return self.rest() if head.length is None else self._exactly(head.length)

    async def rest(self) -> AsyncIterator[bytes]:
        """Everything up to the end of the connection, as it comes. Raises: OSError."""
        while self._held or await self._fill():
            yield self._take(PIECE_BYTES)

    async def _exactly(self, left: int) -> AsyncIterator[bytes]:
        while left:
            if not self._held and not await self._fill():
                raise MalformedError("its body is shorter than its Content-Length")
            piece = self._take(min(left, PIECE_BYTES))
            left -= len(piece)
            yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            found = _CHUNK.fullmatch(await self._until(b"\r\n", limit=_MAX_CHUNK_LINE_BYTES))
            if found is None:
                raise MalformedError("a malformed chunk")
            size = int(found[1], 16)
            if size == 0:
                break
            async for piece in self._exactly(size):
                yield piece
            if await self._until(b"\r\n", limit=2):
                raise MalformedError("a chunk is longer than it says")
        left = _MAX_TRAILER_BYTES
        while line := await self._until(b"\r\n", limit=left):
            left -= len(line) + 2
            if left <= 0:
                raise MalformedError("its trailers are too long")
