"""How a server ends while clients are connected: it tells them, waits for requests, and leaves sandboxes running."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from corral.backends.embedded import EmbeddedBackend
from corral.server.app import Server, opened
from corral.server.serving import listening
from corral.server.settings import ServerLimits, ServerSettings

EVENTS = "/socket.io/?transport=websocket&EIO=4"
GOING_AWAY = 1001
FOREVER_SECONDS = 100_000.0
"""The time that requests have to end: what a test sees within its own limit did not wait for it."""
Opened = tuple[Server, EmbeddedBackend, aiohttp.ClientSession, str, Callable[[], asyncio.Task[None]]]


@asynccontextmanager
async def open_server(folder: Path, limits: ServerLimits | None = None) -> AsyncIterator[Opened]:
    """A server, a client with its key, and what stops the server."""
    backend = EmbeddedBackend(folder)
    chosen = limits or ServerLimits()
    settings = ServerSettings(data_folder=folder, port=0, drain_seconds=FOREVER_SECONDS, limits=chosen)
    async with opened(settings, backend=backend) as server:
        _, key = server.keyring.create(organisation=server.keyring.organisation_named("default"), name="first")
        address, stop = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def serve() -> None:
            async with listening(server) as url:
                address.set_result(url)
                await stop.wait()

        serving = asyncio.create_task(serve())

        def begin_to_stop() -> asyncio.Task[None]:
            stop.set()
            return serving

        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client:
            yield server, backend, client, await address, begin_to_stop
        await begin_to_stop()
        await server.lifecycle.end_all()
    await backend.aclose()


async def make_sandbox(client: aiohttp.ClientSession, url: str) -> str:
    """Gives the address of its toolbox."""
    async with client.post(f"{url}/sandbox", json={}) as response:
        sandbox_id = (await response.json())["id"]
    return f"{url}/toolbox/{sandbox_id}/toolbox"


async def post(client: aiohttp.ClientSession, url: str, body: Any) -> Any:
    async with client.post(url, json=body) as response:
        assert response.ok, await response.text()
        return await response.json(content_type=None)


async def hear_until(socket: aiohttp.ClientWebSocketResponse, text: str) -> None:
    """Until something was said that has this in it."""
    async for message in socket:
        content = message.data if isinstance(message.data, str) else message.data.decode()
        if text in content:
            return
    raise AssertionError(f"the socket was closed with {socket.close_code} before {text!r} came")


async def hear_all(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """Until it is closed; gives the code."""
    async for _ in socket:
        pass
    return socket.close_code


async def test_every_websocket_is_told_that_the_server_goes_away(tmp_path: Path) -> None:
    async with open_server(tmp_path) as (server, _, client, url, stop), AsyncExitStack() as stack, asyncio.timeout(120):
        base = await make_sandbox(client, url)
        await post(client, f"{base}/process/session", {"sessionId": "s"})
        command = {"command": "echo here; sleep 1000", "runAsync": True}
        command_id = (await post(client, f"{base}/process/session/s/exec", command))["cmdId"]

        async def connect(address: str) -> aiohttp.ClientWebSocketResponse:
            return await stack.enter_async_context(client.ws_connect(address))

        events = await connect(url + EVENTS)
        await events.send_str("40" + json.dumps({"token": client.headers["Authorization"].split()[1]}))
        await hear_until(events, "40")
        log = await connect(f"{base}/process/session/s/command/{command_id}/logs?follow=true")
        await hear_until(log, "here")
        terminal = await connect(f"{base}/process/pty/create-connect?id=t")
        await hear_until(terminal, "connected")
        running = await connect(f"{base}/process/interpreter/execute")
        await running.send_str(json.dumps({"code": "print('here', flush=True)\nimport time\ntime.sleep(1000)"}))
        await hear_until(running, "here")
        silent = await connect(f"{base}/process/interpreter/execute")
        serving = stop()
        codes = await asyncio.gather(*map(hear_all, (events, log, terminal, running, silent)))
        assert codes == [GOING_AWAY] * 5
        await serving
        assert [sandbox.row.state for sandbox in server.sandboxes] == ["started"]


async def test_a_client_that_does_not_read_holds_nothing_up(tmp_path: Path) -> None:
    async with open_server(tmp_path) as (_, _, client, url, stop), asyncio.timeout(120):
        base = await make_sandbox(client, url)
        async with client.ws_connect(f"{base}/process/pty/create-connect?id=t") as terminal:
            await hear_until(terminal, "connected")
            await terminal.send_str("yes\n")
            await hear_until(terminal, "y\r\ny\r\n")
            connection = terminal._response.connection
            assert connection is not None
            assert connection.transport is not None
            connection.transport.pause_reading()  # its client hangs, and the flood fills every buffer
            await stop()
            connection.transport.abort()  # else the client waits for the other side's goodbye


async def test_requests_under_way_are_finished(tmp_path: Path) -> None:
    async with open_server(tmp_path) as (server, backend, client, url, stop), asyncio.timeout(120):
        base = await make_sandbox(client, url)
        wait = "touch here; until [ -e go ]; do sleep 0.05; done; echo done"
        async with client.ws_connect(f"{base}/process/pty/create-connect?id=t") as terminal:
            answer = asyncio.create_task(post(client, f"{base}/process/execute", {"command": f"sh -c '{wait}'"}))
            box = await backend.connect(next(iter(server.sandboxes)).row.engine_id or "")
            while not await box.files.exists("here"):
                await asyncio.sleep(0.05)
            serving = stop()
            assert await hear_all(terminal) == GOING_AWAY
            assert not answer.done()
            await box.files.write("go", b"")
            assert "done" in (await answer)["result"]
            await serving
            await box.aclose()
