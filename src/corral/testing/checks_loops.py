"""Event loops, threads, running loops and forks."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any, cast

from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import Sandbox
from corral.results import OutputChunk
from corral.testing.check import HANG_SECONDS, Context, check, equal, raises, true


@check(promise="9", title="One sandbox works from event loop after event loop")
async def sandbox_outlives_an_event_loop(context: Context) -> None:
    box = await asyncio.to_thread(asyncio.run, context.open())
    for number in range(3):
        result = await asyncio.to_thread(asyncio.run, box.exec(["echo", str(number)]))
        equal(result.stdout, f"{number}\n")
        await asyncio.to_thread(asyncio.run, box.files.write("file", str(number)))
    equal(await box.files.read("file"), b"2")
    await asyncio.to_thread(asyncio.run, box.aclose())


@check(promise="9", title="A program started in one loop is read and waited for in another", needs=frozenset({"loops"}))
async def program_outlives_an_event_loop(context: Context) -> None:
    box = await context.open()
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


@check(promise="9", title="One sandbox works from many threads at once, each with its own loop")
async def sandbox_works_from_many_threads(context: Context) -> None:
    box = await context.open()

    async def work(number: int) -> str:
        await box.files.write(f"file{number}", str(number))
        result = await box.exec(["cat", f"file{number}"])
        return result.stdout + (await box.files.read_text(f"file{number}"))

    async def one(number: int) -> str:
        return await asyncio.to_thread(asyncio.run, work(number))

    equal(await asyncio.gather(*map(one, range(8))), [f"{number}{number}" for number in range(8)])


@check(promise="9", title="One backend makes sandboxes in many threads at once")
async def backend_works_from_many_threads(context: Context) -> None:
    before = await context.count()

    async def work() -> str:
        box = await context.open()
        stdout = (await box.exec(["echo", "fine"])).stdout
        await box.aclose()
        return stdout

    outputs = await asyncio.gather(*(asyncio.to_thread(asyncio.run, work()) for _ in range(6)))
    equal(outputs, ["fine\n"] * 6)
    await context.wait_for_count(before)


@check(promise="9", title="The sync door works inside a running loop, and for every kind of call")
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


@check(promise="9", title="The sync door works from many threads, and a callback that calls it again is told")
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

    async def again() -> object:
        return box.exec(["echo", "x"], on_output=call_again)

    await raises(RuntimeError, again())
    box.close()
    box.close()


@check(promise="9", title="A forgotten sync sandbox is ended")
async def forgotten_sync_sandbox_is_ended(context: Context) -> None:
    before = await context.count()
    box = Sandbox(backend=context.backend)
    equal(await context.count(), before + 1)
    del box
    await context.wait_for_count(before)


@check(promise="9", title="A forked child's exit leaves its parent's sandboxes alive, and the child can work")
async def fork_leaves_the_parent_alone(context: Context) -> None:
    before = await context.count()
    box = await context.open()
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
        equal((await box.exec(["echo", "fine"])).stdout, "fine\n")
        equal(sync.exec(["echo", "fine"]).stdout, "fine\n")
    sync.close()
    await box.aclose()
    await context.wait_for_count(before)


@check(promise="9", title="A forked child may use the sandbox that it inherited")
async def forked_child_may_use_it(context: Context) -> None:
    box: AsyncSandbox = await context.open()

    def use() -> None:
        assert asyncio.run(box.exec(["echo", "child"])).stdout == "child\n"

    equal(await asyncio.to_thread(in_forked_child, use), 0, "the child's exit code")
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")


def in_forked_child(work: Callable[[], object]) -> int:
    """Fork, work, and exit as a program does; the exit code. The work's own error is printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads forks: that is what is checked
        child = os.fork()
    if child == 0:
        code = 1
        try:
            import signal

            signal.alarm(int(HANG_SECONDS / 3))
            work()
            atexit._run_exitfuncs()  # noqa: SLF001 - all of an exit but the parent's own buffers
            code = 0
        except BaseException:  # noqa: BLE001 - a forked child must end here, whatever happened
            import traceback

            with contextlib.suppress(OSError):
                os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
