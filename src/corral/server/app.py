"""A server, put together: from settings to an aiohttp application, and the order in which its parts begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from aiohttp import web

from corral.backends.registry import get_backend
from corral.protocol import Backend
from corral.server import dto, log
from corral.server.auth import Doorkeeper, Keyring
from corral.server.deadlines import Sweeper
from corral.server.dispatch import STARTED, Dispatcher
from corral.server.events import EventHub
from corral.server.guard import Guard
from corral.server.metrics import Metrics
from corral.server.openapi import document
from corral.server.reconcile import reconcile
from corral.server.roster import Roster
from corral.server.services import Control, Services
from corral.server.settings import ServerSettings
from corral.server.shelf import Shelf
from corral.server.store.database import Database
from corral.server.store.rows import Sandbox
from corral.server.tables import make_router
from corral.server.warden import SandboxWarden


class Server:
    """The parts of a server. `opened` makes one and ends it."""

    def __init__(self, settings: ServerSettings, *, database: Database, backend: Backend) -> None:
        self.settings = settings
        self.database = database
        self.backend = backend
        self.keyring = Keyring(database)
        self.roster = Roster(database)
        shelf = Shelf(database, settings.defaults)
        self.warden = SandboxWarden(backend=backend, roster=self.roster, shelf=shelf)
        door = Doorkeeper(self.keyring, bad_keys_per_minute=settings.limits.bad_keys_per_minute)
        self.events = EventHub(door)
        self.metrics = Metrics()
        guard = Guard(settings)
        self.base_url = (
            settings.public_url or f"{'https' if settings.tls else 'http'}://{settings.host}:{settings.port}"
        )
        self.services = Services(
            settings=settings,
            warden=self.warden,
            control=Control(
                warden=self.warden,
                roster=self.roster,
                shelf=shelf,
                keyring=self.keyring,
                events=self.events,
                guard=guard,
                metrics=self.metrics,
                describe=lambda: document(settings.version),
            ),
        )
        dispatcher = Dispatcher(
            services=self.services, router=make_router(), door=door, guard=guard, metrics=self.metrics
        )
        self.app = web.Application(client_max_size=settings.limits.json_bytes)
        self.app.router.add_route("*", "/{path:.*}", dispatcher.handle)
        self.app.on_response_prepare.append(_note_start)
        self.roster.listeners.append(self._tell)

    def _tell(self, row: Sandbox, before: str | None) -> None:
        log.event("sandbox", sandbox=row.id, state=row.state, before=before)
        if not self.events.listens(row.organisation_id):
            return
        shown = dto.sandbox(row, base_url=self.base_url)
        if before is None:
            self.events.publish(row.organisation_id, "sandbox.created", shown)
        else:
            self.events.publish(
                row.organisation_id,
                "sandbox.state.updated",
                {"sandbox": shown, "oldState": before, "newState": row.state},
            )


async def _note_start(request: web.Request, response: web.StreamResponse) -> None:
    request[STARTED] = response
    response.headers["Server"] = "corral"  # and not which versions of what to look for holes in


@contextlib.asynccontextmanager
async def opened(settings: ServerSettings, *, backend: Backend | None = None) -> AsyncIterator[Server]:
    """A server whose sandboxes are adopted and whose clock runs; it listens only when it is told to.

    Raises:
        BackendUnavailableError: another server has the data folder, or the backend can't work here.
    """
    database = Database(settings.state_folder, serving=True)
    try:
        server = Server(settings, database=database, backend=backend or get_backend(settings.backend))
        begin = time.perf_counter()
        warming = asyncio.create_task(server.backend.capabilities())  # most backends have something to start first
        try:
            done = await reconcile(server.warden)
        finally:
            await asyncio.gather(warming, return_exceptions=True)
        log.event("reconciled", milliseconds=round((time.perf_counter() - begin) * 1000, 1), found=dict(done))
        sweeping = asyncio.create_task(Sweeper(server.warden, seconds=settings.sweep_seconds).run())
        server.services.control.ready = True
        try:
            yield server
        finally:
            server.services.control.ready = False
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
            await server.events.close()
            await server.warden.close()
    finally:
        database.close()
