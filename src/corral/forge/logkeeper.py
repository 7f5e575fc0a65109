"""What a candidate prints: passed on as it comes, up to a limit, and its beginning and end kept for the result."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any

from corral.base.output import Capture
from corral.results import OutputChunk, StreamName

KEPT_BYTES = 32 * 1024
"""How much of a log stays in memory: there may be hundreds of candidates."""
_LEAST_BYTES = 64
"""What a piece counts for, however short: each is an event with a line in the log."""

Tell = Callable[..., None]
"""tell(kind, **data): an event of one attempt."""


class LogKeeper:
    """The log of one attempt."""

    def __init__(self, tell: Tell, *, limit_bytes: int) -> None:
        self._tell = tell
        self._room = limit_bytes
        self._total = 0
        self._capture = Capture(KEPT_BYTES)
        self._decoders: dict[StreamName, Any] = {}
        self._finished = False

    @property
    def total_bytes(self) -> int:
        """How much was printed."""
        return self._total

    @property
    def text(self) -> str:
        """Beginning and end."""
        return self._capture.combined().decode("utf-8", "replace")

    def take(self, chunk: OutputChunk) -> None:
        """A piece of output. Nothing more is taken after the end: a forgotten thread may go on talking."""
        if self._finished:
            return
        self._capture.add(chunk.stream, chunk.data)
        self._total += len(chunk.data)
        if self._room <= 0:
            return
        data = chunk.data[: self._room]
        self._room -= max(len(data), _LEAST_BYTES)
        self._pass_on(chunk.stream, data, final=self._room <= 0)
        if self._room <= 0:
            self._tell("output-cut", bytes=self._total)

    def say(self, text: str) -> None:
        """A line of ours, or of a function that drives an agent."""
        self.take(OutputChunk("stdout", f"{text}\n".encode("utf-8", "replace")))

    def count(self, total_bytes: int) -> None:
        """What whoever ran the program has counted: of a flood, a part may have been dropped before it came here."""
        self._total = max(self._total, total_bytes)

    def finish(self) -> None:
        """No more will come: half characters are shown as what they are."""
        self._finished = True
        if self._room > 0:
            for stream in list(self._decoders):
                self._pass_on(stream, b"", final=True)

    def _pass_on(self, stream: StreamName, data: bytes, *, final: bool) -> None:
        decoder = self._decoders.setdefault(stream, codecs.getincrementaldecoder("utf-8")("replace"))
        text = decoder.decode(data, final)
        if text:
            self._tell("output", stream=stream, text=text)
