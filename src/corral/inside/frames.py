"""The frames between a host and the agent inside: a kind, a number, a length, and so many bytes.

To the agent (the number is that of a program, 0 for the agent itself):

| kind | content |
|---|---|
| `S` | start a program: JSON, see `inside.agent.job` |
| `I`, `J` | input, `J` compressed |
| `E` | end of input |
| `G` | a signal for its process group: 4 bytes |
| `R` | the terminal's new size: rows and columns, 2 bytes each |
| `K` | end it with all that it started: the reason |
| `Z` | end the processes that it left running |
| `A` | bytes of output that the host has read: 8 bytes |
| `P` (0) | ping |
| `D` (0) | the host detaches |
| `O` (0) | the host owns the programs here: JSON, see `Agent.own` |
| `L` (0) | Python text whose functions `S` may name as a `task` |

From the agent:

| kind | content |
|---|---|
| `H` | the agent runs; the number is its pid, the content `z` if it takes compressed input |
| `s` | started: JSON with `pid` |
| `f` | not started: JSON with `error` and `text` |
| `o`, `e`, `O`, `E` | output and error output, `O` and `E` compressed |
| `k` | bytes beyond the limit that were dropped from a stream: JSON with `stream` and `bytes` |
| `w` | bytes of input that the program has read: 4 bytes |
| `c` | the program takes no more input |
| `x` | ended: JSON with `code`, `signal`, `reason`, `wall`, `cpu`, `peak` |
| `z` | nothing of the program is left running |
| `P` (0) | an answer to `P` |
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

try:
    import zlib
except ImportError:  # a Python may be built without it
    zlib = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = struct.Struct(">cII")
WINDOW_BYTES = 1024 * 1024
"""How many unacknowledged bytes of a program's output, and of its input, may be on their way."""
MAX_FRAME_BYTES = 64 * 1024 * 1024
PIECE_BYTES = 64 * 1024
"""The most that a frame of output or input holds."""
HAS_ZLIB = zlib is not None
_WORTH_BYTES = 2048
_PLAIN_FRAMES = 16
"""After a piece that did not become smaller, so many pieces are not compressed."""


def pack(kind: bytes, number: int, data: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(kind, number, len(data)) + data


def unpack(data: bytes) -> bytes:
    """The content of a compressed frame. Raises: ValueError, zlib.error if it is malformed or more than a piece."""
    inflating = zlib.decompressobj()
    content = inflating.decompress(data, PIECE_BYTES)
    if not inflating.eof:
        raise ValueError("more than a piece")
    return content


class Packer:
    """Compresses the pieces of one stream if that makes them smaller: terminals and some networks are slow."""

    def __init__(self) -> None:
        self._plain = 0

    def pack(self, data: bytes) -> bytes | None:
        """The compressed piece; None if it should be sent as it is."""
        if not HAS_ZLIB or len(data) < _WORTH_BYTES:
            return None
        if self._plain:
            self._plain -= 1
            return None
        small = zlib.compress(data, 1)
        if len(small) < len(data) * 3 // 4:
            return small
        self._plain = _PLAIN_FRAMES
        return None


class Parser:
    """Cuts a stream of bytes into frames of at most `most` bytes: the sender may be hostile."""

    def __init__(self, most: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._most = most

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """The frames that are complete now. Raises: ValueError for one that is too long."""
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self._buffer)
            if size > self._most:
                raise ValueError("a frame is too long")
            if len(self._buffer) < HEAD.size + size:
                return
            content = bytes(self._buffer[HEAD.size : HEAD.size + size])
            del self._buffer[: HEAD.size + size]
            yield kind, number, content
