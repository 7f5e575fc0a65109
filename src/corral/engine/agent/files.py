"""Operations on single files and folders. Each takes (message, descriptors, reply)."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import Any

from corral.engine import syscalls, wire
from corral.engine.agent.reply import RefusedError, Reply, read_all
from corral.inside.nolinks import open_folder, split
from corral.inside.tars.unpacking import make_folders

Operation = Callable[[wire.Message, list[int], Reply], None]

MAX_EDIT_BYTES = 64 * 1024 * 1024
_EDIT_ATTEMPTS = 5
TEMPORARY_PREFIX = ".corral-"


def open_regular(path: str, *, links: bool = True, folder: int = syscalls.AT_FDCWD) -> int:
    """Open a regular file, and nothing else: no FIFO that blocks, no device, nothing of /proc.

    Without `links` none is followed, at no place of the path.
    """
    try:
        descriptor = open_path(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, links=links, folder=folder)
    except OSError as error:
        if os.path.realpath(path).startswith("/proc/"):
            raise _proc_refusal() from error
        raise
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
            raise RefusedError(
                "not_regular", number, f"is a {name_kind(kind)}, not a regular file", kind=name_kind(kind)
            )
        if syscalls.file_system_magic(descriptor) == syscalls.PROC_SUPER_MAGIC:
            raise _proc_refusal()
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_path(path: str, flags: int, *, links: bool, magic: bool = False, folder: int = syscalls.AT_FDCWD) -> int:
    """Open whatever is there. Without `links` none is followed; without `magic`, none of those of /proc.

    Raises: OSError; RefusedError for a link.
    """
    resolve = (0 if magic else syscalls.RESOLVE_NO_MAGICLINKS) | (0 if links else syscalls.RESOLVE_NO_SYMLINKS)
    try:
        return syscalls.openat2(folder, os.fsencode(path), flags, resolve=resolve)
    except OSError as error:
        if not links and error.errno == errno.ELOOP:
            raise RefusedError.for_link() from error
        raise


def _proc_refusal() -> RefusedError:
    return RefusedError("not_regular", errno.EINVAL, "is in /proc: read it with a command", kind="proc")


def name_kind(mode: int) -> str:
    """The word for a file's type."""
    for test, name in (
        (stat.S_ISREG, "file"),
        (stat.S_ISDIR, "folder"),
        (stat.S_ISLNK, "link"),
        (stat.S_ISFIFO, "fifo"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "device"),
        (stat.S_ISBLK, "device"),
    ):
        if test(mode):
            return name
    return "other"


def describe(path: str, info: os.stat_result) -> dict[str, Any]:
    """What the host is told of a file."""
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


def open_for_reading(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Hand out a descriptor of a regular file."""
    descriptor = open_regular(message["path"], links=message.get("links", True))
    try:
        reply.send({"stat": describe(message["path"], os.fstat(descriptor))}, (descriptor,))
    finally:
        os.close(descriptor)


def stat_one(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Describe one path."""
    path = message["path"]
    if not message.get("links", True):
        descriptor = open_path(path, os.O_PATH, links=False)
        try:
            info = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    else:
        info = os.stat(path) if message.get("follow", True) else os.lstat(path)
    reply.send({"stat": describe(path, info)})


def resolve(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """The path with every link followed."""
    reply.send({"path": os.path.realpath(message["path"], strict=bool(message.get("strict")))})


def make_folder(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """mkdir, with parents if asked."""
    path, mode = message["path"], message.get("mode", 0o755)
    if message.get("parents"):
        try:
            make_folders(path)
        except NotADirectoryError:
            if os.path.lexists(path):  # the file itself has this name, not one above it
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            raise
    else:
        os.mkdir(path)
    if "mode" in message:
        os.chmod(path, mode)
    reply.send({})


def make_link(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """A symbolic link."""
    os.symlink(message["target"], message["path"])
    reply.send({})


def move(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Rename; across file systems, copy and remove."""
    source, target = message["source"], message["target"]
    os.lstat(source)
    if not message.get("overwrite", True) and os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, target)
    reply.send({})


def change_mode(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """chmod."""
    os.chmod(message["path"], message["mode"])
    reply.send({})


def write(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Write the content of the memory file that came along, atomically."""
    source = descriptors[0]
    size = os.fstat(source).st_size
    with replacing(message) as target:
        offset = 0
        while offset < size:
            sent = os.sendfile(target, source, offset, min(size - offset, 1 << 24))
            if sent == 0:
                break
            offset += sent
    reply.send({"size": size})


def write_stream(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Hand out a descriptor to write to; the file appears when the host says that it is whole."""
    with replacing(message) as target:
        wire.send(reply.sock, {"opened": True}, (target,))
        received = wire.receive(reply.sock)
        if received is None or not received[0].get("commit"):
            raise RefusedError("aborted", errno.ECANCELED, "the writer went away")
    reply.send({})


@contextlib.contextmanager
def replacing(message: wire.Message) -> Iterator[int]:
    """A new file beside the target that takes its place at the end, or vanishes if anything goes wrong."""
    if message.get("links", True):
        _refuse_magic(message["path"])
        path = os.path.realpath(message["path"])
        if message.get("parents", True):
            make_folders(os.path.dirname(path))
        with _replacing(path, message) as target:
            yield target
        return
    # From inside its folder: that can't be taken for another one by a link any more.
    folder, path = os.path.split(message["path"])
    descriptor = open_folder("/", split(folder), make=message.get("parents", True))
    try:
        os.fchdir(descriptor)
        with _replacing(f"./{path}", message) as target:
            yield target
    finally:
        os.chdir("/")
        os.close(descriptor)


@contextlib.contextmanager
def _replacing(path: str, message: wire.Message) -> Iterator[int]:
    before = _existing(path, exclusive=message.get("exclusive", False), links=message.get("links", True))
    temporary = f"{os.path.dirname(path)}/{TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
    target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if message.get("append") and before is not None:
            _copy_into(path, target, links=message.get("links", True))
        yield target
        mode = message.get("mode")
        if mode is None:
            mode = stat.S_IMODE(before.st_mode) if before is not None else 0o644
        os.fchmod(target, mode)
        if message.get("exclusive"):
            os.link(temporary, path)  # fails if somebody was faster, where rename would overwrite
            os.unlink(temporary)
        else:
            os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(target)


def _refuse_magic(path: str) -> None:
    """Links of /proc that lead to wherever another process is are not followed for writing either."""
    try:
        flags = os.O_PATH
        os.close(syscalls.openat2(syscalls.AT_FDCWD, os.fsencode(path), flags, resolve=syscalls.RESOLVE_NO_MAGICLINKS))
    except FileNotFoundError:
        return  # it will be made


def _existing(path: str, *, exclusive: bool, links: bool) -> os.stat_result | None:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(info.st_mode) and not links:
        raise RefusedError.for_link()
    if exclusive:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if not stat.S_ISREG(info.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(info.st_mode) else errno.EINVAL
        kind = name_kind(info.st_mode)
        raise RefusedError("not_regular", number, f"is a {kind}, not a regular file", kind=kind)
    if not os.access(path, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return info


def _copy_into(path: str, target: int, *, links: bool) -> None:
    source = open_regular(path, links=links)
    try:
        while os.sendfile(target, source, None, 1 << 24):  # None: the file's own position
            pass
    finally:
        os.close(source)


def edit(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Replace bytes in a file, only if it is still what was read: compare, then swap by rename."""
    old, new = (read_all(descriptor, limit=MAX_EDIT_BYTES) for descriptor in descriptors[:2])
    path, links = message["path"], message.get("links", True)
    for _ in range(_EDIT_ATTEMPTS):
        descriptor = open_regular(path, links=links)
        try:
            before = os.fstat(descriptor)
            content = read_all(descriptor, limit=MAX_EDIT_BYTES)
        finally:
            os.close(descriptor)
        count = _check_edit(content, old, message)
        changed = content.replace(old, new)
        with contextlib.suppress(_RacedError):
            _swap(path, before, changed, links=links)
            digest = hashlib.sha256(changed).hexdigest()
            reply.send({"replacements": count, "sha256": digest, "size": len(changed)})
            return
    raise RefusedError("conflict", errno.EAGAIN, "the file kept changing while it was edited")


def _check_edit(content: bytes, old: bytes, message: wire.Message) -> int:
    expected = message.get("expected_sha256")
    actual = hashlib.sha256(content).hexdigest()
    if expected is not None and actual != expected:
        raise RefusedError("conflict", errno.EAGAIN, "the file has changed since it was read", sha256=actual)
    count = content.count(old) if old else 0
    if count == 0:
        raise RefusedError("no_match", 0, "the text to replace is not in the file", count=0)
    if count > 1 and not message.get("replace_all"):
        raise RefusedError("ambiguous", 0, f"the text to replace occurs {count} times", count=count)
    return count


class _RacedError(Exception):
    """Somebody changed the file between reading and swapping."""


def _swap(path: str, before: os.stat_result, content: bytes, *, links: bool) -> None:
    with replacing({"path": path, "parents": False, "links": links}) as target:
        view = memoryview(content)
        while view:
            view = view[os.write(target, view) :]
        now = os.stat(path)
        if (now.st_ino, now.st_mtime_ns, now.st_size) != (before.st_ino, before.st_mtime_ns, before.st_size):
            raise _RacedError


def remove(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Remove a file, or a folder with all that is in it if asked. Iterative: depth can't exhaust anything."""
    path = message["path"]
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        os.unlink(path)
    elif message.get("recursive"):
        remove_tree(path)
    else:
        os.rmdir(path)
    reply.send({})


def remove_tree(path: str, *, unlock: bool = False) -> None:
    """Delete a folder by descriptors, moving deep children up so that neither paths nor the stack grow.

    With `unlock`, folders that their owner may not enter are opened first: for trees in which nobody lives any more.
    """
    if unlock:
        os.chmod(path, 0o700)
    parent = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _empty(parent, unlock=unlock)
    finally:
        os.close(parent)
    os.rmdir(path)


def _empty(top: int, *, unlock: bool) -> None:
    # Not our pid: another of that number may have been killed in the middle of the same tree.
    mark, counter = os.urandom(6).hex(), 0
    while folders := _unlink_files(top):
        for name in folders:
            if unlock:
                os.chmod(name, 0o700, dir_fd=top)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            try:
                for child in _unlink_files(inner):
                    counter += 1
                    if unlock:
                        os.chmod(child, 0o700, dir_fd=inner)
                    _lift(child, inner, f".corral-rm-{mark}-{counter}", top, unlock=unlock)
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


def _lift(name: str, source: int, new_name: str, target: int, *, unlock: bool) -> None:
    try:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # A folder of a lower layer can't be renamed. Those are ours, so not deep enough to hurt.
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=source)
        try:
            _empty(folder, unlock=unlock)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=source)
