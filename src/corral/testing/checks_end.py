"""Ends: by time, by cancellation, by a limit, and what of a program outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from corral.client.sandbox import AsyncSandbox
from corral.errors import SandboxGoneError
from corral.spec import Resources
from corral.testing.check import Context, check, equal, raises, true, until

REAL = frozenset({"shell", "processes"})
_LIST = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done; true"


async def running(box: AsyncSandbox, marker: str) -> int:
    """How many processes inside carry the marker in their arguments. The listing itself does not."""
    result = await box.exec(_LIST, check=True)
    return sum(marker in line for line in result.stdout.splitlines())


def stubborn(marker: str) -> str:
    """A shell text that starts every kind of child that likes to stay, and then waits."""
    loop = f"trap '' TERM INT HUP; while :; do sleep 0.1; done # {marker}"
    return f'''sh -c "{loop}" &
setsid sh -c "{loop}" &
(setsid sh -c "{loop}" & ) &
nohup sh -c "{loop}" >/dev/null 2>&1 &
sh -c "kill -STOP \\$\\$ # {marker}" &
sleep 0.2; echo started; trap "" TERM; sleep 1000 # {marker}
'''


@check(promise="3", title="The result arrives when the direct child ends, not when the last pipe closes")
async def background_child_does_not_delay(context: Context) -> None:
    box = await context.open()
    async with asyncio.timeout(30):
        result = await box.exec("sleep 1000 & echo done")
    equal((result.stdout, result.exit_code, result.reason), ("done\n", 0, "exited"))


@check(promise="3", title="A background child lives on after its call, and its output is not the next one's",
       needs=REAL)  # fmt: skip
async def background_child_lives_on(context: Context) -> None:
    box = await context.open()
    result = await box.exec("(sleep 0.3; echo late; echo late > late.txt) & echo done")
    equal(result.stdout, "done\n")
    await until(lambda: box.files.exists("late.txt"), True, "the background child was ended with its call")
    equal((await box.exec(["echo", "mine"])).output, "mine\n")


@check(promise="2", title="A timeout is a result: 124, the reason, and what was printed so far")
async def timeout_keeps_partial_output(context: Context) -> None:
    box = await context.open()
    result = await box.exec("echo out; echo err >&2; sleep 1000", timeout=0.5)
    equal((result.exit_code, result.reason, result.timed_out, result.ok), (124, "timeout", True, False))
    equal((result.stdout, result.stderr), ("out\n", "err\n"))


@check(promise="2", title="A timeout ends the whole tree: children, setsid daemons, those that ignore TERM or stopped",
       needs=REAL)  # fmt: skip
async def timeout_ends_the_whole_tree(context: Context) -> None:
    box = await context.open()
    marker = secrets.token_hex(8)
    result = await box.exec(stubborn(marker), timeout=1.5)
    equal((result.reason, result.stdout), ("timeout", "started\n"))
    await until(lambda: running(box, marker), 0, "processes of a timed-out call are still there")


@check(promise="2", title="A program that forks without end is gone after its timeout, and the sandbox is usable",
       needs=REAL)  # fmt: skip
async def fork_bomb_ends_with_its_timeout(context: Context) -> None:
    box = await context.open(resources=Resources(processes=40))
    marker = secrets.token_hex(8)
    # The program itself needs no fork any more when none can be had: a shell that can't fork would just give up.
    text = f"bomb() {{ bomb & bomb & sleep 1000; }}; (bomb 2>/dev/null &); exec sleep 1000 # {marker}"
    result = await box.exec(text, timeout=1.0)
    equal(result.reason, "timeout")
    await until(lambda: running(box, marker), 0, "the bomb is still there")
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")


@check(promise="2", title="A timeout ends only its own call's tree", needs=REAL)
async def timeout_leaves_others_alone(context: Context) -> None:
    box = await context.open()
    marker = secrets.token_hex(8)
    process = await box.start(f"sleep 1000; : {marker}")
    equal((await box.exec(["sleep", "1000"], timeout=0.3)).reason, "timeout")
    equal(await running(box, marker), 1, "the other program")
    await process.kill()


@check(promise="2", title="Cancelling ends the program at once")
async def cancel_ends_the_program(context: Context) -> None:
    box = await context.open()
    started = asyncio.Event()
    task = asyncio.ensure_future(box.exec("echo ready; sleep 1000", on_output=lambda chunk: started.set()))
    await started.wait()
    task.cancel()
    await raises(asyncio.CancelledError, task)
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")


@check(promise="2", title="Cancelling ends the whole tree", needs=REAL)
async def cancel_ends_the_whole_tree(context: Context) -> None:
    box = await context.open()
    marker = secrets.token_hex(8)
    started = asyncio.Event()
    task = asyncio.ensure_future(box.exec(stubborn(marker), on_output=lambda chunk: started.set()))
    await started.wait()
    true(await running(box, marker) >= 4, "the children should run before the cancellation")
    task.cancel()
    await raises(asyncio.CancelledError, task)
    await until(lambda: running(box, marker), 0, "processes of a cancelled call are still there")


@check(promise="7", title="A program that runs when the sandbox is closed ends with SandboxGoneError",
       raises=("Process.wait:SandboxGoneError", "Process.output:SandboxGoneError"))  # fmt: skip
async def closing_ends_programs(context: Context) -> None:
    box = await context.open()
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


@check(promise="2", title="Out of memory is a reason, and the sandbox lives on", needs=frozenset({"oom", "python"}))
async def out_of_memory_is_a_reason(context: Context) -> None:
    capabilities = await context.backend.capabilities()
    box = await context.open(resources=Resources(memory_bytes="96MiB"))
    code = "import time\nheld = []\nfor _ in range(400): held.append(b'x' * (1 << 20))\ntime.sleep(30)"
    result = await box.run_code(code)
    true(not result.ok, "400 MB were had with a limit of 96 MiB")
    if capabilities.memory == "hard":
        equal((result.reason, result.exit_code, result.ok), ("oom", 137, False))
        true((await box.usage()).oom_kills >= 1, "usage() counts it")
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")


@check(promise="usage", title="usage() says what the sandbox holds")
async def usage_of_the_sandbox_is_told(context: Context) -> None:
    box = await context.open()
    await box.exec(["true"])
    usage = await box.usage()
    for name in ("cpu_seconds", "memory_bytes", "peak_memory_bytes", "processes", "disk_bytes"):
        value = getattr(usage, name)
        true(value is None or value >= 0, f"{name} is {value}")
    equal(usage.oom_kills, 0)


@check(promise="start", title="A program in the background has a timeout if it was given one")
async def start_honours_its_timeout(context: Context) -> None:
    box = await context.open()
    process = await box.start("echo on; sleep 1000", timeout=0.4)
    result = await process.wait()
    equal((result.reason, result.exit_code, result.stdout), ("timeout", 124, "on\n"))
