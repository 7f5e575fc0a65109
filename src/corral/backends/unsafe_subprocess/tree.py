"""Files of the host, touched with care: real paths in, `OSError` out. No event loop here, and no sandbox.

Nothing blocks on a FIFO or reads a device; what is written appears whole; what is removed may be of any depth. Without
`links` none is followed, at no place of a path (`nolinks.LinkFoundError`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from typing import Any

from corral.errors import EditConflictError
from corral.inside import nolinks
from corral.inside.tars.unpacking import make_folders
from corral.results import FileInfo, FileKind

MAX_EDIT_BYTES = 64 * 1024 * 1024
_EDIT_ATTEMPTS = 5
_KINDS: dict[int, FileKind] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip

Stop = Callable[[], bool]
"""Whether nobody waits any more."""


class StoppedError(Exception):
    """Nobody waits any more."""


def refuse(number: int) -> OSError:
    """An error as the kernel would give it."""
    return OSError(number, os.strerror(number))


def describe(path: str, info: os.stat_result) -> FileInfo:
    """What is told of a file."""
    target = None
    if stat.S_ISLNK(info.st_mode):
        with contextlib.suppress(OSError):
            target = os.readlink(path)
    kind = _KINDS.get(stat.S_IFMT(info.st_mode), "other")
    return FileInfo(
        path,
        kind,
        info.st_size,
        stat.S_IMODE(info.st_mode),
        info.st_mtime,
        info.st_uid,
        info.st_gid,
        target,
        f"{info.st_dev}:{info.st_ino}",
        info.st_nlink,
    )


def look(path: str) -> os.stat_result:
    """About a path without links. Raises: OSError, nolinks.LinkFoundError."""
    folder, name = os.path.split(path)
    descriptor = nolinks.open_folder("/", nolinks.split(folder))
    try:
        info = os.lstat(name or ".", dir_fd=descriptor)
    finally:
        os.close(descriptor)
    if stat.S_ISLNK(info.st_mode):
        raise nolinks.LinkFoundError
    return info


def list_folder(path: str, *, links: bool) -> list[tuple[str, os.stat_result | OSError]]:
    """What is in a folder, by name, each with what is known of it. Raises: OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    folder = os.open(path, flags) if links else nolinks.open_file("/", nolinks.split(path), flags)
    try:
        return [(os.path.join(path, name), _lstat(name, folder)) for name in sorted(os.listdir(folder))]
    finally:
        os.close(folder)


def _lstat(name: str, folder: int) -> os.stat_result | OSError:
    try:
        return os.lstat(name, dir_fd=folder)
    except OSError as error:
        return error


# Reading.


def open_regular(path: str, *, links: bool = True) -> int:
    """Open a regular file, and nothing else: no FIFO that blocks, no device, nothing of /proc."""
    _check_regular(os.stat(path) if links else look(path))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags) if links else nolinks.open_file("/", nolinks.split(path), flags)
    try:
        _check_regular(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise refuse(errno.EISDIR if stat.S_ISDIR(info.st_mode) else errno.EINVAL)
    with contextlib.suppress(FileNotFoundError):  # not Linux
        if info.st_dev == os.stat("/proc").st_dev and info.st_dev != os.stat("/").st_dev:
            raise refuse(errno.EINVAL)


def read_whole(path: str, limit: int, *, links: bool = True) -> bytes | None:
    """The content up to the size that it has when opened; None if that is beyond the limit."""
    descriptor = open_regular(path, links=links)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size > limit:
            return None
        content = bytearray()
        while len(content) < size and (piece := file.read(size - len(content))):
            content += piece
        return bytes(content)


# Writing.


class Replacing:
    """A new file beside the target that takes its place at the end, or vanishes if anything goes wrong."""

    def __init__(
        self,
        path: str,
        *,
        mode: int | None = None,
        parents: bool = False,
        exclusive: bool = False,
        append: bool = False,
        links: bool = True,
    ) -> None:
        self._mode = mode
        self._exclusive = exclusive
        folder, self._name = os.path.split(path)
        if parents and links:
            make_folders(folder, mode=0o755)
        way = () if links else nolinks.split(folder)
        # Held: by a link that is put there later it can't be taken for another folder any more.
        self._folder = nolinks.open_folder(folder if links else "/", way, make=parents and not links)
        self._temporary = f".corral-{secrets.token_hex(8)}.tmp"
        try:
            before = self._find(links=links)
            if self._mode is None:
                self._mode = 0o644 if before is None else stat.S_IMODE(before.st_mode)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._target = os.open(self._temporary, flags, 0o600, dir_fd=self._folder)
        except BaseException:
            os.close(self._folder)
            raise
        try:
            if append and before is not None:
                self._copy(path, links=links)
        except BaseException:
            self.abandon()
            raise

    def _find(self, *, links: bool) -> os.stat_result | None:
        try:
            info = os.lstat(self._name, dir_fd=self._folder)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(info.st_mode) and not links:
            raise nolinks.LinkFoundError
        if self._exclusive:
            raise refuse(errno.EEXIST)
        _check_regular(info)
        if not os.access(self._name, os.W_OK, dir_fd=self._folder):
            raise refuse(errno.EACCES)
        return info

    def _copy(self, path: str, *, links: bool) -> None:
        with os.fdopen(open_regular(path, links=links), "rb", buffering=0) as source:
            while piece := source.read(1 << 20):
                self.write(piece)

    def write(self, data: bytes | memoryview) -> None:
        """More of the content."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._target, view) :]

    def commit(self) -> None:
        """It is whole."""
        try:
            os.fchmod(self._target, self._mode if self._mode is not None else 0o644)
            here = self._folder
            if self._exclusive:
                # Fails if somebody was faster, where rename would overwrite.
                os.link(self._temporary, self._name, src_dir_fd=here, dst_dir_fd=here)
                os.unlink(self._temporary, dir_fd=here)
            else:
                os.rename(self._temporary, self._name, src_dir_fd=here, dst_dir_fd=here)
        except BaseException:
            self.abandon()
            raise
        self._close()

    def abandon(self) -> None:
        """Nothing of it shall stay."""
        with contextlib.suppress(OSError):
            os.unlink(self._temporary, dir_fd=self._folder)
        self._close()

    def _close(self) -> None:
        os.close(self._target)
        os.close(self._folder)


def write_whole(path: str, content: bytes, before: os.stat_result | None = None, **how: Any) -> bool:
    """Write at once; with `before`, only over the file that was seen. Whether it was written."""
    replacing = Replacing(path, **how)
    try:
        replacing.write(content)
        if before is not None:
            now = os.stat(path)
            if (now.st_ino, now.st_mtime_ns, now.st_size) != (before.st_ino, before.st_mtime_ns, before.st_size):
                replacing.abandon()
                return False
    except BaseException:
        replacing.abandon()
        raise
    replacing.commit()
    return True


def change(path: str, edit: Callable[[bytes], bytes | None], *, links: bool = True) -> bytes | None:
    """Compare and swap: what `edit` makes of the content takes its place if it is still that; None leaves it.

    Raises:
        EditConflictError: it changes all the time.
    """
    for _ in range(_EDIT_ATTEMPTS):
        descriptor = open_regular(path, links=links)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            before = os.fstat(descriptor)
            if before.st_size > MAX_EDIT_BYTES:
                raise refuse(errno.EFBIG)
            content = file.read()
        changed = edit(content)
        goal = os.path.realpath(path) if links else path
        if changed is None or write_whole(goal, changed, before, links=links):
            return changed
    raise EditConflictError("the file kept changing while it was edited", hint="read it again and retry")


# The tree.


def move(source: str, target: str, *, overwrite: bool) -> None:
    """Rename."""
    os.lstat(source)
    if not overwrite and os.path.lexists(target):
        raise refuse(errno.EEXIST)
    os.rename(source, target)


def remove(path: str, *, recursive: bool) -> None:
    """Delete."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    if recursive:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _empty(top)
        finally:
            os.close(top)
    os.rmdir(path)


def _empty(top: int) -> None:
    """Deep children are moved up, so that neither paths nor the stack grow."""
    mark, counter = secrets.token_hex(6), 0
    while folders := _unlink_files(top):
        for name in folders:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
            try:
                for child in _unlink_files(inner):
                    counter += 1
                    os.rename(child, f".corral-rm-{mark}-{counter}", src_dir_fd=inner, dst_dir_fd=top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _unlink_files(folder: int) -> list[str]:
    folders = []
    with os.scandir(folder) as scan:
        for entry in scan:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders


def walk(
    root: str, unreadable: list[str], stop: Stop, *, hidden: bool, links: bool = True
) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below, folders before their content, names sorted, links not followed. No recursion.

    Raises:
        nolinks.LinkFoundError: `root` has links, and was to have none.
    """
    stack = [root]
    while stack:
        folder = stack.pop()
        if stop():
            raise StoppedError
        try:
            entries = list_folder(folder, links=links)
        except OSError as error:
            if folder == root and isinstance(error, nolinks.LinkFoundError):
                raise
            unreadable.append(f"{folder}: {error.strerror}")
            continue
        inner = []
        for path, info in entries:
            if path in ("/proc", "/sys", "/dev") or (not hidden and os.path.basename(path).startswith(".")):
                continue
            if isinstance(info, OSError):
                if info.errno != errno.ENOENT:
                    unreadable.append(f"{path}: {info.strerror}")
                continue
            yield path, info
            if stat.S_ISDIR(info.st_mode):
                inner.append(path)
        stack.extend(reversed(inner))
