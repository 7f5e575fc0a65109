"""Every operation of the toolbox that the official clients know, called by the official SDK: sync, and async.

One table for both: `Blocking` runs the async client's coroutines to their end. That each row really calls the operation
that it stands for is seen by listening in the generated client.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Any

import daytona_toolbox_api_client as sync_api
import daytona_toolbox_api_client_async as async_api
import httpx
import pytest
from daytona import AsyncDaytona, DaytonaConfig, DaytonaError
from daytona_toolbox_api_client.exceptions import ApiException

from support import toolbox_rows  # noqa: F401 - fills the table
from support.serving import ServedProcess, make_client
from support.toolbox import ABSENT, OPERATIONS, TABLE, Blocking, World, list_operations

GUARD_SECONDS = 60


def test_the_table_has_every_operation_of_the_generated_client() -> None:
    assert TABLE.keys() | ABSENT.keys() == OPERATIONS.keys() == list_operations(async_api).keys()
    assert not TABLE.keys() & ABSENT.keys()


@pytest.fixture(scope="module")
def plain_world(server: ServedProcess) -> Iterator[World]:
    client = make_client(server)
    box = client.create()
    yield World(box, is_async=False)
    client.delete(box)


@pytest.fixture(scope="module")
def async_world(server: ServedProcess) -> Iterator[World]:
    with asyncio.Runner() as runner:

        def run(value: Any) -> Any:
            async def settle() -> Any:
                return await asyncio.wait_for(value, GUARD_SECONDS)

            return runner.run(settle())

        client = Blocking(AsyncDaytona(DaytonaConfig(api_url=server.url, api_key=server.key)), run)
        box = client.create()
        yield World(box, is_async=True)
        client.delete(box._target)
        client.close()


@contextlib.contextmanager
def listening_in(operation: str, api: Any) -> Iterator[list[str]]:
    """Which requests the generated client makes for an operation."""
    kind = getattr(api, OPERATIONS[operation][0])
    name = f"_{operation}_serialize"
    original, heard = getattr(kind, name), []

    def listen(*args: Any, **kwargs: Any) -> Any:
        heard.append(operation)
        return original(*args, **kwargs)

    setattr(kind, name, listen)
    try:
        yield heard
    finally:
        setattr(kind, name, original)


@pytest.mark.parametrize("operation", TABLE)
def test_the_sync_client_is_served(plain_world: World, operation: str) -> None:
    with listening_in(operation, sync_api) as heard:
        TABLE[operation](plain_world)
    assert heard


@pytest.mark.parametrize("operation", TABLE)
def test_the_async_client_is_served(async_world: World, operation: str) -> None:
    with listening_in(operation, async_api) as heard:
        TABLE[operation](async_world)
    assert heard


@pytest.mark.parametrize("operation", ABSENT)
def test_what_is_not_here_says_so(plain_world: World, server: ServedProcess, operation: str) -> None:
    _, method, path = ABSENT[operation]
    url = f"{plain_world.box.toolbox_proxy_url}/{plain_world.box.id}" + re.sub(r"\{\w+\}", "x", path)
    answer = httpx.request(method, url, headers={"Authorization": f"Bearer {server.key}"})
    assert answer.status_code == 501
    assert "not" in answer.json()["message"]


def test_what_is_not_here_is_an_error_of_the_clients_own_kind(plain_world: World) -> None:
    with pytest.raises((DaytonaError, ApiException)):
        plain_world.box.computer_use.start()
    with pytest.raises((DaytonaError, ApiException)):
        plain_world.box.create_lsp_server("python", "x").start()
