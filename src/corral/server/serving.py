"""Listening: sockets, TLS, limits on connections, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from corral.errors import SpecError
from corral.server import log
from corral.server.app import Server
from corral.server.dispatch import SERVER, error_response
from corral.server.fairness import Turns
from corral.server.faults import Fault
from corral.server.framewatch import FrameWatch
from corral.server.routing import ADMITTED, ANONYMOUS
from corral.server.settings import API, ServerLimits, ServerSettings
from corral.server.sockets import cut_off

_KEEPALIVE_SECONDS = 75.0
_SLOWEST_BYTES_PER_SECOND = 64 * 1024
_PIECE_BYTES, _FRAMES_PIECE_BYTES = 8 * 1024, 2 * 1024
"""How much is parsed at a time. A frame is more work than a chunk: a ping is answered."""
_PIECES, _ROUND_SECONDS = 1000, 0.001
"""How many pieces are read, and for how long, before the event loop does something else."""
_SPARE_FILES = 1024
"""File descriptors that are kept free for other things, if the limit allows."""


class Connections:
    """The open connections. If there are too many, those without a request that has a valid key are closed."""

    def __init__(self, limits: ServerLimits, *, most: int) -> None:
        self.limits = limits
        self._most = most
        self.turns = Turns(at_once=_PIECES, seconds=_ROUND_SECONDS)
        self._open: dict[Connection, None] = {}

    def add(self, connection: Connection) -> None:
        """Add a connection; others may be closed for it, or, if all are in use, it is closed itself."""
        if len(self._open) >= self._most:
            self._make_room()
        if len(self._open) >= self._most:
            connection.abort()
        else:
            self._open[connection] = None

    def discard(self, connection: Connection) -> None:
        """Remove a connection."""
        self._open.pop(connection, None)

    def _make_room(self) -> None:
        # Several at a time: looking through all of them for each new one would help a flood.
        useless = [connection for connection in self._open if not connection.is_in_use]
        useless.sort(key=lambda connection: (connection.has_asked, connection.quiet_since))
        for connection in useless[: max(1, self._most // 8)]:
            self.discard(connection)
            cut_off(connection.transport)
        log.event("too many connections", level=logging.WARNING, ended=min(len(useless), max(1, self._most // 8)))


class Connection(RequestHandler):
    """One connection. aiohttp closes those that idle between requests; this also closes those that never finish a
    request, and those that never read their response.

    Received data is parsed in small pieces, and the keys take turns: a few bytes can be a whole chunk of a body, or a
    frame of a websocket, and the kernel hands over tens of thousands of them at once.
    """

    def __init__(self, manager: Any, *, connections: Connections, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._connections = connections
        self._patience: asyncio.TimerHandle | None = None
        self._answered: web.BaseRequest | None = None
        self.frames: FrameWatch | None = None
        """Watches the frames when the connection has become a websocket."""
        self.has_asked = False
        """Whether a whole request was received."""
        self.quiet_since = 0.0
        self._unread = memoryview(b"")
        """Received data that was not parsed. While there is any, no more is read from the connection."""
        self._key_id = ANONYMOUS.key_id
        """The key of the last request."""
        self._is_waiting = False
        """Whether it waits for its turn to parse."""

    @property
    def tail(self) -> bytes:
        """What was received after the upgrade request, before the response."""
        return self._message_tail

    @property
    def is_in_use(self) -> bool:
        """Whether a request with a valid key is being answered."""
        request = self._current_request or self._answered
        return request is not None and ADMITTED in request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(transport)
        _notice_when_gone(transport)
        self.quiet_since = time.monotonic()
        self._wait_for_request()
        self._connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by asyncio."""
        self._connections.discard(self)
        self._forget_wait()
        if self.frames is not None:
            self.frames.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio; and by aiohttp without data, to go on with what it was given before."""
        if not data:
            super().data_received(data)
            return
        self._unread = memoryview(data) if not self._unread else memoryview(bytes(self._unread) + data)
        self._wait_for_turn(at_once=True)

    def _wait_for_turn(self, *, at_once: bool = False) -> None:
        if self._is_waiting:
            return
        self._is_waiting = True
        request = self._current_request
        if request is not None:
            self._key_id = request.get(ADMITTED, self._key_id)
        self._connections.turns.call(self._key_id, self._read_piece, at_once=at_once)
        if self._unread:
            self._pause_transport_reading()

    def _read_piece(self) -> None:
        self._is_waiting = False
        if self.transport is None or self._reading_paused or self._buffer_paused:
            return  # it is closed, or goes on when aiohttp reads again
        size = _PIECE_BYTES if self.frames is None else _FRAMES_PIECE_BYTES
        piece, self._unread = bytes(self._unread[:size]), self._unread[size:]
        self._read(piece)
        if self._unread:
            self._wait_for_turn()
        elif not (self._reading_paused or self._buffer_paused):
            super()._resume_transport_reading()

    def _resume_transport_reading(self) -> None:
        """Called by aiohttp. What was received already comes first."""
        if self._unread:
            self._wait_for_turn()
        else:
            super()._resume_transport_reading()

    def _read(self, data: bytes) -> None:
        if self.frames is not None:
            self.frames.feed(data)
        super().data_received(data)
        self.quiet_since = time.monotonic()
        if self._messages or self._current_request is not None:
            self.has_asked = True
            self._forget_wait()  # the headers are complete
        elif self._patience is None:
            self._wait_for_request()

    def pause_reading(self) -> None:
        """Called by aiohttp."""
        super().pause_reading()
        if self.frames is not None:
            self.frames.pause()

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 - aiohttp's signature
        """Called by aiohttp."""
        super().resume_reading(resume_parser)
        if self.frames is not None:
            self.frames.resume()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Called by aiohttp. The client must read the response in a time that depends on its size."""
        size = len(resp.body) if isinstance(resp, web.Response) and isinstance(resp.body, bytes | bytearray) else 0
        patience = self._connections.limits.request_seconds + size / _SLOWEST_BYTES_PER_SECOND
        self._answered = request
        try:
            async with asyncio.timeout(patience):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            cut_off(self.transport)
            return resp, True
        finally:
            self._answered = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Called by aiohttp for malformed requests; its own response would show what was sent, and its version."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response has already been started")
        fault = Fault(400, "malformed HTTP request") if status == 400 else Fault(500, "internal server error")
        response = error_response(request, fault)
        response.headers["Server"] = SERVER
        response.force_close()
        return response

    def _wait_for_request(self) -> None:
        seconds = self._connections.limits.request_seconds
        self._patience = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _forget_wait(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def abort(self) -> None:
        """Close it now."""
        if self.transport is not None:
            self.transport.abort()


def _notice_when_gone(transport: asyncio.BaseTransport) -> None:
    """TCP keep-alive: a client whose machine is gone would otherwise keep its calls running."""
    plain = transport.get_extra_info("socket")
    if plain is None or not hasattr(socket, "TCP_KEEPIDLE"):
        return
    with contextlib.suppress(OSError):
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def _room_for_connections(limits: ServerLimits) -> int:
    """How many connections there may be: each is an open file, and sandboxes need some, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return limits.connections
    return max(1, min(limits.connections, max(soft - _SPARE_FILES, soft // 2)))


@contextlib.asynccontextmanager
async def listening(server: Server) -> AsyncIterator[str]:
    """Accept connections; returns the URL of the API. At the end websockets are closed, and requests may finish."""
    settings = server.settings
    limits = settings.limits
    per_connection: dict[str, Any] = {
        "access_log": None,
        "keepalive_timeout": _KEEPALIVE_SECONDS,
        "max_line_size": limits.header_bytes,
        "max_field_size": limits.header_bytes,
        "max_headers": limits.headers,
        "auto_decompress": False,  # decompression would happen before the key is checked
    }
    runner = web.AppRunner(
        server.app, handler_cancellation=True, shutdown_timeout=settings.drain_seconds, **per_connection
    )
    await runner.setup()
    loop = asyncio.get_running_loop()
    others_handler = loop.get_exception_handler()
    loop.set_exception_handler(log.from_loop)
    most = _room_for_connections(limits)
    connections = Connections(limits, most=most)
    listener: asyncio.Server | None = None

    def connect() -> Connection:
        return Connection(runner.server, connections=connections, loop=loop, **per_connection)

    try:
        listener = await loop.create_server(
            connect,
            settings.host,
            settings.port,
            ssl=_tls(settings),
            ssl_handshake_timeout=limits.request_seconds if settings.tls else None,
            backlog=min(1024, max(16, most // 4)),  # accepted at once, before any can be refused
        )
        port = listener.sockets[0].getsockname()[1]
        if not settings.tls and any(each.getsockname()[0] == "127.0.0.1" for each in listener.sockets):
            await server.previews.addresses.begin(
                lambda address: loop.create_server(connect, address, port, backlog=64), port=port
            )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        yield f"{'https' if settings.tls else 'http'}://{host}:{port}{API}"
    finally:
        server.ready = False
        if listener is not None:
            listener.close()
        server.previews.close()
        await server.sockets.close()  # else the shutdown would wait for them until its timeout
        await runner.cleanup()
        loop.set_exception_handler(others_handler)


def _tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SpecError(
            f"the TLS certificate or its key can't be used: {error}",
            hint="both must be PEM files, and the key must belong to the certificate",
        ) from error
    return context
