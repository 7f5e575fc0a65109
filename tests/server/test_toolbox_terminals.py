"""Terminals through the official SDK."""

import asyncio

import aiohttp
import pytest
from daytona import AsyncDaytona, DaytonaBadRequestError, DaytonaConflictError, DaytonaNotFoundError, Sandbox
from daytona.common.pty import PtySize
from daytona.handle.pty_handle import PtyHandle

from support.serving import ServedProcess

EXIT_CONTROL = "X-Daytona-Pty-Exit-Control"


def screen(handle: PtyHandle) -> tuple[str, int | None, str | None]:
    """All that was shown until the end, the exit code, and why it ended."""
    shown: list[bytes] = []
    try:
        result = handle.wait(on_data=shown.append, timeout=60)
    finally:
        handle.disconnect()
    return b"".join(shown).decode(), result.exit_code, result.error


def address(box: Sandbox, path: str) -> str:
    return f"{box.toolbox_proxy_url}/{box.id}{path}"


def test_a_terminal_has_its_size_folder_and_variables(sandbox: Sandbox) -> None:
    handle = sandbox.process.create_pty_session(
        "one", cwd="/tmp", envs={"WORD": "ä b"}, pty_size=PtySize(rows=31, cols=97)
    )
    handle.send_input('stty size; pwd; echo "<$WORD> $TERM"; exit\n')
    shown, code, _ = screen(handle)
    assert "31 97" in shown
    assert "/tmp\r\n" in shown
    assert "<ä b> xterm-256color" in shown
    assert code == 0


def test_an_end_is_told_with_its_code(sandbox: Sandbox) -> None:
    handle = sandbox.process.create_pty_session("one")
    handle.send_input("exit 3\n")
    assert screen(handle)[1:] == (3, "non-zero exit")
    killed = sandbox.process.create_pty_session("two")
    sandbox.process.kill_pty_session("two")
    assert screen(killed)[1:] == (137, "SIGKILL")


def test_a_name_is_free_again_when_its_shell_has_ended(sandbox: Sandbox) -> None:
    handle = sandbox.process.create_pty_session("one")
    with pytest.raises(DaytonaConflictError):
        sandbox.process.create_pty_session("one")
    handle.send_input("exit\n")
    screen(handle)
    again = sandbox.process.create_pty_session("one")
    again.send_input("echo $((6 * 7)); exit\n")
    assert "42" in screen(again)[0]


def test_who_comes_after_the_end_is_told_it(sandbox: Sandbox) -> None:
    handle = sandbox.process.create_pty_session("one")
    handle.send_input("exit 3\n")
    screen(handle)
    for _ in range(2):
        assert screen(sandbox.process.connect_pty_session("one")) == ("", 3, "non-zero exit")
    info = sandbox.process.get_pty_session_info("one")
    assert (info.active, info.rows, info.cols) == (False, 24, 80)


def test_several_watch_and_type(sandbox: Sandbox) -> None:
    first = sandbox.process.create_pty_session("one")
    second = sandbox.process.connect_pty_session("one")
    second.wait_for_connection()
    second.send_input("echo from-$((1 + 1)); exit 6\n")
    for handle in (first, second):
        shown, code, _ = screen(handle)
        assert "from-2" in shown
        assert code == 6


def test_a_shell_outlives_its_watchers(sandbox: Sandbox) -> None:
    handle = sandbox.process.create_pty_session("one")
    handle.send_input("cd /tmp\n")
    handle.disconnect()
    assert sandbox.process.get_pty_session_info("one").active
    again = sandbox.process.connect_pty_session("one")
    again.wait_for_connection()
    again.send_input("pwd; exit\n")
    assert "/tmp\r\n" in screen(again)[0]
    assert not sandbox.process.get_pty_session_info("one").active


def test_terminals_are_listed_resized_and_deleted(sandbox: Sandbox) -> None:
    handle = sandbox.process.create_pty_session("one", cwd="/tmp", envs={"A": "b"})
    (listed,) = sandbox.process.list_pty_sessions()
    assert (listed.id, listed.cwd, listed.envs, listed.rows, listed.cols) == ("one", "/tmp", {"A": "b"}, 24, 80)
    assert listed.active
    resized = handle.resize(PtySize(rows=40, cols=120))
    assert (resized.rows, resized.cols) == (40, 120)
    handle.send_input("stty size\n")
    handle.send_input("exit\n")
    assert "40 120" in screen(handle)[0]
    sandbox.process.kill_pty_session("one")
    assert sandbox.process.list_pty_sessions() == []
    for missing in (
        lambda: sandbox.process.get_pty_session_info("one"),
        lambda: sandbox.process.kill_pty_session("one"),
        lambda: sandbox.process.resize_pty_session("one", PtySize(rows=1, cols=1)),
    ):
        with pytest.raises(DaytonaNotFoundError):
            missing()


def test_what_can_not_be_is_refused_at_the_door(sandbox: Sandbox) -> None:
    with pytest.raises(DaytonaBadRequestError):
        sandbox.process.create_pty_session("one", cwd="/nowhere")
    with pytest.raises(DaytonaBadRequestError):
        sandbox.process.create_pty_session("one", envs={"A-B": "1"})
    with pytest.raises(DaytonaBadRequestError):
        sandbox.process.create_pty_session("one", pty_size=PtySize(rows=5000, cols=1))
    assert sandbox.process.list_pty_sessions() == []


async def test_the_async_client_does_the_same(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        shown: list[bytes] = []
        handle = await box.process.create_pty_session("one", on_data=shown.append)
        await handle.send_input("echo $((6 * 7)); exit 2\n")
        result = await asyncio.wait_for(handle.wait(), 60)
        assert (result.exit_code, result.error) == (2, "non-zero exit")
        assert b"42" in b"".join(shown)
    finally:
        await async_daytona.delete(box)


async def test_an_offered_subprotocol_is_answered(sandbox: Sandbox, server: ServedProcess) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as client:
        version = "X-Daytona-SDK-Version~1"
        for offered, echoed in (((EXIT_CONTROL, "x"), EXIT_CONTROL), ((version,), version), ((), None)):
            url = address(sandbox, f"/process/pty/create-connect?id={len(offered)}")
            async with client.ws_connect(url, protocols=offered) as socket:
                assert socket.protocol == echoed
                assert await socket.receive_json() == {"type": "control", "status": "connected"}
                await socket.send_bytes(b"exit 3\n")
                told = []
                while (message := await socket.receive(timeout=60)).type is not aiohttp.WSMsgType.CLOSE:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        told.append(message.json()["status"])
                # Who has not asked for the exit as a message learns it from the code and the reason alone.
                assert told == (["exited"] if EXIT_CONTROL in offered else [])
                assert (message.data, message.extra) == (1011, '{"exitCode":3,"exitReason":"non-zero exit"}')


async def test_old_clients_open_first_and_watch_later(sandbox: Sandbox, server: ServedProcess) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as client:
        wanted = {"id": "old", "cols": 90, "rows": 20, "lazyStart": True, "envs": {"PS1": "ready> "}}
        async with client.post(address(sandbox, "/process/pty"), json=wanted) as response:
            assert response.status == 201
            assert await response.json() == {"sessionId": "old"}
        async with client.ws_connect(address(sandbox, "/process/pty/old/connect")) as socket:
            assert await socket.receive_json() == {"type": "control", "status": "connected"}
            await socket.send_bytes(b"stty size; exit\n")
            shown = b""
            while (message := await socket.receive(timeout=60)).type is aiohttp.WSMsgType.BINARY:
                shown += message.data
            assert b"20 90" in shown
            assert message.data == 1000


async def test_a_flood_on_the_screen_waits_for_a_slow_watcher(sandbox: Sandbox, server: ServedProcess) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as client:
        url = address(sandbox, "/process/pty/create-connect?id=flood")
        async with client.ws_connect(url) as socket:
            await socket.send_bytes(b"stty -echo; head -c 3000000 /dev/zero | tr '\\0' y; exit\n")
            count = 0
            while (message := await socket.receive(timeout=60)).type is not aiohttp.WSMsgType.CLOSE:
                if message.type is aiohttp.WSMsgType.BINARY:
                    assert len(message.data) <= 64 * 1024
                    count += message.data.count(b"y")
            assert count >= 3_000_000


async def test_a_plain_request_is_told_that_this_is_a_websocket(sandbox: Sandbox, server: ServedProcess) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as client:
        async with client.get(address(sandbox, "/process/pty/create-connect?id=x")) as response:
            assert response.status == 426
        # A request without the headers of an upgrade is refused.
        headers = {"Upgrade": "websocket", "Connection": "upgrade"}
        async with client.get(address(sandbox, "/process/pty/create-connect?id=x"), headers=headers) as response:
            assert response.status == 400
        async with client.get(address(sandbox, "/process/pty")) as response:
            assert await response.json() == {"sessions": []}
