"""Snapshots: what sandboxes start from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.server import dto, steps
from corral.server.creating import check_snapshot_name, image_of
from corral.server.faults import Fault, bad_request, conflict, unsupported
from corral.server.lifecycle import Lifecycle
from corral.server.reconcile import end_snapshot_at_backend
from corral.server.routing import ApiCall, Table
from corral.server.snapshots import BASE
from corral.server.store.rows import Snapshot, new_id
from corral.server.wire import control

TABLE = Table("control")
_ORDERS: dict[str, Callable[[Snapshot], Any]] = {
    "name": lambda row: row.name,
    "state": lambda row: row.state,
    "lastUsedAt": lambda row: row.used_at or 0.0,
    "createdAt": lambda row: row.created_at,
}


def _show(call: ApiCall, row: Snapshot) -> control.SnapshotDto:
    return dto.snapshot(row, target=call.server.settings.defaults.target)


def _row(call: ApiCall) -> Snapshot:
    return call.server.snapshots.find(call.params["id"], organisation_id=call.organisation_id)


def _own_row(call: ApiCall) -> Snapshot:
    row = _row(call)
    if row.organisation_id is None:
        raise Fault(403, "the default snapshot can't be changed or deleted")
    return row


@TABLE.add("GET", "/snapshots", query=control.SnapshotsQuery)
async def get_all_snapshots(call: ApiCall) -> control.PaginatedSnapshots:
    """List snapshots, page by page."""
    query: control.SnapshotsQuery = call.query
    rows = [
        row
        for row in call.server.snapshots.seen_by(call.organisation_id)
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


@TABLE.add("POST", "/snapshots", body=control.CreateSnapshot)
async def create_snapshot(call: ApiCall) -> control.SnapshotDto:
    """Create a snapshot from an existing one, with another name and resources; images are not pulled or built."""
    wanted: control.CreateSnapshot = call.body
    snapshots = call.server.snapshots
    image = image_of(wanted.build_info) or wanted.image_name or BASE
    if wanted.gpu:
        raise unsupported("GPUs")
    check_snapshot_name(wanted.name)
    source = snapshots.find_image(image, organisation_id=call.organisation_id)
    if source.state in ("snapshotting", "removing"):
        raise bad_request(f"the snapshot {source.name!r} is {source.state}, not active")
    row = Snapshot(
        id=new_id(),
        organisation_id=call.organisation_id,
        name=wanted.name,
        engine_id=source.engine_id,
        image_name=image,
        user=source.user,
        cpu=wanted.cpu or source.cpu,
        memory=wanted.memory or source.memory,
        disk=wanted.disk or source.disk,
        entrypoint=wanted.entrypoint,
    )
    snapshots.put(row)
    return _show(call, row)


@TABLE.add("GET", "/snapshots/{id}")
async def get_snapshot(call: ApiCall) -> control.SnapshotDto:
    """Get a snapshot, by id or name."""
    return _show(call, _row(call))


@TABLE.add("DELETE", "/snapshots/{id}")
async def remove_snapshot(call: ApiCall) -> None:
    """Delete a snapshot; sandboxes created from it stay."""
    row = _own_row(call)
    if row.state == "snapshotting":
        raise conflict("the snapshot is still being created")
    await call.server.lifecycle.finish(_remove(call.server.lifecycle, row))


async def _remove(lifecycle: Lifecycle, row: Snapshot) -> None:
    row.state, row.intent = "removing", "delete"
    lifecycle.snapshots.put(row)
    steps.reached("forget:intent-written")
    await end_snapshot_at_backend(lifecycle, row)
    steps.reached("forget:done")
    lifecycle.snapshots.remove(row)
    steps.reached("forget:acknowledged")


@TABLE.add("POST", "/snapshots/{id}/deactivate", status=204)
async def deactivate_snapshot(call: ApiCall) -> None:
    """Deactivate a snapshot: no sandbox can be created from it until it is activated."""
    row = _own_row(call)
    if row.state not in ("active", "inactive"):
        raise conflict(f"the snapshot is {row.state}")
    row.state = "inactive"
    call.server.snapshots.put(row)


@TABLE.add("POST", "/snapshots/{id}/activate")
async def activate_snapshot(call: ApiCall) -> control.SnapshotDto:
    """Activate a snapshot that was deactivated."""
    row = _row(call)
    if row.state == "inactive":
        row.state = "active"
        call.server.snapshots.put(row)
    return _show(call, row)


@TABLE.add("GET", "/snapshots/{id}/build-logs-url")
async def get_snapshot_build_logs_url(call: ApiCall) -> control.Url:
    """The URL of a snapshot's build log."""
    return control.Url(url=f"{call.base_url}/api/snapshots/{_row(call).id}/build-logs")


@TABLE.add("GET", "/snapshots/{id}/build-logs")
async def get_snapshot_build_logs(call: ApiCall) -> None:
    """A snapshot's build log: always empty, because nothing is built."""
    _row(call)
