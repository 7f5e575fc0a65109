"""Recorded programs, shell sessions and terminals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from itertools import pairwise

from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from corral.errors import ExecError, InvalidCommandError, NameTakenError, NotRecordedError, SessionEndedError
from corral.sessions.record import Entry
from corral.sessions.session import SessionCommand, SessionLogs, ShellSession
from corral.testing.check import REAL, Context, check, equal, raises, true

TERMINAL = "pty shell"


async def _run(session: ShellSession, text: str) -> tuple[SessionCommand, SessionLogs]:
    command = await session.run(text)
    return command, await session.logs(command.id)


async def _output(session: ShellSession, text: str) -> str:
    return (await _run(session, text))[1].output.decode()


async def _join(entries: AsyncIterator[Entry]) -> dict[str, bytes]:
    joined: dict[str, bytes] = {"stdout": b"", "stderr": b"", "note": b""}
    async for entry in entries:
        if entry.kind in joined:
            joined[entry.kind] += entry.data
    return joined


@check("CanRecord", "A recorded program is found by its name, and forgotten")
async def recorded_program_has_a_name(box: AsyncSandbox) -> None:
    recorded = await box.start_recorded(["echo", "said"], name="one/ two", note=b"first")
    equal((await recorded.wait()).exit_code, 0)
    found = await box.find_recorded("one/ two")
    equal((found.name, found.pid), ("one/ two", recorded.pid))
    entries = [entry async for entry in found.entries()]
    equal([(entry.kind, entry.data) for entry in entries[:2]], [("note", b"first"), ("stdout", b"said\n")])
    equal(entries[-1].kind, "end")
    equal([(info.name, info.running, info.pty) for info in await box.list_recorded()], [("one/ two", False, False)])
    await raises(NameTakenError, box.start_recorded(["echo"], name="one/ two"))
    await raises(InvalidCommandError, box.start_recorded(["echo"], name=""))
    await recorded.forget()
    await recorded.forget()
    await raises(NotRecordedError, box.find_recorded("one/ two"))
    equal(list(await box.list_recorded()), [])


@check("CanRecord", "Any number of readers read a record from its start to the end", needs=REAL)
async def record_is_followed(box: AsyncSandbox) -> None:
    recorded = await box.start_recorded("while read -r l; do echo out $l; echo err $l >&2; done", name="r")
    early = asyncio.ensure_future(_join(recorded.entries()))
    await recorded.write("1\n")
    seen = set()
    async for entry in recorded.entries():
        seen.add(entry.kind)
        if seen >= {"stdout", "stderr"}:  # not every backend knows the order between them
            break
    note = await recorded.note(b"between")
    late = asyncio.ensure_future(_join(recorded.entries(since=note)))
    await recorded.write("2\n")
    await recorded.close_stdin()
    equal(await early, {"stdout": b"out 1\nout 2\n", "stderr": b"err 1\nerr 2\n", "note": b"between"})
    equal(await late, {"stdout": b"out 2\n", "stderr": b"err 2\n", "note": b"between"})
    equal(await _join(recorded.entries(follow=False)), await early)
    result = await recorded.wait()
    equal((result.exit_code, result.reason, result.output), (0, "exited", ""))
    await raises(ExecError, recorded.write("3\n"))


@check("4", "A record is bounded, and a gap shows that something was dropped", needs=REAL)
async def record_is_bounded(box: AsyncSandbox) -> None:
    text = "head -c 3000000 /dev/zero; echo; echo last"
    recorded = await box.start_recorded(text, name="r", limit_bytes=500_000, note=b"kept")
    await recorded.wait()
    entries = [entry async for entry in recorded.entries()]
    equal((entries[0].data, entries[-1].kind), (b"kept", "end"))
    size = sum(len(entry.data) for entry in entries)
    true(size < 1_000_000, f"{size} bytes are kept")
    joined = b"".join(entry.data for entry in entries if entry.kind == "stdout")
    true(joined.endswith(b"\nlast\n"), "the newest stays")
    gaps = [after.offset - before.next_offset for before, after in pairwise(entries)]
    true(sum(gap > 0 for gap in gaps) == 1, "one gap, after the note")


@check("CanRecord", "A recorded program is signalled, and killed with its whole tree", needs=REAL)
async def recorded_program_is_ended(box: AsyncSandbox) -> None:
    recorded = await box.start_recorded("trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done", name="a")
    async for entry in recorded.entries():
        if entry.kind == "stdout":
            break
    await recorded.signal(signal.SIGTERM)
    equal((await recorded.wait()).exit_code, 9)
    other = await box.start_recorded("sleep 1000 & sleep 1000", name="b")
    await raises(TimeoutError, other.wait(timeout=0.05))
    await other.kill()
    await other.kill()
    equal((await other.wait()).reason, "cancelled")


@check("CanSession", "A session's shell keeps its folder, variables, functions and $!", needs=REAL)
async def session_keeps_state(box: AsyncSandbox) -> None:
    session = await box.open_session("work")
    await raises(NameTakenError, box.open_session("work"))
    await session.run("mkdir -p d; cd d; x=5; export Y=6; f() { echo f$1; }; sleep 1000 & echo started")
    equal(await _output(session, "pwd; echo $x $(sh -c 'echo $Y'); f 7; kill -0 $! && echo alive"),
          f"{box.spec.workdir}/d\n5 6\nf7\nalive\n")  # fmt: skip
    command, logs = await _run(session, "echo out; echo err >&2; (exit 3)")
    equal((command.exit_code, logs.stdout, logs.stderr, logs.output), (3, b"out\n", b"err\n", b"out\nerr\n"))
    equal(await _output(session, "echo $?"), "3\n")
    equal([info.name for info in await box.list_sessions()], ["work"])
    await session.delete()
    await session.delete()
    equal(list(await box.list_sessions()), [])
    await raises(NotRecordedError, box.find_session("work"))


@check("CanSession", "No command can keep the next one from running", needs=REAL)
async def session_survives_commands(context: Context) -> None:
    session = await (await context.open()).open_session("work")
    for text in ("if then", "echo 'open", "exec >/dev/null 2>&1", "exec 1>&- 2>&-", "printf() { :; }; read() { :; }",
                 "exec 7>&1 8>&1 9</dev/null", "set -x", "cat <<X\nopen", "return 3", "IFS=b"):  # fmt: skip
        await session.run(text)
        await session.run("set +x 2>/dev/null")
        equal(await _output(session, "echo fine"), "fine\n", text)
    equal(await _output(session, "cat; wc -c"), "0\n", "the input is empty")
    await raises(InvalidCommandError, session.run("echo \0"))
    await raises(InvalidCommandError, session.run("  "))
    await raises(NotRecordedError, session.logs("nope"))
    text = f"x=1 # {'long ' * 1_000_000}\necho done"
    equal(await _output(session, text), "done\n")


@check("CanSession", "A session ends with its shell, and reports that", needs=REAL)
async def session_ends(box: AsyncSandbox) -> None:
    for number, (text, code) in enumerate((("exit 3", 3), ("kill -9 $$", 137), ("exec sh -c 'exit 4'", 4),
                                           ("set -e; false; echo never", 1))):  # fmt: skip
        session = await box.open_session(f"s{number}")
        equal((await session.run(text)).exit_code, code, text)
        true(await session.ended(), text)
        await raises(SessionEndedError, session.run("echo"))
        again = await box.find_session(f"s{number}")
        equal([command.exit_code for command in await again.commands()], [code])
        await session.delete()


@check("CanSession", "Commands are queued, fed, followed and read again", needs=REAL)
async def session_commands_are_followed(box: AsyncSandbox) -> None:
    session = await box.open_session("work")
    first = await session.run("read -r a; echo got $a; echo err >&2", wait=False, input_echo=True)
    second = await session.run("echo second", wait=False)
    equal((first.exit_code, second.exit_code), (None, None))
    following = asyncio.ensure_future(_collect(session, first.id))
    await session.feed(first.id, "word\n")
    equal(b"".join(await following), b"word\ngot word\nerr\n")
    equal(((await session.wait(first.id)).exit_code, (await session.wait(second.id)).exit_code), (0, 0))
    equal((await session.logs(second.id)).output, b"second\n")
    equal((await session.logs(first.id)).stderr, b"err\n")
    await raises(ExecError, session.feed(first.id, "more"))
    equal([command.text for command in await session.commands()][1:], ["echo second"])
    third = await session.run("true")
    await raises(ExecError, session.feed(third.id, "none"))


async def _collect(session: ShellSession, command_id: str) -> list[bytes]:
    return [chunk.data async for chunk in session.follow(command_id)]


@check("CanSession", "A command is interrupted, and the shell and older children survive", needs=REAL)
async def session_command_is_interrupted(context: Context) -> None:
    session = await (await context.open()).open_session("work")
    await session.run("x=1; sleep 1000 &")
    for text in ("sleep 1000", "while :; do :; done", "f() { while :; do sleep 0.01; done; }; while :; do f; done",
                 "trap '' INT; sleep 1000"):  # fmt: skip
        command = await session.run(f"echo started; {text}", wait=False)
        waiting = await session.run("echo never", wait=False)
        async for _ in session.follow(command.id):
            break
        await session.interrupt(waiting.id)
        equal((await session.interrupt(command.id)).exit_code, 130, text)
        equal((await session.wait(waiting.id)).exit_code, 130)
        equal((await session.logs(waiting.id)).output, b"")
        equal(await _output(session, "trap - INT; echo $x; kill -0 $! && echo alive"), "1\nalive\n", text)


@check("4", "Much output in a session is bounded, with a note of what was cut", needs=REAL)
async def session_flood_is_bounded(box: AsyncSandbox) -> None:
    session = await box.open_session("work", limit_bytes=500_000)
    for listens in (True, False):
        text = "rm -f done; head -c 5000000 /dev/zero; echo; echo last; : >done"
        command = await session.run(text, wait=listens, open_input=False)
        if not listens:  # all output has arrived, and most of it is dropped, before its start is read
            await box.exec("until [ -e done ]; do sleep 0.05; done", check=True)
            command = await session.wait(command.id)
        logs = await session.logs(command.id)
        equal(command.exit_code, 0)
        true(logs.truncated and logs.lost_bytes > 3_000_000 and len(logs.output) < 1_500_000, f"{logs.lost_bytes} lost")
        true(
            b"bytes of output left out]" in logs.output and logs.output.endswith(b"\nlast\n"),
            "the note and the end are there",
        )
        equal(await _output(session, "echo next"), "next\n")


@check("3", "A child in the background does not delay a session's command", needs=REAL)
async def session_child_does_not_delay(context: Context) -> None:
    session = await (await context.open()).open_session("work")
    command, logs = await _run(session, "(sleep 1000; echo late) & echo done")
    equal((command.exit_code, logs.output), (0, b"done\n"))


@check("CanTerminal", "A terminal has several readers, is resized and found again, and reports its end", needs=TERMINAL)
async def terminal_is_shared(box: AsyncSandbox) -> None:
    terminal = await box.open_pty("t", "stty size; read -r a; stty size; exit 6", rows=30, columns=90)
    await raises(NameTakenError, box.open_pty("t"))
    first = asyncio.ensure_future(_watch(box, "t"))
    async for data in terminal.output():
        if b"30 90" in data:
            break
    await terminal.resize(rows=31, columns=91)
    await terminal.write("go\n")
    result = await terminal.wait()
    equal((result.exit_code, result.reason), (6, "exited"))
    text = (await first).decode()
    true(text.startswith("30 90\r\n") and text.endswith("31 91\r\n"), f"all of it: {text!r}")
    equal(await _watch(box, "t"), await first)
    info = await terminal.info()
    equal((info.rows, info.columns, info.running, info.exit_code, info.reason), (31, 91, False, 6, "exited"))
    await terminal.delete()
    await raises(NotRecordedError, box.find_pty("t"))


async def _watch(box: AsyncSandbox, name: str) -> bytes:
    return b"".join([data async for data in (await box.find_pty(name)).output()])


@check("CanTerminal", "Without a command, a terminal has a login shell", needs=TERMINAL)
async def terminal_has_a_shell(box: AsyncSandbox) -> None:
    terminal = await box.open_pty("t", env={"WHO": "me"})
    await terminal.write("echo $WHO-$TERM; exit 3\n")
    equal((await terminal.wait()).exit_code, 3)
    true(b"me-xterm-256color\r\n" in await _watch(box, "t"), "the environment")


# Programs with a terminal.


async def read_until(process: AsyncProcess, text: str) -> str:
    """Read what the terminal shows, up to a text."""
    seen = ""
    async for chunk in process.output():
        equal(chunk.stream, "stdout", "a terminal is one stream")
        seen += chunk.text
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} never came: {seen!r}")


@check("start", "pty=True gives a real terminal of the requested size", needs=TERMINAL)
async def terminal_is_real(box: AsyncSandbox) -> None:
    text = "test -t 0 && test -t 1 && test -t 2 && echo terminal; stty size; echo err >&2"
    process = await box.start(text, pty=True, rows=33, columns=101)
    result = await process.wait()
    equal(result.stdout, "terminal\r\n33 101\r\nerr\r\n")
    equal(result.exit_code, 0)


@check("start", "A terminal is resized, and the program gets the signal", needs=TERMINAL)
async def terminal_is_resized(box: AsyncSandbox) -> None:
    text = "trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.1; done"
    process = await box.start(text, pty=True)
    await read_until(process, "ready")
    await process.resize(rows=50, columns=120)
    result = await process.wait()
    true("50 120" in result.stdout, f"the new size: {result.stdout!r}")
    equal(result.exit_code, 5)
    await raises(ExecError, process.resize(rows=50, columns=120))


@check("start", "Ctrl-C interrupts, and close_stdin is the end of file", needs=TERMINAL)
async def terminal_keys_work(box: AsyncSandbox) -> None:
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


@check("3", "A terminal's last output is not lost, even if the program ends at once", needs=TERMINAL)
async def terminal_last_words_are_not_lost(box: AsyncSandbox) -> None:
    for number in range(15):
        result = await (await box.start(f"echo line {number}; printf END", pty=True)).wait()
        equal(result.stdout, f"line {number}\r\nEND")
    result = await (await box.start("seq 1 20000; printf END", pty=True)).wait()
    true(result.stdout.endswith("20000\r\nEND"), f"the end of much output: {result.stdout[-40:]!r}")


@check("3", "A background child that holds the terminal does not delay the end", needs=TERMINAL)
async def terminal_held_by_a_child_does_not_delay(box: AsyncSandbox) -> None:
    process = await box.start("(trap '' HUP; sleep 1000) & echo done", pty=True)
    result = await process.wait(timeout=30)
    equal((result.stdout, result.exit_code), ("done\r\n", 0))


@check("start", "A terminal of an invalid size is refused", raises="InvalidCommandError")
async def impossible_size_is_refused(box: AsyncSandbox) -> None:
    for rows, columns in ((0, 80), (24, 0), (-1, 80), (24, 70_000), (True, 80)):
        await raises(InvalidCommandError, box.start("true", pty=True, rows=rows, columns=columns))
