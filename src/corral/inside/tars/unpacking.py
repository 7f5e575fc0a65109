"""A tar laid down below a folder, by whoever owns that folder: the file agent inside a sandbox, or a plain process.

Links that are there already are followed as long as they stay below it. On the host, where what others put there is not
to be followed at all, `corral.base.transfer` lays archives down.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from corral.inside.files import make_folders
from corral.inside.tars.inflating import Inflated
from corral.inside.tars.reading import Member, MemberReader


class LeadsOutError(Exception):
    """A member would come to lie outside of the folder."""


def unpack_tree(root: str, pieces: Iterable[bytes]) -> int:
    """Unpack a tar, plain or compressed, and give how many members were laid down.

    What is laid down belongs to us, whatever the archive says, and has no setuid bit.

    Raises:
        BrokenArchiveError: not a tar, or cut short.
        LeadsOutError: a member would lie elsewhere; those before it are there by now.
        OSError: the files can't be written.
    """
    make_folders(root)
    inside, count = os.path.realpath(root), 0
    folders: list[tuple[str, int]] = []
    reader = MemberReader(Inflated(pieces).read)
    for member in reader:
        if member.kind == "other":  # a FIFO or device means nothing elsewhere
            reader.skip(member)
            continue
        path = _place(inside, member.name)
        if member.kind == "folder":
            make_folders(path)
            folders.append((path, member.mode & 0o1777))
        else:
            _lay_down(reader, member, path, inside)
        count += 1
    for folder, mode in reversed(folders):  # last: a read-only folder must be filled first
        os.chmod(folder, mode)
    return count


def _place(inside: str, name: str) -> str:
    """Where a member goes. Its last part may be a link that is replaced; it must stay inside in any case."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    path = "/".join((inside.rstrip("/"), *parts)) or "/"
    goal = os.path.realpath(path)
    if ".." in parts or (goal != inside and not goal.startswith(f"{inside.rstrip('/')}/")):
        raise LeadsOutError(f"{name!r} is outside the target folder")
    return path


def _lay_down(reader: MemberReader, member: Member, path: str, inside: str) -> None:
    make_folders(os.path.dirname(path))
    linked = _place(inside, member.target) if member.kind == "hard link" else ""
    if linked != path:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
    if member.kind == "link":
        os.symlink(member.target, path)
    elif member.kind == "hard link":
        if linked != path:
            os.link(linked, path, follow_symlinks=False)
    else:
        _write(reader, member, path)


def _write(reader: MemberReader, member: Member, path: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        for begin, piece in reader.content(member):
            done = 0
            while done < len(piece):
                done += os.pwrite(file, memoryview(piece)[done:], begin + done)
        os.ftruncate(file, member.size)
        with contextlib.suppress(OSError, OverflowError):
            os.utime(file, (member.mtime, member.mtime))
        os.fchmod(file, member.mode & 0o1777)
    finally:
        os.close(file)
