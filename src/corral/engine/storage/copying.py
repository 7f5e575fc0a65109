"""Copies files: with shared blocks where the file system can (xfs, btrfs), else the data without holes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from corral.engine.sampling import open_deep
from corral.inside.nolinks import opened

_CLONE = 0x40049409


def copy_sparse(source: str, target: str) -> bool:
    """Copy a file. True if its blocks are shared, which takes the same time for any size."""
    with open(source, "rb", buffering=0) as reader, open(target, "xb", buffering=0) as writer:
        return _copy_content(reader.fileno(), writer.fileno())


def _copy_content(reader: int, writer: int) -> bool:
    try:
        fcntl.ioctl(writer, _CLONE, reader)
    except OSError:
        pass  # not supported here, or not for these two files: copy the data
    else:
        return True
    size = os.fstat(reader).st_size
    os.ftruncate(writer, size)
    position = 0
    while position < size:
        try:
            start = os.lseek(reader, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # only a hole is left
            raise
        position = end = os.lseek(reader, start, os.SEEK_HOLE)
        while start < end:
            copied = os.copy_file_range(reader, writer, end - start, start, start)
            if not copied:
                return False  # it has become shorter meanwhile
            start += copied
    return False


class TreeCopy:
    """Copies a tree of an overlay's upper: owners, modes, times, links, whiteouts and the overlay's own marks.

    By descriptors and never through a link, so that depth and odd names don't matter. The process must be able to read
    files that the code has locked (as root, or with CAP_DAC_OVERRIDE in a user namespace).
    """

    def __init__(self, source: str, target: str, *, owners: bool, limit_bytes: int | None = None) -> None:
        self._source = source
        self._target = target
        self._owners = owners
        self._left_bytes = limit_bytes
        self._linked: dict[tuple[int, int], bytes] = {}

    def run(self) -> None:
        """Copy it; the target's folder exists and is empty. Raises: OSError, with EFBIG for more than the limit."""
        waiting, done = [b""], []
        while waiting:
            folder = waiting.pop()
            waiting += self._copy_folder(folder)
            done.append(folder)
        for folder in reversed(done):
            # Last, and from the leaves: new entries change a folder's time.
            with self._open_both(folder) as (reader, writer):
                self._dress(reader, writer)

    @contextlib.contextmanager
    def _open_both(self, folder: bytes) -> Iterator[tuple[int, int]]:
        with opened(open_deep(self._source, folder)) as reader, opened(open_deep(self._target, folder)) as writer:
            yield reader, writer

    def _copy_folder(self, folder: bytes) -> list[bytes]:
        inner = []
        with self._open_both(folder) as (reader, writer), os.scandir(reader) as scan:
            for entry in scan:
                name = os.fsencode(entry.name)
                with contextlib.suppress(FileNotFoundError):
                    if self._copy_entry(reader, writer, name, folder):
                        inner.append(os.path.join(folder, name))
        return inner

    def _copy_entry(self, reader: int, writer: int, name: bytes, folder: bytes) -> bool:
        """Copy one entry; True if it is a folder, whose content is still to be copied."""
        found = os.stat(name, dir_fd=reader, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(name, 0o700, dir_fd=writer)
            return True
        if found.st_nlink > 1 and self._link(found, writer, os.path.join(folder, name), name):
            return False
        if stat.S_ISREG(found.st_mode):
            self._copy_file(reader, writer, name)
            return False
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=reader), name, dir_fd=writer)
        elif stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode) or not found.st_rdev:
            # A character device 0/0 is the overlay's whiteout, which every user can create.
            os.mknod(name, found.st_mode, found.st_rdev, dir_fd=writer)
        else:
            return False
        if self._owners:
            os.chown(name, found.st_uid, found.st_gid, dir_fd=writer, follow_symlinks=False)
        if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
            os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=writer)
        times = (found.st_atime_ns, found.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=writer, follow_symlinks=False)
        return False

    def _link(self, found: os.stat_result, writer: int, path: bytes, name: bytes) -> bool:
        """True if this is a second name of a file that was copied already, which is then linked."""
        first = self._linked.setdefault((found.st_dev, found.st_ino), path)
        if first == path:
            return False
        with opened(open_deep(self._target, os.path.dirname(first))) as folder:
            os.link(os.path.basename(first), name, src_dir_fd=folder, dst_dir_fd=writer, follow_symlinks=False)
        return True

    def _copy_file(self, reader: int, writer: int, name: bytes) -> None:
        with opened(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=reader)) as source:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode):
                return  # replaced meanwhile, although everything should be frozen
            if self._left_bytes is not None:
                self._left_bytes -= found.st_blocks * 512
                if self._left_bytes < 0:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with opened(os.open(name, flags, 0o600, dir_fd=writer)) as target:
                _copy_content(source, target)
                self._dress(source, target)

    def _dress(self, source: int, target: int) -> None:
        """Owner, marks, mode and times."""
        found = os.fstat(source)
        if self._owners:
            os.fchown(target, found.st_uid, found.st_gid)
        for mark in os.listxattr(source):
            if mark.startswith("user."):
                with contextlib.suppress(OSError):  # gone meanwhile
                    os.setxattr(target, mark, os.getxattr(source, mark))
        os.fchmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
