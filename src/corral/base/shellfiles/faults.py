"""Translates the failure of a script to an error."""

from __future__ import annotations

import errno
import os
import re

from corral.errors import (
    FILE_ERRORS_BY_ERRNO,
    EditConflictError,
    SandboxFileError,
    SandboxFileInterruptedError,
    became_a_link,
    shorten_path,
)

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
