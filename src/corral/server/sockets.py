"""The websockets that are open, whatever they are for: a server that stops says goodbye to each."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import struct
import weakref

from aiohttp import WSCloseCode, web

from corral.server.faults import Fault

_BUFFER_BYTES = 32 * 1024
"""When more waits to be sent, a socket waits until the client has taken some. With `writer_limit=0` it looks after each
frame."""
_AT_ONCE = struct.pack("ii", 1, 0)
_GOODBYE_SECONDS = 1.0
_REASON = "the server is stopping"


def cut_off(transport: asyncio.BaseTransport | None) -> None:
    """End a connection now, with what was still to be sent: else the kernel would keep that for whoever never reads."""
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
    """Say goodbye; a client that does not take what was sent before it for so many seconds is cut off."""
    try:
        async with asyncio.timeout(patience):
            await socket.close(code=code, message=reason)
    except TimeoutError:
        cut_off(request.transport)


class OpenSockets:
    """All websockets of a server. Each is forgotten with the call that opened it."""

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
        if self._stopping:  # meanwhile
            await self._dismiss(socket)

    async def close(self) -> None:
        """Close all with the code for a server that goes away. A client that does not read is cut off soon after."""
        self._stopping = True
        await asyncio.gather(*(self._dismiss(socket) for socket in list(self._open)))

    async def _dismiss(self, socket: web.WebSocketResponse) -> None:
        # Whatever its call is doing with it: it may also wait for the client's answer to a goodbye of its own.
        asyncio.get_running_loop().call_later(_GOODBYE_SECONDS, cut_off, self._open[socket])
        with contextlib.suppress(ConnectionError):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=_REASON.encode())
