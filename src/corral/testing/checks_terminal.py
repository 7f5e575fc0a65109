"""Programs with a terminal."""

from __future__ import annotations

from corral.base.process import AsyncProcess
from corral.errors import ExecError, InvalidCommandError
from corral.testing.check import Context, check, equal, raises, true

TERMINAL = frozenset({"pty", "shell"})


async def read_until(process: AsyncProcess, text: str) -> str:
    """What the terminal shows, up to a text."""
    seen = ""
    async for chunk in process.output():
        equal(chunk.stream, "stdout", "a terminal is one stream")
        seen += chunk.text
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} never came: {seen!r}")


@check(promise="start", title="pty=True gives a real terminal of the asked size", needs=TERMINAL)
async def terminal_is_real(context: Context) -> None:
    box = await context.open()
    text = "test -t 0 && test -t 1 && test -t 2 && echo terminal; stty size; echo err >&2"
    process = await box.start(text, pty=True, rows=33, columns=101)
    result = await process.wait()
    equal(result.stdout, "terminal\r\n33 101\r\nerr\r\n")
    equal(result.exit_code, 0)


@check(promise="start", title="A terminal is resized, and the program is told", needs=TERMINAL)
async def terminal_is_resized(context: Context) -> None:
    box = await context.open()
    text = "trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.1; done"
    process = await box.start(text, pty=True)
    await read_until(process, "ready")
    await process.resize(rows=50, columns=120)
    result = await process.wait()
    true("50 120" in result.stdout, f"the new size: {result.stdout!r}")
    equal(result.exit_code, 5)
    await raises(ExecError, process.resize(rows=50, columns=120))


@check(promise="start", title="Keys work: Ctrl-C interrupts, close_stdin is the end of file", needs=TERMINAL)
async def terminal_keys_work(context: Context) -> None:
    box = await context.open()
    process = await box.start("trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.1; done", pty=True)
    await read_until(process, "ready")
    await process.write("\x03")
    result = await process.wait()
    true("interrupted" in result.stdout, f"Ctrl-C: {result.stdout!r}")
    equal(result.exit_code, 9)
    reader = await box.start(["cat"], pty=True)
    await reader.write("typed\n")
    await read_until(reader, "typed\r\ntyped")
    await reader.close_stdin()
    equal((await reader.wait()).exit_code, 0)


@check(promise="3", title="A terminal's last words are not lost, however fast the end comes", needs=TERMINAL)
async def terminal_last_words_are_not_lost(context: Context) -> None:
    box = await context.open()
    for number in range(15):
        result = await (await box.start(f"echo line {number}; printf END", pty=True)).wait()
        equal(result.stdout, f"line {number}\r\nEND")
    result = await (await box.start("seq 1 20000; printf END", pty=True)).wait()
    true(result.stdout.endswith("20000\r\nEND"), f"the end of much output: {result.stdout[-40:]!r}")


@check(promise="3", title="A background child that holds the terminal does not delay the end", needs=TERMINAL)
async def terminal_held_by_a_child_does_not_delay(context: Context) -> None:
    box = await context.open()
    process = await box.start("(trap '' HUP; sleep 1000) & echo done", pty=True)
    result = await process.wait(timeout=30)
    equal((result.stdout, result.exit_code), ("done\r\n", 0))


@check(promise="start", title="A terminal of an impossible size is refused", raises=("start:InvalidCommandError",))
async def impossible_size_is_refused(context: Context) -> None:
    box = await context.open()
    for rows, columns in ((0, 80), (24, 0), (-1, 80), (24, 70_000), (True, 80)):
        await raises(InvalidCommandError, box.start("true", pty=True, rows=rows, columns=columns))
