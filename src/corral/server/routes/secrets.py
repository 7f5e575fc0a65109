"""Secrets: stored once for an organisation, and used by sandboxes that never see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.results import timestamp
from corral.server import dto
from corral.server.listing import cut_page
from corral.server.routing import ApiCall, Table
from corral.server.secrets import apply, push
from corral.server.store.rows import Secret
from corral.server.wire import control
from corral.server.wire import secrets as wire

TABLE = Table("control")
_ORDERS: dict[str, Callable[[Secret], Any]] = {
    "name": lambda row: row.name,
    "createdAt": lambda row: row.created_at,
    "updatedAt": lambda row: row.updated_at,
}


def _show(row: Secret) -> wire.SecretDto:
    return wire.SecretDto(
        id=row.id,
        name=row.name,
        description=row.description,
        created_at=timestamp(row.created_at),
        updated_at=timestamp(row.updated_at),
        placeholder=row.placeholder,
        hosts=row.hosts,
        header=row.header,
    )


def _row(call: ApiCall) -> Secret:
    return call.server.secrets.find(call.params["secretId"], organisation_id=call.organisation_id)


@TABLE.add("GET", "/secret")
async def list_secrets(call: ApiCall) -> list[wire.SecretDto]:
    """List the organisation's secrets, without their values."""
    rows = call.server.secrets.of(call.organisation_id)
    return [_show(row) for row in sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)]


@TABLE.add("GET", "/secret/paginated", query=wire.SecretsQuery)
async def list_secrets_paginated(call: ApiCall) -> wire.ListSecretsResponse:
    """List the organisation's secrets, page by page, without their values."""
    query: wire.SecretsQuery = call.query
    mine = call.server.secrets.of(call.organisation_id)
    found = [row for row in mine if not query.name or query.name.lower() in row.name.lower()]
    page, cursor = cut_page(found, query, value_of=_ORDERS[query.sort])
    return wire.ListSecretsResponse(items=[_show(row) for row in page], total=len(found), next_cursor=cursor)


@TABLE.add("POST", "/secret", body=wire.CreateSecret, status=201)
async def create_secret(call: ApiCall) -> wire.SecretDto:
    """Store a secret. Its value is encrypted, and never returned."""
    return _show(call.server.secrets.add(call.body, organisation_id=call.organisation_id))


@TABLE.add("GET", "/secret/{secretId}")
async def get_secret(call: ApiCall) -> wire.SecretDto:
    """Get a secret, without its value."""
    return _show(_row(call))


@TABLE.add("PATCH", "/secret/{secretId}", body=wire.UpdateSecret)
async def update_secret(call: ApiCall) -> wire.SecretDto:
    """Change a secret. Running sandboxes that use it get the change before this returns."""
    row = _row(call)
    call.server.secrets.change(row, call.body)
    await _push(call, row)
    return _show(row)


@TABLE.add("DELETE", "/secret/{secretId}", status=204)
async def delete_secret(call: ApiCall) -> None:
    """Delete a secret. Sandboxes that use it keep the placeholder, which nothing replaces any more."""
    row = _row(call)
    call.server.secrets.remove(row)
    await _push(call, row)


async def _push(call: ApiCall, row: Secret) -> None:
    server = call.server
    users = server.secrets.users_of(row.id, server.sandboxes.rows_of(row.organisation_id))
    living = [server.sandboxes.find(user.id, organisation_id=row.organisation_id) for user in users]
    await server.lifecycle.finish(push(server.lifecycle, living))


@TABLE.add("PUT", "/sandbox/{sandboxIdOrName}/secrets", body=wire.UpdateSandboxSecrets)
async def update_sandbox_secrets(call: ApiCall) -> control.Sandbox:
    """Replace the secrets of a sandbox. New variables are seen by programs that start later."""
    sandbox, server = call.find_sandbox(), call.server
    if call.body.secrets:
        await server.lifecycle.backend.need("secrets")
    wanted = server.secrets.read(call.body.secrets, organisation_id=call.organisation_id)

    async def replace() -> None:
        async with sandbox.locked():
            before, sandbox.row.secrets = sandbox.row.secrets, wanted
            try:
                if sandbox.row.state == "started" and before != wanted:
                    await apply(server.lifecycle, sandbox)
            except BaseException:
                sandbox.row.secrets = before
                raise
            sandbox.save()

    await server.lifecycle.finish(replace())
    return dto.sandbox(sandbox.row, base_url=call.base_url)
