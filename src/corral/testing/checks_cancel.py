"""Cancel at every await: whatever moment it hits, nothing is left behind.

Each drive cancels the same work after one more step of the event loop, from the very first until the work gets done.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from corral.client.sandbox import AsyncSandbox
from corral.client.wishes import make_spec
from corral.testing.check import Context, check, equal, pieces, true, until
from corral.testing.checks_end import REAL, running

STEPS = 25
"""Enough to pass every await of the longest call; what is done earlier ends the drive."""


async def drive(
    make: Callable[[], Awaitable[object]], after: Callable[[object], Awaitable[None]], steps: int = STEPS
) -> int:
    """Cancel after k steps, for each k; `after` gets the result of work that was faster. How often it was cancelled."""
    cancelled = 0
    # Every third moment also with a pause, in which the other side gets further while our loop stands still.
    moments = [(step, pause) for step in range(steps) for pause in ((False, True) if step % 3 == 2 else (False,))]
    for step, pause in moments:
        task = asyncio.ensure_future(make())
        for _ in range(step):
            await asyncio.sleep(0)
        if pause:
            await asyncio.sleep(0.002 * step)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            cancelled += 1
        elif isinstance(outcome, BaseException):
            text = f"cancelled at step {step}, it raised {outcome!r}"
            raise AssertionError(text) from outcome  # noqa: TRY004 - a verdict, not an argument of a wrong type
        else:
            await after(outcome)
    return cancelled


async def _nothing(result: object) -> None:
    """Work that got done leaves nothing to do."""


@check(promise="8", title="Create is cancel-safe at every step: nothing is leaked")
async def create_is_cancel_safe(context: Context) -> None:
    before = await context.count()

    async def close(box: object) -> None:
        await box.aclose()  # type: ignore[attr-defined]

    true(await drive(lambda: context.backend.create(make_spec()), close) > 0, "no cancellation hit")
    true(await drive(lambda: AsyncSandbox.create(backend=context.backend), close, 12) > 0, "no cancellation hit")
    await context.wait_for_count(before)
    box = await context.open()
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")


@check(promise="8", title="A create with a token that was cancelled can be repeated")
async def cancelled_token_can_be_repeated(context: Context) -> None:
    before = await context.count()
    token = secrets.token_hex(8)

    async def close(box: object) -> None:
        await box.aclose()  # type: ignore[attr-defined]

    await drive(lambda: context.backend.create(make_spec(client_token=token)), close, 10)
    box = await context.open(client_token=token)
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")
    await context.wait_for_count(before + 1)


@check(promise="2", title="exec is cancel-safe at every step: no process stays", needs=REAL)
async def exec_is_cancel_safe(context: Context) -> None:
    box = await context.open()
    marker = secrets.token_hex(8)
    work = lambda: box.exec(f"sleep 1000 # {marker}", stdin=pieces(b"x"), on_output=lambda chunk: None)  # noqa: E731
    true(await drive(work, _nothing) >= STEPS, "every one should be cancelled")
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")
    await until(lambda: running(box, marker), 0, "processes of cancelled calls are still there")


@check(promise="2", title="exec, start and run_code may be cancelled at every step, and the sandbox is as before")
async def running_is_cancel_safe(context: Context) -> None:
    box = await context.open()

    async def kill(process: object) -> None:
        await process.kill()  # type: ignore[attr-defined]

    await drive(lambda: box.exec("echo x; sleep 1000"), _nothing, 12)
    await drive(lambda: box.start("echo x; sleep 1000"), kill, 12)
    await drive(lambda: box.run_code("sleep 1000", "sh"), _nothing, 14)
    await drive(lambda: box.exec("echo x; sleep 1000 #" + "x" * 100_000), _nothing, 12)
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")
    for folder in (".", "/tmp"):
        equal([file.path for file in await box.files.list(folder)], [], f"files left in {folder}")


@check(promise="8", title="File operations may be cancelled at every step: whole or not at all, and nothing unfinished")
async def files_are_cancel_safe(context: Context) -> None:
    box = await context.open()
    files = box.files
    await files.write("file", "one")  # with an e, as the other has: perhaps none of the others is written
    await drive(lambda: files.write("file", "new"), _nothing, 8)
    await drive(lambda: files.write("file", pieces(b"ne", b"w")), _nothing, 14)
    await drive(lambda: files.read("file"), _nothing, 8)
    await drive(lambda: files.edit("file", "e", "e"), _nothing, 8)
    await drive(lambda: files.glob("**"), _nothing, 8)
    await drive(lambda: files.unpack("tree", files.pack(".")), _nothing, 12)
    await drive(lambda: _collect(files.pack(".")), _nothing, 10)
    await drive(lambda: files.upload(context.scratch, "up"), _nothing, 12)
    await drive(lambda: files.download("file", context.scratch / "down"), _nothing, 12)
    true(await files.read("file") in (b"one", b"new"), "a half-written file")
    names = {file.name for file in await files.list()}
    true(names <= {"file", "tree", "up"}, f"unfinished files: {sorted(names)}")
    left = {path.name for path in context.scratch.iterdir()}
    true(left <= {"down"}, f"unfinished files on the host: {sorted(left)}")
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")


@check(promise="10", title="aclose is cancel-safe: what was cancelled is closed all the same")
async def closing_is_cancel_safe(context: Context) -> None:
    before = await context.count()
    for step in range(6):
        box = await context.open()
        task = asyncio.ensure_future(box.aclose())
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await box.aclose()
    await context.wait_for_count(before)


@check(promise="10", title="aclose that is cancelled with its whole event loop is closed all the same")
async def closing_survives_its_loop(context: Context) -> None:
    before = await context.count()
    for step in range(5):
        await asyncio.to_thread(asyncio.run, _close_and_leave(context, step))
    await context.wait_for_count(before)


async def _close_and_leave(context: Context, steps: int) -> None:
    """Begin to close, and leave the loop, which cancels all that is in it."""
    box = await context.open()
    asyncio.ensure_future(box.aclose()).add_done_callback(lambda task: task.cancelled() or task.exception())
    for _ in range(steps):
        await asyncio.sleep(0)


async def _collect(stream: object) -> list[bytes]:
    return [chunk async for chunk in stream]  # type: ignore[attr-defined]
