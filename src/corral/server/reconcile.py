"""After a start: what the database says, what the backend has, and what follows from the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from corral.errors import CorralError
from corral.results import SandboxInfo
from corral.server import log
from corral.server.resting import INTENT, wake
from corral.server.store.rows import Sandbox, Snapshot
from corral.server.warden import SandboxWarden
from corral.server.wishes import ResizeWish

_UNACKNOWLEDGED = ("create", "fork")
_LOST = "it was not there any more, or did not answer, when the server started again"


async def reconcile(warden: SandboxWarden, infos: Iterable[SandboxInfo]) -> Counter[str]:
    """Adopt what was acknowledged, undo what was not, end what was being ended. Gives what was done, for the log.

    `infos` is what the backend has, asked for since the folder is ours.
    """
    found = {info.sandbox_id: info.state for info in infos}
    done: Counter[str] = Counter()
    for row in warden.roster:
        done[await reconcile_one(warden, row, found.get(row.engine_id or ""))] += 1
        if row.state in ("started", "paused"):
            warden.handles.orphaned.add(row.id)
    for snapshot in warden.shelf.all():
        if snapshot.intent is not None:
            done["snapshots undone"] += 1
            await _end_snapshot(warden, snapshot)
    return done


async def reconcile_one(warden: SandboxWarden, row: Sandbox, state: str | None) -> str:
    """The same for one sandbox, of which the backend says that it is in this state. Gives what was done."""
    if row.intent in _UNACKNOWLEDGED or row.intent == "delete":
        undone = row.intent != "delete"
        try:
            if state is not None:
                await warden.end_at_backend(row)
        except CorralError as error:
            log.event("sandbox not ended", level=30, error=error, sandbox=row.id)  # the intent stays, and so it is due
            return "not ended"
        warden.roster.bury(row)
        return "undone" if undone else "deleted"
    if state is None:
        row.error_reason = row.error_reason or _LOST
    elif (wish := ResizeWish.from_intent(row.intent)) is not None:
        await _resize_again(warden, row, wish)
    if row.intent == INTENT and state == "stopped":
        await wake(warden, row)
        return row.state
    await warden.settle(row, state)
    return row.state


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
            await warden.backend.delete_snapshot(engine_id)
        except CorralError as error:
            log.event("snapshot was not there", error=error, snapshot=snapshot.id)
    warden.shelf.remove(snapshot)


def backend_name(snapshot_id: str) -> str:
    """What a snapshot is called at the backend: known before it is made, so that a half-made one can be found."""
    return f"server-{snapshot_id}"
