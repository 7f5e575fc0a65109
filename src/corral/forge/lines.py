"""From pieces of output to whole lines, bounded whatever a program prints."""

from __future__ import annotations

import codecs

MAX_LINE_CHARACTERS = 8192
"""A longer line is passed on in parts."""


class LineSplitter:
    """Collects the two streams of a program apart, and gives lines as they are complete."""

    def __init__(self, *, limit: int) -> None:
        self._left = limit
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._pending: dict[str, str] = {}

    @property
    def full(self) -> bool:
        """Whether the limit is reached, and nothing more comes out."""
        return self._left <= 0

    def feed(self, stream: str, data: bytes) -> list[str]:
        """The lines that these bytes complete."""
        data = data[: max(0, self._left)]
        self._left -= len(data)
        if stream not in self._decoders:
            self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        return self._cut(stream, self._pending.get(stream, "") + self._decoders[stream].decode(data))

    def finish(self) -> list[str]:
        """What is left: lines without an end."""
        found: list[str] = []
        for stream, decoder in self._decoders.items():
            found += self._cut(stream, self._pending.get(stream, "") + decoder.decode(b"", final=True))
            if rest := self._pending.pop(stream, ""):
                found.append(rest)
        return found

    def _cut(self, stream: str, text: str) -> list[str]:
        *lines, rest = text.split("\n")
        found = [line.removesuffix("\r") for line in lines]
        while len(rest) > MAX_LINE_CHARACTERS:
            found.append(rest[:MAX_LINE_CHARACTERS])
            rest = rest[MAX_LINE_CHARACTERS:]
        self._pending[stream] = rest
        return [part for line in found for part in _parts(line)]


def _parts(line: str) -> list[str]:
    return [line[at : at + MAX_LINE_CHARACTERS] for at in range(0, len(line), MAX_LINE_CHARACTERS)] or [""]
