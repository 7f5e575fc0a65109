"""Records in memory: bounded, for listeners in any event loop."""

import asyncio
import threading

import pytest

from corral.base.process import Ending
from corral.errors import ExecError, InvalidCommandError, NameTakenError, NotRecordedError, SandboxGoneError
from corral.results import OutputChunk, Usage
from corral.sessions.record import MAX_NOTES_BYTES
from corral.sessions.records import MemoryLog, RecordBook, check_name
from corral.spec import check_count

END = Ending(exit_code=3, reason="exited", usage=Usage(0.0))


async def read(log: MemoryLog, *, since: int = 0, follow: bool = False) -> list[bytes]:
    return [entry.data async for entry in log.entries(since=since, follow=follow)]


async def test_oldest_output_is_dropped_and_notes_stay() -> None:
    log = MemoryLog(100_000)
    log.add_note(b"first")
    for number in range(1000):
        log.add_output(OutputChunk("stdout", f"{number:1000d}".encode()))
    log.add_note(b"last")
    entries = [entry async for entry in log.entries(since=0, follow=False)]
    assert (entries[0].data, entries[-1].data, entries[-2].data.strip()) == (b"first", b"last", b"999")
    assert sum(len(entry.data) for entry in entries) < 100_000
    assert log.bounds() == (0, entries[-1].next_offset)
    assert [note.data for note in log.notes()] == [b"first", b"last"]
    offsets = [entry.offset for entry in entries]
    assert offsets == sorted(offsets)


async def test_single_letters_cost_what_they_cost() -> None:
    log = MemoryLog(100_000)
    for _ in range(50_000):
        log.add_output(OutputChunk("stderr", b"x"))
    assert len(await read(log)) < 1000


async def test_large_piece_is_taken_apart() -> None:
    log = MemoryLog(200_000)
    log.add_output(OutputChunk("stdout", b"x" * 1_000_000))
    kept = b"".join(await read(log))
    assert 100_000 < len(kept) <= 200_000


async def test_listener_is_woken_from_another_thread_and_another_loop() -> None:
    log = MemoryLog()
    found: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(read(log, follow=True))))
    thread.start()
    here = asyncio.ensure_future(read(log, follow=True))
    await asyncio.sleep(0)
    await asyncio.to_thread(log.add_output, OutputChunk("stdout", b"one"))
    await asyncio.to_thread(log.finish, END)
    ended = b'{"exit_code": 3, "reason": "exited", "signal": null}'
    assert await here == [b"one", ended]
    await asyncio.to_thread(thread.join)
    assert found == [[b"one", ended]]


async def test_listener_whose_loop_has_gone_harms_nobody() -> None:
    log = MemoryLog()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(log, follow=True), 0.01)

    await asyncio.to_thread(asyncio.run, give_up())
    log.add_output(OutputChunk("stdout", b"one"))
    assert await read(log) == [b"one"]


async def test_sandbox_that_is_gone_is_told_to_those_who_follow() -> None:
    log = MemoryLog()
    log.add_output(OutputChunk("stdout", b"one"))
    log.finish(SandboxGoneError("gone"))
    log.finish(END)
    assert await read(log) == [b"one"]
    with pytest.raises(SandboxGoneError):
        await read(log, follow=True)


def test_notes_are_bounded() -> None:
    log = MemoryLog()
    log.add_note(bytes(MAX_NOTES_BYTES // 2))
    with pytest.raises(ExecError):
        log.add_note(bytes(MAX_NOTES_BYTES // 2))
    log.finish(END)
    with pytest.raises(ExecError):
        log.add_note(b"late")


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\0b", None])
def test_impossible_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidCommandError):
        check_name(name)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_impossible_limits_are_refused(limit: int) -> None:
    with pytest.raises(InvalidCommandError):
        check_count(limit, what="limit_bytes", error=InvalidCommandError)


def test_name_is_held_while_its_program_starts() -> None:
    book = RecordBook()
    book.claim("one")
    with pytest.raises(NameTakenError):
        book.claim("one")
    with pytest.raises(NotRecordedError):
        book.find("one")
    assert book.list() == ()
    book.drop("one")
    book.claim("one")


@pytest.mark.parametrize("name", ["", "a/b\n", "x" * 197, 5])
def test_the_name_that_was_given_is_refused_and_not_the_one_with_the_prefix(name: str) -> None:
    with pytest.raises(InvalidCommandError) as refused:
        check_name(name, prefix="pty:")
    assert refused.value.message.startswith(f"{name!r:.80} is not a valid name")
    assert refused.value.hint == "give 1 to 196 printable characters"


def test_a_prefix_is_part_of_the_name() -> None:
    assert check_name("x" * 196, prefix="pty:") == "pty:" + "x" * 196
