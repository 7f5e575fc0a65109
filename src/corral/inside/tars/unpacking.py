"""Unpacks a tar below a folder inside a sandbox.

Existing links are followed as long as they stay below it. On the host, where no link of others may be followed,
`corral.base.transfer` unpacks.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from corral.inside.files import make_folders
from corral.inside.nolinks import opened
from corral.inside.refusal import RefusedError
from corral.inside.tars.inflating import Inflated
from corral.inside.tars.reading import BrokenArchiveError, Member, MemberReader
from corral.inside.writing import write_all_at


def unpack_tree(root: str, pieces: Iterable[bytes]) -> int:
    """Unpack a tar, plain or compressed, and give the number of members.

    Files belong to our user, whatever the archive says, and have no setuid bit.

    Raises:
        RefusedError: ("archive") not a tar, or truncated; or a member would lie outside of the folder. Members before
            it exist by then.
        OSError: the files can't be written.
    """
    make_folders(root)
    try:
        return _unpack(MemberReader(Inflated(pieces).read), os.path.realpath(root))
    except BrokenArchiveError as error:
        raise RefusedError("archive", 0, f"malformed archive: {error}") from error


def _unpack(reader: MemberReader, inside: str) -> int:
    count = 0
    folders: list[tuple[str, int]] = []
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
    """The path of a member. Its last part may be a link, which is replaced; it must stay inside in any case."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    path = "/".join((inside.rstrip("/"), *parts)) or "/"
    goal = os.path.realpath(path)
    if ".." in parts or (goal != inside and not goal.startswith(f"{inside.rstrip('/')}/")):
        raise RefusedError("archive", 0, f"{name!r} is outside the target folder")
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
    with opened(os.open(path, flags, 0o600)) as file:
        for begin, piece in reader.content(member):
            write_all_at(file, piece, begin)
        os.ftruncate(file, member.size)
        with contextlib.suppress(OSError, OverflowError):
            os.utime(file, (member.mtime, member.mtime))
        os.fchmod(file, member.mode & 0o1777)
