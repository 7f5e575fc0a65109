"""Sandboxes: made, found, changed and ended."""

from __future__ import annotations

import time

from corral.powers import KeepsSandboxes
from corral.server import dto, steps
from corral.server.faults import Fault, bad_request, not_here
from corral.server.listing import filter_rows, page_of, read_labels
from corral.server.powers import keeping
from corral.server.reconcile import backend_name
from corral.server.routing import SANDBOX, Call, Table
from corral.server.shelf import BASE
from corral.server.store.rows import Organisation, Sandbox, Snapshot, new_id, new_signing_key
from corral.server.wire import control
from corral.server.wire.base import timestamp
from corral.server.wishes import image_of, language_of, make_row, make_spec, refuse_what_is_missing

TABLE = Table("control")
_ONE = "/sandbox/{sandboxIdOrName}"
_OK = {200: control.Sandbox}
_TOOLBOX_PORT = 2280


def _row(call: Call, *, buried: bool = False) -> Sandbox:
    wanted = call.params["sandboxIdOrName"]
    row = call.services.control.roster.find(wanted, organisation_id=call.identity.organisation_id, buried=buried)
    call.request[SANDBOX] = row.id
    return row


def _show(call: Call, row: Sandbox) -> control.Sandbox:
    return dto.sandbox(row, base_url=call.services.control.guard.base_url(call.request))


def _organisation(call: Call) -> Organisation:
    return call.services.control.keyring.organisations[call.identity.organisation_id]


@TABLE.add("POST", "/sandbox", scope="write", body=control.CreateSandbox, answers=_OK)
async def create_sandbox(call: Call) -> control.Sandbox:
    """Make a sandbox; it is started when this answers."""
    wish: control.CreateSandbox = call.body
    parts = call.services.control
    organisation_id = call.identity.organisation_id
    token = call.request.headers.get("Idempotency-Key")
    if token and (known := await parts.warden.recall(token, organisation_id=organisation_id)) is not None:
        return _show(call, known)
    refuse_what_is_missing(wish)
    image = image_of(wish)
    if image is not None:
        snapshot = parts.shelf.find_image(image, organisation_id=organisation_id)
    else:
        snapshot = parts.shelf.find(wish.snapshot or BASE, organisation_id=organisation_id)
    if snapshot.state != "active":
        raise bad_request(f"the snapshot {snapshot.name!r} is {snapshot.state}, not active")
    row = make_row(wish, organisation_id=organisation_id, snapshot=snapshot, defaults=call.services.settings.defaults)
    parts.roster.check_quota(_organisation(call), sandboxes=1, cpu=row.cpu, memory=row.memory, disk=row.disk)
    spec = make_spec(row, snapshot=snapshot)
    if token:
        parts.warden.remember(token, row)
    await parts.warden.make(row, lambda: parts.warden.backend.create(spec))
    parts.metrics.sandboxes_made += 1
    snapshot.used_at = time.time()
    return _show(call, row)


@TABLE.add("GET", "/sandbox", scope="read", query=control.ListQuery, answers={200: control.ListSandboxesResponse})
async def list_sandboxes(call: Call) -> control.ListSandboxesResponse:
    """The organisation's sandboxes, page by page."""
    base_url = call.services.control.guard.base_url(call.request)
    rows, cursor = page_of(call.services.control.roster.of(call.identity.organisation_id), call.query)
    return control.ListSandboxesResponse(
        items=[dto.list_item(row, base_url=base_url) for row in rows], next_cursor=cursor
    )


@TABLE.add(
    "GET", "/sandbox/paginated", scope="read", query=control.PageQuery, answers={200: control.PaginatedSandboxes}
)
async def list_sandboxes_paginated(call: Call) -> control.PaginatedSandboxes:
    """The same by numbered pages, for older clients."""
    query: control.PageQuery = call.query
    read_labels(query.labels)
    filters = control.ListQuery(labels=query.labels, name=query.name, id=query.id, states=query.states)
    rows = filter_rows(call.services.control.roster.of(call.identity.organisation_id), filters)
    rows.sort(key=lambda row: (row.created_at, row.id), reverse=True)
    begin = (query.page - 1) * query.limit
    return control.PaginatedSandboxes(
        items=[_show(call, row) for row in rows[begin : begin + query.limit]],
        total=len(rows),
        page=query.page,
        total_pages=-(-len(rows) // query.limit),
    )


@TABLE.add("GET", _ONE, scope="read", query=control.GetQuery, answers=_OK)
async def get_sandbox(call: Call) -> control.Sandbox:
    """One sandbox, by id or name."""
    return _show(call, _row(call, buried=True))


@TABLE.add("DELETE", _ONE, scope="delete", query=control.DeleteQuery, answers=_OK)
async def delete_sandbox(call: Call) -> control.Sandbox:
    """End a sandbox, with its files."""
    row = _row(call)
    await call.services.control.warden.delete(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/start", scope="write", answers=_OK)
async def start_sandbox(call: Call) -> control.Sandbox:
    """Let a stopped, archived or paused one run."""
    row = _row(call)
    call.services.control.roster.check_quota(_organisation(call), cpu=row.cpu, memory=row.memory, leaving_out=row.id)
    await call.services.control.warden.start(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/stop", scope="write", query=control.StopQuery, answers=_OK)
async def stop_sandbox(call: Call) -> control.Sandbox:
    """End its processes, keep its files."""
    row = _row(call)
    await call.services.control.warden.stop(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/pause", scope="write", answers=_OK)
async def pause_sandbox(call: Call) -> control.Sandbox:
    """Freeze its processes."""
    row = _row(call)
    await call.services.control.warden.pause(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/archive", scope="write", answers=_OK)
async def archive_sandbox(call: Call) -> control.Sandbox:
    """Put a stopped one away."""
    row = _row(call)
    await call.services.control.warden.archive(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/recover", scope="write", query=control.RecoverQuery, answers=_OK)
async def recover_sandbox(call: Call) -> control.Sandbox:
    """Out of the state of error."""
    row = _row(call)
    await call.services.control.warden.recover(row, skip_start=call.query.skip_start)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/resize", scope="write", body=control.ResizeSandbox, answers=_OK)
async def resize_sandbox(call: Call) -> control.Sandbox:
    """Other limits."""
    row = _row(call)
    wish: control.ResizeSandbox = call.body
    call.services.control.roster.check_quota(
        _organisation(call),
        sandboxes=1,
        cpu=wish.cpu or row.cpu,
        memory=wish.memory or row.memory,
        disk=wish.disk or row.disk,
        leaving_out=row.id,
    )
    await call.services.control.warden.resize(row, cpu=wish.cpu, memory=wish.memory, disk=wish.disk)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/fork", scope="write", body=control.ForkSandbox, body_optional=True, answers=_OK)
async def fork_sandbox(call: Call) -> control.Sandbox:
    """A second sandbox from the files of this one."""
    source = _row(call)
    parts = call.services.control
    if source.state not in ("started", "stopped", "paused") or source.engine_id is None:
        raise bad_request(f"the sandbox is {source.state}; it must be started or stopped for this")
    engine_id = source.engine_id
    backend = keeping(parts.warden.backend)
    defaults = call.services.settings.defaults
    wish = control.CreateSandbox(
        name=call.body.name if call.body is not None else None,
        user=source.user, env=source.env, labels=source.labels, public=source.public, target=source.target,
        cpu=source.cpu, memory=source.memory, disk=source.disk, network_block_all=source.network_block_all,
        auto_stop_interval=source.auto_stop, auto_pause_interval=source.auto_pause,
        auto_archive_interval=source.auto_archive, auto_delete_interval=source.auto_delete,
    )  # fmt: skip
    base = parts.shelf.find(BASE, organisation_id=call.identity.organisation_id)
    row = make_row(wish, organisation_id=source.organisation_id, snapshot=base, defaults=defaults)
    row.snapshot, row.set_env = source.snapshot, dict(source.set_env)
    parts.roster.check_quota(_organisation(call), sandboxes=1, cpu=row.cpu, memory=row.memory, disk=row.disk)
    spec = make_spec(row, snapshot=None)
    await parts.warden.make(row, lambda: backend.fork(engine_id, spec))
    return _show(call, row)


@TABLE.add("POST", _ONE + "/snapshot", scope="write", body=control.CreateSandboxSnapshot, answers=_OK)
async def create_sandbox_snapshot(call: Call) -> control.Sandbox:
    """Keep its files as a snapshot."""
    if call.body.include_memory:
        raise Fault(501, "snapshots with memory are not supported by this server")
    row = _row(call)
    parts = call.services.control
    backend = keeping(parts.warden.backend)
    snapshot = Snapshot(
        id=new_id(),
        organisation_id=row.organisation_id,
        name=call.body.name,
        state="snapshotting",
        intent="create",
        cpu=row.cpu,
        memory=row.memory,
        disk=row.disk,
        source_sandbox_id=row.id,
    )
    await parts.warden.finish(_take_snapshot(call, row, snapshot, backend))
    return _show(call, row)


async def _take_snapshot(call: Call, row: Sandbox, snapshot: Snapshot, backend: KeepsSandboxes) -> None:
    parts = call.services.control
    async with parts.warden.lock(row):
        if row.state not in ("started", "stopped", "paused"):
            raise bad_request(f"the sandbox is {row.state}; it must be started or stopped for this")
        assert row.engine_id is not None, "only one that was made is in such a state"
        parts.shelf.put(snapshot)
        steps.reached("snapshot:intent-written")
        try:
            snapshot.engine_id = await backend.snapshot(row.engine_id, name=backend_name(snapshot.id))
        except BaseException:
            parts.shelf.remove(snapshot)
            raise
        steps.reached("snapshot:done")
        snapshot.state, snapshot.intent = "active", None
        parts.shelf.put(snapshot)
        steps.reached("snapshot:acknowledged")


@TABLE.add("PUT", _ONE + "/labels", scope="write", body=control.SandboxLabels, answers={200: control.SandboxLabels})
async def replace_labels(call: Call) -> control.SandboxLabels:
    """Other labels, instead of all that it has."""
    row = _row(call)
    language_of(call.body.labels)
    row.labels = call.body.labels
    call.services.control.roster.save(row)
    call.services.control.warden.refresh(row)
    return control.SandboxLabels(labels=row.labels)


def _number(call: Call, name: str, *, least: int = 0) -> int:
    text = call.params[name]
    if not (text.isascii() and text.removeprefix("-").isdigit()) or len(text) > 9 or int(text) < least:
        raise bad_request(f"{name}: {text[:50]!r} is not a number of at least {least}")
    return int(text)


@TABLE.add("POST", _ONE + "/autostop/{interval}", scope="write", answers=_OK)
async def set_autostop_interval(call: Call) -> control.Sandbox:
    """Stop it after so many minutes without use; 0 is never."""
    row = _row(call)
    row.auto_stop = _number(call, "interval")
    call.services.control.roster.save(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/autopause/{interval}", scope="write", answers=_OK)
async def set_auto_pause_interval(call: Call) -> control.Sandbox:
    """Pause it after so many minutes without use; 0 is never."""
    row = _row(call)
    row.auto_pause = _number(call, "interval")
    call.services.control.roster.save(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/autoarchive/{interval}", scope="write", answers=_OK)
async def set_auto_archive_interval(call: Call) -> control.Sandbox:
    """Archive it after it was stopped for so many minutes; 0 is never."""
    row = _row(call)
    row.auto_archive = _number(call, "interval")
    call.services.control.roster.save(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/autodelete/{interval}", scope="write", answers=_OK)
async def set_auto_delete_interval(call: Call) -> control.Sandbox:
    """Delete it after it was stopped for so many minutes; 0 is with the stop, -1 is never."""
    row = _row(call)
    row.auto_delete = _number(call, "interval", least=-1)
    call.services.control.roster.save(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/ttl/{ttlMinutes}", scope="write", answers=_OK)
async def set_ttl(call: Call) -> control.Sandbox:
    """Delete it after so many minutes from now, whatever it does; 0 is never."""
    row = _row(call)
    minutes = _number(call, "ttlMinutes")
    row.destroy_at = time.time() + 60 * minutes if minutes else None
    call.services.control.roster.save(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/public/{isPublic}", scope="write", answers=_OK)
async def update_public_status(call: Call) -> control.Sandbox:
    """Whether its previews need no key."""
    row = _row(call)
    if call.params["isPublic"] not in ("true", "false"):
        raise bad_request("isPublic is neither true nor false")
    row.public = call.params["isPublic"] == "true"
    call.services.control.roster.save(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/last-activity", scope="write", answers={201: None})
async def update_last_activity(call: Call) -> None:
    """It is in use."""
    call.services.control.roster.touch(_row(call))


@TABLE.add("GET", _ONE + "/toolbox-proxy-url", scope="read", answers={200: control.ToolboxProxyUrl})
async def get_toolbox_proxy_url(call: Call) -> control.ToolboxProxyUrl:
    """Where its toolbox is."""
    return control.ToolboxProxyUrl(url=_show(call, _row(call)).toolbox_proxy_url)


@TABLE.add("GET", _ONE + "/ports/{port}/preview-url", scope="read", answers={200: control.PortPreviewUrl})
async def get_port_preview_url(call: Call) -> control.PortPreviewUrl:
    """Where the toolbox is, in the words of clients before 0.110: they reach its websockets by a preview of its port.

    They send their key along, so the token opens nothing. Other ports have no preview here.
    """
    shown = _show(call, _row(call))
    if _number(call, "port") != _TOOLBOX_PORT:
        raise not_here("previews")
    return control.PortPreviewUrl(sandbox_id=shown.id, url=f"{shown.toolbox_proxy_url}/{shown.id}", token="")


@TABLE.add("GET", _ONE + "/signing-key", scope="run", answers={200: str})
async def get_sandbox_signing_key(call: Call) -> str:
    """The key with which clients sign URLs of its files."""
    return _row(call).signing_key.decode()


@TABLE.add("POST", _ONE + "/signing-key/rotate", scope="run", answers={200: str})
async def rotate_signing_key(call: Call) -> str:
    """Another such key; URLs that the old one signed are dead."""
    row = _row(call)
    row.signing_key = new_signing_key()
    call.services.control.roster.save(row)
    call.services.control.warden.refresh(row)
    return row.signing_key.decode()


@TABLE.add(
    "GET", _ONE + "/telemetry/metrics", scope="read", query=control.MetricsQuery, answers={200: control.MetricsResponse}
)
async def get_sandbox_metrics(call: Call) -> control.MetricsResponse:
    """What it uses, as measured now."""
    row = _row(call)
    async with call.services.warden.use(row.id, organisation_id=row.organisation_id, activity=False) as held:
        usage = await held.box.usage()
    now = timestamp(time.time())
    gib = 1024**3
    measured: dict[str, float | None] = {
        "daytona.sandbox.cpu.limit": row.cpu,
        "daytona.sandbox.memory.limit": row.memory * gib,
        "daytona.sandbox.memory.usage": usage.memory_bytes,
        "daytona.sandbox.filesystem.total": row.disk * gib,
        "daytona.sandbox.filesystem.usage": usage.disk_bytes,
    }
    wanted = {name for text in call.query.metric_names for name in text.split(",")}
    return control.MetricsResponse(
        series=[
            control.MetricSeries(
                metric_name=name, data_points=[control.MetricDataPoint(timestamp=now, value=float(value))]
            )
            for name, value in measured.items()
            if value is not None and (not wanted or name in wanted)
        ]
    )
