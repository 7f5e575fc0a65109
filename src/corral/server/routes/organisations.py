"""The caller's organisation, region and key, as far as clients ask for them."""

from __future__ import annotations

from corral.results import timestamp
from corral.secret import MAX_SECRETS
from corral.server.faults import not_found
from corral.server.routing import ApiCall, Table
from corral.server.secrets import MAX_PER_ORGANISATION
from corral.server.store.rows import Organisation
from corral.server.wire import organisations as wire

TABLE = Table("control")
_MANY = 1_000_000
"""Sent where a client needs a number and there is no limit."""
_PERMISSIONS = {
    "write": ("write:sandboxes", "write:snapshots", "manage:secrets"),
    "delete": ("delete:sandboxes", "delete:snapshots"),
}
"""Daytona's permissions for our scopes. Its keys can always read, and run programs."""


def _mine(call: ApiCall) -> Organisation:
    return call.server.keyring.organisations[call.organisation_id]


def _checked(call: ApiCall) -> Organisation:
    """The caller's, if it is the one that the path names. Raises: Fault 404."""
    row = _mine(call)
    if call.params["organizationId"] != row.id:
        raise not_found("organisation not found")
    return row


def _or_many(limit: int | None) -> int:
    return _MANY if limit is None else limit


def _show(call: ApiCall, row: Organisation) -> wire.OrganizationDto:
    return wire.OrganizationDto(
        id=row.id,
        name=row.name,
        created_at=timestamp(row.created_at),
        updated_at=timestamp(row.created_at),
        max_cpu_per_sandbox=_or_many(row.max_cpu),
        max_memory_per_sandbox=_or_many(row.max_memory_gib),
        max_disk_per_sandbox=_or_many(row.max_disk_gib),
        secret_quota=MAX_PER_ORGANISATION,
        max_secrets_per_sandbox=MAX_SECRETS,
        default_region_id=call.server.settings.defaults.target,
        authenticated_rate_limit=call.server.settings.limits.rate_per_key,
        total_cpu_quota=row.max_cpu,
        total_memory_quota=row.max_memory_gib,
        total_disk_quota=row.max_disk_gib,
    )


@TABLE.add("GET", "/organizations")
async def list_organizations(call: ApiCall) -> list[wire.OrganizationDto]:
    """List organisations: the one that the key belongs to."""
    return [_show(call, _mine(call))]


@TABLE.add("GET", "/organizations/{organizationId}")
async def get_organization(call: ApiCall) -> wire.OrganizationDto:
    """Get the organisation that the key belongs to."""
    return _show(call, _checked(call))


@TABLE.add("GET", "/organizations/{organizationId}/available-sandbox-classes")
async def list_available_sandbox_classes(call: ApiCall) -> list[wire.SandboxClassDto]:
    """List the classes of sandboxes: only `container`."""
    _checked(call)
    return [wire.SandboxClassDto(region_id=call.server.settings.defaults.target)]


@TABLE.add("GET", "/api-keys/current")
async def get_current_api_key(call: ApiCall) -> wire.ApiKeyDto:
    """The key of this request: its name, permissions and expiry."""
    for key in call.server.keyring.keys:
        if key.id == call.identity.key_id:
            return wire.ApiKeyDto(
                name=key.name,
                value=key.prefix,
                created_at=timestamp(key.created_at),
                permissions=[word for scope in key.scopes for word in _PERMISSIONS.get(scope, ())],
                expires_at=timestamp(key.expires_at) if key.expires_at is not None else None,
                organization_id=key.organisation_id,
            )
    raise not_found("the API key has just been revoked")


def _region(call: ApiCall) -> wire.RegionDto:
    row = _mine(call)
    target = call.server.settings.defaults.target
    return wire.RegionDto(
        id=target,
        name=target,
        created_at=timestamp(row.created_at),
        updated_at=timestamp(row.created_at),
    )


@TABLE.add("GET", "/shared-regions")
async def list_shared_regions(call: ApiCall) -> list[wire.RegionDto]:
    """List shared regions: only this server."""
    return [_region(call)]


@TABLE.add("GET", "/regions")
async def list_regions(call: ApiCall) -> list[wire.RegionDto]:
    """List all regions: only this server."""
    return [_region(call)]


@TABLE.add("GET", "/regions/{id}")
async def get_region(call: ApiCall) -> wire.RegionDto:
    """Get a region."""
    region = _region(call)
    if call.params["id"] != region.id:
        raise not_found("region not found")
    return region
