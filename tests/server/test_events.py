"""Events: what clients receive about their sandboxes, and that no other client does."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from socket import SHUT_RDWR
from typing import Any

import aiohttp
import pytest
from daytona import AsyncDaytona, DaytonaConfig
from daytona.internal.event_dispatcher import AsyncEventDispatcher, SyncEventDispatcher

from corral.server.settings import ServerLimits
from server.conftest import InProcess, OpenInProcess
from support.serving import ServedProcess, make_client

QUERY = "/socket.io/?transport=websocket&EIO=4"


async def connect(running: InProcess, token: object) -> tuple[aiohttp.ClientWebSocketResponse, str]:
    socket = await running.session.ws_connect(running.url + QUERY)
    assert (await socket.receive_str(timeout=10)).startswith("0")
    await socket.send_str("40" + json.dumps({"token": token}))
    return socket, await socket.receive_str(timeout=10)


async def hear(socket: aiohttp.ClientWebSocketResponse) -> tuple[str, Any]:
    text = await socket.receive_str(timeout=10)
    assert text.startswith("42"), text
    name, payload = json.loads(text[2:])
    return name, payload


async def change(running: InProcess, key: str) -> str:
    headers = running.headers(key)
    async with running.session.post(running.url + "/sandbox", json={}, headers=headers) as response:
        sandbox_id: str = (await response.json())["id"]
    async with running.session.delete(running.url + f"/sandbox/{sandbox_id}", headers=headers) as response:
        assert response.status == 200
    return sandbox_id


async def test_a_client_hears_of_its_own_sandboxes_alone(in_process: InProcess) -> None:
    socket, answer = await connect(in_process, in_process.key)
    assert answer.startswith("40")
    await change(in_process, in_process.new_key("others"))
    mine = await change(in_process, in_process.key)
    name, payload = await hear(socket)
    assert (name, payload["id"], payload["state"]) == ("sandbox.created", mine, "creating")
    states = []
    while not states or states[-1] != "destroyed":
        name, payload = await hear(socket)
        assert (name, payload["sandbox"]["id"]) == ("sandbox.state.updated", mine)
        assert payload["sandbox"]["state"] == payload["newState"]
        states.append(payload["newState"])
    assert states == ["started", "destroying", "destroyed"]
    await socket.close()


@pytest.mark.parametrize("politely", [True, False])
async def test_a_listener_that_leaves_is_no_request_that_was_broken_off(in_process: InProcess, politely: bool) -> None:
    socket, _ = await connect(in_process, in_process.key)
    if politely:
        await socket.close()
    else:
        transport = socket.get_extra_info("socket")
        assert transport is not None
        transport.shutdown(SHUT_RDWR)  # as when its process was killed
    while in_process.server.metrics.in_flight:
        await asyncio.sleep(0.01)
    counted = in_process.server.metrics.render(states={}, websockets=0)
    assert 'operation="connect_events",method="GET",status="101"} 1' in counted
    assert 'status="499"' not in counted
    await socket.close()


@pytest.mark.parametrize("token", ["wrong", "", None, 7, {"a": 1}])
async def test_a_wrong_key_is_refused(in_process: InProcess, token: object) -> None:
    socket, answer = await connect(in_process, token)
    assert answer.startswith("44")
    assert (await socket.receive(timeout=10)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)


async def test_a_key_that_may_not_read_hears_nothing(in_process: InProcess) -> None:
    _, answer = await connect(in_process, in_process.new_key("default", scopes=["run"]))
    assert answer.startswith("44")


async def test_pings_are_sent_and_answered(in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.server.events.PING_SECONDS", 0.05)
    monkeypatch.setattr("corral.server.events.PONG_SECONDS", 0.3)
    socket, _ = await connect(in_process, in_process.key)
    await socket.send_str("2")
    heard = {await socket.receive_str(timeout=10), await socket.receive_str(timeout=10)}
    assert heard == {"2", "3"}
    # The client no longer answers, so it is disconnected.
    async with asyncio.timeout(10):
        while (await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
    assert len(in_process.server.events) == 0


async def test_a_listener_that_does_not_keep_up_is_cut_off(in_process: InProcess) -> None:
    _socket, _ = await connect(in_process, in_process.key)
    events = in_process.server.events
    while len(events) < 1:
        await asyncio.sleep(0.01)
    organisation = in_process.server.keyring.organisation_named("default").id
    for _ in range(5000):  # nothing is awaited here: its queue can't be emptied meanwhile
        events.publish(organisation, "sandbox.created", lambda _: {"id": "x"})
    assert len(events) == 0


async def test_what_waits_for_listeners_is_counted_for_their_key(open_in_process: OpenInProcess) -> None:
    async with open_in_process(ServerLimits(memory_per_key_bytes=2 * 1024 * 1024)) as running:
        events = running.server.events
        sockets = [await connect(running, key) for key in (running.key, running.new_key("others"))]
        while len(events) < 2:
            await asyncio.sleep(0.01)
        organisation = running.server.keyring.organisation_named("default").id
        told = 0
        while len(events) == 2 and told < 100:  # nothing is awaited here: its queue can't be emptied meanwhile
            events.publish(organisation, "sandbox.created", lambda _: {"id": "x" * 200_000})
            told += 1
        assert 5 < told < 15
        assert len(events) == len(sockets) - 1, "the other key has nothing to do with it"


async def test_a_revoked_key_hears_no_more(in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.server.events.PING_SECONDS", 0.05)
    key = in_process.new_key("default")
    socket, _ = await connect(in_process, key)
    in_process.server.keyring.revoke(in_process.server.keyring.keys[-1].id)
    async with asyncio.timeout(10):
        while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            await socket.send_str("3")
    assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING)


async def test_other_transports_are_refused(open_in_process: OpenInProcess) -> None:
    async with (
        open_in_process() as running,
        running.session.get(running.url + "/socket.io/?transport=polling&EIO=4") as response,
    ):
        assert response.status in (400, 426)


def test_the_sdk_listens(server: ServedProcess) -> None:
    client = make_client(server)
    box = client.create()
    deadline = time.monotonic() + 60
    metrics = server.url.removesuffix("/api") + "/metrics"
    while time.monotonic() < deadline:
        with urllib.request.urlopen(metrics) as response:
            if "corral_event_listeners 0" not in response.read().decode():
                break
        time.sleep(0.05)
    else:
        pytest.fail("the SDK never connected")
    client.delete(box)


def is_connected(dispatcher: SyncEventDispatcher | AsyncEventDispatcher | None) -> bool:
    return dispatcher is not None and dispatcher.is_connected


def test_the_sdk_is_told_what_another_client_does(server: ServedProcess) -> None:
    """A client polls only once a second, and only while a caller waits: what it knows here came by events."""
    one, other = (make_client(server) for _ in range(2))
    box = one.create()
    try:
        wait_until(lambda: is_connected(one._event_dispatcher))
        same = other.get(box.id)
        for act, state in ((same.pause, "paused"), (same.start, "started"), (same.stop, "stopped")):
            act()
            wait_until(lambda state=state: box.state == state)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(box.wait_for_sandbox_start, 60)
            same.start()
            waiting.result(60)
    finally:
        other.delete(other.get(box.id))
    wait_until(lambda: box.state == "destroyed")


async def test_the_async_sdk_is_told_what_another_client_does(server: ServedProcess) -> None:
    config = DaytonaConfig(api_url=server.url, api_key=server.key)
    async with AsyncDaytona(config) as one, AsyncDaytona(config) as other:
        box = await one.create()
        async with asyncio.timeout(60):
            while not is_connected(one._event_dispatcher):
                await asyncio.sleep(0.02)
            same = await other.get(box.id)
            waiting = asyncio.create_task(box.wait_for_sandbox_stop())
            await same.stop()
            await waiting
            await same.delete()
            while box.state != "destroyed":
                await asyncio.sleep(0.02)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


async def test_each_is_told_of_the_address_that_it_came_to(in_process: InProcess) -> None:
    port = in_process.url.rpartition(":")[2]
    sockets = {}
    for host in ("localhost", "127.0.0.1"):
        headers = {"Host": f"{host}:{port.partition('/')[0]}"}
        sockets[host] = await in_process.session.ws_connect(in_process.url + QUERY, headers=headers)
        await sockets[host].receive_str(timeout=10)
        await sockets[host].send_str("40" + json.dumps({"token": in_process.key}))
        await sockets[host].receive_str(timeout=10)
    await change(in_process, in_process.key)
    for host, socket in sockets.items():
        _, payload = await hear(socket)
        assert payload["toolboxProxyUrl"] == f"http://{host}:{port.removesuffix('/api')}/toolbox"
        await socket.close()
