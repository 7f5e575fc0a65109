"""Quotas hold, also between two requests at the same time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from corral.server.auth import Keyring
from corral.server.store.database import Database
from support.serving import ServedProcess

Ask = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
async def ask(server: ServedProcess, request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    """Asks the server for an organisation of its own, with the quota that the test is marked with."""
    database = Database(server.data_folder / "server", serving=False)
    try:
        keyring = Keyring(database)
        organisation = keyring.organisation_named(request.node.name)
        quota = {"sandboxes": None, "cpu": None, "memory_gib": None, "disk_gib": None, **request.param}
        keyring.set_quota(organisation, **quota)
        _, key = keyring.create(organisation=organisation, name=request.node.name)
    finally:
        database.close()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:

        async def ask_for(method: str, path: str, body: object = None) -> tuple[int, Any]:
            async with session.request(method, server.url + path, json=body) as response:
                return response.status, (await response.json()) if response.content_length else None

        yield ask_for
        for row in (await ask_for("GET", "/sandbox"))[1]["items"]:
            await ask_for("DELETE", f"/sandbox/{row['id']}")
        for row in (await ask_for("GET", "/snapshots"))[1]["items"]:
            if not row["general"]:
                await ask_for("DELETE", f"/snapshots/{row['id']}")


async def make(ask: Ask, **wanted: object) -> str:
    status, made = await ask("POST", "/sandbox", wanted)
    assert status == 200, made
    return str(made["id"])


@pytest.mark.parametrize("ask", [{"memory_gib": 1}], indirect=True)
async def test_a_paused_sandbox_keeps_its_memory(ask: Ask) -> None:
    first = await make(ask)
    assert (await ask("POST", f"/sandbox/{first}/pause"))[0] in (200, 501)  # not every machine can
    assert (await ask("POST", "/sandbox", {}))[0] == 403
    assert (await ask("POST", f"/sandbox/{first}/start"))[0] == 200


@pytest.mark.parametrize("ask", [{"disk_gib": 3}], indirect=True)
async def test_an_archived_sandbox_keeps_its_disk(ask: Ask) -> None:
    first = await make(ask)
    for step in ("stop", "archive"):
        assert (await ask("POST", f"/sandbox/{first}/{step}"))[0] == 200
    assert (await ask("POST", "/sandbox", {}))[0] == 403
    assert (await ask("POST", f"/sandbox/{first}/start"))[0] == 200


@pytest.mark.parametrize("ask", [{"disk_gib": 7}], indirect=True)
async def test_a_snapshot_needs_disk(ask: Ask) -> None:
    first = await make(ask)
    assert (await ask("POST", f"/sandbox/{first}/snapshot", {"name": "one"}))[0] == 200
    assert (await ask("POST", "/snapshots", {"name": "the-same", "imageName": "one"}))[0] == 200
    assert (await ask("POST", f"/sandbox/{first}/snapshot", {"name": "two"}))[0] == 403
    assert (await ask("GET", "/snapshots/two"))[0] == 404
    assert (await ask("DELETE", f"/sandbox/{first}"))[0] == 200
    assert (await ask("POST", "/sandbox", {"snapshot": "one"}))[0] == 200
    assert (await ask("POST", "/sandbox", {"snapshot": "one"}))[0] == 403


@pytest.mark.parametrize("ask", [{"cpu": 1}], indirect=True)
async def test_two_at_the_same_time_get_it_once(ask: Ask) -> None:
    boxes = []
    for _ in range(3):
        boxes.append(await make(ask))
        assert (await ask("POST", f"/sandbox/{boxes[-1]}/stop"))[0] == 200
    started = await asyncio.gather(*(ask("POST", f"/sandbox/{box}/start") for box in boxes))
    assert sorted(status for status, _ in started) == [200, 403, 403]
    made = await asyncio.gather(*(ask("POST", "/sandbox", {}) for _ in range(3)))
    assert [status for status, _ in made] == [403, 403, 403]


@pytest.mark.parametrize("ask", [{"cpu": 4}], indirect=True)
async def test_two_that_grow_at_the_same_time_do_not_both(ask: Ask) -> None:
    boxes = [await make(ask), await make(ask)]
    grown = await asyncio.gather(*(ask("POST", f"/sandbox/{box}/resize", {"cpu": 3}) for box in boxes))
    # Not every machine can do it; but it never happens twice.
    assert sorted(status for status, _ in grown) in ([200, 403], [403, 501], [501, 501])
    assert sum(row["cpu"] for row in (await ask("GET", "/sandbox"))[1]["items"]) <= 4
