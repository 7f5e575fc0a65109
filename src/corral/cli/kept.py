"""Programs that run on in a detached sandbox, with a log that its keeper writes. Only embedded ones have keepers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from corral.backends.embedded import EmbeddedBackend, keepers
from corral.backends.embedded.keepers import KeptProgram
from corral.client.registry import get_backend
from corral.errors import CapabilityError, SandboxGoneError
from corral.protocol import Backend, Command

_LOOK_SECONDS = 0.1
_CHUNK_BYTES = 64 * 1024


@runtime_checkable
class KeepsPrograms(Protocol):
    """A backend whose service keeps the logs of programs that run on."""

    async def start_kept(
        self, sandbox_id: str, command: Command, *, cwd: str | None, env: Mapping[str, str], user: str | None,
        timeout: float | None,
    ) -> int:  # fmt: skip
        """Start one; its number."""

    async def list_kept(self, sandbox_id: str) -> Sequence[Any]:
        """Oldest first."""

    def follow_kept(self, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        """What one has printed, and with `follow` what it prints until its end."""


def find_embedded(name: str | Backend, *, what: str) -> EmbeddedBackend:
    """The embedded backend. Raises: CapabilityError for another one."""
    backend: Backend = get_backend(name)
    if not isinstance(backend, EmbeddedBackend):
        raise CapabilityError(f"the {backend.name} backend has no {what}", hint="--backend embedded has")
    return backend


async def start_kept(
    backend: EmbeddedBackend, sandbox_id: str, command: Command, *, cwd: str | None, env: Mapping[str, str],
    user: str | None, timeout: float | None,
) -> int:  # fmt: skip
    """Start a program that outlives us; its number."""
    box = await backend.connect(sandbox_id)
    try:
        return await box.start_kept(command, cwd=cwd, env=env, user=user, timeout=timeout)
    finally:
        await box.aclose()


def list_kept(backend: EmbeddedBackend, sandbox_id: str) -> list[KeptProgram]:
    """Oldest first."""
    return keepers.kept_programs(backend.data_folder, sandbox_id)


def find_kept(backend: EmbeddedBackend, sandbox_id: str, number: int | None) -> KeptProgram:
    """The program of that number, or the one that was started last. Raises: SandboxGoneError."""
    programs = list_kept(backend, sandbox_id)
    if not programs:
        raise SandboxGoneError(
            f"no background program found in {sandbox_id!r}",
            sandbox_id=sandbox_id,
            hint=f"`corral sandbox exec -d {sandbox_id} -- …` starts one",
        )
    if number is None:
        return programs[-1]
    for program in programs:
        if program.number == number:
            return program
    hint = f"`corral sandbox logs {sandbox_id} --list` shows which there are"
    raise SandboxGoneError(f"there is no program {number} in {sandbox_id!r}", sandbox_id=sandbox_id, hint=hint)


def read_log(program: KeptProgram) -> Iterator[bytes]:
    """What it has printed, from the oldest that is kept."""
    for path in (_older(program.log), program.log):
        yield from _read_from(path, 0)


async def follow_log(backend: EmbeddedBackend, sandbox_id: str, program: KeptProgram) -> AsyncIterator[bytes]:
    """What it has printed and prints, until it or its sandbox ends."""
    tail = _Tail(program.log)
    while True:
        try:
            running = find_kept(backend, sandbox_id, program.number).state == "running"
        except SandboxGoneError:
            running = False
        for data in tail.read():
            yield data
        if not running:
            return
        await asyncio.sleep(_LOOK_SECONDS)


class _Tail:
    """Reads on in a file that grows, also when its keeper turns it over: then it goes on under another name first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None

    def read(self) -> Iterator[bytes]:
        """What is new."""
        older = _older(self._path)
        if self._inode is None:
            yield from _read_from(older, 0)
        elif _inode(self._path) != self._inode:
            if _inode(older) == self._inode:
                yield from _read_from(older, self._offset)
            self._offset = 0
        self._inode = _inode(self._path)
        for data in _read_from(self._path, self._offset):
            self._offset += len(data)
            yield data


def _older(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _read_from(path: Path, offset: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while data := file.read(_CHUNK_BYTES):
                yield data
    except FileNotFoundError:
        return
