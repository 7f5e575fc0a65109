"""From the mounts of a spec to those of a recipe; and the volumes of a data folder."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corral.backends.embedded.datafolder import open_data
from corral.backends.embedded.hostfolders import Permitted, permit
from corral.backends.embedded.seam import mapped
from corral.engine import sweep
from corral.engine.recipe import Bound, Overlaid, Recipe
from corral.engine.state import DataFolder
from corral.engine.volumes import Volume, VolumeStore
from corral.errors import MountError, SpecError
from corral.mount import Mount, check_volume_name
from corral.results import VolumeInfo
from corral.spec import HOME, Spec, check_count, parse_size

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def find_mounts(
    spec: Spec, permitted: Sequence[Permitted], *, data_folder: Path
) -> tuple[tuple[Bound, ...], tuple[Overlaid, ...]]:
    """What is mounted, and the folders of the host that are overlaid, or of which the sandbox gets a copy.

    Raises:
        VolumeNotFoundError: of this name or id.
        PolicyError, MountError: as `permit`.
    """
    bounds: list[Bound] = []
    overlaid: list[Overlaid] = []
    store = VolumeStore(open_data(data_folder, op="create"))
    for mount in spec.mounts:
        if mount.volume is not None:
            with mapped(op="create"):
                volume_id = find_for_mount(store, mount.volume).volume_id
            bounds.append(
                Bound(
                    mount.path, volume_id, volume=True, subpath=mount.subpath, writable=mount.writable,
                    exclusive=mount.exclusive,
                )
            )  # fmt: skip
            continue
        folder = permit(mount, permitted, data_folder=data_folder)
        if mount.mode in ("overlay", "copy"):
            copied = mount.mode == "copy"
            overlaid.append(Overlaid(mount.path, (folder,), writable=True, outside=True, copied=copied))
        else:
            bounds.append(Bound(mount.path, folder, volume=False, writable=mount.writable))
    return tuple(bounds), tuple(overlaid)


def refuse_hidden_files(recipe: Recipe) -> None:
    """Our own file, by which Python finds packages, is never written into a volume or a folder of the host.

    Raises:
        MountError: a mount would hide them.
    """
    outside = [*(bound.target for bound in recipe.mounts), *(tree.target for tree in recipe.trees if tree.outside)]
    for path in recipe.files:
        for target in outside:
            if not path.endswith("/") and path.startswith(f"{target}/"):
                raise MountError(
                    f"a mount at {target} would hide {path}, by which Python finds packages",
                    op="create",
                    hint=f"mount it at another path, such as {HOME}/data",
                )


def find_for_mount(store: VolumeStore, wanted: str) -> Volume:
    """By the id of any volume, or by the name of one of the data folder's user. Raises: RefusedError (`no_volume`)."""
    return store.read(wanted) if _ID.fullmatch(wanted) else store.find(wanted)


def describe_mount(mount: Mount) -> dict[str, Any]:
    """A mount as stored."""
    return {
        "path": mount.path, "volume": mount.volume, "source": None if mount.source is None else str(mount.source),
        "subpath": mount.subpath, "mode": mount.mode, "exclusive": mount.exclusive,
    }  # fmt: skip


async def create_volume(data_folder: Path, name: str, *, size_bytes: int | str | None, owner: str) -> VolumeInfo:
    """Raises: as `Backend.create_volume`."""
    if _ID.fullmatch(check_volume_name(name)):
        raise SpecError(f"{name!r} looks like the id of a volume", hint="choose a name that does not")
    size = None if size_bytes is None else parse_size(size_bytes, what="size_bytes")
    if size is not None:
        check_count(size, what="size_bytes", least=2**20)

    def create() -> VolumeInfo:
        store = VolumeStore(_prepared(data_folder, op="create_volume"))
        return _info(store, store.create(name, owner=owner, size_bytes=size))

    with mapped(op="create_volume"):
        return await asyncio.to_thread(create)


async def list_volumes(data_folder: Path, *, owner: str) -> list[VolumeInfo]:
    """Raises: as `open_data`."""
    store = VolumeStore(open_data(data_folder, op="list_volumes"))

    def look() -> list[VolumeInfo]:
        return [_info(store, volume) for volume in store.list_all() if volume.owner == owner]

    return await asyncio.to_thread(look)


async def delete_volume(data_folder: Path, wanted: str, *, owner: str) -> None:
    """Raises: as `Backend.delete_volume`."""
    check_volume_name(wanted)

    def delete() -> None:
        data = _prepared(data_folder, op="delete_volume")
        VolumeStore(data).delete(wanted, owner=owner)
        sweep.empty_trash(data, patience_seconds=sweep.PATIENCE_SECONDS)

    with mapped(op="delete_volume"):
        await asyncio.to_thread(delete)


def _prepared(data_folder: Path, *, op: str) -> DataFolder:
    data = open_data(data_folder, op=op)
    data.prepare()
    return data


def _info(store: VolumeStore, volume: Volume) -> VolumeInfo:
    return VolumeInfo(
        volume_id=volume.volume_id,
        backend="embedded",
        name=volume.name,
        created=volume.created,
        size_bytes=volume.size_bytes,
        used_bytes=store.used_bytes(volume),
        used=volume.used,
        sandboxes=tuple(store.users(volume.volume_id)),
    )
