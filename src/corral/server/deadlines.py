"""Deadlines: looked at once in a while by one task, by the wall clock, from what stands in the database. So they
survive restarts, and nothing that runs inside a sandbox can move them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any

from corral.errors import CapabilityError, CorralError
from corral.server import log
from corral.server.faults import Fault
from corral.server.reconcile import reconcile_one
from corral.server.store.rows import Sandbox
from corral.server.warden import SandboxWarden

_LOOK_SECONDS = 10.0
"""So often we look whether what should run does."""
_AGAIN_SECONDS = 30.0
"""After so long, what could not be done when it was due is tried again."""

_EXPECTED = {"started": "running", "paused": "paused", "stopped": "stopped", "archived": "stopped"}
"""What the backend says of a sandbox that is in one of these states."""
_RESTING = frozenset({"paused", "stopped", "archived"})


class Sweeper:
    """The task."""

    def __init__(self, warden: SandboxWarden, *, seconds: float, on_loss: Callable[[], None] = lambda: None) -> None:
        self._warden = warden
        self._seconds = seconds
        self._on_loss = on_loss
        self._at_work: set[str] = set()
        self._not_before: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        looked = time.monotonic()
        while True:
            await asyncio.sleep(self._seconds)
            try:
                self.sweep(time.time())
                self._warden.roster.flush()
                await self.glance()
                if time.monotonic() - looked >= _LOOK_SECONDS:
                    looked = time.monotonic()
                    await self.look()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next deadline must be kept
                log.event("sweep failed", level=30, error=error)

    def sweep(self, now: float) -> None:
        """Begin whatever is due."""
        for row in self._warden.roster:
            due = what_is_due(row, now, busy=self._warden.handles.is_busy(row))
            if due is not None and row.id not in self._at_work and now >= self._not_before.get((row.id, due), now):
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
            # A backend without the power will not have it later either; anything else may have passed by then.
            wait = math.inf if isinstance(error, CapabilityError) else _AGAIN_SECONDS
            self._not_before[row.id, due] = time.time() + wait
            log.event("deadline not kept", level=30, error=error, sandbox=row.id, action=due)
        finally:
            self._at_work.discard(row.id)

    async def glance(self) -> None:
        """Whether anything is left of each sandbox that does not run: nobody holds those, so nobody tells their end."""
        roster = self._warden.roster
        roster.forget_buried()
        resting = {row.engine_id: row for row in roster if row.state in _RESTING and row.engine_id is not None}
        missing = [resting[engine_id] for engine_id in await self._warden.inventory.find_missing(set(resting))]
        await self._look_at_all([row for row in missing if not self._warden.is_being_changed(row)])

    async def look(self) -> None:
        """Whether each sandbox that should run does; and whether there is still a folder to keep them in."""
        if not self._warden.roster.is_in_place():
            log.event("the data folder is gone", level=40)
            self._on_loss()
            return
        self._not_before = {key: at for key, at in self._not_before.items() if key[0] in self._warden.roster}
        asked = time.time()
        found = {info.sandbox_id: info.state for info in await self._warden.backend.list()}
        wrong = []
        for row in self._warden.roster:
            # Only what was quiet since before we asked: the rest is being changed right now.
            if row.state_at >= asked or self._warden.is_being_changed(row):
                continue
            state = found.get(row.engine_id or "")
            changed = row.state in _EXPECTED and state != _EXPECTED[row.state]
            if row.intent is not None or changed or (row.state == "error" and state is not None):
                wrong.append(row)
        await self._look_at_all(wrong)

    async def _look_at_all(self, rows: list[Sandbox]) -> None:
        """At once, so that the backend is asked once for all of them."""
        for outcome in await asyncio.gather(*(self._look_at(row) for row in rows), return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Fault):  # somebody else has deleted it
                raise outcome

    async def _look_at(self, row: Sandbox) -> None:
        """It has ended by itself, or answers again; or something was begun and not finished: the disk was full, say."""
        async with self._warden.lock(row):
            if row.intent is not None:
                done = await reconcile_one(self._warden, row, await self._warden.find_at_backend(row))
                log.event("sandbox taken up again", level=30, sandbox=row.id, done=done)
            elif (before := row.state) in (*_EXPECTED, "error"):
                row.error_reason = None
                await self._warden.settle(row, await self._warden.find_at_backend(row))
                if row.state != before:
                    log.event("sandbox changed by itself", level=30, sandbox=row.id, state=row.state)


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
