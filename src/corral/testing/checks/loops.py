"""Event loops, threads and forks; and cancelling at every await, which leaves nothing behind."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, cast

from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import Sandbox
from corral.results import OutputChunk
from corral.spec import make_spec
from corral.testing.check import HANG_SECONDS, REAL, Context, check, equal, pieces, raises, still_works, true, until
from corral.testing.checks.process import running


@check("9", "One sandbox works from several event loops in turn")
async def sandbox_outlives_an_event_loop(context: Context) -> None:
    box = await asyncio.to_thread(asyncio.run, context.open())
    for number in range(3):
        result = await asyncio.to_thread(asyncio.run, box.exec(["echo", str(number)]))
        equal(result.stdout, f"{number}\n")
        await asyncio.to_thread(asyncio.run, box.files.write("file", str(number)))
    equal(await box.files.read("file"), b"2")
    await asyncio.to_thread(asyncio.run, box.aclose())


@check("9", "A program started in one loop is read and waited for in another", needs="loops")
async def program_outlives_an_event_loop(box: AsyncSandbox) -> None:
    process = await asyncio.to_thread(asyncio.run, box.start(["cat"]))
    await asyncio.to_thread(asyncio.run, process.write("one\n"))
    await process.write("two\n")
    await process.close_stdin()
    equal((await asyncio.to_thread(asyncio.run, process.wait())).stdout, "one\ntwo\n")
    equal(b"".join([chunk.data async for chunk in process.output()]), b"one\ntwo\n")

    async def start_and_end() -> AsyncProcess:
        long = await box.start("sleep 1000\n" + "# padding\n" * (10 << 10))
        long.end_tree("cancelled")
        return long

    await (await asyncio.to_thread(asyncio.run, start_and_end())).wait()
    equal([file.name for file in await box.files.list("/tmp")], [], "the file of a long text is gone")


@check("9", "One sandbox works from many threads at once, each with its own loop")
async def sandbox_works_from_many_threads(box: AsyncSandbox) -> None:

    async def work(number: int) -> str:
        await box.files.write(f"file{number}", str(number))
        result = await box.exec(["cat", f"file{number}"])
        return result.stdout + (await box.files.read_text(f"file{number}"))

    async def one(number: int) -> str:
        return await asyncio.to_thread(asyncio.run, work(number))

    equal(await asyncio.gather(*map(one, range(8))), [f"{number}{number}" for number in range(8)])


@check("9", "One backend creates sandboxes in many threads at once")
async def backend_works_from_many_threads(context: Context, before: int) -> None:

    async def work() -> str:
        box = await context.open()
        stdout = (await box.exec(["echo", "fine"])).stdout
        await box.aclose()
        return stdout

    outputs = await asyncio.gather(*(asyncio.to_thread(asyncio.run, work()) for _ in range(6)))
    equal(outputs, ["fine\n"] * 6)
    await context.wait_for_count(before)


@check("9", "The sync API works inside a running event loop, for every kind of call")
async def sync_door_works_in_a_running_loop(context: Context) -> None:
    with Sandbox(backend=context.backend, env={"A": "1"}) as box:
        equal(box.exec("echo $A; cat", stdin=cast("Any", iter([b"in"]))).stdout, "1\nin")
        equal(box.run_code("echo hi", "sh").stdout, "hi\n")
        equal(box.files.write("file", cast("Any", iter([b"a", b"b"]))), 2)
        equal(b"".join(box.files.read_stream("file", chunk_bytes=1)), b"ab")
        process = box.start(["cat"])
        process.write("typed")
        process.close_stdin()
        equal([chunk.data for chunk in process.output()], [b"typed"])
        equal(process.wait().exit_code, 0)
        true(box.info().sandbox_id == box.id and not box.closed, "info")
    true(box.closed, "the end of the block closes it")


@check("9", "The sync API works from many threads; a callback that calls it is an error")
async def sync_door_works_from_many_threads(context: Context) -> None:
    box = Sandbox(backend=context.backend)
    outputs: list[str] = []
    threads = [threading.Thread(target=lambda n=n: outputs.append(box.exec(["echo", str(n)]).stdout)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    equal(sorted(outputs), [f"{n}\n" for n in range(8)])

    def call_again(chunk: OutputChunk) -> None:
        box.exec("true")

    await raises(RuntimeError, lambda: box.exec(["echo", "x"], on_output=call_again))
    box.close()
    box.close()


@check("9", "A sync sandbox that is garbage-collected is ended")
async def forgotten_sync_sandbox_is_ended(context: Context, before: int) -> None:
    box = Sandbox(backend=context.backend)
    equal(await context.count(), before + 1)
    del box
    await context.wait_for_count(before)


@check("9", "A forked child's exit keeps its parent's sandboxes alive, and the child can create its own")
async def fork_leaves_the_parent_alone(context: Context, before: int, box: AsyncSandbox) -> None:
    sync = Sandbox(backend=context.backend)
    await box.files.write("mine", "x")

    def use() -> None:
        with Sandbox(backend=context.backend) as own:
            assert own.exec(["echo", "child"]).stdout == "child\n"

    def close_inherited() -> None:
        sync.close()
        asyncio.run(box.aclose())

    for work in (lambda: None, use, close_inherited):
        code = await asyncio.to_thread(in_forked_child, work)
        equal(code, 0, "the child's exit code")
        equal(await box.files.read("mine"), b"x")
        await still_works(box)
        equal(sync.exec(["echo", "fine"]).stdout, "fine\n")
    sync.close()
    await box.aclose()
    await context.wait_for_count(before)


@check("9", "A forked child may use the sandbox that it inherited")
async def forked_child_may_use_it(box: AsyncSandbox) -> None:

    def use() -> None:
        assert asyncio.run(box.exec(["echo", "child"])).stdout == "child\n"

    equal(await asyncio.to_thread(in_forked_child, use), 0, "the child's exit code")
    await still_works(box)


def in_forked_child(work: Callable[[], object]) -> int:
    """Fork, work, and exit as a program does: gives the exit code. An error of the work is printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads forks: that is what is checked
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(HANG_SECONDS / 3))
            work()
            atexit._run_exitfuncs()  # noqa: SLF001 - all of an exit but the parent's own buffers
            code = 0
        except BaseException:  # noqa: BLE001 - a forked child must always end here
            with contextlib.suppress(OSError):
                os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# Cancel at every await: nothing may be left behind.

STEPS = 25
"""More than the awaits of the longest call."""


async def drive(
    work: Callable[[], Awaitable[object]],
    steps: int = STEPS,
    *,
    after: Callable[[Any], Awaitable[object]] | None = None,
) -> int:
    """Cancel work after each number of steps; `after` gets the result of work that was faster.

    Gives how often the work was cancelled.
    """
    cancelled = 0
    # Every third step also with a pause, in which the other side gets further than our loop.
    moments = [(step, pause) for step in range(steps) for pause in ((False, True) if step % 3 == 2 else (False,))]
    for step, pause in moments:
        task = asyncio.ensure_future(work())
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
        elif after is not None:
            await after(outcome)
    return cancelled


@check("8", "Create is cancel-safe at every step: nothing is leaked")
async def create_is_cancel_safe(context: Context, before: int) -> None:

    hits = await drive(lambda: context.backend.create(make_spec()), after=AsyncSandbox.aclose)
    true(hits > 0, "no create was cancelled")
    hits = await drive(lambda: AsyncSandbox.create(backend=context.backend), 12, after=AsyncSandbox.aclose)
    true(hits > 0, "no create was cancelled")
    await context.wait_for_count(before)
    box = await context.open()
    await still_works(box)


@check("8", "A create with a token that was cancelled can be repeated")
async def cancelled_token_can_be_repeated(context: Context, before: int, token: str) -> None:
    await drive(lambda: context.backend.create(make_spec(client_token=token)), 10, after=AsyncSandbox.aclose)
    box = await context.open(client_token=token)
    await still_works(box)
    await context.wait_for_count(before + 1)


@check("2", "exec is cancel-safe at every step: no process is left", needs=REAL)
async def exec_is_cancel_safe(box: AsyncSandbox, token: str) -> None:
    work = lambda: box.exec(f"sleep 1000 # {token}", stdin=pieces(b"x"), on_output=lambda chunk: None)  # noqa: E731
    true(await drive(work) >= STEPS, "every one should be cancelled")
    await still_works(box)
    await until(lambda: running(box, token), 0, "processes of cancelled calls are still there")


@check("2", "exec, start and run_code may be cancelled at every step, and leave no files")
async def running_is_cancel_safe(box: AsyncSandbox) -> None:
    await drive(lambda: box.exec("echo x; sleep 1000"), 12)
    await drive(lambda: box.start("echo x; sleep 1000"), 12, after=AsyncProcess.kill)
    await drive(lambda: box.run_code("sleep 1000", "sh"), 14)
    await drive(lambda: box.exec("echo x; sleep 1000 #" + "x" * 100_000), 12)
    await still_works(box)
    for folder in (".", "/tmp"):
        equal([file.path for file in await box.files.list(folder)], [], f"files left in {folder}")


@check("8", "File operations may be cancelled at every step, and leave no partial file")
async def files_are_cancel_safe(context: Context, box: AsyncSandbox) -> None:
    files = box.files
    await files.write("file", "one")  # has an e, like "new": the edit works whether or not a write was cancelled
    await drive(lambda: files.write("file", "new"), 8)
    await drive(lambda: files.write("file", pieces(b"ne", b"w")), 14)
    await drive(lambda: files.read("file"), 8)
    await drive(lambda: files.edit("file", "e", "e"), 8)
    await drive(lambda: files.glob("**"), 8)
    await drive(lambda: files.unpack("tree", files.pack(".")), 12)
    await drive(lambda: _collect(files.pack(".")), 10)
    await drive(lambda: files.upload(context.scratch, "up"), 12)
    await drive(lambda: files.download("file", context.scratch / "down"), 12)
    true(await files.read("file") in (b"one", b"new"), "a half-written file")
    names = {file.name for file in await files.list()}
    true(names <= {"file", "tree", "up"}, f"unfinished files: {sorted(names)}")
    left = {path.name for path in context.scratch.iterdir()}
    true(left <= {"down"}, f"unfinished files on the host: {sorted(left)}")
    await still_works(box)


@check("10", "aclose is cancel-safe: the sandbox is closed all the same")
async def closing_is_cancel_safe(context: Context, before: int) -> None:
    for step in range(6):
        box = await context.open()
        task = asyncio.ensure_future(box.aclose())
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await box.aclose()
    await context.wait_for_count(before)


@check("10", "If aclose is cancelled with its whole event loop, the sandbox is closed all the same")
async def closing_survives_its_loop(context: Context, before: int) -> None:
    for step in range(5):
        await asyncio.to_thread(asyncio.run, _close_and_leave(context, step))
    await context.wait_for_count(before)


async def _close_and_leave(context: Context, steps: int) -> None:
    """Start to close a sandbox, and leave the event loop, which cancels its tasks."""
    box = await context.open()
    asyncio.ensure_future(box.aclose()).add_done_callback(lambda task: task.cancelled() or task.exception())
    for _ in range(steps):
        await asyncio.sleep(0)


async def _collect(stream: object) -> list[bytes]:
    return [chunk async for chunk in stream]  # type: ignore[attr-defined]
