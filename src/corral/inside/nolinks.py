"""Opening a file with rules about links: the one place where a confined path becomes a descriptor.

Used inside sandboxes by the file agents and on the host for folders that others may write to. It uses the kernel's
`openat2` if it can, else walks by descriptors. A link that is added meanwhile is not followed either.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

try:
    import ctypes
except ImportError:  # an interpreter that was built without it
    _libc = None
else:
    _libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if _libc is not None:
        _libc.syscall.restype = ctypes.c_long

RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
HERE = -100
"""AT_FDCWD: the working folder, in the place of a descriptor."""
_NR_OPENAT2 = 437  # on every architecture
_PROC_SUPER_MAGIC = 0x9FA0
_PATH_BYTES = 4000
"""The kernel takes no longer path in one call."""

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


@contextlib.contextmanager
def opened(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def on_error(undo: Callable[..., object], *arguments: object) -> Iterator[None]:
    """Call a function if the block raises: usually to close what the block would have handed over."""
    try:
        yield
    except BaseException:
        undo(*arguments)
        raise


def split(path: str) -> list[str]:
    """The parts of an absolute path, for the functions below."""
    return [part for part in path.split("/") if part]


def open_path(path: str, flags: int, *, links: bool = True, magic: bool = True, folder: int = HERE) -> int:
    """Open anything. Without `links` no link is followed; without `magic`, no link in /proc that leads to a file of
    another process (only where the kernel has `openat2`).

    Raises:
        LinkFoundError: a part of the path is a link, and `links` is False.
        OSError: the kernel refuses.
    """
    base = None if folder == HERE else folder
    if not _has_openat2():
        if links:
            return os.open(path, flags | os.O_CLOEXEC, dir_fd=base)
        return _open_last(os.open("/" if path.startswith("/") else ".", _FOLDER, dir_fd=base), split(path), flags)
    resolve = (0 if magic else RESOLVE_NO_MAGICLINKS) | (0 if links else RESOLVE_NO_SYMLINKS)
    name = os.fsencode(path)
    try:
        if links or len(name) <= _PATH_BYTES:
            return openat2(folder, name, flags, resolve=resolve)
        return _open_long(folder, name, flags, resolve=resolve)
    except OSError as error:
        if not links and error.errno == errno.ELOOP:
            raise LinkFoundError from error
        raise


def _open_long(folder: int, path: bytes, flags: int, *, resolve: int) -> int:
    """Open a path of any length, in as many steps as the kernel needs."""
    held = None
    try:
        while len(path) > _PATH_BYTES and b"/" in path[1:_PATH_BYTES]:
            cut = path.rindex(b"/", 1, _PATH_BYTES)
            inner = openat2(folder if held is None else held, path[:cut], _FOLDER, resolve=resolve)
            if held is not None:
                os.close(held)
            held, path = inner, path[cut:].lstrip(b"/") or b"."
        return openat2(folder if held is None else held, path, flags, resolve=resolve)
    finally:
        if held is not None:
            os.close(held)


def open_folder(top: str | os.PathLike[str], parts: Iterable[str], *, make: bool = False) -> int:
    """Open a folder below `top`, which may itself be reached by links. With `make`, missing folders are created.

    Raises:
        LinkFoundError: one of the parts is a link.
        OSError: it does not exist, or is not a folder.
    """
    return _walk(os.open(top, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0)), parts, make=make)


def open_file(top: str | os.PathLike[str], parts: Sequence[str], flags: int) -> int:
    """Open a file of any kind below `top`. Raises: as `open_folder`."""
    with opened(os.open(top, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))) as folder:
        return open_path("/".join(parts) or ".", flags, links=False, folder=folder)


def openat2(folder: int, path: bytes, flags: int, *, resolve: int) -> int:
    """openat2(2): open with rules about which links may be followed. Raises: OSError."""
    assert _libc is not None, "Linux, and an interpreter with ctypes"
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve)
    number, size = ctypes.c_long(_NR_OPENAT2), ctypes.c_long(len(how))
    descriptor: int = _libc.syscall(number, ctypes.c_long(folder), path, how, size)
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def is_of_proc(descriptor: int) -> bool:
    """True for an open file of /proc: such a file has no size, and reading it may have effects."""
    if _libc is None:
        return False
    buffer = ctypes.create_string_buffer(120)
    if _libc.fstatfs(ctypes.c_int(descriptor), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int.from_bytes(buffer.raw[:8], sys.byteorder) & 0xFFFFFFFF == _PROC_SUPER_MAGIC


@functools.lru_cache(maxsize=None)
def _has_openat2() -> bool:
    """Tried once: an older kernel or a container's filter refuses it, and later errors must not be mistaken for that.

    Raises: OSError if memory or descriptors are used up at the moment.
    """
    if _libc is None:
        return False
    try:
        os.close(openat2(HERE, b"/", os.O_PATH, resolve=0))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR):
            raise
        return False
    return True


def _walk(folder: int, parts: Iterable[str], *, make: bool = False) -> int:
    """Open a folder below an open one, which is closed."""
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


def _open_last(folder: int, parts: Sequence[str], flags: int) -> int:
    """Open a file of any kind below an open folder, which is closed."""
    with opened(_walk(folder, parts[:-1])) as folder:
        found = _open(parts[-1] if parts else ".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, folder)
    if stat.S_ISLNK(os.fstat(found).st_mode):  # with O_PATH the link itself is opened
        os.close(found)
        raise LinkFoundError
    return found


def _open(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        # The error number for a link depends on the flags and the system.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_link(name, folder):
            raise LinkFoundError from error
        raise


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
    except OSError:
        return False
