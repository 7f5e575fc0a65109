"""Keeping output: both streams, their order, and never more than was allowed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from corral.results import OutputChunk, StreamName

_MAX_SEGMENTS = 10_000
"""So many separate pieces are kept of a stream. A program that alternates between the streams byte by byte must not
make us hold a hundred times what it printed: beyond this, pieces are joined, and only the order suffers."""
_SEGMENT_BYTES = 64 * 1024
"""A piece that is so large gets no longer: dropping whole pieces from the front costs nothing, and cutting does."""

_FREE_BYTES = 16 * 1024
"""So much of a stream is kept without asking: the last words of a program are never too much."""
_BLOCK_BYTES = 64 * 1024
_PART_BYTES, _PARTS = 160, 100
"""What a piece costs beside its bytes, and for how many of them the allowance is asked at a time. Where it has no room,
pieces are joined as well."""
_LEAST_BYTES = 4096
"""A reader of a stream may always take so much: less than a packet of a pipe can't be read without losing the rest."""


class Allowance(Protocol):
    """Where many share one process: who may keep how much output. Given back by whoever set it, as a whole."""

    def take(self, count: int) -> bool:
        """Keep so many bytes more, if there is room for them now. From any thread."""

    def ask(self, count: int, answer: Callable[[bool], None]) -> None:
        """Keep so many bytes more when there is room: `answer` is called once, from any thread, perhaps at once.

        False means that there was none for a long time, or that the bytes are of no more use.
        """


ALLOWANCE: ContextVar[Allowance | None] = ContextVar("ALLOWANCE", default=None)
"""The allowance of the call that is being served. A program waits for it, as for any reader that is slow; if it waits
in vain, it runs on, and the middle of its output is cut out earlier than its limit says."""


@dataclass(slots=True)
class _Segment:
    position: int
    stream: StreamName
    data: bytearray


@dataclass(slots=True)
class _Stream:
    """One stream: its beginning and its end, with the middle dropped when it is too long."""

    head_limit: int
    tail_limit: int
    granted: int = _FREE_BYTES
    total: int = 0
    dropped: int = 0
    head_bytes: int = 0
    tail_bytes: int = 0
    head: list[_Segment] = field(default_factory=list)
    tail: deque[_Segment] = field(default_factory=deque)

    @property
    def kept(self) -> int:
        return self.head_bytes + self.tail_bytes

    @property
    def limit(self) -> int:
        return self.head_limit + self.tail_limit


class Capture:
    """Output of one program, bounded. Of a stream beyond the limit, the first and the last half are kept."""

    def __init__(self, limit_bytes: int, *, waits: bool = False) -> None:
        """A capture that `waits` keeps a piece that its allowance has no room for, and is then `short`."""
        head = limit_bytes // 2
        self._streams: dict[StreamName, _Stream] = {
            "stdout": _Stream(head, limit_bytes - head),
            "stderr": _Stream(head, limit_bytes - head),
        }
        self._position = 0
        self._last: _Segment | None = None
        self._waits = waits
        self._parts = _PARTS
        """So many pieces may be kept by themselves before the allowance is asked again."""
        self.allowance = ALLOWANCE.get()

    def add(self, stream: StreamName, data: bytes) -> None:
        """Take a piece."""
        state = self._streams[stream]
        state.total += len(data)
        if self.allowance is not None:
            self._take_allowance(state, len(data), self.allowance)
            if not self._waits:
                self._cut(state, len(data))
        room = state.head_limit - state.head_bytes
        if room > 0:
            first = data[:room]
            self._append(state.head, stream, first)
            state.head_bytes += len(first)
            data = data[room:]
        if data:
            self._append(state.tail, stream, data)
            state.tail_bytes += len(data)
            self._trim(state)

    def room(self, stream: StreamName) -> int | None:
        """How much more of a stream is best read at once; None if it does not matter."""
        state = self._streams[stream]
        if self.allowance is None or not self._waits or state.granted >= state.limit:
            return None
        self._take_allowance(state, _LEAST_BYTES, self.allowance)
        return max(state.granted - state.kept, _LEAST_BYTES)

    @property
    def short(self) -> int:
        """How much is kept that the allowance had no room for, and is waited for."""
        if not self._waits:
            return 0
        return sum(max(0, state.kept - state.granted) for state in self._streams.values())

    def grant(self, count: int) -> None:
        """The allowance has room for so much of what it was short of."""
        for state in self._streams.values():
            more = min(count, max(0, state.kept - state.granted))
            state.granted += more
            count -= more

    def stop_waiting(self) -> None:
        """From now on what the allowance has no room for is cut out, and so is what is kept beyond it."""
        self._waits = False
        for state in self._streams.values():
            self._cut(state, 0)

    @staticmethod
    def _take_allowance(state: _Stream, more: int, allowance: Allowance) -> None:
        """Before so many bytes more are kept."""
        wanted = min(state.kept + more, state.limit)
        while state.granted < wanted and allowance.take(_BLOCK_BYTES):
            state.granted += _BLOCK_BYTES

    def _cut(self, state: _Stream, more: int) -> None:
        """What may not be kept is not: the limits become what is granted already."""
        if state.granted >= min(state.kept + more, state.limit):
            return
        state.head_limit = min(state.head_limit, max(state.head_bytes, state.granted // 2))
        state.tail_limit = min(state.tail_limit, max(state.granted - state.head_limit, _FREE_BYTES))
        self._trim(state)

    def _append(self, where: list[_Segment] | deque[_Segment], stream: StreamName, data: bytes) -> None:
        joins = where and where[-1] is self._last and len(where[-1].data) < _SEGMENT_BYTES
        if joins or (where and (len(where) >= _MAX_SEGMENTS or not self._may_part())):
            where[-1].data += data
            return
        self._position += 1
        self._last = _Segment(self._position, stream, bytearray(data))
        where.append(self._last)

    def _may_part(self) -> bool:
        """Whether a piece may be kept by itself; its bytes alone are not what it costs."""
        if self.allowance is None:
            return True
        if not self._parts and self.allowance.take(_PARTS * _PART_BYTES):
            self._parts = _PARTS
        may, self._parts = self._parts > 0, max(0, self._parts - 1)
        return may

    @staticmethod
    def _trim(state: _Stream) -> None:
        excess = state.tail_bytes - state.tail_limit
        while excess > 0:
            first = state.tail[0]
            cut = min(excess, len(first.data))
            if cut == len(first.data):
                state.tail.popleft()
            else:
                del first.data[:cut]
            state.dropped += cut
            state.tail_bytes -= cut
            excess -= cut

    @property
    def truncated(self) -> bool:
        """Whether anything was dropped."""
        return any(state.dropped for state in self._streams.values())

    def total(self, stream: StreamName) -> int:
        """How much the program printed, kept or not."""
        return self._streams[stream].total

    def stream(self, stream: StreamName) -> bytes:
        """What is kept of one stream, with a line where the middle is missing."""
        return b"".join(segment.data for segment in _with_marker(self._streams[stream], stream))

    def combined(self) -> bytes:
        """What is kept of both, in the order it was written."""
        return b"".join(segment.data for segment in self._in_order())

    @property
    def only_stream(self) -> StreamName | None:
        """The one stream that anything was printed to, if the other is silent."""
        printed = [name for name, state in self._streams.items() if state.total]
        return printed[0] if len(printed) == 1 else None

    def chunks(self) -> list[OutputChunk]:
        """What is kept, piece by piece, in order."""
        return [OutputChunk(segment.stream, bytes(segment.data)) for segment in self._in_order()]

    def _in_order(self) -> list[_Segment]:
        segments = [segment for name, state in self._streams.items() for segment in _with_marker(state, name)]
        return sorted(segments, key=lambda segment: segment.position)


def _with_marker(state: _Stream, stream: StreamName) -> list[_Segment]:
    if not state.dropped:
        return [*state.head, *state.tail]
    text = f"\n[corral: {state.dropped} bytes of {stream} left out]\n".encode()
    kept = state.tail or state.head[-1:]  # neither, if nothing was to be kept
    position = kept[0].position if kept else 0
    return [*state.head, _Segment(position, stream, bytearray(text)), *state.tail]
