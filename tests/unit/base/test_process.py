"""ProcessBase: fed from any thread, waited for in any loop."""

import asyncio
import threading
from typing import Any

import pytest

from corral.base.process import BACKLOG_BYTES, AsyncProcess, Ending, as_bytes
from corral.errors import ExecError, SandboxGoneError
from corral.protocol import SpawnRequest
from corral.results import EndReason, Usage


class Scripted(AsyncProcess):
    """A program that does what the test says."""

    def __init__(self, limit: int = 10_000, *, listened: bool = False) -> None:
        super().__init__(
            SpawnRequest(
                argv=("x",), env={}, cwd="/", user="x", timeout=None, stdin=True, output_limit_bytes=limit,
                listened=listened,
            ),
            sandbox_id="id",
        )  # fmt: skip
        self.asked: list[EndReason] = []
        self.resumed = 0

    async def _write(self, data: bytes) -> bool:
        return False

    async def close_stdin(self) -> None:
        """Nothing to close."""

    async def _signal(self, number: int) -> None:
        """Nobody to signal."""

    def end_tree(self, reason: EndReason) -> None:
        self.asked.append(reason)
        self.finish(Ending(137, reason, Usage(1.0), signal=9))

    def resume_reading(self) -> None:
        self.resumed += 1


DONE = Ending(3, "exited", Usage(1.0))


async def read(process: AsyncProcess) -> bytes:
    return b"".join([chunk.data async for chunk in process.output()])


async def test_everything_is_read_and_told() -> None:
    process = Scripted()
    reader = asyncio.ensure_future(read(process))
    await asyncio.sleep(0)
    process.feed("stdout", b"one ")
    process.feed("stderr", b"two")
    process.finish(DONE)
    assert await reader == b"one two"
    result = await process.wait()
    assert (result.exit_code, result.stdout, result.stderr, result.output) == (3, "one ", "two", "one two")


async def test_late_reader_gets_what_was_kept() -> None:
    process = Scripted(limit=1000)
    process.feed("stdout", b"x" * 5000)
    process.finish(DONE)
    kept = await read(process)
    assert b"left out" in kept
    assert len(kept) < 1200


async def test_only_the_first_end_counts() -> None:
    process = Scripted()
    process.finish(DONE)
    process.finish(SandboxGoneError("late"))
    process.end_tree("cancelled")
    assert (await process.wait()).exit_code == 3


async def test_timeout_is_124_whatever_the_backend_says() -> None:
    process = Scripted()
    process.end_tree("timeout")
    result = await process.wait()
    assert (result.exit_code, result.reason, result.signal) == (124, "timeout", 9)


async def test_waiting_may_time_out_and_be_cancelled_without_harm() -> None:
    process = Scripted()
    with pytest.raises(TimeoutError, match=r"^still running after 0\.01 s$"):
        await process.wait(timeout=0.01)
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not process.ended
    process.finish(DONE)
    assert (await process.wait()).exit_code == 3


async def test_lost_sandbox_is_raised_to_all() -> None:
    process = Scripted()
    reader = asyncio.ensure_future(read(process))
    waiting = [asyncio.ensure_future(process.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    process.finish(SandboxGoneError("gone"))
    for task in (reader, *waiting):
        with pytest.raises(SandboxGoneError):
            await task
    await process.aclose()


async def test_closing_ends_it_once() -> None:
    process = Scripted()
    async with process:
        pass
    await process.aclose()
    assert process.asked == ["cancelled"]


async def test_reader_that_lags_is_told_and_catches_up() -> None:
    process = Scripted(limit=1000)
    stream = process.output()
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not process.feed("stdout", b"x")
    await first
    assert process.feed("stdout", b"y" * (BACKLOG_BYTES + 1))
    before = process.resumed
    await anext(stream)
    assert process.resumed > before
    await stream.aclose()  # type: ignore[attr-defined]
    assert not process.feed("stdout", b"z" * (BACKLOG_BYTES + 1)), "nobody lags when nobody reads"


def test_fed_from_a_thread_and_read_in_loop_after_loop() -> None:
    process = Scripted()

    async def first() -> bytes:
        stream = process.output()
        threading.Timer(0.01, process.feed, ("stdout", b"one")).start()
        data = (await anext(stream)).data
        await stream.aclose()  # type: ignore[attr-defined]
        return data

    assert asyncio.run(first()) == b"one"
    threading.Timer(0.01, process.finish, (DONE,)).start()
    assert asyncio.run(process.wait()).exit_code == 3
    assert asyncio.run(read(process)) == b"one"


def test_reader_of_a_closed_loop_harms_nobody() -> None:
    process = Scripted()

    async def leave() -> object:
        stream = process.output()
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        task.cancel()
        return stream

    kept = asyncio.run(leave())
    process.feed("stdout", b"x")
    process.finish(DONE)
    assert asyncio.run(process.wait()).stdout == "x"
    del kept


def test_input_is_bytes_or_text() -> None:
    assert as_bytes("ü\udcff") == b"\xc3\xbc\xff"
    assert as_bytes(bytearray(b"x")) == b"x"
    with pytest.raises(ExecError):
        as_bytes(5)  # type: ignore[arg-type]


async def test_reader_that_was_announced_misses_nothing_however_late_it_comes() -> None:
    process = Scripted(limit=100, listened=True)
    for _ in range(50):
        process.feed("stdout", b"x" * 100)
    process.finish(DONE)
    assert len(await read(process)) == 5000
    assert len(await read(process)) < 5000  # a second one finds what was kept


async def test_small_pieces_are_handed_on_together_and_wake_a_reader_once(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Scripted(limit=100_000, listened=True)
    reader = process.output().__aiter__()
    loop, wakings = asyncio.get_running_loop(), []
    call = loop.call_soon_threadsafe

    def count(*args: Any, **options: Any) -> asyncio.Handle:
        wakings.append(args)
        return call(*args, **options)

    first = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    for number in range(1000):
        process.feed("stdout", b"%04d\n" % number)
    process.feed("stderr", b"other")
    assert len(wakings) == 1
    assert (await first).data == b"".join(b"%04d\n" % number for number in range(1000))
    assert (await anext(reader)).data == b"other"
    process.finish(DONE)
    await reader.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_reader_whose_loop_is_closed_holds_up_no_program() -> None:
    made: list[Scripted] = []

    async def start() -> None:
        made.append(Scripted(limit=100, listened=True))

    thread = threading.Thread(target=lambda: asyncio.run(start()))
    thread.start()
    thread.join()
    assert not made[0].feed("stdout", b"x" * (2 * BACKLOG_BYTES))
