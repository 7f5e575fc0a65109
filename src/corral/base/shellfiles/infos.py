"""Parses the output of `stat` and `find` to `FileInfo`."""

from __future__ import annotations

import posixpath
import stat
from collections.abc import AsyncIterator

from corral.errors import SandboxFileError
from corral.results import FileInfo, FileKind

_KINDS: dict[int, FileKind] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip
_LETTERS: dict[str, FileKind] = {
    "f": "file", "d": "folder", "l": "link", "p": "fifo", "s": "socket", "c": "device", "b": "device",
}  # fmt: skip
_MAX_RECORD_BYTES = 64 * 1024


def parse_stat(path: str, said: bytes) -> FileInfo:
    """One file: a line of numbers, followed by the target if it is a link. Raises: SandboxFileError."""
    line, _, target = said.partition(b"\n")
    return _make(path, line, target[:-1] if target.endswith(b"\n") else target)


def _make(path: str, about: bytes, target: bytes) -> FileInfo:
    words = about.decode("ascii", "replace").split()
    try:
        if len(words) == 8:  # from GNU find
            kind = _LETTERS.get(words[0], "other")
            mode, numbers = int(words[1], 8), words[2:]
        else:
            raw = int(words[0], 16)
            kind, mode, numbers = _KINDS.get(stat.S_IFMT(raw), "other"), stat.S_IMODE(raw), words[1:]
        size, modified, uid, gid = int(numbers[0]), float(numbers[1]), int(numbers[2]), int(numbers[3])
        file_id, links = numbers[4], int(numbers[5])
    except (ValueError, IndexError) as error:
        raise SandboxFileError(f"{path}: malformed file information", path=path, op="stat") from error
    aim = target.decode("utf-8", "surrogateescape") if kind == "link" else None
    return FileInfo(path, kind, size, mode, modified, uid, gid, aim, file_id, links)


async def parse_records(stream: AsyncIterator[bytes], *, root: str) -> AsyncIterator[FileInfo]:
    """Records of three fields: numbers, path, target. Raises: SandboxFileError for a malformed record."""
    prefix = "/" if root == "/" else f"{root}/./"
    fields: list[bytes] = []
    rest = b""
    async for piece in stream:
        *complete, rest = (rest + piece).split(b"\0")
        if len(rest) > _MAX_RECORD_BYTES:
            raise SandboxFileError(f"{root}: malformed file information", path=root, op="list")
        for field in complete:
            fields.append(field)
            if len(fields) == 3:
                name = fields[1].decode("utf-8", "surrogateescape").removeprefix(prefix).removeprefix("./")
                yield _make(posixpath.join(root, name), fields[0], fields[2])
                fields = []
