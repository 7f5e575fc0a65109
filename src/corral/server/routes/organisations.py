"""Organisations and regions, as far as clients ask for them."""

from __future__ import annotations

from corral.server.faults import not_found
from corral.server.routing import Call, Table
from corral.server.store.rows import Organisation
from corral.server.wire import control
from corral.server.wire.base import timestamp

TABLE = Table("control")


def _mine(call: Call) -> Organisation:
    return call.services.control.keyring.organisations[call.identity.organisation_id]


def _show(call: Call, row: Organisation) -> control.OrganizationDto:
    return control.OrganizationDto(
        id=row.id,
        name=row.name,
        created_by="corral",
        personal=False,
        created_at=timestamp(row.created_at),
        updated_at=timestamp(row.created_at),
        suspended=False,
        default_region_id=call.services.settings.defaults.target,
        total_cpu_quota=row.max_cpu,
        total_memory_quota=row.max_memory_gib,
        total_disk_quota=row.max_disk_gib,
    )


@TABLE.add("GET", "/organizations", scope="read", answers={200: list[control.OrganizationDto]})
async def list_organizations(call: Call) -> list[control.OrganizationDto]:
    """The one that the key belongs to."""
    return [_show(call, _mine(call))]


@TABLE.add("GET", "/organizations/{organizationId}", scope="read", answers={200: control.OrganizationDto})
async def get_organization(call: Call) -> control.OrganizationDto:
    """The one that the key belongs to, by its id."""
    row = _mine(call)
    if call.params["organizationId"] != row.id:
        raise not_found("there is no such organisation")
    return _show(call, row)


def _region(call: Call) -> control.RegionDto:
    row = _mine(call)
    target = call.services.settings.defaults.target
    return control.RegionDto(
        id=target,
        name=target,
        organization_id=None,
        region_type="shared",
        created_at=timestamp(row.created_at),
        updated_at=timestamp(row.created_at),
    )


@TABLE.add("GET", "/shared-regions", scope="read", answers={200: list[control.RegionDto]})
async def list_shared_regions(call: Call) -> list[control.RegionDto]:
    """Where sandboxes can be: here."""
    return [_region(call)]


@TABLE.add("GET", "/regions", scope="read", answers={200: list[control.RegionDto]})
async def list_regions(call: Call) -> list[control.RegionDto]:
    """The same, for clients that ask for all."""
    return [_region(call)]


@TABLE.add("GET", "/regions/{id}", scope="read", answers={200: control.RegionDto})
async def get_region(call: Call) -> control.RegionDto:
    """One of them."""
    region = _region(call)
    if call.params["id"] != region.id:
        raise not_found("there is no such region")
    return region
