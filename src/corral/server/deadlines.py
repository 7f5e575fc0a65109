"""Deadlines: one task checks them by the wall clock, from what is in the database. So they survive restarts, and
nothing that runs inside a sandbox can move them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Literal

from corral.errors import CapabilityError, CorralError
from corral.server import log
from corral.server.faults import Fault
from corral.server.lifecycle import Lifecycle
from corral.server.living import LivingSandbox
from corral.server.reconcile import reconcile_one
from corral.server.store.rows import Sandbox

_LOOK_SECONDS = 10.0
"""How often the sweeper checks that each sandbox is in the state that the database says."""
_AGAIN_SECONDS = 30.0
"""After how long a deadline that could not be carried out is tried again."""

Due = Literal["delete", "stop", "pause", "archive"]
"""An action, by the name of the `Lifecycle`'s method."""
_EXPECTED = {"started": "running", "paused": "paused", "stopped": "stopped", "archived": "stopped"}
"""The backend's word for each state that lasts."""
_RESTING = frozenset({"paused", "stopped", "archived"})


class Sweeper:
    """The task that carries out deadlines, and notices sandboxes that have ended by themselves."""

    def __init__(self, lifecycle: Lifecycle, *, seconds: float, on_loss: Callable[[], None] = lambda: None) -> None:
        self._lifecycle = lifecycle
        self._sandboxes = lifecycle.sandboxes
        self._seconds = seconds
        self._on_loss = on_loss

    async def run(self) -> None:
        """Sweep until cancelled."""
        looked = time.monotonic()
        while True:
            await asyncio.sleep(self._seconds)
            try:
                self.sweep(time.time())
                self._sandboxes.flush()
                self.note()
                await self.glance()
                if time.monotonic() - looked >= _LOOK_SECONDS:
                    looked = time.monotonic()
                    await self.look()
            except Exception as error:  # noqa: BLE001 - a failure must not end the sweeper
                log.event("sweep failed", level=30, error=error)

    def sweep(self, now: float) -> None:
        """Start everything that is due."""
        for sandbox in self._sandboxes:
            due = what_is_due(sandbox.row, now, busy=sandbox.is_busy)
            if due is not None and not sandbox.is_being_swept and now >= sandbox.not_before.get(due, now):
                sandbox.is_being_swept = True
                self._lifecycle.spawn(self._carry_out(sandbox, due))

    async def _carry_out(self, sandbox: LivingSandbox, due: Due) -> None:
        log.event("deadline", sandbox=sandbox.id, action=due)
        try:
            await getattr(self._lifecycle, due)(sandbox)
        except CorralError as error:
            # A backend without the capability will not get it later; any other cause may have passed by then.
            wait = math.inf if isinstance(error, CapabilityError) else _AGAIN_SECONDS
            sandbox.not_before[due] = time.time() + wait
            log.event("deadline not carried out", level=30, error=error, sandbox=sandbox.id, action=due)
        finally:
            sandbox.is_being_swept = False

    def note(self) -> None:
        """Log what programs in the background were refused, which belongs to no call."""
        for sandbox in self._sandboxes:
            if sandbox.handle is not None:
                self._sandboxes.look_for_denials(sandbox.handle)

    async def glance(self) -> None:
        """Check that each sandbox that does not run still exists: it has no handle that would notice its end."""
        self._sandboxes.forget_deleted()
        resting = [each for each in self._sandboxes if each.row.state in _RESTING and each.row.engine_id is not None]
        if not resting:
            return
        try:
            known = await self._lifecycle.backend.glance()
        except CapabilityError:
            return  # it can't know without asking each of them
        missing = [sandbox for sandbox in resting if sandbox.row.engine_id not in known]
        await self._look_at_all([sandbox for sandbox in missing if not sandbox.is_locked])

    async def look(self) -> None:
        """Check that each sandbox is in its state, and that the data folder is still in its place."""
        if not self._sandboxes.database.is_in_place():
            log.event("the data folder is gone", level=40)
            self._on_loss()
            return
        asked = time.time()
        found = {info.sandbox_id: info.state for info in await self._lifecycle.backend.list()}
        wrong = []
        for sandbox in self._sandboxes:
            row = sandbox.row
            # Only those that did not change since before the backend was asked: the others are being changed.
            if row.state_at >= asked or sandbox.is_locked:
                continue
            state = found.get(row.engine_id or "")
            changed = row.state in _EXPECTED and state != _EXPECTED[row.state]
            if row.intent is not None or changed or (row.state == "error" and state is not None):
                wrong.append(sandbox)
        await self._look_at_all(wrong)

    async def _look_at_all(self, sandboxes: list[LivingSandbox]) -> None:
        """All at once, so that the backend is asked once for all of them."""
        for outcome in await asyncio.gather(*map(self._look_at, sandboxes), return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Fault):  # a Fault: it was deleted
                raise outcome

    async def _look_at(self, sandbox: LivingSandbox) -> None:
        """Finish a change that was interrupted (by a full disk, perhaps), or take its state from the backend."""
        row = sandbox.row
        async with sandbox.locked():
            if row.intent is not None:
                done = await reconcile_one(self._lifecycle, sandbox, await self._lifecycle.find_at_backend(sandbox))
                log.event("unfinished change reconciled", level=30, sandbox=row.id, done=done)
            elif (before := row.state) in (*_EXPECTED, "error"):
                row.error_reason = None
                await self._lifecycle.settle(sandbox, await self._lifecycle.find_at_backend(sandbox))
                if row.state != before:
                    log.event("sandbox changed by itself", level=30, sandbox=row.id, state=row.state)


def what_is_due(row: Sandbox, now: float, *, busy: bool) -> Due | None:
    """The action that its settings ask for now; None if nothing is due."""
    if row.destroy_at is not None and now >= row.destroy_at:
        return "delete"
    if row.state == "started" and not busy:
        idle = now - max(row.active_at, row.state_at)
        if row.auto_stop and idle >= 60 * row.auto_stop:
            return "stop"
        if row.auto_pause and idle >= 60 * row.auto_pause:
            return "pause"
    if row.state in ("stopped", "archived"):
        still = now - row.state_at
        if row.auto_delete >= 0 and still >= 60 * row.auto_delete:
            return "delete"
        if row.state == "stopped" and row.auto_archive and still >= 60 * row.auto_archive:
            return "archive"
    return None
