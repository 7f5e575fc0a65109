"""Volumes: named folders that outlive sandboxes, and that several sandboxes may share.

    volumes/ID/    volume.json, lock, and disk.img or data
    volumes.lock   held to create or delete one

A sandbox that uses a volume holds its lock (shared, or alone if it asked for that) in the process that holds the
sandbox, so that the kernel releases it whatever ends that process. A stopped sandbox holds nothing, but its state names
its volumes. Deleting a volume takes the lock alone, and renames the folder to the trash: there is no half-deleted one.

As root, a volume is a file system in a sparse file, with a hard quota. All sandboxes share one mount of it: two loop
devices on one file would destroy it. Without loop devices, and for an ordinary user, it is a folder without a quota.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from corral.engine import sweep
from corral.engine.datafolder import FORMAT
from corral.engine.errors import RefusedError, SetupError
from corral.engine.mounts import VOLUME_FIRST_UID, explain, find_bound, guard, open_source, shift_folder, shift_volume
from corral.engine.plan import OpenSource, plan_sandbox
from corral.engine.recipe import CODE_GID, CODE_UID, Bound, Identity, Recipe
from corral.engine.state import LOCK_NAME, DataFolder, holding, is_held, read_state
from corral.engine.storage import loop
from corral.engine.storage.loop import LoopStorage
from corral.engine.wire import close_all
from corral.inside.nolinks import on_error, opened

DEFAULT_BYTES = 10 * 1024**3
"""The size of a volume that was created without one, where sizes are enforced. It takes only what is written."""
_BYTES_PER_INODE = 16384
_LEAST_INODES = 1024
_KINDS = {"loop": "disk.img", "folder": "data"}


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume as its folder describes it."""

    volume_id: str
    name: str
    owner: str
    """Whose names it is among: "" for the user of the data folder, or an organisation of a server."""
    kind: str
    size_bytes: int | None
    """The quota; None: only the disk itself is a limit."""
    created: float
    used: float | None
    """When it was mounted last."""


class VolumeStore:
    """The volumes of one data folder. Any process of its user may use it."""

    def __init__(self, data: DataFolder) -> None:
        self._data = data

    def list_all(self) -> list[Volume]:
        """All of them, oldest first."""
        found = []
        for folder in self._data.volumes.glob("[!.]*"):
            with contextlib.suppress(RefusedError):
                found.append(self.read(folder.name))
        return sorted(found, key=lambda volume: volume.created)

    def find(self, wanted: str, *, owner: str = "") -> Volume:
        """By id, or by the name among those of an owner. Raises: RefusedError (`no_volume`)."""
        for volume in self.list_all():
            if volume.owner == owner and wanted in (volume.volume_id, volume.name):
                return volume
        raise _not_found(wanted)

    def read(self, volume_id: str) -> Volume:
        """By its id. Raises: RefusedError (`no_volume`)."""
        folder = self._data.volumes / volume_id
        try:
            about = json.loads((folder / "volume.json").read_text())
            size_bytes, kind = about["size_bytes"], about["kind"]
            used = (folder / LOCK_NAME).stat().st_mtime
            return Volume(
                volume_id, str(about["name"]), str(about["owner"]), kind, size_bytes, float(about["created"]),
                used if used > about["created"] else None,
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _not_found(volume_id) from error

    def used_bytes(self, volume: Volume) -> int | None:
        """What it takes on the disk; None if that would have to be added up."""
        with contextlib.suppress(OSError):
            return os.stat(self._data.volumes / volume.volume_id / _KINDS["loop"]).st_blocks * 512
        return None

    def users(self, volume_id: str) -> list[str]:
        """The sandboxes that use it, running or stopped."""
        found = []
        for sandbox_id in self._data.ids():
            folder = self._data.folder(sandbox_id)
            state = read_state(folder) or {}
            mounts = (state.get("recipe") or {}).get("mounts") or ()
            named = any(bound.get("volume") and bound.get("source") == volume_id for bound in mounts)
            if named and (state.get("stopped") or is_held(folder)):
                found.append(sandbox_id)
        return found

    def create(self, name: str, *, owner: str, size_bytes: int | None) -> Volume:
        """Create an empty volume. Raises: RefusedError (`volume_exists`, `no_quota`); OSError."""
        root = os.geteuid() == 0
        kind = "loop" if root and LoopStorage.available() else "folder"
        if size_bytes is not None and kind == "folder":
            reason = "this machine has no loop devices or no mkfs.ext4" if root else "Corral does not run as root"
            text = f"a volume of a limited size is not possible here: {reason}"
            raise RefusedError(text, code="no_quota", hint="leave the size out: then only the disk is a limit")
        if kind == "loop" and size_bytes is None:
            size_bytes = DEFAULT_BYTES
        self._data.volumes.mkdir(mode=0o700, exist_ok=True)
        self._ensure_name_free(name, owner)
        volume = Volume(str(uuid.uuid4()), name, owner, kind, size_bytes, time.time(), None)
        draft = self._data.volumes / f".new-{os.getpid()}-{os.urandom(6).hex()}"
        draft.mkdir(mode=0o700)
        with on_error(sweep.discard, self._data, draft):
            self._fill(draft, volume)
            with self._locked():
                self._ensure_name_free(name, owner)
                draft.rename(self._data.volumes / volume.volume_id)
        return volume

    def _fill(self, draft: Path, volume: Volume) -> None:
        about = {**asdict(volume), "format": FORMAT}
        (draft / "volume.json").write_text(json.dumps(about))
        (draft / LOCK_NAME).touch(mode=0o600)
        os.utime(draft / LOCK_NAME, (volume.created, volume.created))
        root = os.geteuid() == 0
        owners = (VOLUME_FIRST_UID + CODE_UID, VOLUME_FIRST_UID + CODE_GID) if root else (os.geteuid(), os.getegid())
        if volume.kind == "loop":
            assert volume.size_bytes is not None  # see `create`
            inodes = max(_LEAST_INODES, volume.size_bytes // _BYTES_PER_INODE)
            loop.make_lasting(str(draft / _KINDS["loop"]), volume.size_bytes, inodes, owners=owners)
        else:
            (draft / _KINDS["folder"]).mkdir(mode=0o755)
            os.chown(draft / _KINDS["folder"], *owners)

    def delete(self, wanted: str, *, owner: str = "") -> None:
        """Delete a volume with its files. Raises: RefusedError (`no_volume`, `volume_in_use`)."""
        with self._locked():
            volume = self.find(wanted, owner=owner)
            folder = self._data.volumes / volume.volume_id
            users = self.users(volume.volume_id)
            lock = None if users else _lock(folder, fcntl.LOCK_EX)
            if lock is None:
                raise _in_use(volume, users)
            with opened(lock):
                sweep.discard(self._data, folder)

    def _ensure_name_free(self, name: str, owner: str) -> None:
        if any(volume.name == name and volume.owner == owner for volume in self.list_all()):
            raise RefusedError(f"a volume named {name!r} already exists", code="volume_exists")

    def _locked(self) -> contextlib.AbstractContextManager[bool]:
        return holding(self._data.path / "volumes.lock")

    # For the launcher.

    def claim(self, mounts: Sequence[Bound]) -> list[int]:
        """The locks of a sandbox's volumes, held while it runs. Raises: RefusedError (`no_volume`, `volume_in_use`)."""
        alone = {bound.source: False for bound in mounts if bound.volume}
        for bound in mounts:
            if bound.volume and bound.exclusive:
                alone[bound.source] = True
        locks: list[int] = []
        with on_error(lambda: close_all(locks)):
            for volume_id, exclusive in alone.items():
                lock = _lock(self._data.volumes / volume_id, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
                if lock is None:
                    raise _in_use(self.read(volume_id), self.users(volume_id))
                locks.append(lock)
                os.utime(lock)
        return locks

    def open_sources(self, recipe: Recipe, identity: Identity) -> dict[str, int]:
        """For root: everything that a plan mounts from outside, as detached mounts with the ids of the sandbox.

        Raises:
            SetupError: the kernel refused.
        """
        with contextlib.ExitStack() as undo:
            sources: dict[str, int] = {}
            undo.callback(lambda: close_all(list(sources.values())))
            for step in plan_sandbox(recipe, identity):
                if isinstance(step, OpenSource):
                    bound = find_bound(step, recipe)
                    try:
                        sources[step.name] = self._open(step, bound, identity)
                    except OSError as error:
                        raise SetupError(explain(bound, error), step="OpenSource", errno=error.errno or 0) from error
            undo.pop_all()
        return sources

    def _open(self, step: OpenSource, bound: Bound, identity: Identity) -> int:
        if not bound.volume:
            with opened(shift_folder(step.path, identity, writable=step.writable)) as userns:
                return open_source(step.path, writable=step.writable, userns_fd=userns)
        with opened(shift_volume(identity)) as userns:
            if self.read(bound.source).kind == "folder":
                return open_source(step.path, writable=step.writable, userns_fd=userns)
            mount = loop.mount_lasting(str(self._data.volumes / bound.source / _KINDS["loop"]))
            with on_error(os.close, mount):
                guard(mount, writable=step.writable, userns_fd=userns)
            return mount


def _lock(folder: Path, mode: int) -> int | None:
    """None if it is taken. Raises: RefusedError if the volume was deleted."""
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        with on_error(os.close, descriptor):
            try:
                fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
                raise FileNotFoundError
    except FileNotFoundError as error:
        raise _not_found(folder.name) from error
    return descriptor


def _not_found(wanted: str) -> RefusedError:
    return RefusedError(f"volume {wanted!r} not found", code="no_volume")


def _in_use(volume: Volume, users: Sequence[str]) -> RefusedError:
    by = f"by sandbox {', '.join(users)}" if users else "by a sandbox that is being created or deleted"
    return RefusedError(f"the volume {volume.name!r} is in use {by}", code="volume_in_use")
