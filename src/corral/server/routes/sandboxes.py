"""Sandboxes: creating, finding, changing and deleting them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corral.client.sandbox import AsyncSandbox
from corral.server import dto, steps
from corral.server.creating import (
    archive_after,
    check_labels,
    check_snapshot_name,
    digest_token,
    image_of,
    make_row,
    make_spec,
    refuse_unsupported,
)
from corral.server.faults import bad_request, unsupported
from corral.server.listing import filter_rows, numbered_page_of, page_of
from corral.server.living import LivingSandbox
from corral.server.quota import check_quota
from corral.server.reconcile import backend_name
from corral.server.resting import rested
from corral.server.routing import ApiCall, Table
from corral.server.signing import signing_key
from corral.server.snapshots import BASE
from corral.server.store.rows import Sandbox, Snapshot, new_id, new_signing_key
from corral.server.wire import control

if TYPE_CHECKING:
    from corral.server.app import Server

TABLE = Table("control")
_ONE = "/sandbox/{sandboxIdOrName}"
_SETTLED = frozenset({"started", "stopped", "paused", "archived", "error"})
"""States in which a sandbox stays until it is changed."""
_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})\.")
_PAGES = (0, 180)
"""Since this version SDKs read the list of sandboxes page by page."""


def _show(call: ApiCall, row: Sandbox) -> control.Sandbox:
    return dto.sandbox(row, base_url=call.base_url)


def _organisation(call: ApiCall) -> str:
    """The name of the caller's organisation."""
    return call.server.keyring.organisations[call.organisation_id].name


def _is_from_before_pages(call: ApiCall) -> bool:
    """Whether the client is an SDK from before lists had pages; SDKs send their version with each request."""
    found = _VERSION.match(call.request.headers.get("X-Daytona-SDK-Version", ""))
    return found is not None and (int(found[1]), int(found[2])) < _PAGES


def _require_files(row: Sandbox) -> str:
    """The sandbox's id at the backend. Raises: Fault 400 if its files can't be copied in its state."""
    if row.state not in ("started", "stopped", "paused") or row.engine_id is None:
        raise bad_request(f"the sandbox is {row.state}; it must be started, paused or stopped")
    return row.engine_id


@TABLE.add("POST", "/sandbox", body=control.CreateSandbox, body_optional=True)
async def create_sandbox(call: ApiCall) -> control.Sandbox:
    """Create a sandbox. It is started when this returns."""
    wanted: control.CreateSandbox = call.body or control.CreateSandbox()
    server, organisation_id = call.server, call.organisation_id
    await server.networks.prepare(wanted, caller=call.identity)  # before: nothing waits between recalling and creating
    token = digest_token(call.request.headers.get("Idempotency-Key"))
    if token and (known := await server.lifecycle.recall(token, organisation_id=organisation_id)) is not None:
        return _show(call, known.row)
    refuse_unsupported(wanted)
    image = image_of(wanted.build_info)
    if image is not None:
        snapshot = server.snapshots.find_image(image, organisation_id=organisation_id)
    else:
        snapshot = server.snapshots.find(wanted.snapshot or BASE, organisation_id=organisation_id)
    if snapshot.state != "active":
        raise bad_request(f"the snapshot {snapshot.name!r} is {snapshot.state}, not active")
    secrets = server.secrets.read(wanted.secrets, organisation_id=organisation_id)
    if secrets:
        await server.lifecycle.backend.need("secrets")
    volumes = await server.volumes.resolve(wanted.volumes or (), organisation_id=organisation_id)
    await server.volumes.learn(organisation_id)
    row = make_row(
        wanted, organisation_id=organisation_id, snapshot=snapshot, defaults=server.settings.defaults, secrets=secrets,
        volumes=volumes,
    )  # fmt: skip
    server.networks.ask(row, wanted, caller=call.identity)
    check_quota(server, row.organisation_id, sandboxes=1, cpu=row.cpu, memory=row.memory, disk=row.disk)
    network, given = server.networks.policy_of(row), server.secrets.for_sandbox(row)
    spec = make_spec(
        row,
        snapshot=snapshot,
        organisation=_organisation(call),
        defaults=server.settings.defaults,
        secrets=given,
        network=network,
    )
    row.request_token = token
    await server.lifecycle.create(row, lambda: server.lifecycle.backend.create(spec))
    server.metrics.sandboxes_made += 1
    snapshot.used_at = time.time()
    return _show(call, row)


@TABLE.add("GET", "/sandbox", query=control.SandboxesQuery)
async def list_sandboxes(call: ApiCall) -> control.ListSandboxesResponse | list[control.Sandbox]:
    """List the organisation's sandboxes, page by page; SDKs before 0.180 get all of them as a bare array."""
    mine = call.server.sandboxes.rows_of(call.organisation_id)
    if _is_from_before_pages(call):
        return [_show(call, row) for row in filter_rows(mine, call.query)]
    rows, cursor = page_of(mine, call.query)
    return control.ListSandboxesResponse(
        items=[dto.list_item(row, base_url=call.base_url) for row in rows], next_cursor=cursor
    )


@TABLE.add("GET", "/sandbox/paginated", query=control.PageQuery)
async def list_sandboxes_paginated(call: ApiCall) -> control.PaginatedSandboxes:
    """List the organisation's sandboxes by numbered pages, for older clients."""
    query: control.PageQuery = call.query
    rows, total = numbered_page_of(call.server.sandboxes.rows_of(call.organisation_id), query)
    return control.PaginatedSandboxes(
        items=[_show(call, row) for row in rows],
        total=total,
        page=query.page,
        total_pages=-(-total // query.limit),
    )


@TABLE.add("GET", _ONE, query=control.GetQuery)
async def get_sandbox(call: ApiCall) -> control.Sandbox:
    """Get a sandbox, by id or name."""
    return _show(call, call.find_sandbox(deleted=True).row)


@TABLE.add("DELETE", _ONE, query=control.ForceQuery)
async def delete_sandbox(call: ApiCall) -> control.Sandbox:
    """Delete a sandbox with its files."""
    sandbox = call.find_sandbox()
    await call.server.lifecycle.delete(sandbox)
    return _show(call, sandbox.row)


def _permit_start(call: ApiCall, row: Sandbox) -> Callable[[], None]:
    def permit() -> None:
        check_quota(call.server, row.organisation_id, cpu=row.cpu, memory=row.memory, leaving_out=row.id)

    return permit


@TABLE.add("POST", _ONE + "/start")
async def start_sandbox(call: ApiCall) -> control.Sandbox:
    """Start a stopped, archived or paused sandbox."""
    sandbox = call.find_sandbox()
    await call.server.lifecycle.start(sandbox, permit=_permit_start(call, sandbox.row))
    return _show(call, sandbox.row)


@TABLE.add("POST", _ONE + "/stop", query=control.ForceQuery)
async def stop_sandbox(call: ApiCall) -> control.Sandbox:
    """Stop a sandbox: end its processes, keep its files."""
    sandbox = call.find_sandbox()
    await call.server.lifecycle.stop(sandbox)
    return _show(call, sandbox.row)


@TABLE.add("POST", _ONE + "/pause")
async def pause_sandbox(call: ApiCall) -> control.Sandbox:
    """Pause a sandbox: freeze its processes."""
    sandbox = call.find_sandbox()
    await call.server.lifecycle.pause(sandbox)
    return _show(call, sandbox.row)


@TABLE.add("POST", _ONE + "/archive")
async def archive_sandbox(call: ApiCall) -> control.Sandbox:
    """Archive a stopped sandbox."""
    sandbox = call.find_sandbox()
    await call.server.lifecycle.archive(sandbox)
    return _show(call, sandbox.row)


@TABLE.add("POST", _ONE + "/recover", query=control.RecoverQuery)
async def recover_sandbox(call: ApiCall) -> control.Sandbox:
    """Recover a sandbox in state `error`, and start it."""
    sandbox = call.find_sandbox()
    if sandbox.row.state not in ("error", "stopped", "started"):
        raise bad_request(f"the sandbox is {sandbox.row.state}; only a sandbox in state error can be recovered")
    await call.server.lifecycle.recover(
        sandbox, skip_start=call.query.skip_start, permit=_permit_start(call, sandbox.row)
    )
    return _show(call, sandbox.row)


@TABLE.add("POST", _ONE + "/resize", body=control.ResizeSandbox)
async def resize_sandbox(call: ApiCall) -> control.Sandbox:
    """Set new limits."""
    sandbox = call.find_sandbox()
    row = sandbox.row
    wanted: control.ResizeSandbox = call.body

    def permit() -> None:
        check_quota(
            call.server,
            row.organisation_id,
            sandboxes=1,
            cpu=wanted.cpu or row.cpu,
            memory=wanted.memory or row.memory,
            disk=wanted.disk or row.disk,
            leaving_out=row.id,
        )

    await call.server.lifecycle.resize(sandbox, wanted, permit=permit)
    return _show(call, sandbox.row)


@TABLE.add("POST", _ONE + "/network-settings", body=control.UpdateSandboxNetworkSettings)
async def update_network_settings(call: ApiCall) -> control.Sandbox:
    """Change what a sandbox may reach. Connections that are no longer permitted end."""
    sandbox = call.find_sandbox()
    await call.server.lifecycle.change_network(sandbox, call.body, caller=call.identity)
    return _show(call, sandbox.row)


@TABLE.add("POST", _ONE + "/fork", body=control.ForkSandbox, body_optional=True)
async def fork_sandbox(call: ApiCall) -> control.Sandbox:
    """Create a second sandbox from the files of this one."""
    origin = call.find_sandbox()
    source = origin.row
    server = call.server
    if source.state in _SETTLED:
        _require_files(source)  # before the second sandbox is created
    backend = server.lifecycle.backend
    await backend.need("fork")
    wanted = control.CreateSandbox(
        name=call.body.name if call.body is not None else None,
        user=source.user, env=source.env, labels=source.labels, public=source.public, target=source.target,
        cpu=source.cpu, memory=source.memory, disk=source.disk, network_block_all=source.network_block_all,
        network_allow_list=source.network_allow_list, domain_allow_list=source.domain_allow_list,
        auto_stop_interval=source.auto_stop, auto_pause_interval=source.auto_pause,
        auto_archive_interval=source.auto_archive, auto_delete_interval=source.auto_delete,
    )  # fmt: skip
    base = server.snapshots.find(BASE, organisation_id=call.organisation_id)
    await server.volumes.learn(call.organisation_id)
    row = make_row(
        wanted, organisation_id=source.organisation_id, snapshot=base, defaults=server.settings.defaults,
        secrets=source.secrets, volumes=source.volumes,
    )  # fmt: skip
    row.snapshot, row.set_env = source.snapshot, dict(source.set_env)
    row.git_hosts = list(source.git_hosts)  # its files are the same, and so are their remotes
    await server.networks.prepare(wanted, caller=call.identity)
    server.networks.ask(row, wanted, caller=call.identity)
    check_quota(server, row.organisation_id, sandboxes=1, cpu=row.cpu, memory=row.memory, disk=row.disk)
    network, given = server.networks.policy_of(row), server.secrets.for_sandbox(row)
    spec = make_spec(
        row,
        snapshot=None,
        organisation=_organisation(call),
        defaults=server.settings.defaults,
        secrets=given,
        network=network,
    )

    async def copy() -> AsyncSandbox:
        async with origin.locked():  # it may be about to stop, or to be resized
            engine_id = _require_files(source)
            async with rested(server.lifecycle, origin):
                return await backend.fork(engine_id, spec)

    await server.lifecycle.create(row, copy)
    return _show(call, row)


@TABLE.add("POST", _ONE + "/snapshot", body=control.CreateSandboxSnapshot)
async def create_sandbox_snapshot(call: ApiCall) -> control.Sandbox:
    """Create a snapshot of a sandbox's files."""
    if call.body.include_memory:
        raise unsupported("snapshots with memory")
    check_snapshot_name(call.body.name)
    sandbox = call.find_sandbox()
    row = sandbox.row
    await call.server.lifecycle.backend.need("snapshot")
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
    await call.server.lifecycle.finish(_take_snapshot(call.server, sandbox, snapshot))
    return _show(call, row)


async def _take_snapshot(server: Server, sandbox: LivingSandbox, snapshot: Snapshot) -> None:
    backend = server.lifecycle.backend
    async with sandbox.locked():
        engine_id = _require_files(sandbox.row)
        check_quota(server, sandbox.row.organisation_id, disk=snapshot.disk)
        server.snapshots.put(snapshot)
        steps.reached("snapshot:intent-written")
        try:
            async with rested(server.lifecycle, sandbox):
                snapshot.engine_id = await backend.snapshot(engine_id, name=backend_name(snapshot.id))
        except BaseException:
            server.snapshots.remove(snapshot)
            raise
        steps.reached("snapshot:done")
        snapshot.state, snapshot.intent = "active", None
        server.snapshots.put(snapshot)
        steps.reached("snapshot:acknowledged")


@TABLE.add("PUT", _ONE + "/labels", body=control.SandboxLabels)
async def replace_labels(call: ApiCall) -> control.SandboxLabels:
    """Replace all labels."""
    sandbox = call.find_sandbox()
    check_labels(call.body.labels)
    sandbox.row.labels = call.body.labels
    sandbox.save()
    return control.SandboxLabels(labels=sandbox.row.labels)


def _number(call: ApiCall, name: str, *, below_zero: bool = False) -> int:
    text = call.params[name]
    if not (text.isascii() and text.removeprefix("-").isdigit()) or len(text) > 9 or (int(text) < 0 and not below_zero):
        raise bad_request(f"{name}: {text[:50]!r} is not a valid number{'' if below_zero else ' (0 or more)'}")
    return int(text)


def _save(call: ApiCall, sandbox: LivingSandbox, **fields: Any) -> control.Sandbox:
    for name, value in fields.items():
        setattr(sandbox.row, name, value)
    sandbox.save()
    return _show(call, sandbox.row)


@TABLE.add("POST", _ONE + "/autostop/{interval}")
async def set_autostop_interval(call: ApiCall) -> control.Sandbox:
    """Stop the sandbox after this many idle minutes; 0 for never."""
    return _save(call, call.find_sandbox(), auto_stop=_number(call, "interval"))


@TABLE.add("POST", _ONE + "/autopause/{interval}")
async def set_auto_pause_interval(call: ApiCall) -> control.Sandbox:
    """Pause the sandbox after this many idle minutes; 0 for never."""
    return _save(call, call.find_sandbox(), auto_pause=_number(call, "interval"))


@TABLE.add("POST", _ONE + "/autoarchive/{interval}")
async def set_auto_archive_interval(call: ApiCall) -> control.Sandbox:
    """Archive the sandbox when it has been stopped for this many minutes; 0 for the longest interval."""
    sandbox, defaults = call.find_sandbox(), call.server.settings.defaults
    return _save(call, sandbox, auto_archive=archive_after(_number(call, "interval"), defaults=defaults))


@TABLE.add("POST", _ONE + "/autodelete/{interval}")
async def set_auto_delete_interval(call: ApiCall) -> control.Sandbox:
    """Delete the sandbox when it has been stopped for this many minutes; 0 when it stops, below 0 for never."""
    return _save(call, call.find_sandbox(), auto_delete=max(-1, _number(call, "interval", below_zero=True)))


@TABLE.add("POST", _ONE + "/ttl/{ttlMinutes}")
async def set_ttl(call: ApiCall) -> control.Sandbox:
    """Delete the sandbox this many minutes from now, even if it is in use; 0 for never."""
    sandbox = call.find_sandbox()
    minutes = _number(call, "ttlMinutes")
    return _save(call, sandbox, destroy_at=time.time() + 60 * minutes if minutes else None)


@TABLE.add("POST", _ONE + "/public/{isPublic}")
async def update_public_status(call: ApiCall) -> control.Sandbox:
    """Set whether previews of the sandbox need no key."""
    sandbox = call.find_sandbox()
    if call.params["isPublic"] not in ("true", "false"):
        raise bad_request("isPublic must be true or false")
    return _save(call, sandbox, public=call.params["isPublic"] == "true")


@TABLE.add("POST", _ONE + "/last-activity", body=control.UpdateLastActivity, body_optional=True, status=201)
async def update_last_activity(call: ApiCall) -> None:
    """Record activity, which postpones auto-stop and auto-pause."""
    call.find_sandbox().touch()


@TABLE.add("GET", _ONE + "/toolbox-proxy-url")
async def get_toolbox_proxy_url(call: ApiCall) -> control.Url:
    """The base URL of the toolbox; clients append the sandbox's id."""
    return control.Url(url=_show(call, call.find_sandbox().row).toolbox_proxy_url)


@TABLE.add("GET", _ONE + "/signing-key", scope="run")
async def get_sandbox_signing_key(call: ApiCall) -> str:
    """The key for signing URLs of files; valid as long as the API key of this request."""
    return signing_key(call.find_sandbox().row.signing_key, key_id=call.identity.key_id)


@TABLE.add("POST", _ONE + "/signing-key/rotate", scope="run")
async def rotate_signing_key(call: ApiCall) -> str:
    """Replace the key for signing URLs; URLs signed with the old one become invalid, and so do links to ports."""
    sandbox = call.find_sandbox()
    sandbox.row.signing_key = new_signing_key()
    sandbox.save()
    call.server.previews.links.end_all(sandbox.row.id)
    return signing_key(sandbox.row.signing_key, key_id=call.identity.key_id)
