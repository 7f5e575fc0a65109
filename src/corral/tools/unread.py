"""Reading a record in pieces: as much as fits, without losing the rest, and never half a character."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from corral.sessions.record import Entry

_MOST_SEEN_BYTES = 4 * 1024 * 1024
"""The most that one reading looks at: a program may print faster than we read."""
_MAX_TAIL_BYTES = 3
"""An incomplete UTF-8 character has at most this many bytes."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a command was read: a position in its record, and output before it that was not returned yet."""

    position: int = 0
    rest: tuple[tuple[str, bytes], ...] = ()
    waiting: bool = False
    """True if there is more to read at once; half a character does not count."""


class Reading:
    """One reading of a record: as much as fits, and where to continue."""

    def __init__(self, mark: Mark, *, max_bytes: int, newest: bool) -> None:
        self.lost_bytes = 0
        self._position = mark.position
        self._most = max_bytes
        self._newest = newest
        self._pieces = list(mark.rest)
        self._size = sum(len(data) for _, data in self._pieces)
        self._seen = 0
        self._waiting = False
        self._rest: list[tuple[str, bytes]] = []

    def take(self, entry: Entry) -> bool:
        """Take an entry; False if there is no room for it."""
        if self._seen > _MOST_SEEN_BYTES or (self._size > self._most and not self._newest):
            self._waiting = True
            return False
        # The record drops its oldest output; a gap shows how much.
        self.lost_bytes += max(0, entry.offset - self._position)
        self._position = entry.next_offset
        if entry.kind in ("stdout", "stderr"):
            self._seen += len(entry.data)
            self._size += len(entry.data)
            self._pieces.append((entry.kind, entry.data))
            while self._newest and self._size - len(self._pieces[0][1]) >= self._most:
                self._drop_first(len(self._pieces[0][1]))
        return True

    def finish(self, *, whole: bool) -> Mark:
        """Cut the output to size; returns where to continue. Unless `whole`, half a character waits for its rest."""
        if self._newest and self._size > self._most:
            self._drop_first(self._size - self._most)
        while self._size > self._most:
            kind, data = self._pieces.pop()
            keep = max(0, len(data) - (self._size - self._most))
            self._size -= len(data) - keep
            self._rest.insert(0, (kind, data[keep:]))
            if keep:
                self._pieces.append((kind, data[:keep]))
        waiting = self._waiting or bool(self._rest)
        if not whole or waiting:
            for kind in ("stdout", "stderr"):
                self._hold_back(kind)
        return Mark(self._position, tuple(self._rest), waiting)

    def _drop_first(self, count: int) -> None:
        kind, data = self._pieces.pop(0)
        self._size -= count
        self.lost_bytes += count
        if count < len(data):
            self._pieces.insert(0, (kind, data[count:]))

    def _hold_back(self, kind: str) -> None:
        last = next((index for index in reversed(range(len(self._pieces))) if self._pieces[index][0] == kind), None)
        if last is None:
            return
        data = self._pieces[last][1]
        tail = _count_open_bytes(data)
        if tail > 0 and self._most > _MAX_TAIL_BYTES:  # if not even one character fits, reading would never advance
            self._pieces[last] = (kind, data[: len(data) - tail])
            self._rest.insert(0, (kind, data[len(data) - tail :]))

    def join(self, *kinds: str) -> bytes:
        return b"".join(data for kind, data in self._pieces if kind in kinds)


def _count_open_bytes(data: bytes) -> int:
    """How many bytes at the end are an incomplete UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_MAX_TAIL_BYTES:])
    return len(decoder.getstate()[0])
