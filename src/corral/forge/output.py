"""What a candidate prints: passed on as it arrives, up to a limit, with its beginning and end kept for the result."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any

from corral.base.process import Capture
from corral.results import OutputChunk, StreamName

KEPT_BYTES = 32 * 1024
"""How much of a log stays in memory: a contest may have hundreds of candidates."""
MAX_LINE_CHARACTERS = 8192
"""A longer line is passed on in parts."""
_LEAST_BYTES = 64
"""What a piece counts for, however short: each is an event with a line in the event log."""

Tell = Callable[..., None]
"""tell(kind, **data): an event of one attempt."""


class AttemptLog:
    """The log of one attempt."""

    def __init__(self, tell: Tell, *, limit_bytes: int, kept_bytes: int = KEPT_BYTES) -> None:
        self._tell = tell
        self._room = limit_bytes
        self.total_bytes = 0
        """How much was printed."""
        self._capture = Capture(kept_bytes)
        self._decoders: dict[StreamName, Any] = {}
        self._finished = False

    @property
    def text(self) -> str:
        """The log, without its middle if it is long."""
        return self._capture.combined().decode("utf-8", "replace")

    def take(self, chunk: OutputChunk) -> None:
        """Add a piece of output. After `finish` it is ignored: a forgotten thread may go on printing."""
        if self._finished:
            return
        self._capture.add(chunk.stream, chunk.data)
        self.total_bytes += len(chunk.data)
        if self._room <= 0:
            return
        data = chunk.data[: self._room]
        self._room -= max(len(data), _LEAST_BYTES)
        self._pass_on(chunk.stream, data, final=self._room <= 0)
        if self._room <= 0:
            self._tell("output-cut", bytes=self.total_bytes)

    def say(self, text: str) -> None:
        """Add a line from a function that drives an agent."""
        self.take(OutputChunk("stdout", f"{text}\n".encode("utf-8", "replace")))

    def count(self, total_bytes: int) -> None:
        """Correct the total to what the sandbox counted: it drops a part of a flood before it arrives here."""
        self.total_bytes = max(self.total_bytes, total_bytes)

    def finish(self) -> None:
        """End the log. Half a character at the end is shown as U+FFFD."""
        self._finished = True
        if self._room > 0:
            for stream in list(self._decoders):
                self._pass_on(stream, b"", final=True)

    def _pass_on(self, stream: StreamName, data: bytes, *, final: bool) -> None:
        decoder = self._decoders.setdefault(stream, codecs.getincrementaldecoder("utf-8")("replace"))
        text = decoder.decode(data, final)
        if text:
            self._tell("output", stream=stream, text=text)


class LineSplitter:
    """Makes lines from pieces of text, for each stream separately."""

    def __init__(self) -> None:
        self._pending: dict[str, str] = {}

    def feed(self, stream: str, text: str) -> list[str]:
        """The lines that this text completes; a line beyond `MAX_LINE_CHARACTERS` comes in parts."""
        *lines, rest = (self._pending.get(stream, "") + text).split("\n")
        found = [part for line in lines for part in _cut(line.removesuffix("\r"))]
        *parts, self._pending[stream] = _cut(rest)
        return found + parts

    def finish(self) -> list[str]:
        """The lines that have no end, one for each stream at most."""
        found = [rest for rest in self._pending.values() if rest]
        self._pending.clear()
        return found


def _cut(line: str) -> list[str]:
    return [line[at : at + MAX_LINE_CHARACTERS] for at in range(0, len(line), MAX_LINE_CHARACTERS)] or [""]
