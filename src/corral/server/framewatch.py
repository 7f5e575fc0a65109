"""Unfinished websocket frames: what was received of one takes memory, so it is counted, and has a deadline.

The library that parses frames reports whole messages only. This one reads their headers, which have their length. The
clock of a frame stops while the server itself does not read: a terminal's program that takes no input is waited for.
Whole messages that were not handled yet are counted as well.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from aiohttp import web

from corral.server.fairness import Account, Meter
from corral.server.sockets import cut_off

_FREE_BYTES = 8 * 1024
"""How much of a frame is not counted: it is part of the fixed cost of a socket."""
_MESSAGE_BYTES = 64
"""The memory of a message besides its content."""


@runtime_checkable
class Watched(Protocol):
    """A connection whose data can be watched."""

    frames: FrameWatch | None

    @property
    def tail(self) -> bytes:
        """What was received after the upgrade request, before the response."""


def watch_frames(request: web.Request, *, seconds: float, account: Account | None = None) -> FrameWatch | None:
    """From the response to the upgrade on: a frame, or a message in several frames, must arrive within `seconds`.

    With an account, the reader of the messages must call `handled`.
    """
    protocol = request.protocol
    if not isinstance(protocol, Watched):
        return None
    protocol.frames = FrameWatch(request.transport, seconds=seconds, account=account)
    protocol.frames.feed(protocol.tail)
    return protocol.frames


class FrameWatch:
    """How much of an unfinished message was received, and since when. A connection beyond its bounds is cut off."""

    def __init__(self, transport: asyncio.BaseTransport | None, *, seconds: float, account: Account | None) -> None:
        self._transport = transport
        self._seconds = seconds
        self._meter = Meter(account, free_bytes=_FREE_BYTES) if account is not None else None
        self._head = b""
        self._left = 0
        """Bytes of the current frame that are missing."""
        self._final = True
        self._control = False
        self._fragmented = False
        """Whether a message is incomplete: its last frame has not begun."""
        self._held = 0
        """Bytes of the unfinished message."""
        self._unhandled = 0
        """The size of whole messages that were not handled yet."""
        self._deadline: asyncio.TimerHandle | None = None

    def feed(self, data: bytes) -> None:
        """Received data, in order."""
        place = 0
        while place < len(data):
            if self._left:
                taken = min(self._left, len(data) - place)
                place += taken
                self._left -= taken
                self._held += 0 if self._control else taken
                if not self._left:
                    self._end_frame()
                continue
            taken = min(_head_bytes(self._head) - len(self._head), len(data) - place)
            self._head += data[place : place + taken]
            place += taken
            if len(self._head) == _head_bytes(self._head):
                self._begin_frame()
        self._look()

    def handled(self, sizes: Iterable[int]) -> None:
        """Messages of these sizes were handled."""
        self._unhandled = max(0, self._unhandled - sum(size + _MESSAGE_BYTES for size in sizes))
        self._charge()

    def pause(self) -> None:
        """The server stops reading, and so does not notice either when the client disconnects."""
        self._stop_clock()
        self._deadline = asyncio.get_running_loop().call_later(self._seconds, self._look_whether_gone)

    def resume(self) -> None:
        """The server reads again; an unfinished frame gets its full time."""
        self._stop_clock()
        self._look()

    def close(self) -> None:
        """The connection has ended. What was received is held until its call ends, and with that its account."""
        self._stop_clock()

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _begin_frame(self) -> None:
        first, second = self._head[0], self._head[1]
        length = second & 0x7F
        if length >= 126:
            length = int.from_bytes(self._head[2 : 4 if length == 126 else 10], "big")
        self._final, self._control = bool(first & 0x80), bool(first & 0x08)
        self._head = b""
        self._left = length
        if not length:
            self._end_frame()

    def _end_frame(self) -> None:
        if self._control:  # it may come between the frames of a message
            return
        self._fragmented = not self._final
        if self._final:
            self._stop_clock()  # the next one has its own
            if self._meter is not None:
                self._unhandled += self._held + _MESSAGE_BYTES
            self._held = 0

    def _look_whether_gone(self) -> None:
        if self._transport is not None and _has_left(self._transport):
            cut_off(self._transport)
        else:
            self.pause()

    def _look(self) -> None:
        if not (self._left or self._head or self._fragmented):
            self._stop_clock()
        elif self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(self._seconds, cut_off, self._transport)
        self._charge()

    def _charge(self) -> None:
        if self._meter is not None and not self._meter.set(self._held + self._unhandled):
            cut_off(self._transport)


def _has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the client has closed its end, or the connection is broken; found out without reading."""
    plain = transport.get_extra_info("socket")
    if plain is None or plain.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(
        plain.fileno(), getattr(select, "POLLRDHUP", 0)
    )  # macOS lacks it, and reports broken connections only
    return bool(poll.poll(0))


def _head_bytes(head: bytes) -> int:
    """The length of a frame's header, as far as it is known."""
    if len(head) < 2:
        return 2
    length = head[1] & 0x7F
    return 2 + (2 if length == 126 else 8 if length == 127 else 0) + (4 if head[1] & 0x80 else 0)
