"""After a start: bring the database and the backend into agreement."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable

from corral.errors import CorralError, SnapshotNotFoundError
from corral.results import SandboxInfo
from corral.server import log
from corral.server.creating import resize_of_intent
from corral.server.lifecycle import Lifecycle
from corral.server.living import LivingSandbox
from corral.server.resting import INTENT, wake
from corral.server.store.rows import Snapshot

_LOST = "the sandbox was gone, or did not answer, when the server was restarted"


async def reconcile(lifecycle: Lifecycle, infos: Iterable[SandboxInfo]) -> Counter[str]:
    """Adopt sandboxes that were acknowledged, undo those that were not, finish deletions. Returns counts for the log.

    `infos` is what the backend has, asked after this server has locked its data folder.
    """
    found = {info.sandbox_id: info.state for info in infos}
    done: Counter[str] = Counter()
    for sandbox in lifecycle.sandboxes:
        done[await reconcile_one(lifecycle, sandbox, found.get(sandbox.row.engine_id or ""))] += 1
        sandbox.may_have_orphans = sandbox.row.state in ("started", "paused")
    for snapshot in lifecycle.snapshots.all():
        if snapshot.intent is not None:
            done["snapshots undone"] += 1
            await _end_snapshot(lifecycle, snapshot)
    return done


async def reconcile_one(lifecycle: Lifecycle, sandbox: LivingSandbox, state: str | None) -> str:
    """The same for one sandbox, whose state at the backend is given. Returns what was done."""
    row = sandbox.row
    if (intent := row.intent) in ("create", "fork", "delete"):
        try:
            if state is not None:
                await lifecycle.end_at_backend(sandbox)
        except CorralError as error:
            log.event("sandbox not deleted", level=30, error=error, sandbox=row.id)
            return "not ended"  # the intent stays, so it is tried again
        lifecycle.sandboxes.remove(sandbox)
        return "deleted" if intent == "delete" else "undone"
    if state is None:
        row.error_reason = row.error_reason or _LOST
    elif (resize := resize_of_intent(row.intent)) is not None:
        try:
            await lifecycle.resize_at_backend(sandbox, resize)
        except CorralError as error:
            log.event("interrupted resize failed again", level=30, error=error, sandbox=row.id)
    if row.intent == INTENT and state == "stopped":
        await wake(lifecycle, sandbox)
        return row.state
    await lifecycle.settle(sandbox, state)
    return row.state


async def _end_snapshot(lifecycle: Lifecycle, snapshot: Snapshot) -> None:
    """Delete a snapshot whose creation or deletion was not finished."""
    try:
        await end_snapshot_at_backend(lifecycle, snapshot)
    except CorralError as error:
        log.event("snapshot not deleted", level=30, error=error, snapshot=snapshot.id)
        return  # the intent stays, so it is tried again at the next start
    lifecycle.snapshots.remove(snapshot)


async def end_snapshot_at_backend(lifecycle: Lifecycle, snapshot: Snapshot) -> None:
    """Delete it at the backend, unless another snapshot is the same one there. Raises: as `Backend.delete_snapshot`."""
    engine_id = snapshot.engine_id or (backend_name(snapshot.id) if snapshot.intent == "create" else None)
    if engine_id is not None and not lifecycle.snapshots.is_used_at_backend(engine_id, but_for=snapshot):
        with contextlib.suppress(SnapshotNotFoundError):
            await lifecycle.backend.delete_snapshot(engine_id)


def backend_name(snapshot_id: str) -> str:
    """A snapshot's name at the backend: known before it is created, so that an unfinished one can be found."""
    return f"server-{snapshot_id}"
