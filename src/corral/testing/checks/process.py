"""Programs in the background, and how programs end: by time, by cancellation, by a limit."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from corral.client.sandbox import AsyncSandbox
from corral.errors import ExecError, SandboxClosedError, SandboxGoneError
from corral.spec import Resources
from corral.testing.check import REAL, TIME_TO_PRINT, Context, check, equal, raises, still_works, true, until

_LIST = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done; true"


async def running(box: AsyncSandbox, marker: str) -> int:
    """Count the processes inside with the marker in their arguments. The listing itself has none."""
    result = await box.exec(_LIST, check=True)
    return sum(marker in line for line in result.stdout.splitlines())


def stubborn(marker: str) -> str:
    """Give a shell text that starts children which are hard to end, and then waits."""
    loop = f"trap '' TERM INT HUP; while :; do sleep 0.1; done # {marker}"
    return f'''sh -c "{loop}" &
setsid sh -c "{loop}" &
(setsid sh -c "{loop}" & ) &
nohup sh -c "{loop}" >/dev/null 2>&1 &
sh -c "kill -STOP \\$\\$ # {marker}" &
sleep 0.2; echo started; trap "" TERM; sleep 1000 # {marker}
'''


@check("3", "The result arrives when the direct child ends, not when the last pipe closes")
async def background_child_does_not_delay(box: AsyncSandbox) -> None:
    async with asyncio.timeout(30):
        result = await box.exec("sleep 1000 & echo done")
    equal((result.stdout, result.exit_code, result.reason), ("done\n", 0, "exited"))


@check("3", "A background child survives its call, and its output does not reach the next call", needs=REAL)
async def background_child_lives_on(box: AsyncSandbox) -> None:
    result = await box.exec("(sleep 0.3; echo late; echo late > late.txt) & echo done")
    equal(result.stdout, "done\n")
    await until(lambda: box.files.exists("late.txt"), True, "the background child was ended with its call")
    equal((await box.exec(["echo", "mine"])).output, "mine\n")


@check("2", "A timeout is a result: 124, the reason, and the output so far")
async def timeout_keeps_partial_output(box: AsyncSandbox) -> None:
    result = await box.exec("echo out; echo err >&2; sleep 1000", timeout=TIME_TO_PRINT)
    equal((result.exit_code, result.reason, result.timed_out, result.ok), (124, "timeout", True, False))
    equal((result.stdout, result.stderr), ("out\n", "err\n"))


@check("2", "A timeout ends the whole tree: children, daemons, stopped ones and those that ignore TERM", needs=REAL)
async def timeout_ends_the_whole_tree(box: AsyncSandbox, token: str) -> None:
    result = await box.exec(stubborn(token), timeout=TIME_TO_PRINT)
    equal((result.reason, result.stdout), ("timeout", "started\n"))
    await until(lambda: running(box, token), 0, "processes of a timed-out call are still there")


@check("2", "A program that forks without end is gone after its timeout, and the sandbox is usable", needs=REAL)
async def fork_bomb_ends_with_its_timeout(context: Context, token: str) -> None:
    box = await context.open(resources=Resources(processes=40))
    # The program itself must not need to fork at the limit: a shell that can't fork would just end.
    text = f"bomb() {{ bomb & bomb & sleep 1000; }}; (bomb 2>/dev/null &); exec sleep 1000 # {token}"
    result = await box.exec(text, timeout=1.0)
    equal(result.reason, "timeout")
    await until(lambda: running(box, token), 0, "the bomb is still there")
    await still_works(box)


@check("2", "A timeout ends only its own call's tree", needs=REAL)
async def timeout_leaves_others_alone(box: AsyncSandbox, token: str) -> None:
    process = await box.start(f"sleep 1000; : {token}")
    equal((await box.exec(["sleep", "1000"], timeout=0.3)).reason, "timeout")
    equal(await running(box, token), 1, "the other program")
    await process.kill()


@check("2", "Cancelling ends the program at once")
async def cancel_ends_the_program(box: AsyncSandbox) -> None:
    started = asyncio.Event()
    task = asyncio.ensure_future(box.exec("echo ready; sleep 1000", on_output=lambda chunk: started.set()))
    await started.wait()
    task.cancel()
    await raises(asyncio.CancelledError, task)
    await still_works(box)


@check("2", "Cancelling ends the whole tree", needs=REAL)
async def cancel_ends_the_whole_tree(box: AsyncSandbox, token: str) -> None:
    started = asyncio.Event()
    task = asyncio.ensure_future(box.exec(stubborn(token), on_output=lambda chunk: started.set()))
    await started.wait()
    true(await running(box, token) >= 4, "the children should run before the cancellation")
    task.cancel()
    await raises(asyncio.CancelledError, task)
    await until(lambda: running(box, token), 0, "processes of a cancelled call are still there")


@check("7", "A program that runs when the sandbox is closed ends with SandboxGoneError",
       raises="Process.wait:SandboxGoneError Process.output:SandboxGoneError")  # fmt: skip
async def closing_ends_programs(box: AsyncSandbox) -> None:
    process = await box.start("echo ready; sleep 1000")
    reader = process.output()
    equal((await anext(reader)).data, b"ready\n")
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.sleep(0)
    await box.aclose()
    await raises(SandboxGoneError, waiting)
    with contextlib.suppress(StopAsyncIteration):
        await raises(SandboxGoneError, anext(reader))
    await process.aclose()


@check("2", "Out of memory is a reason, and the sandbox survives", needs="oom python")
async def out_of_memory_is_a_reason(context: Context) -> None:
    capabilities = await context.backend.capabilities()
    box = await context.open(resources=Resources(memory_bytes="96MiB"))
    code = "import time\nheld = []\nfor _ in range(400): held.append(b'x' * (1 << 20))\ntime.sleep(30)"
    result = await box.run_code(code)
    true(not result.ok, "400 MB were had with a limit of 96 MiB")
    if capabilities.memory == "hard":
        equal((result.reason, result.exit_code, result.ok), ("oom", 137, False))
        true((await box.usage()).oom_kills >= 1, "usage() counts it")
    await still_works(box)


@check("usage", "usage() gives what the sandbox uses")
async def usage_of_the_sandbox_is_told(box: AsyncSandbox) -> None:
    await box.exec(["true"])
    usage = await box.usage()
    for name in ("cpu_seconds", "memory_bytes", "peak_memory_bytes", "processes", "disk_bytes"):
        value = getattr(usage, name)
        true(value is None or value >= 0, f"{name} is {value}")
    equal(usage.oom_kills, 0)


@check("start", "A timeout of a background program is kept")
async def start_honours_its_timeout(box: AsyncSandbox) -> None:
    process = await box.start("echo on; sleep 1000", timeout=TIME_TO_PRINT)
    result = await process.wait()
    equal((result.reason, result.exit_code, result.stdout), ("timeout", 124, "on\n"))


# Programs in the background.


@check("start", "Write to a program, read its answer, end its input, wait")
async def program_is_talked_to(box: AsyncSandbox) -> None:
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


@check("start", "Output may be read by several readers, and after the end")
async def output_is_read_by_several(box: AsyncSandbox) -> None:
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


@check("5", "A shell text of 100 KiB leaves no file behind, if it runs, is invalid or is killed")
async def long_program_leaves_no_file(box: AsyncSandbox) -> None:
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


@check("start", "Several tasks may wait, repeatedly; a timeout of wait does not end the program",
       raises="Process.wait:TimeoutError")  # fmt: skip
async def several_may_wait(box: AsyncSandbox) -> None:
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


@check("start", "Writing to a program without input, or with closed input, is ExecError",
       raises="Process.write:ExecError")  # fmt: skip
async def write_without_input_is_an_error(box: AsyncSandbox) -> None:
    process = await box.start(["sleep", "1000"], stdin=False)
    await raises(ExecError, process.write(b"x"))
    await process.kill()
    closed = await box.start(["cat"])
    await closed.close_stdin()
    await closed.close_stdin()
    await raises(ExecError, closed.write(b"x"))
    await closed.wait()
    await raises(ExecError, closed.write(b"x"))


@check("start", "A signal reaches the program; after its end, a signal does nothing", raises="Process.signal:ExecError")
async def signal_reaches_the_program(box: AsyncSandbox) -> None:
    process = await box.start("echo ready; sleep 1000")
    await anext(process.output())
    await raises(ExecError, process.signal(0))
    await raises(ExecError, process.signal(1000))
    await process.signal(signal.SIGTERM)
    result = await process.wait()
    equal((result.exit_code, result.reason, result.signal), (143, "signalled", 15))
    await process.signal(signal.SIGTERM)
    await process.signal(signal.SIGKILL)


@check("start", "A signal goes to the whole process group, and may be handled there", needs=REAL)
async def signal_reaches_the_group(box: AsyncSandbox, token: str) -> None:
    loop = "while :; do sleep 0.1; done"
    text = f"sh -c '{loop} # {token}' & trap 'echo caught; exit 7' USR1; echo ready; {loop}"
    process = await box.start(text)
    await anext(process.output())
    await process.signal(signal.SIGUSR1)
    result = await process.wait()
    equal((result.exit_code, result.stdout), (7, "ready\ncaught\n"))
    await until(lambda: running(box, token), 0, "the child in the group did not get the signal")


@check("start", "kill() ends the program and returns the result, also when repeated")
async def kill_ends_a_program(box: AsyncSandbox) -> None:
    process = await box.start("echo ready; sleep 1000")
    await anext(process.output())
    result = await process.kill()
    equal((result.reason, result.exit_code, result.stdout), ("cancelled", 137, "ready\n"))
    equal((await process.kill()).reason, "cancelled")
    done = await box.start("exit 3")
    await done.wait()
    equal((await done.kill()).exit_code, 3, "one that has ended keeps its end")


@check("start", "kill() ends all that the program started", needs=REAL)
async def kill_ends_the_whole_tree(box: AsyncSandbox, token: str) -> None:
    process = await box.start(stubborn(token))
    await anext(process.output())
    await process.kill()
    await until(lambda: running(box, token), 0, "processes of a killed program are still there")


@check("start", "aclose() and the end of async with end a program; aclose() may be called twice")
async def process_is_closed(box: AsyncSandbox) -> None:
    process = await box.start(["sleep", "1000"])
    await process.aclose()
    await process.aclose()
    equal((await process.wait()).reason, "cancelled")
    async with await box.start(["sleep", "1000"]) as other:
        pass
    equal((await other.wait()).reason, "cancelled")


@check("start", "A program without a terminal can't be resized", raises="Process.resize:ExecError")
async def resize_needs_a_terminal(box: AsyncSandbox) -> None:
    process = await box.start(["cat"])
    await raises(ExecError, process.resize(rows=10, columns=20))
    await process.kill()


@check("4", "Unread output is kept up to the limit, then dropped; the program never blocks on it", needs=REAL)
async def unread_output_does_not_block(box: AsyncSandbox) -> None:
    process = await box.start("head -c 30000000 /dev/zero; echo end", output_limit_bytes=10_000)
    result = await process.wait()
    equal((result.exit_code, result.stdout_total_bytes, result.truncated), (0, 30_000_004, True))
    kept = b"".join([chunk.data async for chunk in process.output()])
    true(len(kept) < 11_000 and kept.endswith(b"end\n"), f"{len(kept)} bytes were kept of a limit of 10000")


@check("4", "A reader that stops reading does not block the program", needs=REAL)
async def reader_that_leaves_frees_the_program(box: AsyncSandbox) -> None:
    process = await box.start("head -c 30000000 /dev/zero; echo end >&2")
    reader = process.output()
    await anext(reader)
    await reader.aclose()
    result = await process.wait()
    equal((result.exit_code, result.stderr), (0, "end\n"))


@check("7", "start raises in a sandbox that is gone or closed, and so do its programs",
       raises="start:SandboxGoneError start:SandboxClosedError")  # fmt: skip
async def start_needs_a_living_sandbox(context: Context, box: AsyncSandbox) -> None:
    await box.aclose()
    await raises(SandboxClosedError, box.start("true"))
    gone = await context.open(lifetime=1.5)
    process = await gone.start(["sleep", "1000"])
    await raises(SandboxGoneError, process.wait())
    await raises(SandboxGoneError, gone.start("true"))
