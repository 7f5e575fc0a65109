"""Requests to a process that is busy, stopped or frozen: only their own callers wait."""

import asyncio
import contextlib
import errno
import os
import socket

import pytest

from corral.backends.embedded import seam
from corral.backends.embedded.files import AgentClient, EmbeddedFiles
from corral.engine import wire
from corral.engine.client import ask
from corral.engine.errors import ExhaustedError, GoneError
from support.leftovers import nothing_left_open


@pytest.fixture
def full() -> tuple[socket.socket, socket.socket]:
    """Our end, for which the kernel takes no more messages, and the other, which reads none."""
    ours, theirs = wire.make_pair()
    with contextlib.suppress(BlockingIOError):
        while True:
            wire.send(ours, {"op": "before"}, wait=False)
    theirs.setblocking(False)
    return ours, theirs


def take_all(sock: socket.socket) -> list[wire.Message]:
    """What lies there; answered with an empty message if it asks for an answer."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while (received := wire.receive(sock)) is not None:
            message, descriptors = received
            found.append(message)
            if descriptors:
                with socket.socket(fileno=descriptors.pop(0)) as answer:
                    wire.send(answer, {"ok": True})
            wire.close_all(descriptors)
    return found


async def test_many_may_wait_for_one_that_does_not_listen(full: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = full
    with ours, theirs, nothing_left_open():
        asking = [asyncio.ensure_future(seam.ask(ours, {"op": str(number)})) for number in range(30)]
        for _ in range(20):
            await asyncio.sleep(0)  # with a call that waits in the kernel, this would be the end
        assert not any(task.done() for task in asking)
        asking.pop().cancel()
        heard: list[wire.Message] = []
        async with asyncio.timeout(60):
            while not all(task.done() for task in asking):
                heard += take_all(theirs)
                await asyncio.sleep(0)
        heard += take_all(theirs)
        assert {message["op"] for message in heard} == {"before", *map(str, range(29))}
        for task in asking:
            assert await seam.answer(task.result()) == {"ok": True}
        await asyncio.sleep(0)


async def test_who_waits_learns_that_the_other_is_gone(full: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = full
    with ours:
        asking = asyncio.ensure_future(seam.ask(ours, {"op": "x"}))
        await asyncio.sleep(0)
        theirs.close()
        with pytest.raises(GoneError):
            await asking


async def test_an_upload_to_a_frozen_disk_waits_by_itself() -> None:
    """The file is replaced by a pipe without a reader: each write blocks in the kernel, as on a frozen disk."""
    ours, theirs = wire.make_pair()

    async def open_agent() -> socket.socket:
        return ours

    async def ping() -> None:
        return None

    taken = 0

    async def content():  # type: ignore[no-untyped-def]
        nonlocal taken
        for _ in range(10):
            taken += 1
            yield b"x" * 100_000

    agent = AgentClient(sandbox_id="s", open_agent=open_agent, ping=ping, ensure_open=lambda: None)
    files = EmbeddedFiles(agent, workdir="/", sandbox_id="s", guard=lambda: None, disk_bytes=lambda: 1 << 30)
    reader, writer = os.pipe()
    with theirs:
        writing = asyncio.ensure_future(files.write("/file", content()))
        message, (answer,) = await seam.receive(theirs)
        assert message["op"] == "write_stream"
        with socket.socket(fileno=answer) as sock:
            wire.send(sock, {"opened": True}, (writer,))
            os.close(writer)
            await asyncio.to_thread(os.read, reader, 1)  # the thread has begun; the rest of its piece has no room
            for _ in range(50):
                await asyncio.sleep(0)
            assert (taken, writing.done()) == (1, False)
            read = asyncio.ensure_future(asyncio.to_thread(read_all, reader))
            assert (await seam.receive(sock))[0] == {"commit": True}
            wire.send(sock, {"ok": True})
            assert await writing == 1_000_000
            assert await read == 999_999
    files.close()


def read_all(descriptor: int) -> int:
    """Read until the other end is closed everywhere; gives the number of bytes."""
    with os.fdopen(descriptor, "rb") as file:
        return len(file.read())


class Crowded(socket.socket):
    """A socket for whose user too many descriptors are on their way."""

    def sendmsg(self, *_args: object) -> int:  # type: ignore[override]  # as the kernel answers, whatever is sent
        raise OSError(errno.ETOOMANYREFS, "Too many references")


async def test_what_is_used_up_here_is_not_taken_for_the_end_of_the_other_side() -> None:
    plain, theirs = wire.make_pair()
    with (
        Crowded(fileno=plain.detach()) as ours,
        theirs,
        nothing_left_open(),
        pytest.raises(ExhaustedError, match="too many file descriptors"),
    ):
        await seam.ask(ours, {"op": "ping"})


def test_a_request_that_must_not_wait_says_that_the_other_side_is_busy(
    full: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = full
    with ours, theirs, nothing_left_open(), pytest.raises(BlockingIOError):
        ask(ours, {"op": "destroy"}, (), wait=False)
