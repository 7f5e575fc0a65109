"""A server from its parts: from settings to an aiohttp application, and the order in which parts start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from corral.client.registry import get_backend
from corral.concurrency.waiting import cancel_all
from corral.protocol import Backend
from corral.server import dto, log
from corral.server.auth import Admission, Doorkeeper, Guard, Keyring
from corral.server.beginning import Beginning
from corral.server.deadlines import Sweeper
from corral.server.dispatch import Dispatcher
from corral.server.events import EventHub
from corral.server.fairness import Budget
from corral.server.lifecycle import Lifecycle
from corral.server.living import Sandboxes
from corral.server.log import Metrics
from corral.server.network import Networks, check_network
from corral.server.openapi import document
from corral.server.orphans import adopt
from corral.server.preview.service import Previews
from corral.server.reconcile import reconcile
from corral.server.secrets import Secrets
from corral.server.sessionmemory import SessionMemory
from corral.server.settings import ServerSettings
from corral.server.snapshots import Snapshots
from corral.server.sockets import OpenSockets
from corral.server.store.database import Database
from corral.server.store.rows import Sandbox
from corral.server.store.vault import Vault
from corral.server.tables import make_router
from corral.server.volumes import Volumes


class Server:
    """A server: its parts, for handlers. `opened` creates and closes one."""

    def __init__(self, settings: ServerSettings, *, database: Database, backend: Backend) -> None:
        self.settings = settings
        self.database = database
        self.backend = backend
        self.keyring = Keyring(database)
        self.sandboxes = Sandboxes(database, backend)
        self.snapshots = Snapshots(database, settings.defaults)
        self.volumes = Volumes(
            backend, size_bytes=settings.defaults.volume_bytes, per_organisation=settings.limits.volumes
        )
        self.secrets = Secrets(database, Vault(settings.state_folder))
        self.metrics = Metrics()
        self.networks = Networks(settings.network, backend=backend, metrics=self.metrics)
        self.lifecycle = Lifecycle(
            backend=backend,
            sandboxes=self.sandboxes,
            snapshots=self.snapshots,
            secrets=self.secrets,
            networks=self.networks,
        )
        self.guard = Guard(settings)
        door = Doorkeeper(self.keyring, bad_keys_per_minute=settings.limits.bad_keys_per_minute)
        self.admission = Admission(self.keyring, calls_per_key=settings.limits.calls_per_key)
        self.sockets = OpenSockets()
        budget = Budget(settings.limits.memory_per_key_bytes)
        self.events = EventHub(door, self.admission, self.sockets, budget)
        self.sessions = SessionMemory(limit_bytes=settings.limits.sessions_bytes)
        self.ready = False
        """Whether it has taken over the sandboxes of an earlier server, and is not stopping."""
        self.lost = asyncio.Event()
        """Set when the data folder was removed or replaced: the server has to stop."""
        self.previews = Previews(
            settings, database=database, sandboxes=self.sandboxes, keyring=self.keyring, guard=self.guard, door=door
        )
        self.app = Dispatcher(self, router=make_router(), door=door, admission=self.admission, budget=budget).make_app()
        self.sandboxes.listeners.append(self._publish)

    def describe(self) -> bytes:
        """The OpenAPI document."""
        return document(self.settings.version)

    def _publish(self, row: Sandbox, before: str | None) -> None:
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


@contextlib.asynccontextmanager
async def opened(
    settings: ServerSettings, *, backend: Backend | None = None, beginning: Beginning | None = None
) -> AsyncIterator[Server]:
    """A running server, with the sandboxes of an earlier one; `listening` makes it accept connections.

    It closes the `beginning` that it is given.

    Raises:
        BackendUnavailableError: another server uses the data folder, or the backend can't work here.
        CapabilityError: the backend has no isolation, or not the network that the settings permit.
    """
    if beginning is None:
        beginning = Beginning(settings, backend or get_backend(settings.backend))
    try:
        await check_network(settings.network, beginning.backend)
        server = Server(settings, database=beginning.database, backend=beginning.backend)
        begin = time.perf_counter()
        done = await reconcile(server.lifecycle, await beginning.found)
        await beginning.warmed()
        log.event("reconciled", milliseconds=round((time.perf_counter() - begin) * 1000, 1), found=dict(done))
        sweeper = Sweeper(server.lifecycle, seconds=settings.sweep_seconds, on_loss=server.lost.set)
        running = [
            asyncio.create_task(sweeper.run()),
            asyncio.create_task(adopt(server.sandboxes)),
            asyncio.create_task(server.admission.run()),
        ]
        server.ready = True
        try:
            yield server
        finally:
            server.ready = False
            await cancel_all(*running)
            await server.sockets.close()
            await server.lifecycle.close()
    finally:
        await beginning.close()
