"""Loopback addresses, one for each preview: links that open anywhere on this machine without a name, each at an origin
of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from corral.client.forwarding import random_loopback
from corral.server import log
from corral.server.living import Sandboxes
from corral.server.store.database import Database
from corral.server.store.rows import Preview, Sandbox, load_all

MAX_ADDRESSES = 512
"""Each is an open file of the server. Beyond that, links have the path form."""
MAX_OF_ORGANISATION = 128
"""So that no tenant can take all of them."""
_ATTEMPTS = 8

Listen = Callable[[str], Awaitable[asyncio.Server]]


class Addresses:
    """The addresses that were given out. They stay the same for as long as the sandbox exists."""

    def __init__(self, database: Database, sandboxes: Sandboxes) -> None:
        self._database = database
        self._sandboxes = sandboxes
        self._known = {preview.id: preview for preview in load_all(Preview, database)}
        self.given: dict[str, Preview] = {}
        """What is at each address, for `Places`."""
        self._servers: dict[str, asyncio.Server] = {}
        self._giving = asyncio.Lock()
        self._listen: Listen | None = None
        self.server_port = 0
        """The port of every address: that of the server."""

    @property
    def available(self) -> bool:
        """Whether the server listens on loopback, so that it can listen on other loopback addresses, too."""
        return self._listen is not None

    async def begin(self, listen: Listen, *, port: int) -> None:
        """Listen on all addresses that an earlier server has given out."""
        self._listen, self.server_port = listen, port
        for preview in list(self._known.values()):
            if not await self._open(preview):
                log.event("preview has lost its address", level=logging.WARNING, sandbox=preview.sandbox_id)
                self._known.pop(preview.id).erase(self._database)

    async def give(self, sandbox: Sandbox, port: int) -> str | None:
        """The address of a port; None if none can be had."""
        if self._listen is None:
            return None
        async with self._giving:
            known = self._known.get(f"{sandbox.id}:{port}")
            if known is not None:
                return known.address
            if not self._has_room(sandbox.organisation_id):
                return None
            for _ in range(_ATTEMPTS):
                preview = Preview(
                    id=f"{sandbox.id}:{port}", sandbox_id=sandbox.id, port=port, address=random_loopback()
                )
                if preview.address not in self.given and await self._open(preview):
                    preview.save(self._database)
                    self._known[preview.id] = preview
                    return preview.address
        return None

    def _has_room(self, organisation_id: str) -> bool:
        if len(self._known) >= MAX_ADDRESSES:
            return False
        own = {row.id for row in self._sandboxes.rows_of(organisation_id)}
        return sum(preview.sandbox_id in own for preview in self._known.values()) < MAX_OF_ORGANISATION

    async def _open(self, preview: Preview) -> bool:
        assert self._listen is not None
        try:
            self._servers[preview.address] = await self._listen(preview.address)
        except OSError:
            return False  # another program has it, or this system has one loopback address only
        self.given[preview.address] = preview
        return True

    def forget(self, sandbox_id: str) -> None:
        """The sandbox was deleted, and its rows with it."""
        for preview in [each for each in self._known.values() if each.sandbox_id == sandbox_id]:
            del self._known[preview.id]
            self.given.pop(preview.address, None)
            server = self._servers.pop(preview.address, None)
            if server is not None:
                server.close()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._listen = None
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        self.given.clear()
