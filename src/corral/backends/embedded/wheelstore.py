"""Wheels on the host, kept by their hash, and which of them each set of packages has.

packages/wheels/SHA256/NAME.whl     a wheel: complete when it appears, and compared with its hash when it is used
packages/wheels/SET.json            the lock of a set: name, version and hash of each wheel
packages/wheels/SET.lock            held by the process that provides the set
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from corral.backends.embedded.wheels import Wheel, read_wheel
from corral.errors import SpecError
from corral.inside.nolinks import opened

_WAIT_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LockedWheel:
    """One wheel of a set."""

    file: str
    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class LockedSet:
    """What a set of packages was resolved to."""

    wheels: tuple[LockedWheel, ...]
    built: bool
    """True if a wheel was built from source: building again gives another file."""


class WheelStore:
    """The wheels in one data folder."""

    def __init__(self, packages: Path) -> None:
        self.folder = packages / "wheels"
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def read(self, name: str) -> LockedSet | None:
        """The lock of a set; None if there is none that can be read."""
        try:
            raw = json.loads((self.folder / f"{name}.json").read_bytes())
            return LockedSet(tuple(LockedWheel(**each) for each in raw["wheels"]), bool(raw["built"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def find(self, known: LockedSet) -> list[Wheel] | None:
        """The wheels of a set, compared with their hashes. None if one is missing or damaged."""
        found = []
        for locked in known.wheels:
            path = self.folder / locked.sha256 / locked.file
            try:
                if _hash(path) != locked.sha256:
                    return None
                found.append(read_wheel(path))
            except (OSError, SpecError):
                return None
        return found

    def keep(self, name: str, wheels: Sequence[Wheel], *, built: bool, known: LockedSet | None) -> list[Wheel]:
        """Keep these wheels as a set; returns them where they are kept.

        Raises:
            SpecError: the same version of a package had another content when the set was resolved before.
        """
        hashes = {wheel.name: _hash(wheel.path) for wheel in wheels}
        if known is not None and not known.built and not built:
            self._compare(name, known, wheels, hashes)
        kept = [self._store(wheel, hashes[wheel.name]) for wheel in wheels]
        locked = [LockedWheel(wheel.path.name, wheel.name, str(wheel.version), hashes[wheel.name]) for wheel in wheels]
        text = json.dumps({"wheels": [asdict(each) for each in locked], "built": built}, indent=1)
        _write_whole(self.folder / f"{name}.json", text.encode())
        return kept

    def _compare(self, name: str, known: LockedSet, wheels: Sequence[Wheel], hashes: dict[str, str]) -> None:
        before = {each.file: each.sha256 for each in known.wheels}
        for wheel in wheels:
            if before.get(wheel.path.name, hashes[wheel.name]) != hashes[wheel.name]:
                raise SpecError(
                    f"{wheel.path.name} has changed at its index: its sha256 was {before[wheel.path.name]}, and is "
                    f"{hashes[wheel.name]} now",
                    op="create",
                    hint=f"if that is right, delete packages/wheels/{name}.json in the data folder",
                )

    def _store(self, wheel: Wheel, sha256: str) -> Wheel:
        folder = self.folder / sha256
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / wheel.path.name
        if not path.exists() or _hash(path) != sha256:
            unfinished = path.with_name(f".new-{os.getpid()}-{os.urandom(4).hex()}")
            try:
                shutil.copyfile(wheel.path, unfinished)
                _sync(unfinished)
                unfinished.rename(path)
            finally:
                unfinished.unlink(missing_ok=True)
        return Wheel(path, wheel.name, wheel.version)


@contextlib.asynccontextmanager
async def holding(lock: Path) -> AsyncIterator[None]:
    """Wait for a lock between processes, and between tasks of this one."""
    with opened(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as descriptor:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(_WAIT_SECONDS)  # never blocking: the holder may be another task of this very loop
            else:
                break
        yield


def _write_whole(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".new-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        unfinished.write_bytes(content)
        _sync(unfinished)
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """A crash of the machine leaves the whole file, or none of its name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
