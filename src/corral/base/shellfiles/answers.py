"""Reads the answers of scripts: the error of a failed one, and the output of `stat` and `find` as `FileInfo`."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import AsyncIterator

from corral.errors import (
    FILE_ERRORS_BY_ERRNO,
    EditConflictError,
    SandboxFileError,
    SandboxFileInterruptedError,
    became_a_link,
    shorten_path,
)
from corral.results import FileInfo, FileKind

_TEXTS = {
    "no such file or directory": errno.ENOENT,
    "not a directory": errno.ENOTDIR,
    "is a directory": errno.EISDIR,
    "permission denied": errno.EACCES,
    "operation not permitted": errno.EPERM,
    "read-only file system": errno.EROFS,
    "file exists": errno.EEXIST,
    "directory not empty": errno.ENOTEMPTY,
    "no space left on device": errno.ENOSPC,
    "disk quota exceeded": errno.EDQUOT,
    "quota exceeded": errno.EDQUOT,
    "file too large": errno.EFBIG,
    "too many levels of symbolic links": errno.ELOOP,
    "symbolic link loop": errno.ELOOP,
    "file name too long": errno.ENAMETOOLONG,
    "filename too long": errno.ENAMETOOLONG,
    "invalid argument": errno.EINVAL,
}
"""The messages of glibc and musl, with LC_ALL=C."""

_OURS = re.compile(rb"^corral:([A-Z]+)$", re.MULTILINE)
_SAID = re.compile(r": ([A-Za-z][A-Za-z -]+)$")
_KILLED = 128 + 9
_KINDS: dict[int, FileKind] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip
_LETTERS: dict[str, FileKind] = {
    "f": "file", "d": "folder", "l": "link", "p": "fifo", "s": "socket", "c": "device", "b": "device",
}  # fmt: skip
_MAX_RECORD_BYTES = 64 * 1024


# Failures.


def _find_errno(said: bytes) -> int | None:
    """The errno behind a failure. Our own word counts more than a tool's text, the last line more than the first."""
    if ours := _OURS.findall(said):
        return getattr(errno, ours[-1].decode(), None)
    for line in reversed(said.decode("utf-8", "replace").splitlines()):
        found = _SAID.search(line.strip())
        if found and (number := _TEXTS.get(found[1].lower())) is not None:
            return number
    return None


def make_error(exit_code: int, said: bytes, *, path: str, op: str, sandbox_id: str) -> SandboxFileError:
    """The error that a failed script means, by its exit code and its standard error."""
    words = _OURS.findall(said)
    if b"ELINK" in words:
        return became_a_link(path, sandbox_id=sandbox_id, op=op)
    if b"ECHANGED" in words:
        text = f"{path}: the file has changed since it was read"
        return EditConflictError(text, path=path, sandbox_id=sandbox_id, op=op, hint="read it again and retry")
    number = _find_errno(said)
    shown = shorten_path(path)
    if number is not None:
        kind = FILE_ERRORS_BY_ERRNO.get(number, SandboxFileError)
        return kind(f"{shown}: {os.strerror(number)}", path=path, sandbox_id=sandbox_id, op=op)
    if exit_code == _KILLED:
        text = f"{shown}: a program in the sandbox interrupted the operation"
        return SandboxFileInterruptedError(
            text, path=path, sandbox_id=sandbox_id, op=op, hint="check its effect, then retry"
        )
    *_, last = ("", *said.decode("utf-8", "replace").strip().splitlines())
    hint = "the image needs a POSIX sh with coreutils, find and tar" if "not found" in last else ""
    text = f"{shown}: {last[:200] or f'exit code {exit_code}'}"
    return SandboxFileError(text, path=path, sandbox_id=sandbox_id, op=op, hint=hint)


# File information.


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
