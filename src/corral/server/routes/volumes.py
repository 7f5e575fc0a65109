"""Volumes: named folders that outlive sandboxes."""

from __future__ import annotations

from corral.results import VolumeInfo, timestamp
from corral.server.quota import check_quota
from corral.server.routing import ApiCall, Table
from corral.server.settings import GIB
from corral.server.volumes import check_id
from corral.server.wire import control

TABLE = Table("control")


def _show(call: ApiCall, info: VolumeInfo) -> control.VolumeDto:
    return control.VolumeDto(
        id=info.volume_id,
        name=info.name,
        organization_id=call.organisation_id,
        state="ready",
        created_at=timestamp(info.created),
        updated_at=timestamp(info.created),
        last_used_at=timestamp(info.used) if info.used is not None else None,
    )


@TABLE.add("GET", "/volumes", query=control.VolumesQuery)
async def list_volumes(call: ApiCall) -> list[control.VolumeDto]:
    """List the organisation's volumes. Deleted ones are gone, so `includeDeleted` adds none."""
    return [_show(call, info) for info in await call.server.volumes.of(call.organisation_id)]


@TABLE.add("POST", "/volumes", body=control.CreateVolume)
async def create_volume(call: ApiCall) -> control.VolumeDto:
    """Create an empty volume. It is ready when this returns."""
    wanted: control.CreateVolume = call.body
    server, organisation_id = call.server, call.organisation_id
    limited = server.keyring.organisations[organisation_id].max_disk_gib is not None

    def permit() -> None:
        check_quota(server, organisation_id, disk=-(-server.settings.defaults.volume_bytes // GIB))

    made = await server.volumes.create(
        wanted.name, organisation_id=organisation_id, disk_limited=limited, permit=permit
    )
    return _show(call, made)


@TABLE.add("GET", "/volumes/{volumeId}")
async def get_volume(call: ApiCall) -> control.VolumeDto:
    """Get a volume, by id."""
    wanted = check_id(call.params["volumeId"])
    return _show(call, await call.server.volumes.find(wanted, organisation_id=call.organisation_id, by_name=False))


@TABLE.add("GET", "/volumes/by-name/{name}")
async def get_volume_by_name(call: ApiCall) -> control.VolumeDto:
    """Get a volume, by name."""
    return _show(call, await call.server.volumes.find(call.params["name"], organisation_id=call.organisation_id))


@TABLE.add("DELETE", "/volumes/{volumeId}")
async def delete_volume(call: ApiCall) -> None:
    """Delete a volume with its files. One that a sandbox mounts, running or stopped, is not deleted."""
    wanted = check_id(call.params["volumeId"])
    rows = call.server.sandboxes.rows_of(call.organisation_id)
    used_by = [row.id for row in rows if any(each["volume_id"] == wanted for each in row.volumes)]
    await call.server.volumes.delete(wanted, organisation_id=call.organisation_id, used_by=used_by)
