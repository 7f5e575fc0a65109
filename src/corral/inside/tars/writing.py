"""Writes a tree as a tar stream. Files that are changed or replaced meanwhile do no harm."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
import time
from typing import Callable

from corral.inside.nolinks import opened
from corral.inside.refusal import RefusedError
from corral.inside.tars.reading import BLOCK, PIECE_BYTES, Segments

Write = Callable[[bytes], object]
_MAX_SEGMENTS = 10_000
"""In a file with more holes, later ones are filled with zeros: its map would take long to read."""
_SMALLEST_GAIN_BYTES = 64 * 1024
"""If all holes together are smaller, a map is not worth it."""
_ENTRY_BYTES = 4096
"""The least that a file counts."""
_CLOCK_NS = 50_000_000
"""The coarsest clock that times of files are taken from."""
_ZEROS = bytes(PIECE_BYTES)


class RestlessTreeError(RefusedError):
    """More has changed while it was packed than may change: it might never end."""

    def __init__(self, limit: int) -> None:
        text = f"more than {limit} bytes changed while it was being packed, as many as the sandbox's disk holds"
        super().__init__("too_big", errno.EFBIG, f"{text}: pack it when it is at rest")


def pack_tree(
    path: str, write: Write, *, anonymous: bool = False, whole: bool = False, max_changing_bytes: int | None = None
) -> list[str]:
    """Write a tar of a file or folder, names relative to it; returns what was left out, with reasons.

    Left out are FIFOs, sockets and devices, which mean nothing elsewhere, and unreadable files unless `whole`.
    `anonymous`: owners are not written. They are never written as names, which only the system's files would tell.
    `max_changing_bytes`: the most that may change meanwhile. Without it, a file that is moved ahead of its reader again
    and again makes an archive of any size out of a small disk.

    Raises:
        RestlessTreeError: more than `max_changing_bytes` changed.
        OSError: the path does not exist or can't be read; with `whole` also for files below it.
    """
    packer = _Packer(write, anonymous=anonymous, whole=whole, max_changing_bytes=max_changing_bytes)
    try:
        _add_all(packer, path)
    except _PieceError as error:
        raise error.cause from None
    write(bytes(2 * BLOCK))
    return packer.left_out


def _add_all(packer: _Packer, path: str) -> None:
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        packer.add(path, os.path.basename(path), info)
    else:
        packer.add(path, ".", info)
        stack = [path]
        while stack:
            for entry in packer.list(stack.pop(), path):
                packer.try_add(entry, os.path.relpath(entry.path, path))
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)


class _Packer:
    def __init__(self, write: Write, *, anonymous: bool, whole: bool, max_changing_bytes: int | None) -> None:
        self._write = write
        self._anonymous = anonymous
        self._whole = whole
        self._max_changing = max_changing_bytes
        self._changing = 0
        self._began_ns = time.time_ns() - _CLOCK_NS
        self._linked: dict[tuple[int, int], str] = {}
        self.left_out: list[str] = []

    def list(self, folder: str, top: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as scan:
                return sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            if self._whole or folder == top:
                raise
            self.left_out.append(f"{os.path.relpath(folder, top)}: {error.strerror}")
            return []

    def try_add(self, entry: os.DirEntry[str], name: str) -> None:
        try:
            self.add(entry.path, name, entry.stat(follow_symlinks=False))
        except OSError as error:
            if self._whole:
                raise
            self.left_out.append(f"{name}: {error.strerror}")

    def add(self, path: str, name: str, info: os.stat_result) -> None:
        member = tarfile.TarInfo(name)
        member.mode, member.mtime = stat.S_IMODE(info.st_mode), info.st_mtime
        if not self._anonymous:
            member.uid, member.gid = info.st_uid, info.st_gid
        if not stat.S_ISREG(info.st_mode):
            self._count_if_changed(info, 0)
        if stat.S_ISDIR(info.st_mode):
            member.type = tarfile.DIRTYPE
            self._put(_encode(member))
        elif stat.S_ISLNK(info.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            self._put(_encode(member))
        elif not stat.S_ISREG(info.st_mode):
            self.left_out.append(name)
        elif (earlier := self._linked.get((info.st_dev, info.st_ino))) is not None and info.st_nlink > 1:
            member.type, member.linkname = tarfile.LNKTYPE, earlier
            self._put(_encode(member))
        else:
            self._add_file(path, member)

    def _add_file(self, path: str, member: tarfile.TarInfo) -> None:
        with opened(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)) as file:
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode):  # meanwhile
                self.left_out.append(member.name)
                return
            segments = find_segments(file, info)
            self._count_if_changed(info, info.st_size if segments is None else sum(length for _, length in segments))
            if info.st_nlink > 1:
                self._linked[info.st_dev, info.st_ino] = member.name
            member.size = info.st_size
            if segments is None:
                self._put(_encode(member))
                self._copy(file, ((0, info.st_size),))
            else:
                self._put(_encode_sparse(member, segments))
                self._copy(file, segments)

    def _count_if_changed(self, info: os.stat_result, size: int) -> None:
        """By ctime, which no program can set, and which a move changes too. An unchanged file is packed only once."""
        if self._max_changing is not None and info.st_ctime_ns >= self._began_ns:
            self._changing += max(size, _ENTRY_BYTES)
            if self._changing > self._max_changing:
                raise RestlessTreeError(self._max_changing)

    def _copy(self, file: int, segments: Segments) -> None:
        """Write as many bytes as the header says, even if the file has become shorter meanwhile."""
        for begin, length in segments:
            offset, end = begin, begin + length
            while offset < end:
                wanted = min(end - offset, PIECE_BYTES)
                try:
                    piece = os.pread(file, wanted, offset) or _ZEROS[:wanted]
                except OSError:  # in the middle of a member: only zeros keep the archive whole
                    piece = _ZEROS[:wanted]
                self._put(piece)
                offset += len(piece)
        self._put(bytes(-sum(length for _, length in segments) % BLOCK))

    def _put(self, data: bytes) -> None:
        try:
            self._write(data)
        except OSError as error:
            raise _PieceError(error) from error


class _PieceError(Exception):
    """The archive can't be written: not an error of the file that is read."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


def find_segments(file: int, info: os.stat_result) -> Segments | None:
    """The data of a file between its holes; None if it has no holes worth a map."""
    if info.st_size - info.st_blocks * 512 < _SMALLEST_GAIN_BYTES:
        return None
    found: list[tuple[int, int]] = []
    position = 0
    while position < info.st_size:
        try:
            data = os.lseek(file, position, os.SEEK_DATA)
            hole = os.lseek(file, data, os.SEEK_HOLE) if len(found) < _MAX_SEGMENTS else info.st_size
        except OSError as error:
            if error.errno == errno.ENXIO:  # from here on it is one hole
                break
            return None  # a file system without holes
        position = min(hole, info.st_size)
        if data < position:
            found.append((data, position - data))
    return tuple(found)


def _encode(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _encode_sparse(member: tarfile.TarInfo, segments: Segments) -> bytes:
    """In GNU tar's format 1.0: the map comes before the data."""
    numbers = [len(segments), *(number for segment in segments for number in segment)]
    table = "".join(f"{number}\n" for number in numbers).encode()
    table += bytes(-len(table) % BLOCK)
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": member.name,
        "GNU.sparse.realsize": str(member.size),
    }
    member.name = "GNUSparseFile.0/file"
    member.size = len(table) + sum(length for _, length in segments)
    return _encode(member) + table
