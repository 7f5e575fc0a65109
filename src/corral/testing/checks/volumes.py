"""Volumes, and folders of the host that a sandbox has changed."""

from __future__ import annotations

import uuid

from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    CapabilityError,
    MountError,
    SpecError,
    VolumeExistsError,
    VolumeInUseError,
    VolumeNotFoundError,
)
from corral.mount import Mount
from corral.testing.check import REAL, Context, check, equal, raises, true


@check("Backend.create_volume", "A volume outlives its sandboxes, and is shared by them until it is deleted",
       needs=f"volumes {REAL}", raises="VolumeExistsError Backend.delete_volume:VolumeNotFoundError "
       "Backend.delete_volume:VolumeInUseError")  # fmt: skip
async def volume_outlives_sandboxes(context: Context) -> None:
    backend, name = context.backend, f"check-{uuid.uuid4().hex[:12]}"
    made = await backend.create_volume(name)
    try:
        await raises(VolumeExistsError, backend.create_volume(name))
        other = await backend.create_volume(name, owner="another")
        await backend.delete_volume(other.volume_id, owner="another")
        true(made.volume_id in [info.volume_id for info in await backend.list_volumes()], "the volume is listed")
        box = await context.open(mounts={"/data": name})
        await box.exec("echo kept > /data/file", check=True)
        second = await context.open(mounts=[Mount("/in", volume=made.volume_id, mode="ro")])
        equal((await second.exec("cat /in/file; echo no > /in/file")).stdout, "kept\n", "what another one wrote")
        await raises(VolumeInUseError, backend.delete_volume(name))
        await raises(VolumeInUseError, context.open(mounts=[Mount("/data", volume=name, exclusive=True)]))
        await box.aclose()
        await second.aclose()
        third = await context.open(mounts=[Mount("/data", volume=name, exclusive=True)])
        equal((await third.exec("cat /data/file")).stdout, "kept\n", "what an earlier one wrote")
        await third.aclose()
    finally:
        await backend.delete_volume(name)
    await raises(VolumeNotFoundError, backend.delete_volume(name))


@check("Backend.list_volumes", "A backend without volumes says so", raises="Backend.create_volume:CapabilityError")
async def volumes_are_refused(context: Context) -> None:
    if "volumes" not in context.powers:
        for call in (
            context.backend.create_volume("data"),
            context.backend.list_volumes(),
            context.backend.delete_volume("data"),
            context.open(mounts={"/data": "data"}),
        ):
            await raises(CapabilityError, call)


@check("diff", "Where no folder of the host is mounted, nothing can be compared or applied",
       raises="CapabilityError MountError SpecError apply:MountError apply:SpecError")  # fmt: skip
async def nothing_to_compare(context: Context, box: AsyncSandbox) -> None:
    expected = MountError if "diff" in context.powers else CapabilityError
    await raises(expected, box.diff())
    await raises(expected, box.apply("/data"))
    await raises(SpecError, context.open(mounts={"/proc": "data"}))
