"""Compressed archives, decompressed piece by piece."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterable, Iterator
from typing import Protocol

from corral.inside.tars.reading import PIECE_BYTES, BrokenArchiveError

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_MAGIC_BYTES = 6


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


class _Gzip:
    """zlib's object with the interface that the other two have."""

    def __init__(self) -> None:
        self._worker = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._worker.eof

    @property
    def needs_input(self) -> bool:
        return not self._worker.unconsumed_tail

    def decompress(self, data: bytes, max_length: int = PIECE_BYTES, /) -> bytes:
        return self._worker.decompress(self._worker.unconsumed_tail + data, max_length)


class Inflater:
    """Decompresses gzip, bzip2 and xz, and passes other streams on; never more than a piece at a time."""

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._kind: str | None = None
        self._worker: _Decompressor | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The content of the next bytes. Raises: BrokenArchiveError."""
        if self._head is not None:
            self._head += data
            if len(self._head) < _MAGIC_BYTES:
                return
            data, self._head = self._head, None
            self._begin(data)
        if self._worker is None:
            yield data
            return
        try:
            while not self._worker.eof:
                piece = self._worker.decompress(data, PIECE_BYTES)
                data = b""
                if piece:
                    yield piece
                elif self._worker.needs_input:
                    return
        except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
            raise BrokenArchiveError(f"the {self._kind} stream is malformed: {error}") from error

    def finish(self) -> bytes:
        """The rest, at the end of the stream. Raises: BrokenArchiveError if it is truncated."""
        if self._worker is not None and not self._worker.eof:
            raise BrokenArchiveError(f"the {self._kind} stream is truncated")
        held, self._head = self._head or b"", None
        return held

    def _begin(self, head: bytes) -> None:
        self._kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
        if self._kind == "gzip":
            self._worker = _Gzip()
        elif self._kind is not None:
            self._worker = bz2.BZ2Decompressor() if self._kind == "bzip2" else lzma.LZMADecompressor()


class Inflated:
    """Reads a stream of pieces, decompressed. `read` raises BrokenArchiveError."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = _inflate(pieces)
        self._piece = b""
        self._used = 0

    def read(self, size: int) -> bytes:
        """So many bytes, fewer only at the end."""
        found: list[bytes] = []
        while size:
            while self._used == len(self._piece):
                piece = next(self._pieces, None)
                if piece is None:
                    return b"".join(found)
                self._piece, self._used = piece, 0
            found.append(self._piece[self._used : self._used + size])
            self._used += len(found[-1])
            size -= len(found[-1])
        return b"".join(found)


def _inflate(pieces: Iterable[bytes]) -> Iterator[bytes]:
    inflater = Inflater()
    for data in pieces:
        yield from inflater.feed(data)
    yield inflater.finish()
