"""Reads a session's record: which output belongs to which command, and how each command ended. Pure.

The session's shell prints a mark on both streams where a command begins and where it ends; output between two marks
belongs to that command. Later output of a background child is added to it until the next command begins. A mark
contains the session's nonce, so a program can't print one by chance.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

from corral.results import StreamName
from corral.sessions.record import Entry

_FENCE = b"\x1e"
_MAX_MARK = 96
_UNKNOWN_CODE = -1
"""The code of a command whose end was lost with dropped output."""
_BOTH: frozenset[StreamName] = frozenset(("stdout", "stderr"))
_COMMAND_BYTES = 1024
"""About how much memory the state of a command takes, besides its text."""
KEPT_BYTES = 4 * 1024 * 1024
"""How much memory the commands of a session may take. The oldest ended ones are forgotten first."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the record, interpreted."""

    kind: Literal["output", "begin", "end", "lost"]
    command: str | None
    stream: StreamName = "stdout"
    data: bytes = b""
    number: int = 0
    """The exit code of an `end`, the bytes of a `lost`."""


class Demux:
    """Splits the streams of the shell by command. Can be copied, to read a part again."""

    __slots__ = ("_lead", "_owner", "_pending")  # there is a copy for each command

    def __init__(self, lead: bytes, pending: dict[StreamName, bytes], owner: dict[StreamName, str | None]) -> None:
        self._lead = lead
        self._pending = pending
        self._owner = owner

    @classmethod
    def with_nonce(cls, nonce: str) -> Demux:
        """To read a record from its beginning."""
        return cls(_FENCE + nonce.encode() + b" ", {"stdout": b"", "stderr": b""}, {"stdout": None, "stderr": None})

    def copy(self) -> Demux:
        """A copy that continues from here."""
        return Demux(self._lead, dict(self._pending), dict(self._owner))

    def feed(self, stream: StreamName, data: bytes) -> list[Piece]:
        """Read the next bytes of a stream."""
        data = self._pending[stream] + data
        self._pending[stream] = b""
        pieces: list[Piece] = []
        start = 0
        while True:
            at = data.find(self._lead, start)
            if at < 0:
                held = self._held(data, start)
                self._output(pieces, stream, data[start : len(data) - held])
                self._pending[stream] = data[len(data) - held :]
                return pieces
            close = data.find(_FENCE, at + 1, at + _MAX_MARK)
            if close < 0 and len(data) - at < _MAX_MARK:
                self._output(pieces, stream, data[start:at])
                self._pending[stream] = data[at:]
                return pieces
            mark = self._read(stream, data[at + len(self._lead) : close]) if close >= 0 else None
            if mark is None:
                self._output(pieces, stream, data[start : at + 1])
                start = at + 1
                continue
            self._output(pieces, stream, data[start:at])
            if mark.kind == "begin":
                self._owner[stream] = mark.command
            pieces.append(mark)
            start = close + 1

    def flush(self) -> list[Piece]:
        """The end of the streams: what looked like the beginning of a mark is output."""
        pieces: list[Piece] = []
        for stream, data in self._pending.items():
            self._output(pieces, stream, data)
            self._pending[stream] = b""
        return pieces

    def lose(self, number: int, owner: str | None) -> list[Piece]:
        """Output is missing here. What follows counts as output of `owner`, until the next mark."""
        pieces = self.flush()
        self._owner = {"stdout": owner, "stderr": owner}
        return [*pieces, Piece("lost", owner, number=number)]

    def _held(self, data: bytes, start: int) -> int:
        """How many bytes at the end may be the beginning of a mark."""
        at = data.find(_FENCE, max(start, len(data) - len(self._lead) + 1))
        while at >= 0:
            if self._lead.startswith(data[at:]):
                return len(data) - at
            at = data.find(_FENCE, at + 1)
        return 0

    def _output(self, pieces: list[Piece], stream: StreamName, data: bytes) -> None:
        if data:
            pieces.append(Piece("output", self._owner[stream], stream, data))

    @staticmethod
    def _read(stream: StreamName, text: bytes) -> Piece | None:
        words = text.decode("ascii", "replace").split(" ")
        if len(words) == 2 and words[0] == "b":
            return Piece("begin", words[1], stream)
        if len(words) == 3 and words[0] == "e" and words[2].isdecimal() and len(words[2]) <= 3:
            return Piece("end", words[1], stream, number=int(words[2]))
        return None


@dataclass(slots=True)
class CommandState:
    """The state of one command, as far as the record tells it."""

    id: str
    text: str
    at: float
    takes_input: bool
    input_echo: bool
    noted: int
    """The offset of its note in the record."""
    start: tuple[int, Demux] | None = None
    """Where its output begins, and the demultiplexer's state there."""
    ends: frozenset[StreamName] = frozenset()
    exit_code: int | None = None
    lossy: bool = False
    """True if some of its output was dropped, perhaps with a mark."""
    sealed: bool = False
    """True if its end is in a note."""

    @property
    def memory_bytes(self) -> int:
        """About how much memory it takes."""
        return _COMMAND_BYTES + sys.getsizeof(self.text)

    @property
    def begun(self) -> bool:
        """True if the shell has started it."""
        return self.start is not None

    @property
    def ended(self) -> bool:
        """True if it has ended."""
        return self.exit_code is not None and len(self.ends) == 2


class Transcript:
    """The state of a session, read from its record."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.about: dict[str, Any] = {}
        self.commands: dict[str, CommandState] = {}
        """The commands that are not forgotten, oldest first."""
        self.waiting: dict[str, CommandState] = {}
        """Those of them that have not ended."""
        self.memory_bytes = 0
        """About how much memory they take."""
        self._unsealed: dict[str, CommandState] = {}
        self.end: dict[str, Any] | None = None
        """How the shell ended."""
        self._demux: Demux | None = None

    def feed(self, entry: Entry) -> None:
        """Read the next entry; one that was read before is skipped."""
        if entry.offset < self.next_offset:
            return
        gap, self.next_offset = entry.offset - self.next_offset, entry.next_offset
        if gap and self._demux is not None:
            self._lose(gap, entry)
        if entry.kind == "note":
            self._hear(entry.content, entry)
        elif entry.kind == "end":
            self._finish(entry.content)
        elif self._demux is not None:
            before = self._demux.copy()
            for piece in self._demux.feed(entry.kind, entry.data):
                self._take(piece, entry, before)

    def unsealed(self) -> list[tuple[str, int]]:
        """Exit codes that are only in the output, to be noted: notes stay when output is dropped."""
        return [(told.id, told.exit_code) for told in self._unsealed.values() if told.exit_code is not None]

    def _hear(self, note: dict[str, Any], entry: Entry) -> None:
        if "session" in note:
            self.about = note["session"]
            self._demux = Demux.with_nonce(self.about["nonce"])
        if "command" in note:
            asked = note["command"]
            told = self.commands[asked["id"]] = self.waiting[asked["id"]] = CommandState(
                id=asked["id"],
                text=asked["text"],
                at=entry.at,
                takes_input=bool(asked["input"]),
                input_echo=bool(asked["echo"]),
                noted=entry.offset,
            )
            self.memory_bytes += told.memory_bytes
        for command_id, code in note.get("ended", ()):
            self._end(command_id, int(code))
            if command_id in self.commands:
                self.commands[command_id].sealed = True
                self._unsealed.pop(command_id, None)
        if self.memory_bytes > KEPT_BYTES:
            self._forget()

    def _forget(self) -> None:
        """Forget the oldest ended commands, several at a time."""
        for told in list(self.commands.values()):
            if not (told.ended and told.sealed) or self.memory_bytes <= KEPT_BYTES * 3 // 4:
                return
            del self.commands[told.id]
            self.memory_bytes -= told.memory_bytes

    def _lose(self, gap: int, entry: Entry) -> None:
        assert self._demux is not None
        told = next(iter(self.waiting.values()), None)
        if told is not None:
            told.lossy = True
            if told.start is None:
                # Its first mark is lost, probably with its output: it begins with the gap.
                told.start = entry.offset - gap, self._demux.copy()
        self._demux.lose(gap, None if told is None else told.id)

    def _take(self, piece: Piece, entry: Entry, before: Demux) -> None:
        told = self.commands.get(piece.command or "")
        if told is None:
            return
        if piece.kind == "begin":
            told.start = told.start or (entry.offset, before)
            self._end_before(told)
        elif piece.kind == "end":
            told.ends |= frozenset(ended_streams(piece, lossy=told.lossy))
            if told.exit_code is None:
                told.exit_code = piece.number
            if told.start is None:
                told.start = told.noted, before  # its beginning was dropped: its output begins after the note
            if told.ended:
                self._end_before(told)
                self._note_end(told)

    def _end_before(self, last: CommandState) -> None:
        """Commands run one after the other: end those that started before this one, even if their mark was lost."""
        for told in list(self.waiting.values()):
            if told.noted >= last.noted:
                return
            if told.begun and not told.ended:
                self._end(told.id, _UNKNOWN_CODE if told.exit_code is None else told.exit_code)

    def _end(self, command_id: str, code: int) -> None:
        told = self.commands.get(command_id)
        if told is not None and not told.ended:
            told.exit_code = code
            self._note_end(told)

    def _note_end(self, told: CommandState) -> None:
        told.ends = _BOTH
        self.waiting.pop(told.id, None)
        if not told.sealed:
            self._unsealed[told.id] = told

    def _finish(self, end: dict[str, Any]) -> None:
        self.end = end
        for told in list(self.waiting.values()):
            if told.begun:
                self._end(told.id, end["exit_code"] if told.exit_code is None else told.exit_code)


def ended_streams(piece: Piece, *, lossy: bool) -> tuple[StreamName, ...]:
    """The streams of a command that end with this mark. The mark on stderr is written last, but may be read, and
    dropped, before the rest of stdout."""
    return ("stdout", "stderr") if lossy and piece.stream == "stdout" else (piece.stream,)
