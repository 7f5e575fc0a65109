"""The state of each sandbox on disk, so that a later process can find it or clean it up.

A data folder holds:

    format              the number of the format of everything here; a newer one is refused
    instance            a random name that marks this folder's cgroups
    base/FORMAT-HASH/   the generated part of the system (never changed)
    sandboxes/ID/       lock, state.json, disk or disk.img, keeper.sock, logs/
    layers/, snapshots/ files that sandboxes had written at some moment (see `layers.py`)
    copies/             copies of folders of the host that are being made for a sandbox
    volumes/            named folders that sandboxes mount (see `volumes.py`); missing until the first is created
    trash/              what is being deleted
    disks/, packages/, runtimes/, server/

It is private to its owner, and so is each folder in it: mode 0700 (see `datafolder.py`).

A sandbox lives as long as a process holds the lock of its folder, which the kernel releases when that process dies.
`state.json` is written before the first kernel object exists. The files of a sandbox whose state says `stopped` stay
until it is started or deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corral.engine.datafolder import FORMAT, secure
from corral.inside.nolinks import on_error, opened

LOCK_NAME = "lock"
SOCKET_NAME = "keeper.sock"
"""The keeper's socket, in its sandbox's folder."""


class DataFolder:
    """The data folder of one installation."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.sandboxes = self.path / "sandboxes"
        self.layers = self.path / "layers"
        self.snapshots = self.path / "snapshots"
        self.volumes = self.path / "volumes"
        self.trash = self.path / "trash"
        self.trash_lock = self.path / "trash.lock"
        self._founding = self.path / "founding.lock"
        """Held by all who create a sandbox's folder together; alone by one who sweeps unfinished folders."""

    def prepare(self) -> None:
        """Create missing folders. Raises: UnsafeFolderError if others could reach into it."""
        secure(self.path)
        for folder in (self.sandboxes, self.layers, self.snapshots, self.trash):
            folder.mkdir(mode=0o700, exist_ok=True)

    def instance(self) -> str:
        """The name that marks this folder's cgroups."""
        path = self.path / "instance"
        if not path.exists() or not path.stat().st_size:
            unfinished = self.path / f".instance-{os.getpid()}-{os.urandom(4).hex()}"
            unfinished.write_text(os.urandom(4).hex())
            with contextlib.suppress(FileNotFoundError):
                if not path.stat().st_size:
                    path.unlink()  # its writer was killed
            with contextlib.suppress(FileExistsError):
                os.link(unfinished, path)  # complete when it appears, and only once
            unfinished.unlink()
        return path.read_text().strip()

    def folder(self, sandbox_id: str) -> Path:
        """The folder of one sandbox."""
        return self.sandboxes / sandbox_id

    def ids(self) -> list[str]:
        """All sandboxes that have a folder."""
        return sorted(folder.name for folder in self.sandboxes.glob("[!.]*") if folder.is_dir())

    def found(self, sandbox_id: str, state: dict[str, Any]) -> tuple[Path, int]:
        """Create a sandbox's folder with its state, already locked when it appears under its name.

        Raises:
            FileExistsError: a sandbox with that id exists.
        """
        final = self.folder(sandbox_id)
        if final.exists():
            raise FileExistsError(sandbox_id)
        unfinished = self.sandboxes / f".new-{sandbox_id}"
        descriptor: int | None = None
        with holding(self._founding, fcntl.LOCK_SH):
            unfinished.mkdir(mode=0o700)
            try:
                descriptor = lock(unfinished)
                assert descriptor is not None  # sweepers keep away while we hold `_founding`
                write_state(unfinished, state)
                unfinished.rename(final)
            except BaseException:
                if descriptor is not None:
                    os.close(descriptor)
                _remove_unfinished(unfinished)
                raise
        return final, descriptor

    def unfinished(self) -> list[Path]:
        """Folders that dead processes were creating."""
        with holding(self._founding, patience_seconds=0) as alone:
            return list(self.sandboxes.glob(".new-*")) if alone else []


@contextlib.contextmanager
def holding(path: Path, mode: int = fcntl.LOCK_EX, *, patience_seconds: float | None = None) -> Iterator[bool]:
    """Hold a lock file; yields False if it is still taken after so many seconds. Without `patience_seconds`, waits."""
    with opened(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as descriptor:
        if patience_seconds is None:
            fcntl.flock(descriptor, mode)
            yield True
            return
        deadline = time.monotonic() + patience_seconds
        while not (held := _flock_at_once(descriptor, mode)) and time.monotonic() < deadline:
            time.sleep(0.01)
        yield held


def _flock_at_once(descriptor: int, mode: int = fcntl.LOCK_EX) -> bool:
    """False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(folder: Path) -> int | None:
    """Lock a sandbox's folder; None if another process holds it.

    Raises:
        OSError: the folder does not exist, or was moved away before it was locked.
    """
    path = folder / LOCK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with on_error(os.close, descriptor):
        if not _flock_at_once(descriptor):
            os.close(descriptor)
            return None
        # Its holder may have moved it to the trash after it was opened, and released it.
        if not os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return descriptor


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Replace state.json as a whole."""
    temporary = folder / f".state.{os.getpid()}"
    temporary.write_text(json.dumps({"format": FORMAT, **state}, indent=1))
    temporary.rename(folder / "state.json")


def note_limits(folder: Path, state: dict[str, Any], given: dict[str, Any]) -> None:
    """Record new limits, for the next start and for later clients."""
    state["recipe"]["limits"].update(given)
    if "info" in state:  # an owned one has no description yet
        state["info"]["spec"]["resources"].update(given)
    write_state(folder, state)


def note_network(
    folder: Path,
    state: dict[str, Any],
    *,
    redirect: bool,
    described: object,
    env: dict[str, str],
    secrets: list[object],
) -> None:
    """Record another network, the variables that belong to it, and secrets without their values, for the next start and
    for later clients."""
    state["recipe"]["redirect"] = redirect
    if "info" in state:
        state["info"]["spec"]["network"] = described
        state["info"]["spec"]["secrets"] = secrets
        state["info"]["env"] = env
    write_state(folder, state)


def read_state(folder: Path) -> dict[str, Any] | None:
    """state.json, or None if it is missing or unreadable."""
    try:
        state = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) else None


def dead_folders(data: DataFolder) -> Iterator[tuple[Path, int]]:
    """Folders whose holder has ended, each with its lock, which we hold now."""
    for folder in (*(data.folder(sandbox_id) for sandbox_id in data.ids()), *data.unfinished()):
        with contextlib.suppress(OSError):
            descriptor = lock(folder)
            if descriptor is not None:
                yield folder, descriptor


def _remove_unfinished(folder: Path) -> None:
    """Remove by name: the reason for the failure may also prevent listing a folder (out of descriptors)."""
    for name in (LOCK_NAME, f".state.{os.getpid()}", "state.json"):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def is_held(folder: Path) -> bool:
    """True if a process keeps the sandbox of this folder alive."""
    try:
        descriptor = lock(folder)
    except OSError:
        return False
    if descriptor is None:
        return True
    os.close(descriptor)
    return False
