"""Where the body of an HTTP message ends: measures for `pump`. Pure."""

from __future__ import annotations

import re
from typing import Final

from corral.network.heads import AnswerHead, MalformedHeadError, RequestHead

_MAX_LINE_BYTES: Final = 4096
_MAX_TRAILER_BYTES: Final = 16 * 1024
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})")
_SIZE_AND_MORE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\xff]*)?")
_TRAILER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t\x20-\x7e\x80-\xff]*")
_NO_TRAILERS: Final = frozenset((b"content-length", b"transfer-encoding", b"host", b"connection", b"trailer"))


class CountedBody:
    """So many bytes."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.done = size == 0

    def take(self, piece: memoryview) -> int:
        """As `pump.Measure`."""
        used = min(len(piece), self._left)
        self._left -= used
        self.done = self._left == 0
        return used


class ChunkedBody:
    """Chunks, up to the last one and its trailers. Strictly, as is said for requests: nothing after a size, no trailer
    that belongs into the head, and every line end as it should be."""

    def __init__(self, *, strict: bool) -> None:
        self.done = False
        self._strict = strict
        self._left = 0
        self._line = bytearray()
        self._trailer_bytes = 0
        self._step = self._read_size

    def take(self, piece: memoryview) -> int:
        """As `pump.Measure`. Raises: MalformedHeadError."""
        position, size = 0, len(piece)
        while position < size and not self.done:
            if self._left:
                used = min(self._left, size - position)
                self._left -= used
                position += used
                continue
            position = self._take_line(piece, position)
        return position

    def _take_line(self, piece: memoryview, position: int) -> int:
        """Read on in a line; returns where it ends. In a long chunk, that is two bytes of a piece."""
        found = bytes(piece[position : position + _MAX_LINE_BYTES]).find(b"\n")
        end = min(len(piece), position + _MAX_LINE_BYTES) if found < 0 else position + found + 1
        self._line += piece[position:end]
        if len(self._line) > _MAX_LINE_BYTES:
            raise MalformedHeadError("a line that is too long")
        if found >= 0:
            if not self._line.endswith(b"\r\n"):
                raise MalformedHeadError("a line end that is not one")
            line = bytes(self._line[:-2])
            self._line.clear()
            self._step(line)
        return end

    def _read_size(self, line: bytes) -> None:
        matched = (_SIZE if self._strict else _SIZE_AND_MORE).fullmatch(line)
        if matched is None:
            raise MalformedHeadError("not the size of a chunk")
        self._left = int(matched[1], 16)
        self._step = self._read_end_of_chunk if self._left else self._read_trailer

    def _read_end_of_chunk(self, line: bytes) -> None:
        if line:
            raise MalformedHeadError("bytes after a chunk")
        self._step = self._read_size

    def _read_trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if not line:
            self.done = True
            return
        matched = _TRAILER.fullmatch(line)
        if self._trailer_bytes > _MAX_TRAILER_BYTES:
            raise MalformedHeadError("too many trailers")
        if self._strict and (matched is None or matched[1].lower() in _NO_TRAILERS):
            raise MalformedHeadError("a trailer that is not one")


Body = CountedBody | ChunkedBody


def measure_request(head: RequestHead) -> Body:
    """The body of a request."""
    return ChunkedBody(strict=True) if head.is_chunked else CountedBody(head.content_length or 0)


def measure_answer(head: AnswerHead, *, method: str) -> Body | None:
    """The body of an answer to such a request; None if it goes on until the end of the connection.

    Raises: MalformedHeadError.
    """
    if method == "HEAD" or head.status < 200 or head.status in (204, 304):
        return CountedBody(0)
    codings = [coding.strip().lower() for value in head.values("transfer-encoding") for coding in value.split(",")]
    if codings:
        return ChunkedBody(strict=False) if codings == ["chunked"] else None
    lengths = {length.strip() for value in head.values("content-length") for length in value.split(",")}
    if not lengths:
        return None
    if len(lengths) > 1 or not (length := lengths.pop()).isascii() or not length.isdigit() or len(length) > 18:
        raise MalformedHeadError("not a length")
    return CountedBody(int(length))
