"""Multipart bodies, read and written as streams: no part is ever held whole."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote

from aiohttp import StreamReader

from corral.server.faults import Fault, bad_request

_MAX_HEADER_BYTES = 16 * 1024
_MAX_PREAMBLE_BYTES = 64 * 1024
_BOUNDARY = re.compile(r"""(?i:;\s*boundary)\s*=\s*(?:"([^"\r\n]{1,200})"|([^\s;"]{1,200}))""")
_PARAMETER = re.compile(r""";\s*(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))""")


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its field's name, and its content, which must be read before the next part comes."""

    name: str
    content: AsyncIterator[bytes]

    async def read_text(self, *, max_bytes: int) -> str:
        """The content of a short part. Raises: Fault, 400, if it is longer, or not UTF-8."""
        data = bytearray()
        async for piece in self.content:
            data += piece
            if len(data) > max_bytes:
                raise bad_request(f"field {self.name[:100]!r} is longer than {max_bytes} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise bad_request(f"field {self.name[:100]!r} is not UTF-8") from None


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type names. Raises: Fault, 400, if it is not multipart/form-data."""
    found = _BOUNDARY.search(content_type) if content_type.lower().startswith("multipart/form-data") else None
    if found is None:
        raise bad_request("the body must be multipart/form-data with a boundary")
    return (found[1] or found[2]).encode("latin-1", "replace")


class MultipartReader:
    """The parts of a body, one after the other."""

    def __init__(self, source: StreamReader, *, boundary: bytes, max_parts: int, patience_seconds: float) -> None:
        self._source = source
        self._patience_seconds = patience_seconds
        self._delimiter = b"\r\n--" + boundary
        self._max_parts = max_parts
        # A delimiter begins with a line break, which the first one lacks at the start of the body.
        self._buffer = b"\r\n"

    async def parts(self) -> AsyncIterator[Part]:
        """The parts. Raises: Fault, 400, for a malformed or incomplete body, or too many parts; 408, if it stalls."""
        await self._skip_preamble()
        count = 0
        while await self._begins_part():
            count += 1
            if count > self._max_parts:
                raise bad_request(f"the multipart body has more than {self._max_parts} parts")
            part = Part(await self._read_name(), self._read_content())
            yield part
            async for _ in part.content:  # what the reader has left of it
                pass

    async def _fill(self) -> None:
        try:
            async with asyncio.timeout(self._patience_seconds):
                piece = await self._source.readany()
        except TimeoutError:
            raise Fault(408, "timeout while reading the body") from None
        if not piece:
            raise bad_request("the multipart body is incomplete")
        self._buffer += piece

    async def _skip_preamble(self) -> None:
        while (at := self._buffer.find(self._delimiter)) < 0:
            if len(self._buffer) > _MAX_PREAMBLE_BYTES:
                raise bad_request("the multipart body does not begin with its boundary")
            await self._fill()
        self._buffer = self._buffer[at + len(self._delimiter) :]

    async def _begins_part(self) -> bool:
        """After a delimiter: whether another part follows, or the end."""
        while len(self._buffer) < 2:
            await self._fill()
        if self._buffer.startswith(b"--"):
            return False
        while (at := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _MAX_HEADER_BYTES:
                raise bad_request("malformed multipart body: a boundary line is too long")
            await self._fill()
        if self._buffer[:at].strip(b" \t"):
            raise bad_request("malformed multipart body: unexpected data after a boundary")
        self._buffer = self._buffer[at:]  # the line break stays: without headers, an empty line follows it
        return True

    async def _read_name(self) -> str:
        while (at := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _MAX_HEADER_BYTES:
                raise bad_request("the headers of a part are too large")
            await self._fill()
        headers, self._buffer = self._buffer[:at], self._buffer[at + 2 :]
        for line in headers.decode("utf-8", "replace").split("\r\n"):
            field, _, value = line.partition(":")
            if field.strip().lower() == "content-disposition":
                for found in _PARAMETER.finditer(value):
                    if found[1].lower() == "name":
                        return re.sub(r"\\(.)", r"\1", found[2]) if found[2] is not None else found[3]
        raise bad_request("a part has no name in its Content-Disposition")

    async def _read_content(self) -> AsyncIterator[bytes]:
        keep = len(self._delimiter) - 1
        first = True
        while True:
            at = self._buffer.find(self._delimiter)
            end = at if at >= 0 else max(0, len(self._buffer) - keep)
            start = 2 if first else 0  # the empty line's break, which may also be the delimiter's own
            if end > start:
                piece, self._buffer = self._buffer[start:end], self._buffer[end:]
                first = False
                at = at - end if at >= 0 else at
                yield piece
            if at >= 0:
                self._buffer = self._buffer[at + len(self._delimiter) :]
                return
            await self._fill()


class MultipartFraming:
    """The framing of a multipart answer."""

    def __init__(self) -> None:
        self.boundary = f"corral-{secrets.token_hex(16)}"
        self._first = True

    @property
    def content_type(self) -> str:
        """The answer's Content-Type."""
        return f"multipart/form-data; boundary={self.boundary}"

    def begin(self, *, name: str, filename: str, content_type: str, size: int) -> bytes:
        """What goes before a part's content."""
        line = "" if self._first else "\r\n"
        self._first = False
        # The plain form, as bytes of UTF-8, is for readers that know no other (clients before 0.140); the second says
        # the same for every character.
        plain = filename.encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"', '\\"')
        plain = re.sub(r"[\x00-\x1f\x7f]", "_", plain)
        exact = quote(filename, safe="", encoding="utf-8", errors="surrogateescape")
        return (
            f"{line}--{self.boundary}\r\n"
            f'Content-Disposition: form-data; name="{name}"; filename="{plain}"; filename*=utf-8\'\'{exact}\r\n'
            f"Content-Type: {content_type}\r\nContent-Length: {size}\r\n\r\n"
        ).encode()

    def end(self) -> bytes:
        """What goes after the last part."""
        return f"{'' if self._first else chr(13) + chr(10)}--{self.boundary}--\r\n".encode()
