"""The way to a file, step by step by descriptors: no link is followed, also none that is put there meanwhile.

The file agent uses it inside a sandbox, too, so it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

# O_PATH: a folder that may be passed through need not be readable. Not everywhere.
_FOLDER = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


class LinkFoundError(OSError):
    """A part of the path is a link."""

    def __init__(self) -> None:
        super().__init__(errno.ELOOP, "a part of the path is a link")


def split(path: str) -> list[str]:
    """The parts of an absolute path, for the functions below."""
    return [part for part in path.split("/") if part]


def open_folder(top: str | os.PathLike[str], parts: Sequence[str], *, make: bool = False) -> int:
    """A descriptor of a folder below `top`, which may itself be reached by links. `make` makes what is missing.

    Raises:
        LinkFoundError: one of the parts is a link.
        OSError: it is not there, or is not a folder.
    """
    folder = os.open(top, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))
    try:
        for part in parts:
            try:
                inner = _open(part, _FOLDER, folder)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=folder)
                inner = _open(part, _FOLDER, folder)
            os.close(folder)
            folder = inner
    except BaseException:
        os.close(folder)
        raise
    return folder


def open_file(top: str | os.PathLike[str], parts: Sequence[str], flags: int) -> int:
    """A descriptor of what is at the end of the way, whatever it is. Raises: as `open_folder`."""
    folder = open_folder(top, parts[:-1])
    try:
        return _open(parts[-1] if parts else ".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, folder)
    finally:
        os.close(folder)


def _open(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        # Which number a link gives is up to the flags and the system.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_link(name, folder):
            raise LinkFoundError from error
        raise


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
    except OSError:
        return False
