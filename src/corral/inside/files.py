"""Operations on single files and folders, for every file agent.

Nothing blocks on a FIFO or reads a device; written files appear whole or not at all; removed trees may be of any depth.
Without `links`, no link in any part of a path is followed.

All of them raise OSError where the kernel refuses, RefusedError where we do, and LinkFoundError for a link that may not
be followed. `refusal.describe_refusal` turns each into a message.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from corral.inside.lines import MAX_EDIT_BYTES, edit_text
from corral.inside.nolinks import HERE, LinkFoundError, is_of_proc, on_error, open_folder, open_path, opened, split
from corral.inside.refusal import RefusedError
from corral.inside.writing import write_all

TEMPORARY_PREFIX = ".corral-"
"""The names of unfinished files begin with it."""
_EDIT_ATTEMPTS = 5
_TURN_SECONDS = 1.0
_COPIED_AT_ONCE = 1 << 20

_KIND_NAMES = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip


# About files.


def describe(path: str, info: os.stat_result) -> dict[str, Any]:
    """The description of a file, as messages carry it."""
    target = None
    if stat.S_ISLNK(info.st_mode):
        with contextlib.suppress(OSError):
            target = os.readlink(path)
    return {
        "path": path,
        "kind": name_kind(info.st_mode),
        "size": info.st_size,
        "mode": stat.S_IMODE(info.st_mode),
        "modified": info.st_mtime,
        "uid": info.st_uid,
        "gid": info.st_gid,
        "target": target,
        "id": f"{info.st_dev}:{info.st_ino}",
        "links": info.st_nlink,
    }


def name_kind(mode: int) -> str:
    """The word for a file's type."""
    return _KIND_NAMES.get(stat.S_IFMT(mode), "other")


def look(path: str, *, follow: bool = True, links: bool = True) -> dict[str, Any]:
    """Describe one path. `follow` is about a link at its end; without `links`, a link anywhere is refused."""
    if links:
        return describe(path, os.stat(path) if follow else os.lstat(path))
    above, name = os.path.split(path)
    with opened(open_folder("/", split(above))) as folder:
        info = os.lstat(name or ".", dir_fd=folder)
    if stat.S_ISLNK(info.st_mode):
        raise LinkFoundError
    return describe(path, info)


# Reading.


def open_regular(path: str, *, links: bool = True, folder: int = HERE) -> int:
    """Open a regular file, and nothing else: no FIFO, which would block, no device, no file of /proc."""
    try:
        descriptor = open_path(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, links=links, magic=False, folder=folder)
    except OSError as error:
        if os.path.realpath(path).startswith("/proc/"):
            raise _refuse_proc() from error
        raise
    with on_error(os.close, descriptor):
        _check_regular(os.fstat(descriptor))
        if is_of_proc(descriptor):
            raise _refuse_proc()
    return descriptor


def _check_regular(info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        number, kind = errno.EISDIR if stat.S_ISDIR(info.st_mode) else errno.EINVAL, name_kind(info.st_mode)
        raise RefusedError("not_regular", number, f"is a {kind}, not a regular file", kind=kind)


def _refuse_proc() -> RefusedError:
    return RefusedError("not_regular", errno.EINVAL, "is in /proc: read it with a command", kind="proc")


def read_all(descriptor: int, *, limit: int) -> bytes:
    """Read a descriptor to its end, refusing more than `limit` bytes."""
    chunks, total = [], 0
    while chunk := os.read(descriptor, _COPIED_AT_ONCE):
        total += len(chunk)
        if total > limit:
            raise RefusedError("too_big", errno.EFBIG, f"more than {limit} bytes", limit=limit)
        chunks.append(chunk)
    return b"".join(chunks)


# Writing.


class NewFile(NamedTuple):
    """A file that is being written under a temporary name, and its future name; both are in an open folder."""

    descriptor: int
    temporary: str
    folder: int
    name: str


@contextlib.contextmanager
def replacing(
    path: str,
    *,
    mode: int | None = None,
    parents: bool = False,
    exclusive: bool = False,
    append: bool = False,
    links: bool = True,
    staged: bool = False,
) -> Iterator[NewFile]:
    """A new file that takes the path's place at the end, or is removed if anything goes wrong.

    With `append` it begins with the content of the file before. The mode is `mode`, else that of the file before, else
    0644. With `staged`, it may be created again under its temporary name meanwhile.
    """
    with _held_folder(path, parents=parents, links=links) as (folder, name), _delaying_sigterm():
        before = _find_existing(folder, name, exclusive=exclusive, links=links)
        temporary = f"{TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
        target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            if append and before is not None:
                _copy_into(target, folder, name)
            yield NewFile(target, temporary, folder, name)
            if staged:
                written = open_regular(temporary, links=False, folder=folder)
                os.close(target)
                target = written
            if mode is None:
                mode = 0o644 if before is None else stat.S_IMODE(before.st_mode)
            os.fchmod(target, mode)
            if exclusive:
                # Fails if another was faster, where rename would overwrite.
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.unlink(temporary, dir_fd=folder)
            else:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        finally:
            os.close(target)


@contextlib.contextmanager
def _delaying_sigterm() -> Iterator[None]:
    """A process that is asked to end does so after the block: here it would leave its temporary file."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def staging(path: str, **how: Any) -> Iterator[str]:
    """As `replacing`, for another process that writes the content: gives the temporary path."""
    with replacing(path, staged=True, **how) as new:
        yield f"{os.path.dirname(os.path.realpath(path)).rstrip('/')}/{new.temporary}"


@contextlib.contextmanager
def _held_folder(path: str, *, parents: bool, links: bool) -> Iterator[tuple[int, str]]:
    """Open the folder of a file that is to be written, so that a link added later can't redirect the write."""
    if links:
        _refuse_magic(path)
        above, name = os.path.split(os.path.realpath(path))
        if parents:
            make_folders(above)
        folder = open_folder(above, ())
    else:
        above, name = os.path.split(path)
        folder = open_folder("/", split(above), make=parents)
    with opened(folder):
        yield folder, name or "."  # "/" has no name, and is refused as any other folder


def _refuse_magic(path: str) -> None:
    """Links of /proc that lead to files of other processes are not followed for writing either."""
    if hasattr(os, "O_PATH"):
        with contextlib.suppress(FileNotFoundError):  # it will be created
            os.close(open_path(path, os.O_PATH, magic=False))


def _find_existing(folder: int, name: str, *, exclusive: bool, links: bool) -> os.stat_result | None:
    try:
        info = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(info.st_mode) and not links:
        raise LinkFoundError
    if exclusive:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    _check_regular(info)
    if not os.access(name, os.W_OK, dir_fd=folder, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return info


def _copy_into(target: int, folder: int, name: str) -> None:
    with opened(open_regular(name, links=False, folder=folder)) as source:
        while piece := os.read(source, _COPIED_AT_ONCE):
            write_all(target, piece)


class TurnTakenError(Exception):
    """Another process holds the file that is to be edited, and the caller may not wait."""


def change(path: str, make: Callable[[bytes], bytes | None], *, links: bool = True, wait: bool = True) -> bytes | None:
    """Compare and swap: replace the content with what `make` returns for it, unless the file has changed meanwhile. If
    it returns None, the file stays as it is.

    Raises: TurnTakenError, without `wait`.
    """
    for _ in range(_EDIT_ATTEMPTS):
        with opened(open_regular(path, links=links)) as descriptor:
            before = os.fstat(descriptor)
            changed = make(read_all(descriptor, limit=MAX_EDIT_BYTES))
            if changed is None:
                return None
            _take_turn(descriptor, wait=wait)
            if _swap(path, before, changed, links=links):
                return changed
    raise RefusedError("conflict", errno.EAGAIN, "the file kept changing while it was edited")


def _take_turn(descriptor: int, *, wait: bool) -> None:
    """Wait for another edit of the same file to finish: between its last look and its renaming we would be lost.

    Not for ever, because any program may hold this lock.
    """
    until = time.monotonic() + _TURN_SECONDS
    while time.monotonic() < until:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise TurnTakenError from None
            time.sleep(0.002)
        except OSError:
            return  # a file system without locks
        else:
            return


class _RacedError(Exception):
    """The file was changed between reading and swapping."""


def _swap(path: str, before: os.stat_result, content: bytes, *, links: bool) -> bool:
    try:
        with replacing(path, links=links) as new:
            write_all(new.descriptor, content)
            now = os.lstat(new.name, dir_fd=new.folder)
            if (now.st_ino, now.st_mtime_ns, now.st_size) != (before.st_ino, before.st_mtime_ns, before.st_size):
                raise _RacedError
    except _RacedError:
        return False
    return True


def edit(
    path: str,
    old: bytes,
    new: bytes,
    *,
    replace_all: bool = False,
    expected_sha256: str | None = None,
    links: bool = True,
    wait: bool = True,
) -> dict[str, Any]:
    """Replace bytes in a file: `{"replacements": …, "sha256": …, "size": …}`. For `wait`, see `change`."""
    result: dict[str, Any] = {}

    def make(content: bytes) -> bytes:
        nonlocal result
        changed, result = edit_text(content, old, new, replace_all=replace_all, expected_sha256=expected_sha256)
        return changed

    change(path, make, links=links, wait=wait)
    return result


# The tree.


def make_folder(path: str, *, parents: bool = False, mode: int | None = None) -> None:
    """Create a folder; with `parents` also those above it, and then it may exist already."""
    above, name = os.path.split(path.rstrip("/") or "/")
    if parents:
        make_folders(above)
    with opened(open_folder(above or ".", ())) as folder:
        flags = _LISTED
        try:
            os.mkdir(name or ".", 0o755, dir_fd=folder)
        except FileExistsError:
            if not parents or not os.path.isdir(path):
                raise
            flags &= ~getattr(os, "O_NOFOLLOW", 0)
        if mode is not None:
            # By descriptor: a program may have put a link in the place of a folder that was just created.
            with opened(os.open(name or ".", flags, dir_fd=folder)) as descriptor:
                os.fchmod(descriptor, mode)


def make_folders(path: str) -> None:
    """Create a folder and those above it, where they are missing. Existing links are followed. Without recursion: a
    path has room for 2,000 folders."""
    missing: list[str] = []
    while True:
        try:
            os.close(open_folder(path, reversed(missing), make=True))
            return
        except FileNotFoundError:
            above, name = os.path.split(path.rstrip("/"))
            if not above:
                raise
            missing.append(name)
            path = above
        except LinkFoundError as error:  # it leads nowhere: else it would have been followed
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error


def move(source: str, target: str, *, overwrite: bool = True) -> None:
    """Rename; across file systems, copy and remove."""
    os.lstat(source)
    if not overwrite and os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, target)


def remove(path: str, *, recursive: bool = False) -> None:
    """Remove a file or an empty folder; with `recursive`, a folder with its content."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif recursive:
        remove_tree(path)
    else:
        os.rmdir(path)


def remove_tree(path: str, *, unlock: bool = False) -> None:
    """Delete a folder by descriptors, moving deep children up so that neither paths nor the stack grow.

    With `unlock`, folders that their owner may not enter get another mode first: for trees that no program uses.
    """
    if unlock:
        os.chmod(path, 0o700)
    with opened(os.open(path, _LISTED)) as parent:
        _empty(parent, unlock=unlock)
    os.rmdir(path)


_LISTED = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def _empty(top: int, *, unlock: bool) -> None:
    # Not our pid: another process with that number may have been killed while it deleted the same tree.
    mark, counter = os.urandom(6).hex(), 0
    while folders := _unlink_files(top):
        for name in folders:
            if unlock:
                os.chmod(name, 0o700, dir_fd=top)
            with opened(os.open(name, _LISTED, dir_fd=top)) as inner:
                for child in _unlink_files(inner):
                    counter += 1
                    if unlock:
                        os.chmod(child, 0o700, dir_fd=inner)
                    _lift(child, inner, f".corral-rm-{mark}-{counter}", top, unlock=unlock)
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


def _lift(name: str, source: int, new_name: str, target: int, *, unlock: bool) -> None:
    try:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # A folder of a lower layer can't be renamed. Those are our own, and not deep.
        with opened(os.open(name, _LISTED, dir_fd=source)) as folder:
            _empty(folder, unlock=unlock)
        os.rmdir(name, dir_fd=source)
