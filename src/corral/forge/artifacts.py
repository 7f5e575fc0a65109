"""Artifacts: taking them out of a sandbox, and reading them on the host. Names, kinds, sizes and contents are hostile.

Only regular files are taken, each by a bounded read, into a folder that was made for this attempt; a file may change
while it is read. What is not taken is listed with the reason. The folder gets its final name when it is complete. On
the host no link is followed and no read is unbounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from corral.base.gitsettings import find_left_out, judge
from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    SandboxFileError,
    SandboxFileKindError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
)
from corral.forge.outcome import ArtifactFile, Refused
from corral.forge.settings import Take
from corral.inside.nolinks import open_file
from corral.results import FileInfo, GlobResult

MAX_BYTES = 4 * 1024 * 1024
_MAX_DEPTH = 32
_ERRORS_OF_NAMES = frozenset(
    {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}
)
_MAX_REFUSED = 50
"""Further refused files are only counted."""


async def take_out(
    box: AsyncSandbox, inside: str, target: Path, take: Take, first: str, *, alone: bool = False
) -> tuple[tuple[ArtifactFile, ...], tuple[Refused, ...]]:
    """Copy the files below `inside` to the new folder `target`: `first`, then others up to the limits of `take`.

    With `alone` only `first` is copied. What an earlier try left at `target` is replaced; without artifacts no folder
    is created.

    Raises:
        SandboxFileError: the folder can't be read, or is a link.
        OSError: the target can't be written.
    """
    unfinished = target.with_name(f".{target.name}.partial")
    await asyncio.to_thread(_clear, unfinished, target)
    try:
        files, refused = await _copy(box, inside, unfinished, take, first, alone=alone)
        if files:
            unfinished.replace(target)
    finally:
        await asyncio.to_thread(_clear, unfinished)
    if len(refused) > _MAX_REFUSED:
        refused[_MAX_REFUSED:] = [Refused("…", f"and {len(refused) - _MAX_REFUSED} more")]
    return files, tuple(refused)


async def _copy(
    box: AsyncSandbox, inside: str, target: Path, take: Take, first: str, *, alone: bool
) -> tuple[tuple[ArtifactFile, ...], list[Refused]]:
    try:
        # Not through a link: a file that the candidate only points to is not its artifact.
        if (await box.files.stat(inside, follow=False)).kind == "link":
            raise SandboxFileKindError(f"{inside}: is a link")
        main: FileInfo | None = None
        with contextlib.suppress(SandboxFileNotFoundError):
            main = await box.files.stat(f"{inside}/{first}", follow=False)
        found = GlobResult(())
        if not alone:
            found = await box.files.glob("**/*", path=inside, hidden=True, limit=take.files * 2 + 100)
    except SandboxFileNotFoundError:
        return (), []
    taken: list[ArtifactFile] = []
    refused: list[Refused] = []
    total = 0
    # The main artifact comes first, however many other files there are.
    others = (info for info in found.files if not info.is_folder and (main is None or info.path != main.path))
    listed = [*filter(None, [main]), *sorted(others, key=lambda info: info.path)]
    settings = _find_settings(listed, inside)
    for info in listed:
        name = _relative(info.path, inside)
        reason = _objection(info, name, take, len(taken)) or settings.get(info.path)
        if reason is None and total + info.size > int(take.total_bytes):
            reason = f"more than {take.total_bytes} bytes in all"
        if reason is not None or name is None:
            refused.append(Refused(name or info.path, reason or "its path leads out of the folder"))
            continue
        room = min(int(take.file_bytes), int(take.total_bytes) - total)
        try:
            file = await _take_one(box, info.path, target / name, name, room)
        except SandboxFileError as error:  # gone, changed or grown since it was listed
            refused.append(Refused(name, error.message))
            continue
        taken.append(file)
        total += file.size
    refused += [Refused(_relative(path, inside) or path, "the folder can't be read") for path in found.unreadable]
    if found.truncated:
        refused.append(Refused("…", f"more than {take.files} files"))
    return tuple(taken), refused


def _objection(info: FileInfo, name: str | None, take: Take, taken: int) -> str | None:
    if name is None:
        return "its path leads out of the folder"
    if info.kind == "link":
        return f"a link (to {info.target})" if info.target else "a link"
    if info.kind != "file":
        return f"a {info.kind}, not a regular file"
    if name.count("/") >= _MAX_DEPTH:
        return f"more than {_MAX_DEPTH} folders deep"
    if taken >= take.files:
        return f"more than {take.files} files"
    if info.size > int(take.file_bytes):
        return f"{info.size} bytes, more than {take.file_bytes}"
    return None


def _find_settings(listed: Sequence[FileInfo], inside: str) -> dict[str, str]:
    """Files that git would run on the host, with the reason not to take them. The folder is new, so it has none yet."""
    named = {tuple(name.split("/")): info.path for info in listed if (name := _relative(info.path, inside))}
    verdicts = {parts: judge(parts, is_folder=False) for parts in named}
    left = find_left_out((parts for parts, verdict in verdicts.items() if verdict == "hold"), lambda _: False)
    left |= {parts for parts, verdict in verdicts.items() if verdict in ("leave", "index")}
    return dict.fromkeys((named[parts] for parts in left), "a git setting, which git would run on this machine")


def _relative(path: str, inside: str) -> str | None:
    """The path below the folder; None if it is not below it."""
    name = path.removeprefix(f"{inside.rstrip('/')}/")
    parts = name.split("/")
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        return None
    return name


async def _take_one(box: AsyncSandbox, path: str, target: Path, name: str, room: int) -> ArtifactFile:
    digest = hashlib.sha256()
    size = 0
    try:
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except (OSError, ValueError) as error:  # too long a name for this file system, or not one at all
        if isinstance(error, OSError) and error.errno not in _ERRORS_OF_NAMES:
            raise  # a full disk or the like: our failure, not the candidate's
        raise SandboxFileError(f"can't be written here: {getattr(error, 'strerror', None) or error}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            async with contextlib.aclosing(box.files.read_stream(path)) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > room:
                        raise SandboxFileTooLargeError("grew beyond the limit while it was read")
                    digest.update(chunk)
                    await asyncio.to_thread(file.write, chunk)
    except BaseException:
        _clear(target)
        raise
    return ArtifactFile(name, size, digest.hexdigest())


def _clear(*folders: Path) -> None:
    for folder in folders:
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)


def are_whole(folder: Path, files: Sequence[ArtifactFile]) -> bool:
    """Whether all these artifacts are still there, byte for byte. The list may come from a stranger's folder."""
    if folder.is_symlink():
        return False
    for file in files:
        try:
            with os.fdopen(open_artifact(folder, file.path), "rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != file.sha256:
                    return False
        except (OSError, ValueError):
            return False
    return True


def open_artifact(folder: Path, path: str) -> int:
    """A descriptor of a regular file below the folder, which the caller closes. The folder itself is ours.

    Raises:
        OSError: it is not there, not a regular file, or a link leads to it.
    """
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise FileNotFoundError(f"{path!r} is not the name of an artifact")
    # O_NONBLOCK: opening a FIFO would block before we could see what it is.
    descriptor = open_file(folder, parts, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path!r} is not a regular file")
    return descriptor


def read_artifact(folder: Path, path: str, *, max_bytes: int = MAX_BYTES) -> tuple[bytes, bool]:
    """The first bytes of an artifact, and whether these are all. Raises: as `open_artifact`."""
    with os.fdopen(open_artifact(folder, path), "rb") as file:
        content = file.read(max_bytes + 1)
    return content[:max_bytes], len(content) <= max_bytes
