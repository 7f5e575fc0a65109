"""What a server still holds of sandboxes that were deleted: nothing."""

import asyncio
import gc
import platform
import re
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams, DaytonaConfig, DaytonaError

from corral.backends.embedded import EmbeddedBackend
from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendUnavailableError
from corral.server import living
from corral.server.app import Server, opened
from corral.server.living import Handle, LivingSandbox
from corral.server.serving import listening
from corral.server.settings import ServerSettings
from corral.server.store.rows import Sandbox
from corral.sessions.session import ShellSession
from support.serving import ServedProcess, make_client
from support.uses import USES, use_once


class WatchedBackend(EmbeddedBackend):
    """Remembers weakly what it has made; the name that can't be made fails as a full disk would."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.made: weakref.WeakSet[AsyncSandbox] = weakref.WeakSet()
        self.fails = False

    async def create(self, *args: Any, **options: Any) -> AsyncSandbox:
        if self.fails:
            raise BackendUnavailableError("the disk is full")
        box = await super().create(*args, **options)
        self.made.add(box)
        return box

    async def start(self, sandbox_id: str) -> AsyncSandbox:
        box = await super().start(sandbox_id)
        assert isinstance(box, AsyncSandbox)
        self.made.add(box)
        return box


Watched = tuple[Server, WatchedBackend, DaytonaConfig]


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    """A server in this process, whose objects can be counted."""
    backend = WatchedBackend(tmp_path / "data")
    settings = ServerSettings(data_folder=tmp_path / "data", port=0)
    async with opened(settings, backend=backend) as server, listening(server) as url:
        _, key = server.keyring.create(organisation=server.keyring.organisation_named("default"), name="first")
        yield server, backend, DaytonaConfig(api_url=url, api_key=key)
        await server.lifecycle.end_all()
    await backend.aclose()


def kept_by_id(sandbox_id: str) -> list[str]:
    """Every map and set that has this id in it, wherever it is."""

    def has(each: object) -> bool:
        keys = list(each) if isinstance(each, dict | set) else []
        return any(sandbox_id in key if isinstance(key, tuple) else key == sandbox_id for key in keys)

    return [f"{type(each).__name__}: {str(each)[:200]}" for each in gc.get_objects() if has(each)]


def count(kind: type) -> int:
    return sum(isinstance(each, kind) for each in gc.get_objects())


async def test_nothing_is_held_of_a_deleted_sandbox_whatever_it_was_used_for(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, backend, config = watched
    monkeypatch.setattr(living, "READABLE_AFTER_SECONDS", 0.0)
    gc.collect()
    before = {kind: count(kind) for kind in (ShellSession, Handle, LivingSandbox, Sandbox)}
    async with AsyncDaytona(config) as sdk:
        ids = [await use_once(sdk, use) for use in USES]
    del sdk  # it remembers ids, too
    while server.lifecycle._tasks:
        await asyncio.gather(*server.lifecycle._tasks, return_exceptions=True)
    server.sandboxes.flush()
    server.sandboxes.forget_deleted()
    async with asyncio.timeout(60):  # a call whose client has left may be on its way out, on a busy machine
        while gc.collect() or len(backend.made):
            await asyncio.sleep(0.05)
    assert {kind: count(kind) for kind in before} == before
    assert {each: kept_by_id(each) for each in ids} == {each: [] for each in ids}


async def test_nothing_is_held_of_a_sandbox_that_could_not_be_made(
    watched: Watched,
) -> None:
    server, backend, config = watched
    backend.fails = True
    async with AsyncDaytona(config) as sdk:
        with pytest.raises(DaytonaError, match="the disk is full"):
            await sdk.create()
    assert list(server.sandboxes) == []


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has a heap for each thread")
def test_all_threads_of_a_server_share_a_heap(server: ServedProcess) -> None:
    """Each further heap of glibc reserves 64 MiB of addresses at once, and opens them bit by bit."""
    make_client(server).create(CreateSandboxFromSnapshotParams(auto_stop_interval=1)).process.exec("seq 100000")
    lines = Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8").splitlines()
    found = [re.match(r"([0-9a-f]+)-([0-9a-f]+) ---p 00000000 00:00 0 *$", line) for line in lines]
    reserved = [int(each[2], 16) - int(each[1], 16) for each in found if each]
    assert [size for size in reserved if 48 << 20 < size < 64 << 20] == []
