"""What a server remembers of shell sessions is bounded, and what it forgets is read again."""

import gc
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from corral.server.settings import ServerLimits
from server.test_stopping import make_sandbox, open_server, post

LONG = ": " + "x" * 60_000
SESSIONS = 4
LIMIT_BYTES = 24 * len(LONG)


@pytest.fixture
async def toolbox(tmp_path: Path) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A server in this process that has room for the commands of two sessions."""
    async with open_server(tmp_path, ServerLimits(sessions_bytes=LIMIT_BYTES)) as (_, _, client, url, _):
        yield client, await make_sandbox(client, url)


async def get(client: aiohttp.ClientSession, url: str) -> object:
    async with client.get(url) as response:
        assert response.ok, await response.text()
        return await response.json()


def remembered() -> int:
    """The bytes of the commands' texts, wherever they are in this process."""
    gc.collect()
    found = {}
    for each in gc.get_objects():
        if type(each).__name__ == "CommandState":
            found[id(each)] = len(each.text)
    return sum(found.values())


async def test_handles_that_were_not_used_longest_are_let_go(toolbox: tuple[aiohttp.ClientSession, str]) -> None:
    client, base = toolbox
    for number in range(SESSIONS):
        await post(client, f"{base}/process/session", {"sessionId": f"s{number}"})
        for _ in range(10):
            await post(client, f"{base}/process/session/s{number}/exec", {"command": LONG})
    assert 10 * len(LONG) <= remembered() <= LIMIT_BYTES
    first = await get(client, f"{base}/process/session/s0")
    assert [each["command"] for each in first["commands"]] == [LONG] * 10  # type: ignore[index]
    listed = await get(client, f"{base}/process/session")
    assert [len(each["commands"]) for each in listed] == [10] * SESSIONS  # type: ignore[attr-defined]
    assert remembered() <= LIMIT_BYTES


async def test_commands_that_wait_are_refused_when_there_are_too_many(
    toolbox: tuple[aiohttp.ClientSession, str],
) -> None:
    client, base = toolbox
    await post(client, f"{base}/process/session", {"sessionId": "s"})
    body = {"command": "sleep 1000", "runAsync": True}
    await post(client, f"{base}/process/session/s/exec", body)
    answers = []
    while not answers or answers[-1][0] == 202:
        async with client.post(f"{base}/process/session/s/exec", json=body | {"command": LONG}) as response:
            answers.append((response.status, await response.text()))
    assert answers[-1][0] == 400
    assert "are queued" in answers[-1][1]
    assert len(answers) > 50
