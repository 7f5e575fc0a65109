"""Keeping output: both streams, their order, and never more than was allowed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from corral.results import OutputChunk, StreamName

_SEGMENT_COST_BYTES = 64
"""What a separate piece costs besides its bytes: a program that alternates between the streams byte by byte must not
make us hold a hundred times what it printed."""


@dataclass(slots=True)
class _Segment:
    position: int
    stream: StreamName
    data: bytearray


@dataclass(slots=True)
class _Stream:
    """One stream: its beginning and its end, with the middle dropped when it is too long."""

    half: int
    total: int = 0
    kept_head: int = 0
    cost_head: int = 0
    cost_tail: int = 0
    head: list[_Segment] = field(default_factory=list)
    tail: deque[_Segment] = field(default_factory=deque)
    dropped: int = 0


class Capture:
    """Output of one program, bounded. Of a stream beyond the limit, the first and the last half are kept."""

    def __init__(self, limit_bytes: int) -> None:
        half = max(1, limit_bytes // 2)
        self._segment_cost = min(_SEGMENT_COST_BYTES, half // 64)
        self._streams: dict[StreamName, _Stream] = {"stdout": _Stream(half), "stderr": _Stream(half)}
        self._position = 0
        self._last: _Segment | None = None

    def add(self, stream: StreamName, data: bytes) -> None:
        """Take a piece."""
        state = self._streams[stream]
        state.total += len(data)
        room = state.half - state.cost_head
        if room > 0 and not state.tail:
            # The first piece is taken whole or in part even if its cost would not fit: a limit of 1 byte keeps 1 byte.
            taken = data[: max(1, room)]
            self._append(state.head, stream, taken)
            state.cost_head += len(taken)
            state.kept_head += len(taken)
            if self._last is not None and len(self._last.data) == len(taken):
                state.cost_head += min(self._segment_cost, max(0, state.half - state.cost_head))
            data = data[len(taken) :]
        if not data:
            return
        new = self._append(state.tail, stream, data)
        state.cost_tail += len(data) + (self._segment_cost if new else 0)
        self._trim(state)

    def _append(self, where: list[_Segment] | deque[_Segment], stream: StreamName, data: bytes) -> bool:
        """True if a new segment had to be begun."""
        if self._last is not None and where and where[-1] is self._last and self._last.stream == stream:
            self._last.data += data
            return False
        self._position += 1
        segment = _Segment(self._position, stream, bytearray(data))
        where.append(segment)
        self._last = segment
        return True

    def _trim(self, state: _Stream) -> None:
        while state.cost_tail > state.half and state.tail:
            first = state.tail[0]
            excess = state.cost_tail - state.half
            if len(first.data) <= excess and len(state.tail) > 1:
                state.tail.popleft()
                state.dropped += len(first.data)
                state.cost_tail -= len(first.data) + self._segment_cost
                continue
            cut = min(excess, max(0, len(first.data) - 1))
            if cut == 0:
                break
            del first.data[:cut]
            state.dropped += cut
            state.cost_tail -= cut

    @property
    def truncated(self) -> bool:
        """Whether anything was dropped."""
        return any(state.dropped for state in self._streams.values())

    def total(self, stream: StreamName) -> int:
        """How much the program printed, kept or not."""
        return self._streams[stream].total

    def stream(self, stream: StreamName) -> bytes:
        """What is kept of one stream, with a line where the middle is missing."""
        state = self._streams[stream]
        return b"".join(bytes(segment.data) for segment in self._with_marker(state, stream))

    def combined(self) -> bytes:
        """What is kept of both, in the order it was written."""
        segments = [segment for name, state in self._streams.items() for segment in self._with_marker(state, name)]
        segments.sort(key=lambda segment: segment.position)
        return b"".join(bytes(segment.data) for segment in segments)

    def chunks(self) -> list[OutputChunk]:
        """What is kept, piece by piece, in order."""
        segments = [segment for name, state in self._streams.items() for segment in self._with_marker(state, name)]
        segments.sort(key=lambda segment: segment.position)
        return [OutputChunk(segment.stream, bytes(segment.data)) for segment in segments]

    @staticmethod
    def _with_marker(state: _Stream, stream: StreamName) -> list[_Segment]:
        if not state.dropped:
            return [*state.head, *state.tail]
        text = f"\n[corral: {state.dropped} bytes of {stream} left out]\n".encode()
        position = state.tail[0].position if state.tail else 0
        return [*state.head, _Segment(position, stream, bytearray(text)), *state.tail]
