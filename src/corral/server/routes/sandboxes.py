"""Sandboxes: made, found, changed and ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from corral.client.sandbox import AsyncSandbox
from corral.protocol import Backend
from corral.server import dto, steps
from corral.server.faults import bad_request, not_here
from corral.server.listing import filter_rows, numbered_page_of, page_of
from corral.server.quota import check_quota
from corral.server.reconcile import backend_name
from corral.server.resting import rested
from corral.server.routing import SANDBOX, Call, Table
from corral.server.shelf import BASE
from corral.server.signing import signing_key
from corral.server.store.rows import Sandbox, Snapshot, new_id, new_signing_key
from corral.server.wire import control
from corral.server.wishes import (
    ResizeWish,
    archive_after,
    check_labels,
    check_snapshot_name,
    digest_token,
    image_of,
    make_row,
    make_spec,
    refuse_what_excludes_itself,
    refuse_what_is_missing,
)

TABLE = Table("control")
_ONE = "/sandbox/{sandboxIdOrName}"
_OK = {200: control.Sandbox}
_TOOLBOX_PORT = 2280
_SETTLED = frozenset({"started", "stopped", "paused", "archived", "error"})
"""States in which a sandbox stays until somebody changes it."""
_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})\.")
_PAGES = (0, 180)
"""Since this version the list of sandboxes is read page by page."""


def _row(call: Call, *, buried: bool = False) -> Sandbox:
    wanted = call.params["sandboxIdOrName"]
    row = call.services.control.roster.find(wanted, organisation_id=call.identity.organisation_id, buried=buried)
    call.request[SANDBOX] = row.id
    return row


def _show(call: Call, row: Sandbox) -> control.Sandbox:
    return dto.sandbox(row, base_url=call.services.control.guard.base_url(call.request))


def _organisation(call: Call) -> str:
    """The name of the caller's."""
    return call.services.control.keyring.organisations[call.identity.organisation_id].name


def _is_from_before_pages(call: Call) -> bool:
    """By the version that the SDKs, and nobody else, tell with each request."""
    found = _VERSION.match(call.request.headers.get("X-Daytona-SDK-Version", ""))
    return found is not None and (int(found[1]), int(found[2])) < _PAGES


def _demand_files(row: Sandbox) -> str:
    """The id at the backend of one whose files can be copied. Raises: Fault 400."""
    if row.state not in ("started", "stopped", "paused") or row.engine_id is None:
        raise bad_request(f"the sandbox is {row.state}; it must be started, paused or stopped for this")
    return row.engine_id


@TABLE.add("POST", "/sandbox", scope="write", body=control.CreateSandbox, body_optional=True, answers=_OK)
async def create_sandbox(call: Call) -> control.Sandbox:
    """Make a sandbox; it is started when this answers."""
    wish: control.CreateSandbox = call.body or control.CreateSandbox()
    parts = call.services.control
    organisation_id = call.identity.organisation_id
    token = digest_token(call.request.headers.get("Idempotency-Key"))
    if token and (known := await parts.warden.recall(token, organisation_id=organisation_id)) is not None:
        return _show(call, known)
    refuse_what_is_missing(wish)
    refuse_what_excludes_itself(wish)
    image = image_of(wish.build_info)
    if image is not None:
        snapshot = parts.shelf.find_image(image, organisation_id=organisation_id)
    else:
        snapshot = parts.shelf.find(wish.snapshot or BASE, organisation_id=organisation_id)
    if snapshot.state != "active":
        raise bad_request(f"the snapshot {snapshot.name!r} is {snapshot.state}, not active")
    row = make_row(wish, organisation_id=organisation_id, snapshot=snapshot, defaults=call.services.settings.defaults)
    check_quota(parts, row.organisation_id, sandboxes=1, cpu=row.cpu, memory=row.memory, disk=row.disk)
    spec = make_spec(row, snapshot=snapshot, organisation=_organisation(call))
    row.request_token = token
    await parts.warden.make(row, lambda: parts.warden.backend.create(spec))
    parts.metrics.sandboxes_made += 1
    snapshot.used_at = time.time()
    return _show(call, row)


@TABLE.add(
    "GET",
    "/sandbox",
    scope="read",
    query=control.ListQuery,
    answers={200: control.ListSandboxesResponse | list[control.Sandbox]},
)
async def list_sandboxes(call: Call) -> control.ListSandboxesResponse | list[control.Sandbox]:
    """The organisation's sandboxes, page by page; clients from before there were pages get all, as a bare list."""
    base_url = call.services.control.guard.base_url(call.request)
    mine = call.services.control.roster.of(call.identity.organisation_id)
    if _is_from_before_pages(call):
        return [_show(call, row) for row in filter_rows(mine, call.query)]
    rows, cursor = page_of(mine, call.query)
    return control.ListSandboxesResponse(
        items=[dto.list_item(row, base_url=base_url) for row in rows], next_cursor=cursor
    )


@TABLE.add(
    "GET", "/sandbox/paginated", scope="read", query=control.PageQuery, answers={200: control.PaginatedSandboxes}
)
async def list_sandboxes_paginated(call: Call) -> control.PaginatedSandboxes:
    """The same by numbered pages, for older clients."""
    query: control.PageQuery = call.query
    rows, total = numbered_page_of(call.services.control.roster.of(call.identity.organisation_id), query)
    return control.PaginatedSandboxes(
        items=[_show(call, row) for row in rows],
        total=total,
        page=query.page,
        total_pages=-(-total // query.limit),
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


def _permit_start(call: Call, row: Sandbox) -> Callable[[], None]:
    def permit() -> None:
        parts = call.services.control
        check_quota(parts, row.organisation_id, cpu=row.cpu, memory=row.memory, leaving_out=row.id)

    return permit


@TABLE.add("POST", _ONE + "/start", scope="write", answers=_OK)
async def start_sandbox(call: Call) -> control.Sandbox:
    """Let a stopped, archived or paused one run."""
    row = _row(call)
    await call.services.control.warden.start(row, permit=_permit_start(call, row))
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
    """Out of the state of error, and started."""
    row = _row(call)
    if row.state not in ("error", "stopped", "started"):  # whoever waited for it to be started would wait for long
        raise bad_request(f"the sandbox is {row.state}; only one in the state of error is recovered")
    await call.services.control.warden.recover(row, skip_start=call.query.skip_start, permit=_permit_start(call, row))
    return _show(call, row)


@TABLE.add("POST", _ONE + "/resize", scope="write", body=control.ResizeSandbox, answers=_OK)
async def resize_sandbox(call: Call) -> control.Sandbox:
    """Other limits."""
    row = _row(call)
    wish = ResizeWish(cpu=call.body.cpu, memory=call.body.memory, disk=call.body.disk)

    def permit() -> None:
        check_quota(
            call.services.control,
            row.organisation_id,
            sandboxes=1,
            cpu=wish.cpu or row.cpu,
            memory=wish.memory or row.memory,
            disk=wish.disk or row.disk,
            leaving_out=row.id,
        )

    await call.services.control.warden.resize(row, wish, permit=permit)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/fork", scope="write", body=control.ForkSandbox, body_optional=True, answers=_OK)
async def fork_sandbox(call: Call) -> control.Sandbox:
    """A second sandbox from the files of this one."""
    source = _row(call)
    parts = call.services.control
    if source.state in _SETTLED:
        _demand_files(source)  # before a second one is begun
    backend = parts.warden.backend
    await backend.need("fork")
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
    row.git_hosts = list(source.git_hosts)  # its files are the same, and so are their remotes
    check_quota(parts, row.organisation_id, sandboxes=1, cpu=row.cpu, memory=row.memory, disk=row.disk)
    spec = make_spec(row, snapshot=None, organisation=_organisation(call))

    async def copy() -> AsyncSandbox:
        async with parts.warden.lock(source):  # it may be about to stop, or to be resized
            engine_id = _demand_files(source)
            async with rested(parts.warden, source):
                return await backend.fork(engine_id, spec)

    await parts.warden.make(row, copy)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/snapshot", scope="write", body=control.CreateSandboxSnapshot, answers=_OK)
async def create_sandbox_snapshot(call: Call) -> control.Sandbox:
    """Keep its files as a snapshot."""
    if call.body.include_memory:
        raise not_here("snapshots with memory")
    check_snapshot_name(call.body.name)
    row = _row(call)
    parts = call.services.control
    backend = parts.warden.backend
    await backend.need("snapshot")
    snapshot = Snapshot(
        id=new_id(),
        organisation_id=row.organisation_id,
        name=call.body.name,
        state="snapshotting",
        intent="create",
        user=row.user,
        cpu=row.cpu,
        memory=row.memory,
        disk=row.disk,
        source_sandbox_id=row.id,
    )
    await parts.warden.finish(_take_snapshot(call, row, snapshot, backend))
    return _show(call, row)


async def _take_snapshot(call: Call, row: Sandbox, snapshot: Snapshot, backend: Backend) -> None:
    parts = call.services.control
    async with parts.warden.lock(row):
        engine_id = _demand_files(row)
        check_quota(parts, row.organisation_id, disk=snapshot.disk)
        parts.shelf.put(snapshot)
        steps.reached("snapshot:intent-written")
        try:
            async with rested(parts.warden, row):
                snapshot.engine_id = await backend.snapshot(engine_id, name=backend_name(snapshot.id))
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
    check_labels(call.body.labels)
    row.labels = call.body.labels
    call.services.control.roster.save(row)
    call.services.control.warden.handles.refresh(row)
    return control.SandboxLabels(labels=row.labels)


def _number(call: Call, name: str, *, below_zero: bool = False) -> int:
    text = call.params[name]
    if not (text.isascii() and text.removeprefix("-").isdigit()) or len(text) > 9 or (int(text) < 0 and not below_zero):
        raise bad_request(f"{name}: {text[:50]!r} is not a number{'' if below_zero else ' of at least 0'}")
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
    """Archive it after it was stopped for so many minutes; 0 is the longest that there is."""
    row = _row(call)
    row.auto_archive = archive_after(_number(call, "interval"), defaults=call.services.settings.defaults)
    call.services.control.roster.save(row)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/autodelete/{interval}", scope="write", answers=_OK)
async def set_auto_delete_interval(call: Call) -> control.Sandbox:
    """Delete it after it was stopped for so many minutes; 0 is with the stop, below 0 is never."""
    row = _row(call)
    row.auto_delete = max(-1, _number(call, "interval", below_zero=True))
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


@TABLE.add(
    "POST",
    _ONE + "/last-activity",
    scope="write",
    body=control.UpdateLastActivity,
    body_optional=True,
    answers={201: None},
)
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
    """The key with which a client signs URLs of its files; it ends with the client's own."""
    return signing_key(_row(call).signing_key, key_id=call.identity.key_id)


@TABLE.add("POST", _ONE + "/signing-key/rotate", scope="run", answers={200: str})
async def rotate_signing_key(call: Call) -> str:
    """Another such key; URLs that the old one signed are dead."""
    row = _row(call)
    row.signing_key = new_signing_key()
    call.services.control.roster.save(row)
    return signing_key(row.signing_key, key_id=call.identity.key_id)
