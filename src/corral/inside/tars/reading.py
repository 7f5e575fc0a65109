"""A tar's members, read with bounds: the archive may be hostile.

The reader is a generator that asks for bytes and is sent them, so that threads and event loops use the same one. A
header costs at most `MAX_EXTENSION_BYTES` of memory; sizes are never negative; the holes of sparse files are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import Literal, NamedTuple, Tuple

BLOCK = 512
PIECE_BYTES = 256 * 1024
MAX_EXTENSION_BYTES = 1024 * 1024
"""The limit of a long name, a set of extended fields, or a map of holes."""
_MAX_EXTENSIONS = 16
"""How many headers one member may have."""
_MAX_NAME = 4096
"""The kernel's limit of a path: a longer one could name half a million nested folders."""
_MAX_BYTES = 1 << 62
_MAX_DIGITS = 20
_KNOWN_FIELDS = frozenset(("path", "linkpath", "size", "mtime"))
_SPARSE = "GNU.sparse."
_OLD_SPARSE = b"S"
_EXTENSIONS = frozenset((b"L", b"K", b"x", b"g", b"X"))

MemberKind = Literal["file", "folder", "link", "hard link", "other"]
_KINDS: dict[bytes, MemberKind] = {
    b"1": "hard link", b"2": "link", b"3": "other", b"4": "other", b"5": "folder", b"6": "other",
}  # fmt: skip

Segments = Tuple[Tuple[int, int], ...]
"""The data of a file: offsets and lengths, in order. Between them are holes."""


class BrokenArchiveError(Exception):
    """Not a tar, or a truncated or contradictory one."""


class Member(NamedTuple):
    """One file of a tar, whose content comes next in the stream."""

    name: str
    kind: MemberKind
    mode: int
    mtime: float
    size: int
    """The size of the file, holes included."""
    target: str
    """The target of a link."""
    segments: Segments
    padding: int
    """The number of bytes after the content."""

    @property
    def stored_bytes(self) -> int:
        """The number of bytes of content in the stream."""
        return sum(length for _, length in self.segments)


def next_member(*, several: bool = False) -> Generator[int, bytes, Member | None]:
    """Yields a number of bytes and is sent them (fewer only at the end); returns the next member, None after the last.

    `several`: tars may follow one another, until the stream ends.

    Raises:
        BrokenArchiveError
    """
    fields: dict[str, str] = {}
    extensions = 0
    while True:
        block = yield BLOCK
        if not block and several:
            return None
        if len(block) < BLOCK:
            raise BrokenArchiveError("the archive is truncated" if block else "the archive has no end marker")
        if not any(block):
            if several:
                continue
            return None
        kind, size = _check_header(block), _number(block[124:136])
        if kind not in _EXTENSIONS:
            return (yield from _build(block, kind, size, fields))
        extensions += 1
        if size > MAX_EXTENSION_BYTES or extensions > _MAX_EXTENSIONS:
            raise BrokenArchiveError("a name in the archive is too long")
        content = yield from _exactly(size)
        yield from _exactly(-size % BLOCK)
        fields |= _read_extension(kind, content)


def _exactly(size: int) -> Generator[int, bytes, bytes]:
    data = (yield size) if size else b""
    if len(data) < size:
        raise BrokenArchiveError("the archive is truncated")
    return data


def _check_header(block: bytes) -> bytes:
    """The type of a header whose checksum is right."""
    total = _number(block[148:156])
    rest = block[:148] + b" " * 8 + block[156:]
    plain = sum(rest)
    if total not in (plain, plain - 256 * sum(byte > 127 for byte in rest)):  # the second: as some old programs count
        raise BrokenArchiveError("not a tar archive: wrong header checksum")
    return block[156:157]


def _number(field: bytes) -> int:
    if field[:1] == b"\x80":
        value = int.from_bytes(field[1:], "big")
    else:
        digits = field.split(b"\0")[0].strip()
        if digits.strip(b"01234567"):
            raise BrokenArchiveError("not a tar archive: malformed number in a header")
        value = int(digits, 8) if digits else 0
    if value > _MAX_BYTES:
        raise BrokenArchiveError("a number in the archive is too large")
    return value


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", "surrogateescape")


def _build(block: bytes, kind: bytes, size: int, fields: dict[str, str]) -> Generator[int, bytes, Member]:
    name, target = fields.get("path", _path(block)), fields.get("linkpath", _text(block[157:257]))
    size = _decimal(fields["size"]) if "size" in fields else size
    known = _KINDS.get(kind, "file")
    if known == "file" and kind in (b"\0", b"0") and name.endswith("/") and "path" not in fields:
        known = "folder"  # as programs older than the types wrote one
    if known != "file":
        return _member(block, name, known, 0, target, fields, segments=(), padding=0)
    padding = -size % BLOCK
    if kind == _OLD_SPARSE:
        whole = _number(block[483:495])
        segments = yield from _read_old_map(block)
    elif any(key.startswith(_SPARSE) for key in fields):
        name = fields.get(f"{_SPARSE}name", name)
        whole = _decimal(fields.get(f"{_SPARSE}realsize", fields.get(f"{_SPARSE}size", "")))
        segments, used = yield from _read_map(fields, size)
        size -= used
    else:
        whole, segments = size, ((0, size),) if size else ()
    _check_map(segments, whole=whole, stored=size)
    return _member(block, name, known, whole, target, fields, segments=segments, padding=padding)


def _path(block: bytes) -> str:
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    name = _text(block[:100])
    return f"{prefix}/{name}" if prefix else name


def _member(
    block: bytes,
    name: str,
    kind: MemberKind,
    size: int,
    target: str,
    fields: dict[str, str],
    *,
    segments: Segments,
    padding: int,
) -> Member:
    if not name or "\0" in name or "\0" in target:
        raise BrokenArchiveError("the archive has a malformed name")
    if max(len(name), len(target)) > _MAX_NAME:
        raise BrokenArchiveError("a name in the archive is too long")
    mtime = float(_number(block[136:148])) if block[136] < 0x80 else 0.0
    try:
        mtime = float(fields.get("mtime", mtime))
    except ValueError:
        mtime = math.nan
    if not math.isfinite(mtime) or abs(mtime) > 1e11:
        mtime = 0.0
    return Member(name, kind, _number(block[100:108]) & 0o7777, mtime, size, target, segments, padding)


# Extended headers.


def _read_extension(kind: bytes, content: bytes) -> dict[str, str]:
    if kind == b"L":
        return {"path": _text(content)}
    if kind == b"K":
        return {"linkpath": _text(content)}
    if kind == b"g":
        return {}  # of the whole archive: it says nothing about a member's path or size
    fields: dict[str, str] = {}
    position = 0
    while position < len(content):
        space = content.find(b" ", position, position + _MAX_DIGITS)
        digits = content[position : max(space, position)]
        length = int(digits) if digits.isdigit() else 0
        if not len(digits) + 2 <= length <= len(content) - position:
            raise BrokenArchiveError("the archive has a broken extended header")
        key, _, value = content[space + 1 : position + length - 1].partition(b"=")
        name = key.decode("utf-8", "surrogateescape")
        if name in _KNOWN_FIELDS or name.startswith(_SPARSE):
            if name in (f"{_SPARSE}offset", f"{_SPARSE}numbytes"):
                raise BrokenArchiveError("the archive has sparse files in an unsupported early format")
            fields[name] = value.decode("utf-8", "surrogateescape")
        position += length
    return fields


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS) or int(text) > _MAX_BYTES:
        raise BrokenArchiveError("the archive has a malformed size")
    return int(text)


# Files with holes.


def _read_old_map(block: bytes) -> Generator[int, bytes, Segments]:
    """The map of GNU tar's old format: four segments in the header, then blocks of 21."""
    found = _places(block[386:482], 4)
    more = block[482]
    while more:
        if len(found) * 24 > MAX_EXTENSION_BYTES:
            raise BrokenArchiveError("a file in the archive has too many holes")
        extra = yield from _exactly(BLOCK)
        found += _places(extra, 21)
        more = extra[504]
    return tuple(found)


def _places(table: bytes, count: int) -> list[tuple[int, int]]:
    every = [(_number(table[at : at + 12]), _number(table[at + 12 : at + 24])) for at in range(0, count * 24, 24)]
    return [(offset, length) for offset, length in every if length]


def _read_map(fields: dict[str, str], size: int) -> Generator[int, bytes, tuple[Segments, int]]:
    """The map of the formats 0.1 (in a field) and 1.0 (before the content), and how many bytes of content it takes."""
    if f"{_SPARSE}map" in fields:
        return _pairs(fields[f"{_SPARSE}map"].split(",")), 0
    if fields.get(f"{_SPARSE}major") != "1":
        raise BrokenArchiveError("the archive has sparse files of an unknown format")
    blocks: list[bytes] = []
    count, lines_read = 0, 0
    while not lines_read or lines_read < 2 * count + 1:
        if (len(blocks) + 1) * BLOCK > min(size, MAX_EXTENSION_BYTES):
            raise BrokenArchiveError("a file in the archive has too many holes")
        blocks.append((yield from _exactly(BLOCK)))
        if not lines_read and b"\n" in blocks[-1]:
            count = _decimal(b"".join(blocks).split(b"\n")[0].decode("ascii", "replace"))
        lines_read += blocks[-1].count(b"\n")
    used = len(blocks) * BLOCK
    lines = b"".join(blocks).decode("ascii", "replace").split("\n")[1 : 2 * count + 1]
    return _pairs(lines), used


def _pairs(numbers: list[str]) -> Segments:
    if len(numbers) % 2:
        raise BrokenArchiveError("the archive has a broken map of holes")
    values = [_decimal(number) for number in numbers]
    return tuple((offset, length) for offset, length in zip(values[::2], values[1::2]) if length)


def _check_map(segments: Segments, *, whole: int, stored: int) -> None:
    end = total = 0
    for offset, length in segments:
        if offset < end:
            raise BrokenArchiveError("the archive has an overlapping map of holes")
        end = offset + length
        total += length
    if end > whole or total != stored:
        raise BrokenArchiveError("the archive has a map of holes that does not fit its file")


# For threads.


class MemberReader:
    """The members of a tar, one after the other. `read(n)` returns n bytes, fewer only at the end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Member]:
        """The content of each member must be read before the next member. Raises: BrokenArchiveError."""
        while True:
            asking = next_member()
            try:
                wanted = next(asking)
                while True:
                    wanted = asking.send(self._read(wanted))
            except StopIteration as stop:
                member: Member | None = stop.value
            if member is None:
                return
            yield member

    def content(self, member: Member) -> Iterator[tuple[int, bytes]]:
        """The pieces of a member's content, each with its offset in the file. All of them must be read."""
        for begin, length in member.segments:
            offset, end = begin, begin + length
            while offset < end:
                piece = self._read(min(end - offset, PIECE_BYTES))
                if not piece:
                    raise BrokenArchiveError("the archive is truncated")
                yield offset, piece
                offset += len(piece)
        if len(self._read(member.padding)) < member.padding:
            raise BrokenArchiveError("the archive is truncated")

    def skip(self, member: Member) -> None:
        """Read over a member's content."""
        for _ in self.content(member):
            pass
