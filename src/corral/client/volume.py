"""Volumes as users hold them: `Volume` for sync code, `AsyncVolume` for async code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from corral.client.registry import get_backend
from corral.client.sync import Derived, derive, derive_property
from corral.concurrency.portal import get_portal
from corral.errors import VolumeExistsError, VolumeNotFoundError
from corral.mount import check_volume_name
from corral.protocol import Backend
from corral.results import VolumeInfo


class AsyncVolume:
    """A named folder that outlives sandboxes: `mounts={"/data": volume}` shows it in one."""

    def __init__(self, info: VolumeInfo, *, backend: Backend) -> None:
        self.info = info
        """What is known of it, as of the last call."""
        self._backend = backend

    @classmethod
    async def create(
        cls, name: str, *, size_bytes: int | str | None = None, backend: str | Backend = "embedded"
    ) -> AsyncVolume:
        """Create an empty volume; with a size, writes beyond it fail.

        Raises:
            VolumeExistsError: the name is taken.
            CapabilityError: no volumes here, or no limit of their size.
        """
        maker = get_backend(backend)
        return cls(await maker.create_volume(check_volume_name(name), size_bytes=size_bytes), backend=maker)

    @classmethod
    async def get(cls, name: str, *, create: bool = False, backend: str | Backend = "embedded") -> AsyncVolume:
        """A volume by name or id; with `create`, a missing one is created. Raises: VolumeNotFoundError."""
        check_volume_name(name)
        found = await cls._find(name, backend)
        if found is None and create:
            try:
                return await cls.create(name, backend=backend)
            except VolumeExistsError:  # another caller was faster
                found = await cls._find(name, backend)
        if found is None:
            text, hint = f"volume {name!r} not found", "create it: Volume.create(name), or `corral volume create NAME`"
            raise VolumeNotFoundError(text, op="get_volume", hint=hint)
        return found

    @classmethod
    async def _find(cls, name: str, backend: str | Backend) -> AsyncVolume | None:
        return next((each for each in await cls.list(backend=backend) if name in (each.name, each.volume_id)), None)

    @classmethod
    async def list(cls, *, backend: str | Backend = "embedded") -> Sequence[AsyncVolume]:
        """All volumes, oldest first."""
        maker = get_backend(backend)
        return [cls(info, backend=maker) for info in await maker.list_volumes()]

    @property
    def volume_id(self) -> str:
        """The id of the volume, which mounts take as well."""
        return self.info.volume_id

    @property
    def name(self) -> str:
        """The name of the volume."""
        return self.info.name

    async def delete(self) -> None:
        """Delete it with its files. Raises: VolumeInUseError, VolumeNotFoundError."""
        await self._backend.delete_volume(self.volume_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.volume_id}>"


class Volume(Derived[AsyncVolume]):
    """A named folder that outlives sandboxes: `mounts={"/data": volume}` shows it in one."""

    @classmethod
    def create(cls, name: str, *, size_bytes: int | str | None = None, backend: str | Backend = "embedded") -> Self:
        """Create an empty volume. Arguments and errors are those of `AsyncVolume.create`."""
        return cls(get_portal().run(AsyncVolume.create(name, size_bytes=size_bytes, backend=backend)))

    @classmethod
    def get(cls, name: str, *, create: bool = False, backend: str | Backend = "embedded") -> Self:
        """A volume by name or id; with `create`, a missing one is created. Raises: VolumeNotFoundError."""
        return cls(get_portal().run(AsyncVolume.get(name, create=create, backend=backend)))

    @classmethod
    def list(cls, *, backend: str | Backend = "embedded") -> tuple[Self, ...]:
        """All volumes, oldest first."""
        return tuple(map(cls, get_portal().run(AsyncVolume.list(backend=backend))))

    volume_id = derive_property(AsyncVolume.volume_id)
    name = derive_property(AsyncVolume.name)
    delete = derive(AsyncVolume.delete)

    @property
    def info(self) -> VolumeInfo:
        """What is known of it, as of the last call."""
        return self._target.info

    def __repr__(self) -> str:
        return repr(self._target).replace("AsyncVolume", "Volume", 1)
