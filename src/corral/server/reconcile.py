"""After a start: what the database says, what the backend has, and what follows from the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from corral.errors import CorralError
from corral.server import log
from corral.server.powers import keeping
from corral.server.store.rows import Sandbox, Snapshot
from corral.server.warden import SandboxWarden
from corral.server.wishes import ResizeWish

_UNACKNOWLEDGED = ("create", "fork")
_LOST = "it was not there any more when the server started again"


async def reconcile(warden: SandboxWarden) -> Counter[str]:
    """Adopt what was acknowledged, undo what was not, end what was being ended. Gives what was done, for the log."""
    found = {info.sandbox_id: info.state for info in await warden.backend.list()}
    done: Counter[str] = Counter()
    for row in warden.roster:
        if row.intent in _UNACKNOWLEDGED or row.intent == "delete":
            await _end(warden, row, found)
            done["undone" if row.intent in _UNACKNOWLEDGED else "deleted"] += 1
            continue
        state = found.get(row.engine_id or "")
        if state is None:
            row.error_reason = row.error_reason or _LOST
        elif (wish := ResizeWish.from_intent(row.intent)) is not None:
            await _resize_again(warden, row, wish)
        await warden.settle(row, state)
        done[row.state] += 1
    for snapshot in warden.shelf.all():
        if snapshot.intent is not None:
            done["snapshots undone"] += 1
            await _end_snapshot(warden, snapshot)
    return done


async def _resize_again(warden: SandboxWarden, row: Sandbox, wish: ResizeWish) -> None:
    try:
        await warden.resize_at_backend(row, wish)
    except CorralError as error:
        log.event("resize not done again", level=30, error=error, sandbox=row.id)


async def _end_snapshot(warden: SandboxWarden, snapshot: Snapshot) -> None:
    """One whose making or deletion was not finished."""
    engine_id = snapshot.engine_id or backend_name(snapshot.id)
    if not warden.shelf.is_used_at_backend(engine_id, but_for=snapshot):
        try:
            await keeping(warden.backend).delete_snapshot(engine_id)
        except CorralError as error:
            log.event("snapshot was not there", error=error, snapshot=snapshot.id)
    warden.shelf.remove(snapshot)


async def _end(warden: SandboxWarden, row: Sandbox, found: Mapping[str, str]) -> None:
    if row.engine_id in found:
        await warden.end_at_backend(row)
    warden.roster.forget(row)


def backend_name(snapshot_id: str) -> str:
    """What a snapshot is called at the backend: known before it is made, so that a half-made one can be found."""
    return f"server-{snapshot_id}"
