"""Tar streams, read and written piece by piece, in whatever event loop asks. What comes from inside is hostile."""

from __future__ import annotations

import bz2
import lzma
import tarfile
import zlib
from collections.abc import AsyncIterable, AsyncIterator
from typing import Protocol

from corral.errors import SandboxFileError

_BLOCK = 512
_PIECE = 256 * 1024
_MAX_EXTENSION_BYTES = 1024 * 1024
"""A long name or a set of extended fields is never larger."""
_WITHOUT_CONTENT = (
    tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE,
)  # fmt: skip
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class BrokenArchiveError(Exception):
    """Not a tar, or one that was cut short."""


class Bytes:
    """A stream of which so many bytes can be asked for."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = aiter(stream)
        self._rest = b""

    async def read_some(self, limit: int) -> bytes:
        """At most so many, nothing at the end."""
        while not self._rest:
            try:
                self._rest = await anext(self._stream)
            except StopAsyncIteration:
                return b""
        piece, self._rest = self._rest[:limit], self._rest[limit:]
        return piece

    async def read(self, size: int) -> bytes:
        """Exactly so many; fewer only at the end."""
        pieces, missing = [], size
        while missing and (piece := await self.read_some(missing)):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)


class Member:
    """One file of a tar, whose content is still to come."""

    def __init__(self, info: tarfile.TarInfo, source: Bytes) -> None:
        self.info = info
        self._source = source
        self._left = 0 if info.type in _WITHOUT_CONTENT else info.size
        self._padding = -self._left % _BLOCK

    async def pieces(self) -> AsyncIterator[bytes]:
        """The content. Raises: BrokenArchiveError when it was cut short."""
        while self._left:
            piece = await self._source.read_some(min(self._left, _PIECE))
            if not piece:
                raise BrokenArchiveError("the archive was cut short")
            self._left -= len(piece)
            yield piece

    async def read(self) -> bytes:
        """All of it. Raises: as `pieces`."""
        return b"".join([piece async for piece in self.pieces()])

    async def finish(self) -> None:
        """Go to the next one's beginning."""
        async for _ in self.pieces():
            pass
        padding, self._padding = self._padding, 0
        if padding and len(await self._source.read(padding)) < padding:
            raise BrokenArchiveError("the archive was cut short")


async def read_members(stream: AsyncIterable[bytes], *, several: bool = False) -> AsyncIterator[Member]:
    """The members of a tar, each to be read before the next is asked for. `several`: tars one after the other.

    Raises:
        BrokenArchiveError: not a tar, or cut short.
    """
    source = Bytes(stream)
    extended: dict[str, str] = {}
    while block := await source.read(_BLOCK):
        if len(block) < _BLOCK:
            raise BrokenArchiveError("the archive was cut short")
        if not any(block):
            if not several:
                return
            continue
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise BrokenArchiveError(f"not a tar: {error}") from error
        member = Member(info, source)
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
            extended |= await _read_extension(member)
            continue
        _apply(info, extended)
        extended = {}
        member = Member(info, source)
        yield member
        await member.finish()
    if not several:
        raise BrokenArchiveError("the archive has no end")


async def _read_extension(member: Member) -> dict[str, str]:
    if member.info.size > _MAX_EXTENSION_BYTES:
        raise BrokenArchiveError("a name in the archive is too long")
    content = await member.read()
    await member.finish()
    if member.info.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": _decode(content.split(b"\0")[0])}
    if member.info.type == tarfile.GNUTYPE_LONGLINK:
        return {"linkpath": _decode(content.split(b"\0")[0])}
    if member.info.type == tarfile.XGLTYPE:
        return {}
    return _parse_extended(content)


def _parse_extended(content: bytes) -> dict[str, str]:
    """Records `LENGTH KEY=VALUE\\n`."""
    fields: dict[str, str] = {}
    while content:
        digits, _, _ = content.partition(b" ")
        if not digits.isdigit() or not len(digits) < int(digits) <= len(content):
            raise BrokenArchiveError("the archive has a broken extended header")
        key, _, value = content[len(digits) + 1 : int(digits) - 1].partition(b"=")
        fields[_decode(key)] = _decode(value)
        content = content[int(digits) :]
    return fields


def _apply(info: tarfile.TarInfo, fields: dict[str, str]) -> None:
    info.name = fields.get("path", info.name)
    info.linkname = fields.get("linkpath", info.linkname)
    if (size := fields.get("size", "")).isdigit():
        info.size = int(size)
    if any(key.startswith("GNU.sparse") for key in fields):
        raise BrokenArchiveError("the archive has sparse files, which are not read here")


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


# Compressed archives.


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


async def decompress(stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """What a stream holds, plain or as gzip, bzip2 or xz; never more than a piece at a time, whatever is in it.

    Raises:
        BrokenArchiveError: compressed, and broken.
    """
    source = Bytes(stream)
    head = await source.read(6)
    kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    if kind is None:
        yield head
        while piece := await source.read_some(_PIECE):
            yield piece
        return
    try:
        async for piece in _inflate(kind, head, source):
            yield piece
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        if isinstance(error, SandboxFileError):
            raise
        raise BrokenArchiveError(f"the {kind} stream is broken: {error}") from error


async def _inflate(kind: str, head: bytes, source: Bytes) -> AsyncIterator[bytes]:
    if kind == "gzip":
        unzip = zlib.decompressobj(wbits=31)
        data = head
        while not unzip.eof:
            yield unzip.decompress(data, _PIECE)
            data = unzip.unconsumed_tail
            if not data and not (data := await source.read_some(_PIECE)) and not unzip.eof:
                raise BrokenArchiveError("the gzip stream was cut short")
        return
    worker: _Decompressor = bz2.BZ2Decompressor() if kind == "bzip2" else lzma.LZMADecompressor()
    data = head
    while not worker.eof:
        piece = worker.decompress(data, _PIECE)
        data = b""
        yield piece
        if not piece and not worker.eof and not (data := await source.read_some(_PIECE)):
            raise BrokenArchiveError(f"the {kind} stream was cut short")


# What is laid down inside.


class Checked:
    """A tar stream with plain members only, all below one folder; counts them.

    Raises, while it is read:
        BrokenArchiveError: broken.
        SandboxFileError: a member that leads out of the folder.
    """

    def __init__(self, stream: AsyncIterable[bytes], *, path: str) -> None:
        self._stream = stream
        self._path = path
        self._links: set[tuple[str, ...]] = set()
        self.count = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for member in read_members(decompress(self._stream)):
            info = member.info
            if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
                continue  # a FIFO or device means nothing elsewhere
            parts = self._check(info.name, last_may_be_link=True)
            plain = tarfile.TarInfo("/".join(parts) or ".")
            plain.type = tarfile.REGTYPE if info.isreg() else info.type
            plain.mode, plain.mtime, plain.size = info.mode & 0o7777, info.mtime, info.size if info.isreg() else 0
            if info.issym():
                plain.linkname = info.linkname
                self._links.add(parts)
            elif info.islnk():
                plain.linkname = "/".join(self._check(info.linkname, last_may_be_link=False))
            else:
                self._links.discard(parts)
            self.count += 1
            yield plain.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            async for piece in member.pieces():
                yield piece
            yield bytes(-plain.size % _BLOCK)
        yield bytes(2 * _BLOCK)

    def _check(self, name: str, *, last_may_be_link: bool) -> tuple[str, ...]:
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        on_the_way = range(1, len(parts) + (not last_may_be_link))
        if ".." in parts or any(parts[:count] in self._links for count in on_the_way):
            raise SandboxFileError(f"{name!r} leads out of {self._path}", path=self._path, op="unpack")
        return parts
