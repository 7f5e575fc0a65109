"""Shell sessions through the official SDK."""

import asyncio
import time
from collections.abc import Callable

import aiohttp
import httpx
import pytest
from daytona import (
    AsyncDaytona,
    DaytonaBadRequestError,
    DaytonaConflictError,
    DaytonaNotFoundError,
    Sandbox,
)
from daytona import SessionExecuteRequest as Request
from daytona.common.errors import DaytonaCommandAlreadyCompletedError, DaytonaSessionEndedError

from support.serving import ServedProcess


@pytest.fixture
def session(sandbox: Sandbox) -> Sandbox:
    """A sandbox with a session `s`."""
    sandbox.process.create_session("s")
    return sandbox


def run(box: Sandbox, command: str, *, name: str = "s"):  # type: ignore[no-untyped-def]
    return box.process.execute_session_command(name, Request(command=command))


def start(box: Sandbox, command: str, **options: bool) -> str:
    return box.process.execute_session_command("s", Request(command=command, run_async=True, **options)).cmd_id


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def test_a_session_keeps_folder_variables_and_functions(session: Sandbox) -> None:
    run(session, "cd /tmp; export WORD=kept; greet() { echo hello $1; }")
    answer = run(session, "pwd; echo $WORD; greet you; echo wrong >&2; false")
    assert (answer.exit_code, answer.stdout, answer.stderr) == (1, "/tmp\nkept\nhello you\n", "wrong\n")
    assert answer.output == "\x01\x01\x01/tmp\nkept\nhello you\n\x02\x02\x02wrong\n"


def test_sessions_are_listed_with_their_commands(session: Sandbox) -> None:
    first = run(session, "true")
    second = run(session, "exit_code() { return 7; }; exit_code")
    session.process.create_session("t")
    listed = {each.session_id: each.commands for each in session.process.list_sessions()}
    assert sorted(listed) == ["s", "t"]
    assert [(command.id, command.exit_code) for command in listed["s"]] == [(first.cmd_id, 0), (second.cmd_id, 7)]
    assert session.process.get_session("s").commands[1].command == "exit_code() { return 7; }; exit_code"
    assert session.process.get_session_command("s", second.cmd_id).exit_code == 7


def test_names_are_taken_once_and_unknown_ones_not_found(session: Sandbox) -> None:
    with pytest.raises(DaytonaConflictError):
        session.process.create_session("s")
    with pytest.raises(DaytonaBadRequestError):
        session.process.create_session("entrypoint")
    for missing in (
        lambda: session.process.get_session("none"),
        lambda: session.process.delete_session("none"),
        lambda: run(session, "true", name="none"),
        lambda: session.process.get_session_command("s", "none"),
        lambda: session.process.get_session_command_logs("s", "none"),
    ):
        with pytest.raises(DaytonaNotFoundError):
            missing()
    with pytest.raises(DaytonaBadRequestError):
        run(session, "  ")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_no_url_can_have_is_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(DaytonaBadRequestError):
        sandbox.process.create_session(name)
    with pytest.raises(DaytonaBadRequestError):
        sandbox.process.create_pty_session(name)


def test_a_command_runs_on_and_takes_input(session: Sandbox) -> None:
    command = start(session, "read one; echo got $one; read two; echo got $two; exit 5")
    assert session.process.get_session_command("s", command).exit_code is None
    session.process.send_session_command_input("s", command, "first")
    wait_until(lambda: "got first" in session.process.get_session_command_logs("s", command).stdout)
    session.process.send_session_command_input("s", command, "second\n")
    wait_until(lambda: session.process.get_session_command("s", command).exit_code is not None)
    logs = session.process.get_session_command_logs("s", command)
    assert logs.stdout == "first\ngot first\nsecond\ngot second\n"  # what was typed is shown, as on a terminal
    with pytest.raises((DaytonaCommandAlreadyCompletedError, DaytonaSessionEndedError)):
        session.process.send_session_command_input("s", command, "third")


def test_input_is_not_shown_if_that_is_asked_for(session: Sandbox) -> None:
    command = start(session, "read one; echo got $one", suppress_input_echo=True)
    session.process.send_session_command_input("s", command, "secret")
    wait_until(lambda: session.process.get_session_command("s", command).exit_code is not None)
    assert session.process.get_session_command_logs("s", command).stdout == "got secret\n"
    with pytest.raises(DaytonaCommandAlreadyCompletedError):
        session.process.send_session_command_input("s", command, "more")


def test_a_child_in_the_background_does_not_delay_a_command(session: Sandbox) -> None:
    assert run(session, "sleep 1000 & echo done").stdout == "done\n"


def test_old_clients_get_a_log_as_it_is(session: Sandbox, server: ServedProcess) -> None:
    command = run(session, "echo out; echo err >&2").cmd_id
    url = f"{session.toolbox_proxy_url}/{session.id}/process/session/s/command/{command}/logs"
    headers = {"Authorization": f"Bearer {server.key}", "Accept": "text/plain"}
    assert httpx.get(url, headers=headers).text == "out\nerr\n"
    marked = httpx.get(url, headers=headers | {"X-Daytona-SDK-Version": "0.115.0"})
    assert marked.text == "\x01\x01\x01out\n\x02\x02\x02err\n"
    assert marked.headers["Content-Type"].startswith("text/plain")


async def test_logs_are_followed_to_the_end(session: Sandbox) -> None:
    command = start(session, "for n in 1 2 3; do echo out $n; echo err $n >&2; sleep 0.1; done")
    out: list[str] = []
    err: list[str] = []
    await session.process.get_session_command_logs_async("s", command, out.append, err.append)
    assert "".join(out) == "out 1\nout 2\nout 3\n"
    assert "".join(err) == "err 1\nerr 2\nerr 3\n"
    again: list[str] = []
    await session.process.get_session_command_logs_async("s", command, again.append, err.append)
    assert "".join(again) == "".join(out)


async def test_much_output_is_followed_by_the_async_client(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        await box.process.create_session("s")
        command = "head -c 8000000 /dev/zero | tr '\\0' y; echo end"
        answer = await box.process.execute_session_command("s", Request(command=command, run_async=True))
        pieces: list[str] = []
        await box.process.get_session_command_logs_async("s", answer.cmd_id, pieces.append, pieces.append)
        assert sum(map(len, pieces)) == 8_000_004
        logs = await box.process.get_session_command_logs("s", answer.cmd_id)
        assert logs.stdout.endswith("yyend\n")
    finally:
        await async_daytona.delete(box)


async def test_frames_are_small_pings_answered_and_a_command_outlives_its_listener(
    session: Sandbox, server: ServedProcess
) -> None:
    command = start(session, "head -c 1000000 /dev/zero | tr '\\0' y; sleep 1000")
    url = f"{session.toolbox_proxy_url}/{session.id}/process/session/s/command/{command}/logs?follow=true"
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as client,
        client.ws_connect(url, autoping=False) as socket,
    ):
        received = 0
        while received < 1_000_000:
            message = await socket.receive(timeout=60)
            assert message.type is aiohttp.WSMsgType.BINARY
            assert len(message.data) <= 64 * 1024
            received += len(message.data)  # no marks: a client that says nothing of itself reads plain text
        await socket.ping(b"there?")
        pong = await socket.receive(timeout=60)
        assert (pong.type, pong.data) == (aiohttp.WSMsgType.PONG, b"there?")
    assert session.process.get_session_command("s", command).exit_code is None


async def test_a_listener_is_told_when_the_sandbox_is_deleted(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    await box.process.create_session("s")
    answer = await box.process.execute_session_command("s", Request(command="echo on; sleep 1000", run_async=True))
    heard = asyncio.Event()
    task = asyncio.create_task(
        box.process.get_session_command_logs_async("s", answer.cmd_id, lambda _: heard.set(), lambda _: None)
    )
    await asyncio.wait_for(heard.wait(), 60)
    await async_daytona.delete(box)
    with pytest.raises(Exception, match="close code"):
        await asyncio.wait_for(task, 60)


async def test_a_client_that_goes_away_ends_the_command_it_waited_for(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        await box.process.create_session("s")
        waiting = asyncio.create_task(box.process.execute_session_command("s", Request(command="sleep 5432")))
        await until(box, "grep -qs 543''2 /proc/[0-9]*/cmdline")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(box, "! grep -qs 'sleep.543''2' /proc/[0-9]*/cmdline")
        answer = await box.process.execute_session_command("s", Request(command="echo the shell stays"))
        assert answer.stdout == "the shell stays\n"
    finally:
        await async_daytona.delete(box)


async def until(box, condition: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while (await box.process.exec(condition)).exit_code != 0:
        assert time.monotonic() < deadline, f"never true: {condition}"
        await asyncio.sleep(0.05)


def test_a_session_ends_with_its_shell(session: Sandbox) -> None:
    assert run(session, "exit 4").exit_code == 4
    with pytest.raises(DaytonaSessionEndedError):
        run(session, "true")


def test_a_deleted_session_takes_its_programs_along(session: Sandbox) -> None:
    start(session, "sleep 6543")
    wait_until(lambda: session.process.exec("grep -qs 654''3 /proc/[0-9]*/cmdline").exit_code == 0)
    session.process.delete_session("s")
    assert session.process.exec("! grep -qs 'sleep.654''3' /proc/[0-9]*/cmdline").exit_code == 0
    session.process.create_session("s")
    assert session.process.get_session("s").commands == []


def test_the_main_program_has_an_empty_session(sandbox: Sandbox) -> None:
    assert sandbox.process.get_entrypoint_session().commands == []
    assert sandbox.process.get_entrypoint_logs().output == ""


async def test_the_main_programs_log_ends_at_once(sandbox: Sandbox) -> None:
    heard: list[str] = []
    await sandbox.process.get_entrypoint_logs_async(heard.append, heard.append)
    assert heard == []
