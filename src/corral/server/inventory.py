"""What the backend has: asked for once, however many want to know at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from corral.concurrency.waiting import wait_for
from corral.errors import CapabilityError
from corral.protocol import Backend
from corral.results import SandboxInfo


class Inventory:
    """A hundred sandboxes that end at once are a hundred questions, and one or two answers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[Sequence[SandboxInfo]] | None = None

    async def ask(self) -> Sequence[SandboxInfo]:
        """All sandboxes, as they are after this call began. Raises: as `Backend.list`."""
        if self._next is None:
            self._next = asyncio.create_task(self._look())
        return await wait_for(self._next)

    async def _look(self) -> Sequence[SandboxInfo]:
        async with self._turn:
            self._next = None  # who asks from now on may want to know of what happens from now on
            return await self._backend.list()

    async def find_missing(self, engine_ids: set[str]) -> set[str]:
        """Those of which nothing is left, as far as that can be seen without asking any; none if the backend can't."""
        if not engine_ids:
            return set()
        try:
            return engine_ids - await self._backend.glance()
        except CapabilityError:
            return set()
