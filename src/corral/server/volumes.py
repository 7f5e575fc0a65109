"""The volumes of each organisation. They are kept by the backend, with the organisation as their owner."""

from __future__ import annotations

import collections
import uuid
from collections.abc import Callable, Mapping, Sequence

from corral.errors import CapabilityError, SpecError
from corral.mount import Mount, check_volume_name
from corral.protocol import Backend
from corral.results import VolumeInfo
from corral.server.faults import Fault, bad_request, conflict, not_found
from corral.server.settings import GIB
from corral.server.wire.control import SandboxVolume


class Volumes:
    """What is known of them; one per server."""

    def __init__(self, backend: Backend, *, size_bytes: int, per_organisation: int) -> None:
        self._backend = backend
        self._size_bytes = size_bytes
        self._per_organisation = per_organisation
        self._known: dict[str, dict[str, VolumeInfo]] = {}
        self._coming: collections.Counter[str] = collections.Counter()
        """Volumes that are being created, by organisation."""

    async def of(self, organisation_id: str) -> Sequence[VolumeInfo]:
        """The organisation's volumes, oldest first. Raises: as `Backend.list_volumes`."""
        infos = await self._backend.list_volumes(owner=organisation_id)
        self._known[organisation_id] = {info.volume_id: info for info in infos}
        return infos

    async def learn(self, organisation_id: str) -> None:
        """Look them up once, for `gib_of`."""
        if organisation_id not in self._known:
            try:
                await self.of(organisation_id)
            except CapabilityError:
                self._known[organisation_id] = {}

    def gib_of(self, organisation_id: str) -> int:
        """The disk that its volumes may fill, as far as they have a limit, in whole GiB."""
        sizes = (info.size_bytes or 0 for info in self._known.get(organisation_id, {}).values())
        return -(-(sum(sizes) + self._coming[organisation_id] * self._size_bytes) // GIB)

    async def find(self, wanted: str, *, organisation_id: str, by_name: bool = True) -> VolumeInfo:
        """By id, or by name. Raises: Fault 404, also for a volume of another organisation."""
        for info in await self.of(organisation_id):
            if wanted == info.volume_id or (by_name and wanted == info.name):
                return info
        # As the hosted service says it: older TypeScript SDKs create a missing volume only after this text.
        raise not_found(f"Volume with {'name' if by_name else 'ID'} {wanted[:200]} not found")

    async def create(
        self, name: str, *, organisation_id: str, disk_limited: bool, permit: Callable[[], None]
    ) -> VolumeInfo:
        """Create a volume of the server's size. Raises: Fault; as `permit`, and as `Backend.create_volume`."""
        try:
            check_volume_name(name)
        except SpecError as error:
            raise bad_request(f"name: {name!r} is not a valid name of a volume ({error.hint})") from error
        infos = await self.of(organisation_id)
        if any(info.name == name for info in infos):
            raise bad_request(f"Volume with name {name} already exists")
        if len(infos) + self._coming[organisation_id] >= self._per_organisation:
            raise Fault(403, f"quota exceeded: the organisation's limit is {self._per_organisation} volumes")
        permit()
        self._coming[organisation_id] += 1
        try:
            made = await self._make(name, owner=organisation_id, disk_limited=disk_limited)
        finally:
            self._coming[organisation_id] -= 1
        self._known.setdefault(organisation_id, {})[made.volume_id] = made
        return made

    async def _make(self, name: str, *, owner: str, disk_limited: bool) -> VolumeInfo:
        try:
            return await self._backend.create_volume(name, size_bytes=self._size_bytes, owner=owner)
        except CapabilityError:
            if disk_limited:
                raise
        # No size can be enforced here, and the organisation has no limit of its disk.
        return await self._backend.create_volume(name, owner=owner)

    async def delete(self, volume_id: str, *, organisation_id: str, used_by: Sequence[str]) -> None:
        """Delete a volume, by its id. Raises: Fault 404 and 409; as `Backend.delete_volume`."""
        info = await self.find(volume_id, organisation_id=organisation_id, by_name=False)
        if used_by:
            raise conflict(
                f"Volume cannot be deleted because it is in use by one or more sandboxes: {', '.join(used_by[:10])}"
            )
        await self._backend.delete_volume(info.volume_id, owner=organisation_id)
        self._known.get(organisation_id, {}).pop(info.volume_id, None)

    async def resolve(self, wanted: Sequence[SandboxVolume], *, organisation_id: str) -> list[dict[str, str]]:
        """What a new sandbox mounts, as stored in its row. Raises: Fault 400 and 404; SpecError."""
        found = []
        for each in wanted:
            info = await self.find(each.volume_id, organisation_id=organisation_id)
            mount = Mount(each.mount_path, volume=info.volume_id, subpath=each.subpath or "")
            found.append({"volume_id": info.volume_id, "mount_path": mount.path, "subpath": mount.subpath})
        return found


def mounts_of(stored: Sequence[Mapping[str, str]]) -> tuple[Mount, ...]:
    """The mounts of a row."""
    return tuple(
        Mount(each["mount_path"], volume=each["volume_id"], subpath=each.get("subpath", "")) for each in stored
    )


def check_id(volume_id: str) -> str:
    """Ids are compared exactly, and are never part of a path. Raises: Fault 400."""
    try:
        canonical = str(uuid.UUID(volume_id))
    except ValueError:
        canonical = ""
    if canonical != volume_id:
        raise bad_request("volumeId: not the id of a volume")
    return volume_id
