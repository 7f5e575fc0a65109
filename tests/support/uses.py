"""Everything that a client does with a sandbox of the server, through the official SDK; each use is left in the middle,
since deleting the sandbox must be enough to end it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable

import aiohttp
from daytona import AsyncDaytona, AsyncSandbox, DaytonaError, SessionExecuteRequest
from daytona.common.pty import PtySize

Use = Callable[[AsyncDaytona, AsyncSandbox], Awaitable[None]]
PRINTED_BYTES = 200_000


async def run_programs(sdk: AsyncDaytona, box: AsyncSandbox) -> None:
    """Programs that end well, badly, and not in time."""
    assert (await box.process.exec("echo hello")).result == "hello\n"
    assert (await box.process.code_run("raise SystemExit(3)")).exit_code == 3
    with contextlib.suppress(DaytonaError):
        await box.process.exec("sleep 60", timeout=1)


async def leave_sessions_open(sdk: AsyncDaytona, box: AsyncSandbox) -> None:
    """A session that has printed much, one whose command still runs, and a follower of that."""
    await box.process.create_session("talks")
    await box.process.execute_session_command(
        "talks", SessionExecuteRequest(command=f"head -c {PRINTED_BYTES} /dev/zero | tr '\\0' x")
    )
    await box.process.create_session("works")
    going = await box.process.execute_session_command(
        "works", SessionExecuteRequest(command="echo begun; sleep 600", run_async=True)
    )
    heard = asyncio.Event()
    following = asyncio.create_task(
        box.process.get_session_command_logs_async("works", going.cmd_id, lambda _: heard.set(), lambda _: None)
    )
    await asyncio.wait({following, asyncio.create_task(heard.wait())}, return_when=asyncio.FIRST_COMPLETED)
    await box.process.list_sessions()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def leave_a_terminal_open(sdk: AsyncDaytona, box: AsyncSandbox) -> None:
    """A terminal with a reader."""
    handle = await box.process.create_pty_session(id="t", pty_size=PtySize(rows=24, cols=80), on_data=lambda _: None)
    await handle.send_input("echo typed\n")
    await handle.disconnect()


async def leave_an_interpreter_open(sdk: AsyncDaytona, box: AsyncSandbox) -> None:
    """A context with a value in it."""
    context = await box.code_interpreter.create_context()
    done = await box.code_interpreter.run_code("x = 'y' * 100_000; print(len(x))", context=context)
    assert done.stdout == "100000\n"


async def move_files(sdk: AsyncDaytona, box: AsyncSandbox) -> None:
    """Files up and down, and one that is not there."""
    await box.fs.upload_file(b"x" * PRINTED_BYTES, "f")
    assert len(await box.fs.download_file("f")) == PRINTED_BYTES
    await box.fs.search_files(".", "*")
    with contextlib.suppress(DaytonaError):
        await box.fs.download_file("missing")


async def stop_and_start(sdk: AsyncDaytona, box: AsyncSandbox) -> None:
    """A session, and then another life without it."""
    await box.process.create_session("first")
    await box.stop()
    await box.start()
    await box.process.create_session("second")
    await box.stop()


async def ask_for_what_is_refused(sdk: AsyncDaytona, box: AsyncSandbox) -> None:
    """A sandbox that can't be made, and questions about things that are not there."""
    with contextlib.suppress(DaytonaError):
        await box.process.get_session("missing")
    with contextlib.suppress(DaytonaError):
        await box.process.exec("pwd", cwd="/missing")
    with contextlib.suppress(DaytonaError):
        await sdk.get(secrets.token_hex(8))


async def delete_twice_at_once(sdk: AsyncDaytona, box: AsyncSandbox) -> None:
    """Two clients end it while a third works inside."""
    working = asyncio.create_task(box.process.exec("sleep 600"))
    await asyncio.sleep(0)
    await asyncio.gather(sdk.delete(box), sdk.delete(box), working, return_exceptions=True)


USES: tuple[Use, ...] = (
    run_programs,
    leave_sessions_open,
    leave_a_terminal_open,
    leave_an_interpreter_open,
    move_files,
    stop_and_start,
    ask_for_what_is_refused,
    delete_twice_at_once,
)


async def use_once(sdk: AsyncDaytona, use: Use) -> str:
    """Make a sandbox, use it, and delete it; gives its id."""
    box = await sdk.create()
    await use(sdk, box)
    with contextlib.suppress(DaytonaError, aiohttp.ClientError):
        await sdk.delete(box)
    return box.id
