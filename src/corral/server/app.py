"""A server, put together: from settings to an aiohttp application, and the order in which its parts begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler

from corral.client.registry import get_backend
from corral.protocol import Backend
from corral.server import dto, log
from corral.server.admission import Admission
from corral.server.auth import Doorkeeper, Keyring
from corral.server.beginning import Beginning
from corral.server.budget import Budget
from corral.server.deadlines import Sweeper
from corral.server.dispatch import STARTED, Dispatcher
from corral.server.events import EventHub
from corral.server.guard import Guard
from corral.server.metrics import Metrics
from corral.server.openapi import document
from corral.server.orphans import adopt
from corral.server.reconcile import reconcile
from corral.server.roster import Roster
from corral.server.services import Control, Services
from corral.server.sessionmemory import SessionMemory
from corral.server.settings import ServerSettings
from corral.server.shelf import Shelf
from corral.server.sockets import OpenSockets
from corral.server.store.database import Database
from corral.server.store.rows import Sandbox
from corral.server.tables import make_router
from corral.server.warden import SandboxWarden

SERVER = "corral"
"""The header, without versions of anything to look for holes in."""


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
        self.admission = Admission(self.keyring, calls_per_key=settings.limits.calls_per_key)
        self.sockets = OpenSockets()
        budget = Budget(settings.limits.memory_per_key_bytes)
        self.events = EventHub(door, self.admission, self.sockets, budget)
        self.metrics = Metrics()
        self.lost = asyncio.Event()
        """Set when the data folder is not ours any more: then there is nothing left to serve."""
        guard = Guard(settings)
        self.services = Services(
            settings=settings,
            warden=self.warden,
            sockets=self.sockets,
            sessions=SessionMemory(limit_bytes=settings.limits.sessions_bytes),
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
            services=self.services,
            router=make_router(),
            door=door,
            admission=self.admission,
            guard=guard,
            metrics=self.metrics,
            budget=budget,
        )

        # As a middleware, because a route of aiohttp's would not get what has no path (`OPTIONS *`, `CONNECT`).
        @web.middleware
        async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await dispatcher.handle(request)

        self.app = web.Application(client_max_size=settings.limits.json_bytes, middlewares=[answer])
        self.app.on_response_prepare.append(_note_start)
        self.roster.listeners.append(self._tell)

    def _tell(self, row: Sandbox, before: str | None) -> None:
        log.event("sandbox", sandbox=row.id, state=row.state, before=before)
        if before is None:
            self.events.publish(row.organisation_id, "sandbox.created", lambda url: dto.sandbox(row, base_url=url))
        else:
            self.events.publish(
                row.organisation_id,
                "sandbox.state.updated",
                lambda url: {
                    "sandbox": dto.sandbox(row, base_url=url), "oldState": before, "newState": row.state,
                },
            )  # fmt: skip


async def _note_start(request: web.Request, response: web.StreamResponse) -> None:
    request[STARTED] = response
    response.headers["Server"] = SERVER


@contextlib.asynccontextmanager
async def opened(
    settings: ServerSettings, *, backend: Backend | None = None, beginning: Beginning | None = None
) -> AsyncIterator[Server]:
    """A server whose sandboxes are adopted and whose clock runs; it listens only when it is told to.

    A `beginning` that was made before is ours from here on.

    Raises:
        BackendUnavailableError: another server has the data folder, or the backend can't work here.
        CapabilityError: the backend has no isolation.
    """
    if beginning is None:
        beginning = Beginning(settings, backend or get_backend(settings.backend))
    try:
        server = Server(settings, database=beginning.database, backend=beginning.backend)
        begin = time.perf_counter()
        done = await reconcile(server.warden, await beginning.found)
        await beginning.warmed()
        log.event("reconciled", milliseconds=round((time.perf_counter() - begin) * 1000, 1), found=dict(done))
        running = [
            asyncio.create_task(Sweeper(server.warden, seconds=settings.sweep_seconds, on_loss=server.lost.set).run()),
            asyncio.create_task(adopt(server.warden)),
            asyncio.create_task(server.admission.run()),
        ]
        server.services.control.ready = True
        try:
            yield server
        finally:
            server.services.control.ready = False
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await server.sockets.close()
            await server.warden.close()
    finally:
        await beginning.close()
