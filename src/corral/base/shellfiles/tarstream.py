"""Reads and writes tar streams piece by piece. Streams from inside are hostile."""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import AsyncIterable, AsyncIterator

from corral.errors import SandboxFileError
from corral.inside.tars.inflating import Inflater
from corral.inside.tars.reading import BLOCK, PIECE_BYTES, BrokenArchiveError, Member, next_member

_TYPES = {
    "file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE,
}  # fmt: skip
_ZEROS = bytes(PIECE_BYTES)


class Bytes:
    """A stream that is read by numbers of bytes."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = aiter(stream)
        self._rest = memoryview(b"")

    async def read_some(self, limit: int) -> bytes:
        """At most so many bytes; empty at the end."""
        while not self._rest:
            try:
                self._rest = memoryview(await anext(self._stream))
            except StopAsyncIteration:
                return b""
        piece, self._rest = bytes(self._rest[:limit]), self._rest[limit:]
        return piece

    async def read(self, size: int) -> bytes:
        """Exactly so many bytes; fewer only at the end."""
        pieces, missing = [], size
        while missing and (piece := await self.read_some(missing)):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)


class StreamedMember:
    """One file of a tar, whose content was not read yet."""

    def __init__(self, about: Member, source: Bytes) -> None:
        self.about = about
        self._source = source
        self._stored = self._stored_pieces()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The content, with holes as zeros. Raises: BrokenArchiveError if it is cut short."""
        position = 0
        async for offset, piece in self._stored:
            while position < offset:
                yield (zeros := _ZEROS[: offset - position])
                position += len(zeros)
            yield piece
            position += len(piece)
        while position < self.about.size:
            yield (zeros := _ZEROS[: self.about.size - position])
            position += len(zeros)

    async def read(self) -> bytes:
        """The whole content. Raises: as `pieces`."""
        return b"".join([piece async for piece in self.pieces()])

    async def finish(self) -> None:
        """Skip to the start of the next member."""
        async for _ in self._stored:
            pass

    async def _stored_pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        for begin, length in self.about.segments:
            offset, end = begin, begin + length
            while offset < end:
                piece = await self._source.read_some(min(end - offset, PIECE_BYTES))
                if not piece:
                    raise BrokenArchiveError("the archive is truncated")
                yield offset, piece
                offset += len(piece)
        if len(await self._source.read(self.about.padding)) < self.about.padding:
            raise BrokenArchiveError("the archive is truncated")


async def read_members(stream: AsyncIterable[bytes], *, several: bool = False) -> AsyncIterator[StreamedMember]:
    """The members of a tar; each must be read before the next. `several`: the stream is one tar after the other.

    Raises:
        BrokenArchiveError: not a tar, or truncated.
    """
    source = Bytes(stream)
    while True:
        asking = next_member(several=several)
        try:
            wanted = next(asking)
            while True:
                wanted = asking.send(await source.read(wanted))
        except StopIteration as stop:
            about: Member | None = stop.value
        if about is None:
            return
        member = StreamedMember(about, source)
        yield member
        await member.finish()


async def decompress(stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The content of a stream that may be compressed. Raises: BrokenArchiveError if it is malformed."""
    inflater = Inflater()
    async for data in stream:
        for piece in inflater.feed(data):
            yield piece
    yield inflater.finish()


# Archives that are unpacked inside.


class Checked:
    """A tar stream that was reduced to plain members below one folder; counts them.

    Raises, while it is read:
        BrokenArchiveError: malformed archive.
        SandboxFileError: a member leads out of the folder.
    """

    def __init__(self, stream: AsyncIterable[bytes], *, path: str) -> None:
        self._stream = stream
        self._path = path
        self._links: set[str] = set()
        self.count = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for member in read_members(decompress(self._stream)):
            about = member.about
            if about.kind == "other":
                continue  # a FIFO or device has no meaning elsewhere
            name = self._check(about.name, last_may_be_link=True)
            plain = tarfile.TarInfo(name or ".")
            plain.type, plain.mode = _TYPES[about.kind], about.mode
            plain.mtime, plain.size = int(about.mtime), about.size
            if about.kind == "link":
                plain.linkname = about.target
                self._links.add(name)
            elif about.kind == "hard link":
                plain.linkname = self._check(about.target, last_may_be_link=False)
            else:
                self._links.discard(name)
            self.count += 1
            yield plain.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            async for piece in member.pieces():
                yield piece
            yield bytes(-plain.size % BLOCK)
        yield bytes(2 * BLOCK)

    def _check(self, name: str, *, last_may_be_link: bool) -> str:
        """The name without empty parts and dots. Raises: SandboxFileError if it leads out."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        on_the_way = itertools.accumulate(parts[: len(parts) - last_may_be_link], "{}/{}".format)
        if ".." in parts or (self._links and any(each in self._links for each in on_the_way)):
            raise SandboxFileError(f"{name!r} leads out of {self._path}", path=self._path, op="unpack")
        return "/".join(parts)
