"""The open websockets of a server, which are closed with a close frame when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import struct
import weakref

from aiohttp import WSCloseCode, web

from corral.server.faults import Fault

_BUFFER_BYTES = 32 * 1024
"""When more than this waits to be sent, a socket waits until the client has read some. With `writer_limit=0` it checks
after each frame."""
_AT_ONCE = struct.pack("ii", 1, 0)
_CLOSE_SECONDS = 1.0
_REASON = "the server is stopping"


def cut_off(transport: asyncio.BaseTransport | None) -> None:
    """Reset a connection, and drop what was still to be sent: the kernel would keep it if the client never reads."""
    if not isinstance(transport, asyncio.Transport):
        return
    plain = transport.get_extra_info("socket")
    if plain is not None:
        with contextlib.suppress(OSError):
            plain.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, _AT_ONCE)
    transport.abort()


async def close_socket(
    socket: web.WebSocketResponse, request: web.Request, *, code: int, reason: bytes, patience: float
) -> None:
    """Close a websocket; a client that does not read what was sent before for `patience` seconds is cut off."""
    try:
        async with asyncio.timeout(patience):
            await socket.close(code=code, message=reason)
    except TimeoutError:
        cut_off(request.transport)


class OpenSockets:
    """All websockets of a server. Each is forgotten when its call ends."""

    def __init__(self) -> None:
        self._open: weakref.WeakKeyDictionary[web.WebSocketResponse, asyncio.BaseTransport | None] = (
            weakref.WeakKeyDictionary()
        )
        self._stopping = False

    async def open(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        """Answer the upgrade. Raises: Fault, 503, the server is stopping."""
        if self._stopping:
            raise Fault(503, _REASON, headers={"Retry-After": "1"})
        await socket.prepare(request)
        if isinstance(request.transport, asyncio.Transport):
            request.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._open[socket] = request.transport
        if self._stopping:  # in the meantime
            await self._close_one(socket)

    async def close(self) -> None:
        """Close all with the code 1001 (going away). A client that does not read is cut off soon after."""
        self._stopping = True
        await asyncio.gather(*(self._close_one(socket) for socket in list(self._open)))

    async def _close_one(self, socket: web.WebSocketResponse) -> None:
        # Even if its call is already closing it, and waits for the client's close frame.
        asyncio.get_running_loop().call_later(_CLOSE_SECONDS, cut_off, self._open[socket])
        with contextlib.suppress(ConnectionError):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=_REASON.encode())
