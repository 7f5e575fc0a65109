"""Recorded programs, sessions and terminals of detached sandboxes: the keeper holds them while clients come and go."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.base.command import bash_text
from corral.client.sandbox import AsyncSandbox
from corral.engine.state import read_state
from corral.errors import (
    ExecError,
    NameTakenError,
    NotRecordedError,
    SandboxClosedError,
    SandboxGoneError,
    WorkdirError,
)
from corral.sessions.record import Entry, Recorded
from corral.spec import Resources, Spec
from support.leftovers import wait_until
from support.user import OrdinaryUser

HANG_GUARD_SECONDS = 60


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path / "data")
    yield backend
    for info in await backend.list():
        await backend.delete(info.sandbox_id)
    await backend.aclose()


@pytest.fixture
async def box(backend: EmbeddedBackend) -> AsyncIterator[AsyncSandbox]:
    box = await backend.create(Spec())
    await box.detach()
    yield box
    await box.kill()


def record_bytes(backend: EmbeddedBackend, sandbox_id: str) -> int:
    folder = backend.data_folder / "sandboxes" / sandbox_id / "records"
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the oldest pieces go while we count
            found = path.stat()
            size += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return size


async def first(recorded: Recorded, text: bytes) -> Entry:
    async for entry in recorded.entries():
        if text in entry.data:
            return entry
    raise AssertionError(f"{text!r} never came")


async def joined(recorded: Recorded) -> bytes:
    return b"".join([entry.data async for entry in recorded.entries() if entry.kind in ("stdout", "stderr")])


LEAVE = """
import asyncio, os, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Resources, Spec

async def main():
    box = await EmbeddedBackend(sys.argv[1]).create(Spec())
    await box.detach()
    session = await box.open_session("work")
    command = await session.run("cd /tmp; x=5; echo said; echo also >&2; (exit 4)")
    assert command.exit_code == 4
    running = await session.run("echo begun; read -r word; echo got $word; sleep 0.2; echo over", wait=False)
    queued = await session.run("echo $x; pwd", wait=False)
    async for chunk in session.follow(running.id):
        break
    terminal = await box.open_pty("screen", "echo shown; read -r word; echo typed $word; exit 3")
    async for data in terminal.output():
        if b"shown" in data:
            break
    print(box.id, running.id, queued.id, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""

FIND = """
import asyncio, sys
from corral.backends.embedded import EmbeddedBackend

async def main():
    sandbox_id, running, queued = sys.argv[2:]
    box = await EmbeddedBackend(sys.argv[1]).connect(sandbox_id)
    assert [info.name for info in await box.list_sessions()] == ["work"]
    session = await box.find_session("work")
    done, now, later = await session.commands()
    assert (done.text, done.exit_code) == ("cd /tmp; x=5; echo said; echo also >&2; (exit 4)", 4), done
    assert (now.id, now.exit_code, now.begun) == (running, None, True), now
    assert (later.id, later.exit_code, later.begun) == (queued, None, False), later
    logs = await session.logs(done.id)
    assert (logs.stdout, logs.stderr, logs.output) == (b"said\\n", b"also\\n", b"said\\nalso\\n"), logs
    await session.feed(running, "word\\n")
    chunks = [chunk.data async for chunk in session.follow(running)]
    assert b"".join(chunks) == b"begun\\ngot word\\nover\\n", chunks
    assert (await session.wait(queued)).exit_code == 0
    assert (await session.logs(queued)).output == b"5\\n/tmp\\n"
    assert (await session.run("[ $x = 5 ]")).exit_code == 0
    await session.delete()
    terminal = await box.find_pty("screen")
    await terminal.write("keys\\n")
    assert (await terminal.wait()).exit_code == 3
    shown = b"".join([data async for data in terminal.output()])
    assert shown.startswith(b"shown\\r\\n") and shown.endswith(b"typed keys\\r\\n"), shown
    await box.kill()
    print("FINE")

asyncio.run(main())
"""


def test_killed_client_is_succeeded_by_another(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LEAVE, str(tmp_path / "data")]
    left = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_GUARD_SECONDS)
    assert left.returncode == -signal.SIGKILL, left.stderr
    argv = [sys.executable, "-c", FIND, str(tmp_path / "data"), *left.stdout.split()]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_GUARD_SECONDS)
    assert found.stdout == "FINE\n", found.stderr


@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_ordinary_user_succeeds_a_killed_client(ordinary_user: OrdinaryUser) -> None:
    data = str(ordinary_user.home / "data")
    left = ordinary_user.run(LEAVE, args=[data], timeout=HANG_GUARD_SECONDS)
    assert len(left.stdout.split()) == 3, left.stderr
    found = ordinary_user.run(FIND, args=[data, *left.stdout.split()], timeout=HANG_GUARD_SECONDS)
    assert found.stdout == "FINE\n", found.stderr


async def test_order_of_the_streams_is_kept(box: AsyncSandbox) -> None:
    text = "for i in $(seq 1 200); do echo out $i; echo err $i >&2; done"
    recorded = await box.start_recorded(text, name="order")
    lines = [f"{stream} {number}" for number in range(1, 201) for stream in ("out", "err")]
    assert (await joined(recorded)).decode().splitlines() == lines


async def test_handles_of_one_record_share_everything(box: AsyncSandbox, backend: EmbeddedBackend) -> None:
    recorded = await box.start_recorded("cat; exit 5", name="cat", note=b"header")
    with pytest.raises(NameTakenError):
        await box.start_recorded("true", name="cat")
    other = await backend.connect(box.id)
    second = await other.find_recorded("cat")
    reading = asyncio.ensure_future(joined(second))
    await recorded.write("one\n")
    await first(second, b"one")
    await second.write("two\n")
    offset = await second.note(b"noted")
    await recorded.close_stdin()
    assert await reading == b"one\ntwo\n"
    result = await second.wait()
    assert (result.exit_code, result.reason, result.usage.wall_seconds > 0) == (5, "exited", True)
    kinds = [(entry.kind, entry.offset) async for entry in recorded.entries(since=offset) if entry.kind == "note"]
    assert kinds == [("note", offset)]
    with pytest.raises(ExecError):
        await second.write("three")
    with pytest.raises(ExecError):
        await recorded.note(b"late")
    await second.forget()
    with pytest.raises(NotRecordedError):
        await box.find_recorded("cat")
    with pytest.raises(NotRecordedError):
        await recorded.wait()
    with pytest.raises(NotRecordedError):
        _ = [entry async for entry in recorded.entries()]
    await other.aclose()
    with pytest.raises(SandboxClosedError):
        await second.wait()


async def test_flood_fills_no_disk_and_stops_nobody(box: AsyncSandbox, backend: EmbeddedBackend) -> None:
    flood = await box.start_recorded("yes", name="flood", limit_bytes=1_000_000, note=b"kept")
    slow = flood.entries()
    assert (await anext(slow)).offset == 0
    for number in range(20):  # the keeper goes on answering, and others are served
        other = await box.start_recorded(f"echo {number}", name=f"n{number}")
        assert await joined(other) == f"{number}\n".encode()
    seen = 0
    async for entry in flood.entries():
        seen = entry.next_offset
        if seen > 50_000_000:
            break
    assert record_bytes(backend, box.id) < 2_000_000
    late = await anext(slow)
    while late.offset < 10_000_000:  # the slow one finds a gap, and goes on
        late = await anext(slow)
    await flood.kill()
    assert (await flood.wait()).reason == "cancelled"
    entries = [entry async for entry in flood.entries()]
    assert (entries[0].data, entries[1].offset > 10_000_000, entries[-1].kind) == (b"kept", True, "end")


async def test_program_that_does_not_read_holds_up_only_its_writer(box: AsyncSandbox) -> None:
    recorded = await box.start_recorded("sleep 1000", name="deaf")
    writing = asyncio.ensure_future(recorded.write(b"x" * 5_000_000))
    other = await box.start_recorded("cat", name="listening")
    await other.write("heard\n")
    await first(other, b"heard")
    assert not writing.done()
    await recorded.kill()
    with pytest.raises(ExecError):
        await writing


async def test_waiting_is_cancelled_without_a_trace(box: AsyncSandbox) -> None:
    recorded = await box.start_recorded("cat", name="cat")
    for _ in range(20):
        with pytest.raises(TimeoutError, match=r"^still running after 0\.001 s$"):
            await recorded.wait(timeout=0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await first(recorded, b"never")
    await recorded.write("still\n")
    await first(recorded, b"still")


async def test_start_that_fails_leaves_the_name_free(box: AsyncSandbox) -> None:
    with pytest.raises(WorkdirError):
        await box.start_recorded("true", name="n", cwd="/nope")
    assert await box.list_recorded() == []
    recorded = await box.start_recorded("exit 2", name="n", timeout=30)
    assert (await recorded.wait()).exit_code == 2


async def test_reading_on_behind_the_end_ends(box: AsyncSandbox) -> None:
    recorded = await box.start_recorded("echo x", name="short", note=b"first")
    await recorded.wait()
    entries = [entry async for entry in recorded.entries()]
    async with asyncio.timeout(HANG_GUARD_SECONDS):
        assert [entry async for entry in recorded.entries(since=entries[-1].next_offset)] == []
        assert [entry async for entry in recorded.entries(since=entries[-1].next_offset + 999)] == []
    notes = await recorded.notes()
    assert [(note.kind, note.offset) for note in notes] == [("note", 0), ("end", entries[-1].offset)]


async def test_many_records_are_listed(box: AsyncSandbox) -> None:
    names = [f"record {number} {'ü' * 100}" for number in range(60)]
    for name in names:
        await (await box.start_recorded("true", name=name)).wait()
    assert [info.name for info in await box.list_recorded()] == names


async def test_end_of_the_sandbox_is_told(box: AsyncSandbox, backend: EmbeddedBackend) -> None:
    recorded = await box.start_recorded("cat", name="cat")
    waiting = asyncio.ensure_future(recorded.wait())
    following = asyncio.ensure_future(joined(recorded))
    await asyncio.sleep(0)
    await backend.delete(box.id)
    for task in (waiting, following):
        with pytest.raises(SandboxGoneError):
            await task


async def test_record_of_an_owned_sandbox_stays_ours_when_it_is_detached(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    before = await box.start_recorded("cat", name="before")
    await box.detach()
    await box.start_recorded("cat", name="after")
    assert [info.name for info in await box.list_recorded()] == ["before", "after"]
    with pytest.raises(NameTakenError):
        await box.start_recorded("cat", name="before")
    await before.write("x\n")
    await first(await box.find_recorded("before"), b"x")
    await box.kill()


async def test_keeper_survives_what_clients_send(box: AsyncSandbox) -> None:
    await box.start_recorded("cat", name="cat")
    for message in (
        {"op": "record"},
        {"op": "record", "do": "list", "after": "x"},
        {"op": "record", "do": "start", "name": "x"},
        {"op": "record", "do": "start", "name": "x", "limit": 1, "pty": False, "program": 5},
        {"op": "record", "do": "listen", "name": "cat"},
        {"op": "record", "do": "signal", "number": 1, "number_of_signal": []},
        {"op": "record", "do": "note", "name": "cat", "data": "\u1234"},
        {"op": "record", "do": "nonsense", "name": "cat"},
    ):
        answer, descriptors = await box.primitives._ask_keeper(message)
        assert (answer["error"], descriptors) == ("refused", []), message
    assert [info.name for info in await box.list_recorded()] == ["cat"]


async def test_background_child_keeps_neither_record_nor_end_waiting(box: AsyncSandbox) -> None:
    recorded = await box.start_recorded("(while :; do echo late; sleep 0.01; done) & echo done", name="parent")
    assert (await recorded.wait()).exit_code == 0
    size = (await box.list_recorded())[0].next_offset
    assert (await joined(recorded)).startswith((b"done\n", b"late\n"))
    await box.exec("sleep 0.2")
    assert (await box.list_recorded())[0].next_offset == size


async def test_session_is_attached_to_in_the_middle_of_a_flood(box: AsyncSandbox, backend: EmbeddedBackend) -> None:
    session = await box.open_session("work", limit_bytes=1_000_000)
    await session.run("x=1; (exit 4)")
    flood = await session.run("yes", wait=False)
    queued = await session.run("echo $x", wait=False)
    seen = 0
    async for chunk in session.follow(flood.id):
        seen += len(chunk.data)
        if seen > 5_000_000:
            break
    other = await backend.connect(box.id)
    again = await other.find_session("work")
    assert [(c.exit_code, c.begun) for c in await again.commands()] == [(4, True), (None, True), (None, False)]
    async for chunk in again.follow(flood.id):
        assert b"y\n" in chunk.data or b"left out" in chunk.data
        break
    assert (await again.interrupt(flood.id)).exit_code == 130
    assert (await again.wait(queued.id)).exit_code == 0
    assert (await session.logs(queued.id)).output == b"1\n"
    logs = await session.logs(flood.id)
    assert logs.truncated
    assert logs.lost_bytes > 1_000_000
    assert len(logs.output) < 1_500_000
    await other.aclose()


async def test_commands_of_two_handles_are_not_mixed_up(box: AsyncSandbox, backend: EmbeddedBackend) -> None:
    session = await box.open_session("work")
    other = await backend.connect(box.id)
    again = await other.find_session("work")
    runs = [(session, again)[number % 2].run(f"echo n{number}") for number in range(20)]
    commands = await asyncio.gather(*runs)
    outputs = [(await session.logs(command.id)).output for command in commands]
    assert outputs == [f"n{number}\n".encode() for number in range(20)]
    await session.delete()
    with pytest.raises(NotRecordedError):
        await again.run("echo")
    await again.delete()
    await other.aclose()


async def test_keeper_that_is_killed_takes_all_along(box: AsyncSandbox, backend: EmbeddedBackend) -> None:
    recorded = await box.start_recorded("cat", name="cat")
    state = read_state(backend.data_folder / "sandboxes" / box.id)
    assert state is not None
    os.kill(int(state["keeper"]), signal.SIGKILL)
    with pytest.raises(SandboxGoneError):
        await recorded.wait()
    assert wait_until(lambda: not Path(f"/proc/{state['keeper']}").exists())


SMALL_WRITES = """
for number in range(30000):
    print(f"{number:039d}", flush=True)
"""


async def test_small_writes_come_in_few_pieces_recorded_or_not(box: AsyncSandbox) -> None:
    """Each piece costs a turn of a loop, so a piece for each write of a program that prints much is too many."""
    everything = b"".join(b"%039d\n" % number for number in range(30000))
    async with asyncio.timeout(HANG_GUARD_SECONDS):
        process = await box.start(["python3", "-c", SMALL_WRITES])
        pieces = [chunk.data async for chunk in process.output()]
        recorded = await box.start_recorded(["python3", "-c", SMALL_WRITES], name="small")
        await recorded.wait()
        entries = [entry.data async for entry in recorded.entries() if entry.kind == "stdout"]
    assert b"".join(pieces) == everything
    assert b"".join(entries) == everything
    # The first 64 KiB come one by one, for the order of the streams.
    assert len(pieces) < 10_000
    assert len(entries) < 10_000


async def test_what_all_programs_print_is_bounded_by_the_disk_of_the_sandbox(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec(resources=Resources(disk_bytes=2 * 2**20)))
    await box.detach()
    for number in range(4):
        recorded = await box.start_recorded("head -c 1500000 /dev/zero", name=str(number))
        await recorded.wait(timeout=HANG_GUARD_SECONDS)
        assert record_bytes(backend, box.id) <= 2.1 * 2**20
    assert [entry.kind async for entry in recorded.entries(follow=False)][-1] == "end"
    await box.kill()


async def test_first_notes_are_bounded_by_the_disk_of_the_sandbox(backend: EmbeddedBackend) -> None:
    """Notes are never dropped, so those that programs are started with take from the same room as later ones."""
    box = await backend.create(Spec(resources=Resources(disk_bytes=8 << 20)))
    await box.detach()
    note = b"n" * (1 << 20)

    async def start_noted() -> None:
        for number in range(8):
            await box.start_recorded(["true"], name=f"noted {number}", note=note)

    with pytest.raises(ExecError, match="notes"):
        await start_noted()
    assert record_bytes(backend, box.id) < 8 << 20
    assert len(await box.list_recorded()) < 8
    await box.kill()


async def test_text_too_long_for_an_argument_leaves_no_file_behind(backend: EmbeddedBackend) -> None:
    text = f"echo first\n# {'x' * 100_000}\necho last"
    refused = f"if then\n# {'x' * 100_000}"
    async with await backend.create(Spec()) as box:
        async with await box.start(text) as process:
            assert (await process.wait()).stdout == "first\nlast\n"
        with pytest.raises(WorkdirError):
            await box.start(text, cwd="/missing")
        async with await box.start(text, read_only=["/tmp"]) as process:  # its shell can't remove it
            assert (await process.wait()).ok
        assert (await box.exec("ls -A /tmp")).stdout == ""
        await box.detach()
        recorded = await box.start_recorded(text, name="long")
        assert (await recorded.wait(timeout=HANG_GUARD_SECONDS)).ok
        with pytest.raises(WorkdirError):
            await box.start_recorded(text, name="other", cwd="/missing")
        await (await box.start_recorded(text, name="killed")).kill()
        assert (await box.exec("ls -A /tmp")).stdout == ""
        recorded = await box.start_recorded(bash_text(refused), name="refused")
        *output, end = [entry async for entry in recorded.entries()]  # no waiter is left that would clean up
        assert b"script.sh: line 1: syntax error" in b"".join(entry.data for entry in output)
        assert (end.kind, json.loads(end.data)["exit_code"]) == ("end", 2)
        assert (await box.exec("ls -A /tmp")).stdout == ""
        await box.kill()
