"""Listening: sockets, TLS, limits on connections, and a good end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from corral.errors import SpecError
from corral.server import log
from corral.server.app import Server
from corral.server.settings import API, Limits, ServerSettings

_KEEPALIVE_SECONDS = 75.0


class Connections:
    """How many there are, and how many there may be."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.count = 0


class Connection(RequestHandler):
    """One connection. aiohttp ends those that idle between requests; we also end those that never finish asking."""

    def __init__(self, manager: Any, *, connections: Connections, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._connections = connections
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._connections.count += 1
        super().connection_made(transport)
        if self._connections.count > self._connections.limits.connections:
            log.event("too many connections", level=30)
            self._abort()
        else:
            self._wait_for_request()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        self._connections.count -= 1
        self._forget_wait()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        super().data_received(data)
        if self._messages or self._current_request is not None:
            self._forget_wait()  # a whole head has come
        elif self._patience is None:
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        seconds = self._connections.limits.request_seconds
        self._patience = asyncio.get_running_loop().call_later(seconds, self._abort)

    def _forget_wait(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@contextlib.asynccontextmanager
async def listening(server: Server) -> AsyncIterator[str]:
    """Accept connections; gives the address of the API. At the end, requests have a while to finish."""
    settings = server.settings
    limits = settings.limits
    per_connection: dict[str, Any] = {
        "access_log": None,
        "keepalive_timeout": _KEEPALIVE_SECONDS,
        "max_line_size": limits.header_bytes,
        "max_field_size": limits.header_bytes,
    }
    runner = web.AppRunner(
        server.app, handler_cancellation=True, shutdown_timeout=settings.drain_seconds, **per_connection
    )
    await runner.setup()
    loop = asyncio.get_running_loop()
    connections = Connections(limits)
    listener: asyncio.Server | None = None
    try:
        listener = await loop.create_server(
            lambda: Connection(runner.server, connections=connections, loop=loop, **per_connection),
            settings.host,
            settings.port,
            ssl=_tls(settings),
            backlog=1024,
        )
        port = listener.sockets[0].getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        base = f"{'https' if settings.tls else 'http'}://{host}:{port}"
        if settings.public_url is None:
            server.base_url = base
        yield base + API
    finally:
        server.services.control.ready = False
        if listener is not None:
            listener.close()
        await server.events.close()  # they would hold the end up until the time is over
        await runner.cleanup()


def _tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SpecError(
            f"the TLS certificate or its key can't be used: {error}", hint="both must be PEM files that belong together"
        ) from error
    return context
