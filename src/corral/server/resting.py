"""A moment of rest: a sandbox in which nothing runs is stopped, copied without copying, and started again.

What a stopped sandbox has written becomes a layer by a rename, in milliseconds whatever its size. Of a running one it
has to be copied. So where nothing would be lost by it, a snapshot and a fork let the sandbox rest: no call works inside
and those that come wait, no program runs, no record could be read again, and nothing lies in memory alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.server import log, steps

if TYPE_CHECKING:
    from corral.server.store.rows import Sandbox
    from corral.server.warden import SandboxWarden

INTENT = "rest"
LARGE_BYTES = 32 * 1024 * 1024
"""Less than so much is copied in the time that a stop and a start take."""
_SHARED_MEMORY = "/dev/shm"


@contextlib.asynccontextmanager
async def rested(warden: SandboxWarden, row: Sandbox) -> AsyncIterator[None]:
    """While inside, the sandbox is stopped, if it may be. Whoever calls has its lock, and is not cancelled."""
    if row.state != "started" or row.engine_id is None:
        yield
        return
    with warden.handles.calls_wait(row):
        box = await _find_idle(warden, row)
        if box is None:
            yield
            return
        row.intent = INTENT
        warden.roster.save(row)
        steps.reached("rest:intent-written")
        warden.handles.forget(row)
        try:
            await warden.backend.stop(row.engine_id)
            await box.aclose()
            steps.reached("rest:stopped")
            yield
        finally:
            await wake(warden, row)


async def wake(warden: SandboxWarden, row: Sandbox) -> None:
    """Start it again; one that can't be is what it then is, and says so."""
    assert row.engine_id is not None
    try:
        box = await warden.backend.start(row.engine_id)
    except CorralError as error:
        log.event("sandbox not started after a rest", level=30, error=error, sandbox=row.id)
        row.intent = None
        await warden.settle(row, await warden.find_at_backend(row))
        return
    steps.reached("rest:started")
    warden.handles.hold(row, box)
    row.intent = None
    warden.roster.save(row)


async def _find_idle(warden: SandboxWarden, row: Sandbox) -> AsyncSandbox | None:
    """Its handle, if it has written much and nothing would be lost by a stop."""
    if warden.handles.is_busy(row):
        return None
    try:
        box = (await warden.handles.find(row)).box
        usage = await box.usage()
        if (usage.disk_bytes or 0) < LARGE_BYTES or usage.processes != 0:
            return None
        if await box.list_recorded() or await box.files.list(_SHARED_MEMORY):
            return None
    except CorralError:
        return None  # then the copy says what is wrong with it
    return box
