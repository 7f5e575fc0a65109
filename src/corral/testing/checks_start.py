"""Programs in the background."""

from __future__ import annotations

import asyncio
import secrets
import signal

from corral.errors import ExecError, SandboxClosedError, SandboxGoneError
from corral.testing.check import Context, check, equal, raises, true, until
from corral.testing.checks_end import REAL, running, stubborn


@check(promise="start", title="Write to a program, read its answer, end its input, wait")
async def program_is_talked_to(context: Context) -> None:
    box = await context.open()
    process = await box.start(["cat"])
    true(process.pid > 0, "it has a number")
    reader = process.output()
    for word in (b"one\n", "zwei ü\n"):
        await process.write(word)
        equal((await anext(reader)).data, word if isinstance(word, bytes) else word.encode())
    await process.close_stdin()
    equal([chunk async for chunk in reader], [])
    result = await process.wait()
    equal((result.exit_code, result.reason, result.stdout), (0, "exited", "one\nzwei ü\n"))


@check(promise="start", title="Output may be read by several, and by those who come late")
async def output_is_read_by_several(context: Context) -> None:
    box = await context.open()
    process = await box.start("echo first; cat; echo last >&2")

    async def collect() -> bytes:
        return b"".join([chunk.data async for chunk in process.output()])

    readers = [asyncio.ensure_future(collect()) for _ in range(3)]
    await asyncio.sleep(0)
    await process.write("middle\n")
    await process.close_stdin()
    equal(await asyncio.gather(*readers), [b"first\nmiddle\nlast\n"] * 3)
    equal(await collect(), b"first\nmiddle\nlast\n", "after the end")
    equal((await process.wait()).output, "first\nmiddle\nlast\n")


@check(promise="5", title="A shell text of 100 KiB leaves no file behind, if it runs, is no shell text or is killed")
async def long_program_leaves_no_file(context: Context) -> None:
    box = await context.open()
    padding = "# padding\n" * (10 << 10)
    for text, kill in (
        (f"echo start\n{padding}echo end", False),
        (f"if then\n{padding}", False),
        (f"echo start\n{padding}sleep 1000", True),
    ):
        process = await box.start(text)
        result = await (process.kill() if kill else process.wait())
        true(kill or result.stdout == "start\nend\n" or not result.ok, f"{result}")
        equal([file.name for file in await box.files.list("/tmp")], [], f"{text[:10]!r}: the file is gone")


@check(promise="start", title="Several may wait, and again; a timeout of wait does not end the program",
       raises=("Process.wait:TimeoutError",))  # fmt: skip
async def several_may_wait(context: Context) -> None:
    box = await context.open()
    process = await box.start(["cat"])
    await raises(TimeoutError, process.wait(timeout=0.05))
    waiting = [asyncio.ensure_future(process.wait()) for _ in range(3)]
    cancelled = asyncio.ensure_future(process.wait())
    await asyncio.sleep(0)
    cancelled.cancel()
    await raises(asyncio.CancelledError, cancelled)
    await process.write("still here")
    await process.close_stdin()
    results = [*await asyncio.gather(*waiting), await process.wait(timeout=20)]
    equal([result.stdout for result in results], ["still here"] * 4)


@check(promise="start", title="Writing where there is no input, or none any more, is ExecError",
       raises=("Process.write:ExecError",))  # fmt: skip
async def write_without_input_is_an_error(context: Context) -> None:
    box = await context.open()
    process = await box.start(["sleep", "1000"], stdin=False)
    await raises(ExecError, process.write(b"x"))
    await process.kill()
    closed = await box.start(["cat"])
    await closed.close_stdin()
    await closed.close_stdin()
    await raises(ExecError, closed.write(b"x"))
    await closed.wait()
    await raises(ExecError, closed.write(b"x"))


@check(promise="start", title="A signal reaches the program; one that has ended is left alone",
       raises=("Process.signal:ExecError",))  # fmt: skip
async def signal_reaches_the_program(context: Context) -> None:
    box = await context.open()
    process = await box.start("echo ready; sleep 1000")
    await anext(process.output())
    await raises(ExecError, process.signal(0))
    await raises(ExecError, process.signal(1000))
    await process.signal(signal.SIGTERM)
    result = await process.wait()
    equal((result.exit_code, result.reason, result.signal), (143, "signalled", 15))
    await process.signal(signal.SIGTERM)
    await process.signal(signal.SIGKILL)


@check(promise="start", title="A signal goes to the whole process group, and may be handled there", needs=REAL)
async def signal_reaches_the_group(context: Context) -> None:
    box = await context.open()
    marker = secrets.token_hex(8)
    loop = "while :; do sleep 0.1; done"
    text = f"sh -c '{loop} # {marker}' & trap 'echo caught; exit 7' USR1; echo ready; {loop}"
    process = await box.start(text)
    await anext(process.output())
    await process.signal(signal.SIGUSR1)
    result = await process.wait()
    equal((result.exit_code, result.stdout), (7, "ready\ncaught\n"))
    await until(lambda: running(box, marker), 0, "the child in the group did not get the signal")


@check(promise="start", title="kill() ends it and gives the result, again and again")
async def kill_ends_a_program(context: Context) -> None:
    box = await context.open()
    process = await box.start("echo ready; sleep 1000")
    await anext(process.output())
    result = await process.kill()
    equal((result.reason, result.exit_code, result.stdout), ("cancelled", 137, "ready\n"))
    equal((await process.kill()).reason, "cancelled")
    done = await box.start("exit 3")
    await done.wait()
    equal((await done.kill()).exit_code, 3, "one that has ended keeps its end")


@check(promise="start", title="kill() ends all that the program started", needs=REAL)
async def kill_ends_the_whole_tree(context: Context) -> None:
    box = await context.open()
    marker = secrets.token_hex(8)
    process = await box.start(stubborn(marker))
    await anext(process.output())
    await process.kill()
    await until(lambda: running(box, marker), 0, "processes of a killed program are still there")


@check(promise="start", title="aclose() ends a program, twice is fine, and so does the end of an async with")
async def process_is_closed(context: Context) -> None:
    box = await context.open()
    process = await box.start(["sleep", "1000"])
    await process.aclose()
    await process.aclose()
    equal((await process.wait()).reason, "cancelled")
    async with await box.start(["sleep", "1000"]) as other:
        pass
    equal((await other.wait()).reason, "cancelled")


@check(promise="start", title="A program without a terminal can't be resized", raises=("Process.resize:ExecError",))
async def resize_needs_a_terminal(context: Context) -> None:
    box = await context.open()
    process = await box.start(["cat"])
    await raises(ExecError, process.resize(rows=10, columns=20))
    await process.kill()


@check(promise="4", title="What nobody reads is kept up to the limit, then dropped; the program never waits for us",
       needs=REAL)  # fmt: skip
async def unread_output_does_not_block(context: Context) -> None:
    box = await context.open()
    process = await box.start("head -c 30000000 /dev/zero; echo end", output_limit_bytes=10_000)
    result = await process.wait()
    equal((result.exit_code, result.stdout_total_bytes, result.truncated), (0, 30_000_004, True))
    kept = b"".join([chunk.data async for chunk in process.output()])
    true(len(kept) < 11_000 and kept.endswith(b"end\n"), f"{len(kept)} bytes were kept of a limit of 10000")


@check(promise="4", title="A reader that stops reading does not hold the program for ever", needs=REAL)
async def reader_that_leaves_frees_the_program(context: Context) -> None:
    box = await context.open()
    process = await box.start("head -c 30000000 /dev/zero; echo end >&2")
    reader = process.output()
    await anext(reader)
    await reader.aclose()  # type: ignore[attr-defined]  # every one of ours is an async generator
    result = await process.wait()
    equal((result.exit_code, result.stderr), (0, "end\n"))


@check(promise="7", title="start and its programs in a sandbox that is gone or closed raise",
       raises=("start:SandboxGoneError", "start:SandboxClosedError"))  # fmt: skip
async def start_needs_a_living_sandbox(context: Context) -> None:
    box = await context.open()
    await box.aclose()
    await raises(SandboxClosedError, box.start("true"))
    gone = await context.open(lifetime=1.5)
    process = await gone.start(["sleep", "1000"])
    await raises(SandboxGoneError, process.wait())
    await raises(SandboxGoneError, gone.start("true"))
