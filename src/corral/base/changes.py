"""What a sandbox has changed in a folder of the host that it has as a copy or beneath an overlay; and bringing it back.

The tree inside comes as an archive, which is hostile. It is compared with the files that the sandbox began with, byte
by byte: times and sizes are what a program says they are. What differs is kept in one file without a name, so that what
is brought back is what was compared, whatever happens inside meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from corral.base.gitsettings import Parts
from corral.base.transfer import MAX_MEMBERS, MAX_REMEMBERED_BYTES, PART_BYTES, drain, feed, split_name
from corral.concurrency.closing import SyncClosing
from corral.errors import MountError, SandboxFileError, SandboxFileTooLargeError
from corral.inside.nolinks import open_file, open_folder, open_path, opened
from corral.inside.tars.reading import BrokenArchiveError, Member, MemberReader, Segments
from corral.inside.tars.writing import find_segments
from corral.inside.writing import write_all_at

Kind = Literal["file", "folder", "link", "other"]
Verdict = Literal["added", "modified", "deleted"]
_PIECE_BYTES = 256 * 1024
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class Origin:
    """A folder of the host that a sandbox has as a copy or beneath an overlay."""

    path: str
    """Where it is inside."""
    folder: Path
    base: Path
    """What the sandbox began with: the folder itself, or the copy of it."""
    since_ns: int
    """When the sandbox was created. Files of the host that have changed later are not replaced."""
    notes: Path
    """A file of ours beside the sandbox: what the files were that `apply` has written."""
    limit_bytes: int
    """How much the sandbox can have written."""
    known_as: Path | None = None
    """The path of the folder, where that is given by a descriptor."""

    @contextlib.contextmanager
    def pinned(self) -> Iterator[Origin]:
        """The same by a descriptor, for all that is done now: a link that takes the folder's place leads nowhere.

        Another sandbox may write to the folder above it.

        Raises:
            MountError: the folder is not there, or there is a link on its path.
        """
        try:
            descriptor = open_path(str(self.folder), os.O_RDONLY | os.O_DIRECTORY, links=False)
        except OSError as error:
            text = f"the folder mounted at {self.path} can't be opened on the host: {error.strerror}"
            raise MountError(text, op="diff", hint="put it back where it was") from error
        with opened(descriptor):
            folder = Path(f"/proc/self/fd/{descriptor}")
            yield replace(self, folder=folder, base=self.base if self.copied else folder, known_as=self.folder)

    @property
    def copied(self) -> bool:
        """True if the sandbox has a copy."""
        return self.base != self.folder


class Entry(NamedTuple):
    """A file inside, or of the host."""

    kind: Kind
    mode: int
    size: int = 0
    target: str = ""
    ctime_ns: int = 0
    mtime_ns: int = 0
    segments: Segments = ()
    place: int | None = None
    """Where its content begins in the spool; None if it is that of the base."""


class Comparison(SyncClosing):
    """What differs between the tree inside and the base."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._spool: IO[bytes] = tempfile.TemporaryFile(dir=origin.notes.parent)  # noqa: SIM115 - closed by `close`
        self._end = 0
        self.inside: dict[Parts, Entry] = {}
        self.base: dict[Parts, Entry] = {}
        self._applied: set[Parts] = set()
        """Paths that were applied to the host, where their content is."""
        self.unknown: set[Parts] = set()
        """Paths that exist inside, but that the archive does not have: special files, and those of others."""

    def close(self) -> None:
        """Forget the content."""
        self._spool.close()

    # Reading the archive.

    def read(self, reader: int) -> None:
        """Compare with an archive that comes from a pipe. Raises: SandboxFileError."""
        with os.fdopen(reader, "rb") as source:
            try:
                self.base.update(walk(self.origin.base))
                if self.origin.copied:
                    self._take_applied()
                self._read_members(source)
            except BrokenArchiveError as error:
                raise SandboxFileError(f"malformed archive: {error}", op="diff") from error
            drain(source)

    def _take_applied(self) -> None:
        """What was applied, and not changed on the host since then, is what later changes are told from."""
        for name, noted in read_notes(self.origin).get(self.origin.path, {}).items():
            parts = tuple(name.split("/"))
            host = look(self.origin.folder, parts)
            if stamp(host) != noted:
                continue
            if host is None:
                self.base.pop(parts, None)
            else:
                self.base[parts] = host
                self._applied.add(parts)

    def _read_members(self, source: IO[bytes]) -> None:
        remembered = 0
        reader = MemberReader(source.read)
        for number, member in enumerate(reader):
            remembered += len(member.name) + len(member.target) + PART_BYTES
            if number > MAX_MEMBERS or remembered > MAX_REMEMBERED_BYTES:
                raise SandboxFileTooLargeError("the folder has too many files to compare", op="diff")
            parts = split_name(member.name, op="diff")
            if not parts or member.kind == "other":
                reader.skip(member)
                continue
            above = self.inside.get(parts[:-1])
            if parts in self.inside or (len(parts) > 1 and (above is None or above.kind != "folder")):
                raise BrokenArchiveError(f"{member.name[:200]!r} comes twice, or before its folder")
            self.inside[parts] = self._take(reader, member, parts)

    def _take(self, reader: MemberReader, member: Member, parts: Parts) -> Entry:
        mode = member.mode & 0o777
        if member.kind == "hard link":
            return self._take_again(split_name(member.target, op="diff"), parts)
        if member.kind == "file":
            place = self._compare(parts, member.size, member.segments, reader.content(member))
            return Entry("file", mode, member.size, segments=member.segments, place=place)
        reader.skip(member)
        return Entry("link", 0o777, target=member.target) if member.kind == "link" else Entry("folder", mode)

    def _take_again(self, first: Parts, parts: Parts) -> Entry:
        """Another name of a file that the archive had already. On the host it is a file of its own."""
        entry = self.inside.get(first)
        if entry is None or entry.kind != "file":
            raise BrokenArchiveError("a hard link in the archive leads nowhere")
        place = self._compare(parts, entry.size, entry.segments, self._pieces_of(first, entry))
        return entry._replace(place=place)

    def _pieces_of(self, parts: Parts, entry: Entry) -> Iterator[tuple[int, bytes]]:
        """The content of a file that was read: from the spool, or from the base if it is the same there."""
        if entry.place is not None:
            yield from _pieces(self._spool.fileno(), entry.segments, at=entry.place)
            return
        with opened(open_file(self._top(parts), parts, _READING)) as file:
            yield from _pieces(file, entry.segments)

    def _top(self, parts: Parts) -> Path:
        return self.origin.folder if parts in self._applied else self.origin.base

    def _compare(self, parts: Parts, size: int, segments: Segments, content: Iterator[tuple[int, bytes]]) -> int | None:
        """Read a file; where its content was put, or None if the base has the same."""
        with contextlib.ExitStack() as stack:
            base = self._open_base(parts, size)
            if base is not None:
                stack.callback(os.close, base)
            begin, taken = self._end, 0
            same = base is not None and _has_zeros_between(base, segments, size)
            for offset, piece in content:
                if same and base is not None and os.pread(base, len(piece), offset) != piece:
                    same = False
                    self._put_all(_cut(_pieces(base, segments), taken), begin)
                if not same:
                    self._put(piece, begin + taken)
                taken += len(piece)
        if same:
            return None
        self._end = begin + taken
        return begin

    def _open_base(self, parts: Parts, size: int) -> int | None:
        entry = self.base.get(parts)
        if entry is None or entry.kind != "file" or entry.size != size:
            return None
        try:
            return open_file(self._top(parts), parts, _READING)
        except OSError:
            return None  # removed or locked: then it differs

    def _put_all(self, pieces: Iterable[bytes], place: int) -> None:
        for piece in pieces:
            self._put(piece, place)
            place += len(piece)

    def _put(self, piece: bytes, place: int) -> None:
        if place + len(piece) > self.origin.limit_bytes:
            text = f"more than {self.origin.limit_bytes} bytes differ, as many as the sandbox's disk holds"
            raise SandboxFileTooLargeError(text, op="diff")
        write_all_at(self._spool.fileno(), memoryview(piece), place)

    # What differs.

    def missing(self) -> dict[Parts, list[Parts]]:
        """Paths of the base that the archive did not have, by their folder, if that is there."""
        found: dict[Parts, list[Parts]] = {}
        for parts, entry in self.base.items():
            if parts not in self.inside and entry.kind != "other" and self._is_folder(parts[:-1]):
                found.setdefault(parts[:-1], []).append(parts)
        return found

    def _is_folder(self, parts: Parts) -> bool:
        return not parts or (parts in self.inside and self.inside[parts].kind == "folder")

    def differences(self) -> Iterator[tuple[Parts, Verdict]]:
        """What the sandbox has changed, each folder before what is in it."""
        for parts in sorted(self.inside.keys() | self.base.keys()):
            verdict = self._judge(parts)
            if verdict is not None:
                yield parts, verdict

    def _judge(self, parts: Parts) -> Verdict | None:
        now, before = self.inside.get(parts), self.base.get(parts)
        if now is None:
            unknown = any(parts[:end] in self.unknown for end in range(1, len(parts) + 1))
            return None if unknown or before is None or before.kind == "other" else "deleted"
        if before is None:
            return "added"
        same = now.kind == before.kind and now.place is None and now.target == before.target
        return None if same and (now.kind == "link" or now.mode == before.mode) else "modified"

    def content(self, entry: Entry) -> Callable[[int], bytes]:
        """The content of a file that differs, as a reader of so many bytes."""
        place = entry.place or 0

        def read(count: int) -> bytes:
            nonlocal place
            piece = os.pread(self._spool.fileno(), count, place)
            place += len(piece)
            return piece

        return read


# The host's files. No link is followed below the folder: others may write there.


def walk(top: Path) -> Iterator[tuple[Parts, Entry]]:
    """All that is in a folder. Raises: OSError, but not for folders that can't be read or are gone."""
    waiting: list[Parts] = [()]
    while waiting:
        folder = waiting.pop()
        try:
            descriptor = open_file(top, folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            if not folder:
                raise
            continue
        with opened(descriptor):
            for name in os.listdir(descriptor):  # noqa: PTH208 - an open folder has no path
                entry = _look_at(name, descriptor)
                if entry is not None:
                    yield (*folder, name), entry
                    if entry.kind == "folder":
                        waiting.append((*folder, name))


def look(top: Path, parts: Parts) -> Entry | None:
    """One path; None if it is not there, or if a link is on the way to it."""
    try:
        with opened(open_folder(top, parts[:-1])) as folder:
            return _look_at(parts[-1], folder)
    except OSError:
        return None


def _look_at(name: str, folder: int) -> Entry | None:
    try:
        info = os.lstat(name, dir_fd=folder)
        target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(info.st_mode) else ""
    except OSError:
        return None  # it has gone meanwhile
    kinds: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    size = info.st_size if kind == "file" else 0
    return Entry(kind, info.st_mode & 0o777, size, target, info.st_ctime_ns, info.st_mtime_ns)


def stamp(entry: Entry | None) -> list[object] | None:
    """What tells a file of the host from any later one, as notes keep it."""
    return None if entry is None else [entry.kind, entry.size, 0 if entry.kind == "folder" else entry.ctime_ns]


def read_notes(origin: Origin) -> dict[str, dict[str, Any]]:
    """The stamps of what was applied: by the path of the mount, and the path below."""
    with contextlib.suppress(FileNotFoundError):
        notes: dict[str, dict[str, Any]] = json.loads(origin.notes.read_text())
        return notes
    return {}


# Content.


def _pieces(file: int, segments: Segments, *, at: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The data of a file by its segments, each piece with its offset; with `at`, it is there without the holes."""
    place = at
    for begin, length in segments:
        offset, end = begin, begin + length
        while offset < end:
            piece = os.pread(file, min(_PIECE_BYTES, end - offset), offset if place is None else place)
            if not piece:
                raise SandboxFileError("a file of the host has changed while it was being compared", op="diff")
            yield offset, piece
            offset += len(piece)
            place = None if place is None else place + len(piece)


def _cut(pieces: Iterator[tuple[int, bytes]], length: int) -> Iterator[bytes]:
    """The first so many bytes."""
    for _, piece in pieces:
        if length <= 0:
            return
        yield piece[:length]
        length -= len(piece)


def _has_zeros_between(file: int, segments: Segments, size: int) -> bool:
    """True if a file has only zeros where another one, of these segments, has holes."""
    holes: list[tuple[int, int]] = []
    position = 0
    for begin, length in (*segments, (size, 0)):
        holes.append((position, begin))
        position = begin + length
    holes = [(begin, end) for begin, end in holes if begin < end]
    if not holes:
        return True
    found = find_segments(file, os.fstat(file))
    data = ((0, size),) if found is None else found
    overlaps = ((max(begin, start), min(end, start + length)) for begin, end in holes for start, length in data)
    return all(
        not piece.strip(b"\0")
        for begin, end in overlaps
        if begin < end
        for _, piece in _pieces(file, ((begin, end - begin),))
    )


async def compare(archive: AsyncIterable[bytes], origin: Origin) -> Comparison:
    """Compare a tree, as an archive, with its base; to be closed. Raises: SandboxFileError."""
    comparison = Comparison(origin)
    try:
        await feed(archive, comparison.read)
    except BaseException:
        comparison.close()
        raise
    return comparison
