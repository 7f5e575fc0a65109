"""Deadlines: looked at once in a while by one task, by the wall clock, from what stands in the database. So they
survive restarts, and nothing that runs inside a sandbox can move them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from corral.errors import CorralError
from corral.server import log
from corral.server.store.rows import Sandbox
from corral.server.warden import SandboxWarden

_LOOK_SECONDS = 10.0
"""So often we look whether what should run does."""


class Sweeper:
    """The task."""

    def __init__(self, warden: SandboxWarden, *, seconds: float) -> None:
        self._warden = warden
        self._seconds = seconds
        self._at_work: set[str] = set()
        self._cannot: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        looked = time.monotonic()
        while True:
            await asyncio.sleep(self._seconds)
            try:
                self.sweep(time.time())
                self._warden.roster.flush()
                if time.monotonic() - looked >= _LOOK_SECONDS:
                    looked = time.monotonic()
                    await self.look()
            except (CorralError, OSError) as error:
                log.event("sweep failed", level=30, error=error)

    def sweep(self, now: float) -> None:
        """Begin whatever is due."""
        for row in self._warden.roster:
            due = what_is_due(row, now, busy=self._warden.is_busy(row))
            if due is not None and row.id not in self._at_work and (row.id, due) not in self._cannot:
                self._at_work.add(row.id)
                self._warden.spawn(self._carry_out(row, due))

    async def _carry_out(self, row: Sandbox, due: str) -> None:
        work: dict[str, Any] = {
            "delete": self._warden.delete,
            "stop": self._warden.stop,
            "pause": self._warden.pause,
            "archive": self._warden.archive,
        }
        log.event("deadline", sandbox=row.id, action=due)
        try:
            step: Coroutine[Any, Any, None] = work[due](row)
            await step
        except CorralError as error:
            self._cannot.add((row.id, due))  # a backend without the power will not have it a second later
            log.event("deadline not kept", level=30, error=error, sandbox=row.id, action=due)
        finally:
            self._at_work.discard(row.id)

    async def look(self) -> None:
        """Whether each sandbox that should run does."""
        asked = time.time()
        found = {info.sandbox_id: info.state for info in await self._warden.backend.list()}
        for row in self._warden.roster:
            # Only what was quiet since before we asked: the rest is being changed right now.
            if row.state == "started" and row.state_at < asked and found.get(row.engine_id or "") != "running":
                async with self._warden.lock(row):
                    if row.state == "started":
                        await self._warden.settle(row, await self._warden.find_at_backend(row))
                        log.event("sandbox ended", level=30, sandbox=row.id, state=row.state)


def what_is_due(row: Sandbox, now: float, *, busy: bool) -> str | None:
    """What its settings ask for at this time: delete, stop, pause, archive or nothing."""
    if row.destroy_at is not None and now >= row.destroy_at:
        return "delete"
    if row.state == "started" and not busy:
        idle = now - max(row.active_at, row.state_at)
        if row.auto_stop and idle >= 60 * row.auto_stop:
            return "stop"
        if row.auto_pause and idle >= 60 * row.auto_pause:
            return "pause"
    if row.state == "stopped":
        still = now - row.state_at
        if row.auto_delete >= 0 and still >= 60 * row.auto_delete:
            return "delete"
        if row.auto_archive and still >= 60 * row.auto_archive:
            return "archive"
    if row.state == "archived" and row.auto_delete >= 0 and now - row.state_at >= 60 * row.auto_delete:
        return "delete"
    return None
