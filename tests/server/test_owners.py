"""Sandboxes of the server among others in one data folder: whose they are, and what the server hears of their end."""

import asyncio
import contextlib
import json
import os
import pty
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams, DaytonaConfig

from corral.backends.embedded import EmbeddedBackend
from corral.cli import main
from corral.client import registry
from corral.client.sandbox import AsyncSandbox
from corral.server.app import Server, opened
from corral.server.deadlines import Sweeper
from corral.server.serving import listening
from corral.server.settings import ServerSettings
from corral.server.store.rows import Sandbox
from corral.spec import Spec

NEVER = 3600.0


class Place:
    """A server that is told of ends, since it never looks by itself."""

    def __init__(self, server: Server, sdk: AsyncDaytona, folder: Path) -> None:
        self.server, self.sdk, self.folder = server, sdk, folder
        self.heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        server.sandboxes.listeners.append(lambda row, before: self.heard.put_nowait((row.id, row.state)))

    async def make(self) -> Sandbox:
        box = await self.sdk.create()
        return self.server.sandboxes.find(box.id, organisation_id=None).row

    @contextlib.asynccontextmanager
    async def make_mine(self, name: str | None = None) -> AsyncIterator[AsyncSandbox]:
        """One that is not the server's."""
        backend = EmbeddedBackend(self.folder)
        box = await backend.create(Spec(name=name))
        await box.detach()
        yield box
        await box.kill()
        await backend.aclose()

    async def hear(self, sandbox_id: str, state: str) -> None:
        """Wait until the server tells its clients of this state."""
        async with asyncio.timeout(60):
            while await self.heard.get() != (sandbox_id, state):
                pass


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    folder = tmp_path / "data"
    settings = ServerSettings(data_folder=folder, port=0, sweep_seconds=NEVER)
    backend = EmbeddedBackend(folder)
    async with opened(settings, backend=backend) as server, listening(server) as url:
        _, key = server.keyring.create(organisation=server.keyring.organisation_named("team"), name="first")
        async with AsyncDaytona(DaytonaConfig(api_url=url, api_key=key)) as sdk:
            yield Place(server, sdk, folder)
        await server.lifecycle.end_all()
    await backend.aclose()


@pytest.fixture
def corral(place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command line beside the server, on the same folder."""
    monkeypatch.setenv("CORRAL_DATA_DIR", str(place.folder))
    monkeypatch.setitem(registry._opened, "embedded", EmbeddedBackend(place.folder))

    async def call(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, ["sandbox", *words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


async def test_all_are_ended_but_for_those_of_the_server(place: Place, corral: Callable[..., Any]) -> None:
    async with place.make_mine() as mine:
        theirs = await place.make()
        _, listed, _ = await corral("list", "--json")
        assert {info["sandbox_id"]: info["owner"] for info in json.loads(listed)} == {
            mine.id: None,
            theirs.engine_id: "server:team",
        }
        assert "server:team" in (await corral("list"))[1]
        code, removed, said = await corral("rm", "--all")
        assert (code, removed) == (0, f"{mine.id}\n")
        assert "1 sandbox of `corral serve`" in said
        assert (await place.sdk.get(theirs.id)).state == "started"


async def test_ending_all_ends_no_sandbox_of_the_server(place: Place, corral: Callable[..., Any]) -> None:
    async with place.make_mine():
        theirs = await place.make()
        await corral("rm", "--all")
        left = [info.sandbox_id for info in await EmbeddedBackend(place.folder).list()]
        assert left == [theirs.engine_id]


async def test_the_server_hears_when_one_of_its_own_is_ended_by_another(
    place: Place, corral: Callable[..., Any]
) -> None:
    row = await place.make()
    assert (await corral("rm", row.engine_id))[0] == 0
    await place.hear(row.id, "error")
    seen = await place.sdk.get(row.id)
    assert seen.state == "error"
    assert "corral sandbox rm" in str(seen.error_reason)


async def test_the_server_hears_when_another_stops_and_starts_one(place: Place, corral: Callable[..., Any]) -> None:
    row = await place.make()
    assert (await corral("stop", row.engine_id))[0] == 0
    await place.hear(row.id, "stopped")
    assert (await corral("rm", row.engine_id))[0] == 0
    await Sweeper(
        place.server.lifecycle, seconds=NEVER
    ).glance()  # those that don't run have no handle that would notice
    assert row.state == "error"


async def test_a_hundred_ends_at_once_are_few_questions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        await place.make()
    asked = 0
    whole = place.server.backend.list

    async def count() -> Any:
        nonlocal asked
        asked += 1
        return await whole()

    monkeypatch.setattr(place.server.backend, "list", count)
    living = list(place.server.sandboxes)
    await asyncio.gather(*map(place.server.lifecycle.find_at_backend, living * 30))
    assert asked <= 2


async def test_at_a_terminal_ending_all_is_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_DATA_DIR", str(place.folder))
    controller, terminal = pty.openpty()

    async def remove_all(answer: bytes) -> int:
        os.write(controller, answer)
        command = (sys.executable, "-m", "corral.cli", "sandbox", "rm", "--all")
        process = await asyncio.create_subprocess_exec(
            *command, stdin=terminal, stderr=terminal, stdout=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    try:
        async with place.make_mine() as mine:
            assert (await remove_all(b"n\n"), await mine.is_alive()) == (1, True)
            assert (await remove_all(b"y\n"), await mine.is_alive()) == (0, False)
    finally:
        os.close(controller)
        os.close(terminal)


async def test_an_error_about_a_sandbox_of_ours_does_not_point_to_the_servers_of_that_name(
    place: Place, corral: Callable[..., Any]
) -> None:
    await place.sdk.create(CreateSandboxFromSnapshotParams(name="web"))
    assert (await corral("create", "--name", "web"))[0] == 0
    assert "no background program found in 'web'" in (await corral("logs", "web"))[2]
    assert (await corral("exec", "-d", "web", "true"))[0] == 0
    assert "program 9 not found in 'web'" in (await corral("logs", "web", "9"))[2]
    assert (await corral("rm", "web"))[0] == 0


async def test_a_name_of_the_servers_is_explained(place: Place, corral: Callable[..., Any], tmp_path: Path) -> None:
    """It is not taken for one of ours: a client of the server chose it, and could choose that of ours."""
    theirs = await place.sdk.create(CreateSandboxFromSnapshotParams(name="web"))
    row = place.server.sandboxes.find(theirs.id, organisation_id=None).row
    listed = (await corral("list"))[1]
    assert "server:team/web" in listed
    assert "corral." not in listed
    for wanted in ("web", theirs.id):
        for words in (
            ("exec", wanted, "true"), ("exec", "-d", wanted, "true"), ("cp", f"{wanted}:x", str(tmp_path)),
            ("logs", wanted), ("stop", wanted), ("start", wanted), ("snapshot", wanted), ("fork", wanted),
            ("rm", wanted),
        ):  # fmt: skip
            code, _, said = await corral(*words)
            assert code == (125 if words[0] == "exec" else 1), words
            assert f"{wanted!r} belongs to `corral serve` (server:team)" in said, words
            assert f"use its id here, {row.engine_id}, or --url" in said, words
        assert (await asyncio.to_thread(main, ["shell", wanted, "-c", "true"])) == 125
    assert (await corral("rm", "--force", "web"))[0] == 1
    assert (await corral("exec", str(row.engine_id), "true"))[0] == 0
    fork = (await corral("fork", str(row.engine_id)))[1].strip()
    (forked,) = [info for info in json.loads((await corral("list", "--json"))[1]) if info["sandbox_id"] == fork]
    assert (forked["owner"], forked["labels"]) == (None, {})  # the server knows nothing of it
    assert (await corral("rm", fork))[0] == 0
    async with place.make_mine(name="web") as mine:
        assert (await corral("exec", "web", "true"))[0] == 0
        assert (await corral("rm", "web"))[0] == 0
        assert not await mine.is_alive()
    assert (await place.sdk.get(theirs.id)).state == "started"
