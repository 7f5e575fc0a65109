"""Trees as tar streams, packed and unpacked inside the sandbox: no path of theirs means anything on the host."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from typing import Any

from corral.engine import wire
from corral.engine.agent.reply import RefusedError, Reply

Keep = Callable[[tarfile.TarInfo], tarfile.TarInfo | None]


def pack(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Write a tar of a file or folder to the descriptor that came along; names are relative to it."""
    path = message["path"]
    os.lstat(path)
    skipped: list[str] = []

    def keep(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
            skipped.append(info.name)  # a FIFO, socket or device means nothing outside
            return None
        return info

    with (
        os.fdopen(descriptors.pop(0), "wb") as sink,
        tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, errorlevel=1) as tar,
    ):
        if os.path.isdir(path) and not os.path.islink(path):
            _add_tree(tar, path, keep, skipped)
        else:
            tar.add(path, arcname=os.path.basename(path), recursive=False, filter=keep)
    reply.send({"skipped": skipped[:50]})


def _add_tree(tar: tarfile.TarFile, root: str, keep: Keep, skipped: list[str]) -> None:
    tar.add(root, arcname=".", recursive=False, filter=keep)
    stack = [root]
    while stack:
        folder = stack.pop()
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
        for entry in entries:
            name = os.path.relpath(entry.path, root)
            try:
                tar.add(entry.path, arcname=name, recursive=False, filter=keep)
            except (PermissionError, FileNotFoundError) as error:
                skipped.append(f"{name}: {error.strerror}")
                continue
            if entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)


def unpack(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Unpack a tar stream below a folder. Names that lead out of it are refused, not cleaned up."""
    path, count = message["path"], 0
    os.makedirs(path, exist_ok=True)
    folders: list[tarfile.TarInfo] = []
    try:
        with os.fdopen(descriptors.pop(0), "rb") as source, _Tar.open(fileobj=source, mode="r|*") as tar:
            for member in tar:
                safe = _checked(member, path)
                if not (safe.isreg() or safe.isdir() or safe.issym() or safe.islnk()):
                    continue
                _extract(tar, safe, path)
                if safe.isdir():
                    folders.append(safe)
                count += 1
    except tarfile.TarError as error:
        raise RefusedError("archive", 0, f"bad archive: {error}") from error
    for folder in reversed(folders):  # modes last: a read-only folder must be filled first
        if folder.mode is not None:
            os.chmod(os.path.join(path, folder.name), folder.mode & 0o7777)
    reply.send({"count": count})


class _Tar(tarfile.TarFile):
    """Everything unpacked here belongs to the code's user, whatever the archive says."""

    def chown(self, tarinfo: tarfile.TarInfo, targetpath: Any, numeric_owner: bool) -> None:  # noqa: FBT001 - inherited
        """Not wanted, and not permitted: failing here would leave modes unset."""


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """The member has been checked; a second filter would refuse modes that mean no harm in here."""
    if hasattr(tarfile, "tar_filter"):
        tar.extract(member, path, set_attrs=not member.isdir(), filter="fully_trusted")
    else:
        tar.extract(member, path, set_attrs=not member.isdir())


def _checked(member: tarfile.TarInfo, root: str) -> tarfile.TarInfo:
    """A member that stays below `root`, also through the links that are there by now, with its mode but no setuid bit.

    Our own check and not a filter of `tarfile`: those are not in every Python, and take away permissions that mean no
    harm in here.
    """
    names = [member.name, member.linkname] if member.islnk() else [member.name]
    inside = os.path.realpath(root)
    for name in names:
        goal = os.path.realpath(os.path.join(inside, name.lstrip("/")))
        if goal != inside and not goal.startswith(inside + "/"):
            raise RefusedError("archive", 0, f"{name!r} leads out of the target folder")
    member.name = member.name.lstrip("/") or "."
    member.mode &= 0o1777
    return member
