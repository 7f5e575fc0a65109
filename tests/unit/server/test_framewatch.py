"""Frames that begin and never end."""

import asyncio
import socket
import struct

import pytest

from corral.server.fairness import Budget
from corral.server.framewatch import FrameWatch


class Wire(asyncio.Transport):
    """A connection that only knows whether it was cut, and its socket."""

    cut = False
    plain: socket.socket | None = None

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.plain if name == "socket" else default

    def abort(self) -> None:
        self.cut = True


def frame(data: bytes, *, opcode: int = 2, final: bool = True, size: int | None = None) -> bytes:
    """As a client sends it."""
    length = len(data) if size is None else size
    head = bytes([opcode | (0x80 if final else 0)])
    if length < 126:
        head += bytes([0x80 | length])
    elif length < 65536:
        head += bytes([0x80 | 126]) + struct.pack("!H", length)
    else:
        head += bytes([0x80 | 127]) + struct.pack("!Q", length)
    return head + b"mask" + data


@pytest.mark.parametrize("step", [1, 3, 7, 100_000])
async def test_whole_messages_cost_nothing_however_they_come(step: int) -> None:
    budget, wire = Budget(100_000), Wire()
    parts = [frame(b"x"), frame(b""), frame(b"y" * 300), frame(b"z" * 70_000), frame(b"p", opcode=9)]
    parts += [frame(b"a" * 200, final=False), frame(b"ping", opcode=9), frame(b"b" * 200, opcode=0)]
    stream = b"".join(parts)
    with budget.account("k") as account:
        watch = FrameWatch(wire, seconds=0.0, account=account)
        for start in range(0, len(stream), step):
            watch.feed(stream[start : start + step])
        watch.handled([1, 0, 300, 70_000, 400])
        assert budget.held("k") == 0
        await asyncio.sleep(0)
        assert wire.cut is False, "nothing is unfinished, so no deadline is set"
        watch.close()


async def test_an_unfinished_message_is_counted_and_has_a_deadline() -> None:
    budget, wire = Budget(100_000), Wire()
    with budget.account("k") as account:
        watch = FrameWatch(wire, seconds=0.0, account=account)
        watch.feed(frame(b"a" * 20_000, final=False))
        watch.feed(frame(b"b" * 20_000, opcode=0, size=60_000))
        assert 30_000 < budget.held("k") <= 40_000
        assert wire.cut is False
        while not wire.cut:
            await asyncio.sleep(0.001)
        watch.close()
    assert budget.held("k") == 0


async def test_more_than_the_key_may_hold_cuts_the_connection() -> None:
    budget, wire = Budget(30_000), Wire()
    with budget.account("k") as account:
        watch = FrameWatch(wire, seconds=60.0, account=account)
        watch.feed(frame(b"a" * 20_000, size=100_000))
        assert wire.cut is False
        watch.feed(b"a" * 40_000)
        assert wire.cut is True
        watch.close()


async def test_a_frame_that_has_come_whole_is_not_held_against_the_next() -> None:
    wire = Wire()
    watch = FrameWatch(wire, seconds=3600.0, account=None)
    whole = frame(b"a" * 1000)
    watch.feed(whole[:500])
    first = watch._deadline
    watch.feed(whole[500:] + whole[:500])  # a busy client's bytes never stop at the end of a frame
    assert first is not None
    assert first.cancelled()
    assert watch._deadline is not None, "the new one has its own"
    watch.close()


async def test_while_we_do_not_read_no_frame_is_too_slow() -> None:
    wire = Wire()
    watch = FrameWatch(wire, seconds=0.0, account=None)
    watch.feed(frame(b"a" * 10, size=100))
    watch.pause()
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert wire.cut is False
    watch.resume()
    while not wire.cut:
        await asyncio.sleep(0.001)
    watch.close()


async def test_whole_messages_are_counted_until_they_are_handled() -> None:
    budget, wire = Budget(100_000), Wire()
    with budget.account("k") as account:
        watch = FrameWatch(wire, seconds=60.0, account=account)
        watch.feed(frame(b"a" * 30_000) + frame(b"ping", opcode=9) + frame(b"b" * 30_000))
        assert 50_000 < budget.held("k") <= 61_000
        watch.handled([30_000])
        assert 20_000 < budget.held("k") <= 31_000
        watch.handled([30_000])
        assert budget.held("k") == 0
        watch.feed(frame(b"c" * 60_000) + frame(b"d" * 60_000))
        assert wire.cut is True
        watch.close()
    assert budget.held("k") == 0


async def test_a_client_that_leaves_while_we_do_not_read_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = Wire()
        wire.plain = ours
        watch = FrameWatch(wire, seconds=0.0, account=None)
        theirs.send(b"more than we read")
        watch.pause()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert wire.cut is False
        theirs.close()
        while not wire.cut:
            await asyncio.sleep(0.001)
        watch.close()
