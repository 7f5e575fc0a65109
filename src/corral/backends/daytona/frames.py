"""The frames between us and what runs inside: a kind, a call's number, a length, and so many bytes."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HEAD = struct.Struct(">cII")
WINDOW_BYTES = 1024 * 1024
"""So many bytes of input may be on their way to a program before it takes them; output has the same on its side."""
MAX_FRAME_BYTES = 64 * 1024 * 1024
PIECE_BYTES = 64 * 1024
"""So many bytes go in one message of the websocket."""
_WORTH_BYTES = 2048
_PLAIN_FRAMES = 16


_HERE = Path(__file__).parent
_PARTS = ("insidetree.py", "insidecall.py", "inside.py")
_FUTURE = "from __future__ import annotations\n"
_OURS = re.compile(r"^from corral\.[^\n]+ import (\([^)]*\)|[^\n]*)\n", re.MULTILINE)


@cache
def agent_text() -> bytes:
    """What is sent inside: the parts one after the other, without their imports of each other."""
    texts = [(_HERE / part).read_text(encoding="utf-8").replace(_FUTURE, "") for part in _PARTS]
    return (_FUTURE + "".join(_OURS.sub("", text) for text in texts)).encode()


def pack(kind: bytes, number: int, data: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(kind, number, len(data)) + data


def unpack(data: bytes) -> bytes:
    """A compressed frame's content. Raises: ValueError, zlib.error for what inflates beyond a frame's size."""
    inflating = zlib.decompressobj()
    content = inflating.decompress(data, PIECE_BYTES)
    if not inflating.eof:
        raise ValueError("more than a piece")
    return content


class Packer:
    """Compresses the pieces of one stream, unless they don't become smaller."""

    def __init__(self) -> None:
        self._plain = 0

    def pack(self, data: bytes) -> bytes | None:
        """Less, or None."""
        if len(data) < _WORTH_BYTES:
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
    """From bytes as they come to whole frames. What comes is hostile: a frame is bounded."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Whole frames. Raises: ValueError for what can't be one."""
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self._buffer)
            if size > MAX_FRAME_BYTES:
                raise ValueError("a frame is too long")
            if len(self._buffer) < HEAD.size + size:
                return
            content = bytes(self._buffer[HEAD.size : HEAD.size + size])
            del self._buffer[: HEAD.size + size]
            yield kind, number, content
