"""Snapshots: what sandboxes start from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from corral.errors import CorralError
from corral.server import dto, steps
from corral.server.faults import Fault, bad_request, conflict, not_here
from corral.server.routing import Call, Table
from corral.server.services import Control
from corral.server.shelf import BASE
from corral.server.store.rows import Snapshot, new_id
from corral.server.wire import control
from corral.server.wishes import check_snapshot_name, image_of

TABLE = Table("control")
_OK = {200: control.SnapshotDto}
_ORDERS: dict[str, Callable[[Snapshot], Any]] = {
    "name": lambda row: row.name,
    "state": lambda row: row.state,
    "lastUsedAt": lambda row: row.used_at or 0.0,
    "createdAt": lambda row: row.created_at,
}


def _show(call: Call, row: Snapshot) -> control.SnapshotDto:
    return dto.snapshot(row, target=call.services.settings.defaults.target)


def _row(call: Call) -> Snapshot:
    return call.services.control.shelf.find(call.params["id"], organisation_id=call.identity.organisation_id)


@TABLE.add("GET", "/snapshots", scope="read", query=control.SnapshotsQuery, answers={200: control.PaginatedSnapshots})
async def get_all_snapshots(call: Call) -> control.PaginatedSnapshots:
    """Snapshots, page by page."""
    query: control.SnapshotsQuery = call.query
    rows = [
        row
        for row in call.services.control.shelf.seen_by(call.identity.organisation_id)
        if (not query.name or query.name.lower() in row.name.lower())
        and (query.source_sandbox_id is None or row.source_sandbox_id == query.source_sandbox_id)
    ]
    rows.sort(key=lambda row: (_ORDERS[query.sort](row), row.created_at, row.id), reverse=query.order == "desc")
    begin = (query.page - 1) * query.limit
    return control.PaginatedSnapshots(
        items=[_show(call, row) for row in rows[begin : begin + query.limit]],
        total=len(rows),
        page=query.page,
        total_pages=-(-len(rows) // query.limit),
    )


@TABLE.add("POST", "/snapshots", scope="write", body=control.CreateSnapshot, answers=_OK)
async def create_snapshot(call: Call) -> control.SnapshotDto:
    """Another name, and other resources, for a snapshot that is there; images are not pulled or built."""
    wish: control.CreateSnapshot = call.body
    shelf = call.services.control.shelf
    image = image_of(wish.build_info) or wish.image_name or BASE
    if wish.gpu:
        raise not_here("a GPU")
    check_snapshot_name(wish.name)
    source = shelf.look_up(image, organisation_id=call.identity.organisation_id)
    if source is None:
        raise Fault(
            422,
            f"{image[:200]!r} is no snapshot here, and images are not pulled or built by this server: name a snapshot "
            f"that is there as the image, {BASE!r} for one",
        )
    if source.state in ("snapshotting", "removing"):
        raise bad_request(f"the snapshot {source.name!r} is {source.state}, not active")
    row = Snapshot(
        id=new_id(),
        organisation_id=call.identity.organisation_id,
        name=wish.name,
        engine_id=source.engine_id,
        image_name=image,
        user=source.user,
        cpu=wish.cpu or source.cpu,
        memory=wish.memory or source.memory,
        disk=wish.disk or source.disk,
        entrypoint=wish.entrypoint,
    )
    shelf.put(row)
    return _show(call, row)


@TABLE.add("GET", "/snapshots/{id}", scope="read", answers=_OK)
async def get_snapshot(call: Call) -> control.SnapshotDto:
    """One snapshot, by id or name."""
    return _show(call, _row(call))


@TABLE.add("DELETE", "/snapshots/{id}", scope="delete", answers={200: None})
async def remove_snapshot(call: Call) -> None:
    """Forget a snapshot; sandboxes that came from it stay."""
    row = _row(call)
    if row.organisation_id is None:
        raise Fault(403, "this snapshot is everybody's")
    parts = call.services.control
    if row.state == "snapshotting":
        raise conflict("the snapshot is still being made")
    await parts.warden.finish(_remove(parts, row))


async def _remove(parts: Control, row: Snapshot) -> None:
    row.state, row.intent = "removing", "delete"
    parts.shelf.put(row)
    steps.reached("forget:intent-written")
    if row.engine_id is not None and not parts.shelf.is_used_at_backend(row.engine_id, but_for=row):
        with contextlib.suppress(CorralError):  # gone already
            await parts.warden.backend.delete_snapshot(row.engine_id)
    steps.reached("forget:done")
    parts.shelf.remove(row)
    steps.reached("forget:acknowledged")


@TABLE.add("POST", "/snapshots/{id}/deactivate", scope="write", answers={204: None})
async def deactivate_snapshot(call: Call) -> None:
    """Let nothing start from it until it is activated again."""
    row = _row(call)
    if row.organisation_id is None:
        raise Fault(403, "this snapshot is everybody's")
    if row.state not in ("active", "inactive"):
        raise conflict(f"the snapshot is {row.state}")
    row.state = "inactive"
    call.services.control.shelf.put(row)


@TABLE.add("POST", "/snapshots/{id}/activate", scope="write", answers=_OK)
async def activate_snapshot(call: Call) -> control.SnapshotDto:
    """Make one that was deactivated usable again."""
    row = _row(call)
    if row.state == "inactive":
        row.state = "active"
        call.services.control.shelf.put(row)
    return _show(call, row)


@TABLE.add("GET", "/snapshots/{id}/build-logs-url", scope="read", answers={200: control.Url})
async def get_snapshot_build_logs_url(call: Call) -> control.Url:
    """Where the log of its making is."""
    row = _row(call)
    base = call.services.control.guard.base_url(call.request)
    return control.Url(url=f"{base}/api/snapshots/{row.id}/build-logs")


@TABLE.add("GET", "/snapshots/{id}/build-logs", scope="read", answers={200: None})
async def get_snapshot_build_logs(call: Call) -> None:
    """The log of its making: empty, because nothing is built."""
    _row(call)
