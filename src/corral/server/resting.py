"""A short rest: a sandbox in which nothing runs is stopped, copied without copying its blocks, and started again.

What a stopped sandbox has written becomes a layer by a rename, in milliseconds whatever its size. For a running one it
has to be copied. So a snapshot and a fork stop the sandbox where nothing is lost by it: no call works inside (new ones
wait), no program runs, it has no recorded programs, and it has no files in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.server import log, steps

if TYPE_CHECKING:
    from corral.server.lifecycle import Lifecycle
    from corral.server.living import LivingSandbox

INTENT = "rest"
LARGE_BYTES = 32 * 1024 * 1024
"""Less than this is copied in the time that a stop and a start take."""
_SHARED_MEMORY = "/dev/shm"


@contextlib.asynccontextmanager
async def rested(lifecycle: Lifecycle, sandbox: LivingSandbox) -> AsyncIterator[None]:
    """While inside, the sandbox is stopped, if it may be. The caller holds its lock, and is not cancelled."""
    row = sandbox.row
    if row.state != "started" or row.engine_id is None:
        yield
        return
    with sandbox.calls_wait():
        box = await _find_idle(lifecycle, sandbox)
        if box is None:
            yield
            return
        row.intent = INTENT
        sandbox.save()
        steps.reached("rest:intent-written")
        sandbox.forget_handle()
        try:
            async with contextlib.aclosing(box):
                await lifecycle.backend.stop(row.engine_id)
            steps.reached("rest:stopped")
            yield
        finally:
            await wake(lifecycle, sandbox)


async def wake(lifecycle: Lifecycle, sandbox: LivingSandbox) -> None:
    """Start it again; if that fails, its state is what the backend then says."""
    row = sandbox.row
    try:
        box = await lifecycle.backend.start(sandbox.engine_id)
    except CorralError as error:
        log.event("sandbox not started after a rest", level=30, error=error, sandbox=row.id)
        row.intent = None
        await lifecycle.settle(sandbox, await lifecycle.find_at_backend(sandbox))
        return
    steps.reached("rest:started")
    sandbox.hold(box)
    row.intent = None
    sandbox.save()


async def _find_idle(lifecycle: Lifecycle, sandbox: LivingSandbox) -> AsyncSandbox | None:
    """Its handle, if it has written much and nothing would be lost by a stop."""
    if sandbox.is_busy:
        return None
    try:
        box = (await lifecycle.sandboxes.connect_now(sandbox)).box
        usage = await box.usage()
        if (usage.disk_bytes or 0) < LARGE_BYTES or usage.processes != 0:
            return None
        if await box.list_recorded() or await box.files.list(_SHARED_MEMORY):
            return None
    except CorralError:
        return None  # then the copy raises the same error
    return box
