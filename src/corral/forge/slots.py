"""Run slots: how many candidates run at once, and on which processor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence


class Slots:
    """So many run at once; who asked first is served first."""

    def __init__(self, jobs: int, processors: Sequence[int] = ()) -> None:
        """With `processors`, each slot has one of its own, as long as there are enough."""
        self._free: asyncio.Queue[int | None] = asyncio.Queue()
        for number in range(jobs):
            self._free.put_nowait(processors[number % len(processors)] if processors else None)

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[int | None]:
        """Wait for a slot, and have it until the end of the block."""
        slot = await self._free.get()
        try:
            yield slot
        finally:
            self._free.put_nowait(slot)
