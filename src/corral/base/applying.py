"""Brings what a sandbox has changed in a folder of the host back to that folder, and nowhere else.

Nothing of the host that has changed meanwhile is replaced unasked, no link is followed, what git would run is left out
(`corral.base.gitsettings`), and as root the work is done with the rights of the folder's owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from corral.base.changes import Comparison, Entry, Kind, Origin, compare, look, read_notes, stamp
from corral.base.files import AsyncFiles
from corral.base.gitsettings import Parts
from corral.base.transfer import Landing, stays_inside
from corral.errors import (
    ApplyConflictError,
    MountError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotFolderError,
)
from corral.inside.nolinks import open_file, open_folder, opened
from corral.inside.tars.reading import Member, MemberReader
from corral.results import ApplyResult, FolderChange

T = TypeVar("T")
_MAX_NAMED = 20
"""How many paths a message names."""


async def find_changes(files: AsyncFiles, origin: Origin) -> tuple[FolderChange, ...]:
    """What the sandbox has changed, by path. Raises: SandboxFileError, MountError."""
    async with _compared(files, origin) as comparison:
        return tuple(await asyncio.to_thread(_list_changes, comparison))


async def apply_changes(files: AsyncFiles, origin: Origin, *, overwrite: bool, git_settings: bool) -> ApplyResult:
    """Bring it back. Raises: ApplyConflictError, MountError, SandboxFileError."""
    async with _compared(files, origin) as comparison:
        work = asyncio.ensure_future(
            asyncio.to_thread(_apply, comparison, overwrite=overwrite, git_settings=git_settings)
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.gather(work, return_exceptions=True)  # it can't be stopped half-way, and needs its content
            raise


@contextlib.asynccontextmanager
async def _compared(files: AsyncFiles, origin: Origin) -> AsyncIterator[Comparison]:
    with origin.pinned() as pinned:
        async with contextlib.aclosing(files.pack(origin.path)) as archive:  # type: ignore[type-var]
            comparison = await compare(archive, pinned)
        with comparison:
            for folder, missing in comparison.missing().items():
                comparison.unknown |= await _find_existing(files, pinned, folder, missing)
            yield comparison


async def _find_existing(files: AsyncFiles, origin: Origin, folder: Parts, missing: Sequence[Parts]) -> set[Parts]:
    """Those of the missing paths that exist inside, or may: special files, and what can't be read."""
    try:
        names = {info.name for info in await files.list("/".join((origin.path, *folder)))}
    except (SandboxFileNotFoundError, SandboxNotFolderError):
        return set()
    except SandboxFileError:
        return set(missing)
    found = {parts for parts in missing if parts[-1] in names}
    if not origin.copied:
        # A folder that was listed inside before the host added a file does not show it: it was not deleted.
        changed, gone = await asyncio.to_thread(_look_again, origin, set(missing) - found)
        found |= gone
        for parts in changed:
            if await files.exists("/".join((origin.path, *parts))):
                found.add(parts)
    return found


def _look_again(origin: Origin, paths: Iterable[Parts]) -> tuple[set[Parts], set[Parts]]:
    """Those that have changed on the host since the sandbox was created, and those that are not there any more."""
    entries = {parts: look(origin.folder, parts) for parts in paths}
    changed = {parts for parts, entry in entries.items() if entry is not None and entry.ctime_ns > origin.since_ns}
    return changed, {parts for parts, entry in entries.items() if entry is None}


def _list_changes(comparison: Comparison) -> list[FolderChange]:
    notes = read_notes(comparison.origin).get(comparison.origin.path, {})
    found = []
    for parts, verdict in comparison.differences():
        about = comparison.inside.get(parts) or comparison.base[parts]
        assert about.kind != "other"  # these are never compared
        conflict = _has_conflict(comparison, parts, deleted=verdict == "deleted", notes=notes)
        found.append(FolderChange("/".join(parts), verdict, about.kind, conflict))
    return found


# Conflicts.


def _has_conflict(comparison: Comparison, parts: Parts, *, deleted: bool, notes: dict[str, Any]) -> bool:
    """True if the host's file is neither the one that the sandbox began with, nor one that was applied."""
    origin = comparison.origin
    host, before = look(origin.folder, parts), comparison.base.get(parts)
    name = "/".join(parts)
    if name in notes and notes[name] == stamp(host):
        return False
    if host is None:
        return before is not None and not deleted
    if host.kind == "folder" and (before is None or before.kind == "folder"):
        return False
    if not origin.copied:
        return host.ctime_ns > origin.since_ns
    return before is None or _identity(host) != _identity(before)


def _identity(entry: Entry) -> tuple[object, ...]:
    return entry.kind, entry.mode, entry.size, entry.target, entry.mtime_ns


def _write_notes(origin: Origin, applied: Iterable[FolderChange]) -> None:
    notes = read_notes(origin)
    mine = notes.setdefault(origin.path, {})
    for change in applied:
        mine[change.path] = stamp(look(origin.folder, _parts_of(change)))
    draft = origin.notes.with_name(f".{origin.notes.name}.{os.getpid()}-{threading.get_ident()}")
    draft.write_text(json.dumps(notes))
    draft.replace(origin.notes)


# Writing.


def _apply(comparison: Comparison, *, overwrite: bool, git_settings: bool) -> ApplyResult:
    origin = comparison.origin
    changes = _list_changes(comparison)
    conflicts = tuple(change.path for change in changes if change.conflict)
    if conflicts and not overwrite:
        names = ", ".join(map(ascii, conflicts[:_MAX_NAMED]))
        more = f" and {len(conflicts) - _MAX_NAMED} more" if len(conflicts) > _MAX_NAMED else ""
        raise ApplyConflictError(
            f"files of the host have changed since they were mounted at {origin.path}: {names}{more}",
            op="apply",
            paths=conflicts,
            hint="nothing was applied; to replace them, use overwrite=True",
        )
    left: set[str] = set()
    placed: list[FolderChange] = []

    def work() -> None:
        with Landing(origin.folder, git_settings=git_settings, known_as=origin.known_as) as landing:
            try:
                _carry_out(comparison, changes, landing, left, placed)
                left.update(landing.finish())
            except SandboxFileError:
                raise
            except OSError as error:
                raise landing.explain(error) from error

    try:
        run_as_owner(origin, work)
    finally:
        # Folders in which git keeps what it runs are left out without a word.
        left.update(change.path for change in placed if change.kind != "deleted" and _is_missing(origin, change))
        applied = [change for change in placed if change.path not in left]
        _write_notes(origin, applied)  # also of what was done before an error
    return ApplyResult(tuple(sorted(applied, key=_parts_of)), tuple(sorted(left)))


def _is_missing(origin: Origin, change: FolderChange) -> bool:
    return look(origin.folder, _parts_of(change)) is None


def _carry_out(
    comparison: Comparison,
    changes: Sequence[FolderChange],
    landing: Landing,
    left: set[str],
    placed: list[FolderChange],
) -> None:
    for change in reversed(changes):  # what is in a folder before the folder
        if change.kind == "deleted":
            # One that the host has changed is never deleted, not even when it may be replaced.
            done = not change.conflict and _delete(comparison, _parts_of(change), landing)
            placed.append(change) if done else left.add(change.path)
    for change in changes:
        if change.kind != "deleted":
            done = _place(comparison, _parts_of(change), landing)
            placed.append(change) if done else left.add(change.path)


def _delete(comparison: Comparison, parts: Parts, landing: Landing) -> bool:
    return _may_change(landing, parts, comparison.base[parts].kind) and _remove(landing.target, parts)


def _place(comparison: Comparison, parts: Parts, landing: Landing) -> bool:
    """Write a file, link or folder. False if it is left out."""
    now, host = comparison.inside[parts], look(landing.target, parts)
    assert now.kind != "other"
    if now.kind == "link" and not stays_inside(parts, now.target):
        return False
    if host is not None and host.kind != now.kind and (host.kind in ("folder", "other") or now.kind == "folder"):
        # Other files are replaced as they are written.
        both = _may_change(landing, parts, host.kind) and _may_change(landing, parts, now.kind)
        if not both or not _remove(landing.target, parts):
            return False
    if now.kind == "file" and now.place is None:
        return host is not None and host.kind == "file" and _change_mode(landing, parts, now.mode)
    reader = MemberReader(comparison.content(now))
    member = Member("/".join(parts), now.kind, now.mode, 0.0, now.size, now.target, now.segments, 0)
    landing.take(reader, member, parts)
    return True


def _may_change(landing: Landing, parts: Parts, kind: Kind) -> bool:
    """False for what makes git run programs."""
    verdict = landing.judge(parts, is_folder=kind == "folder", is_link=kind == "link")
    return verdict in ("take", "index")


def _remove(top: Path, parts: Parts) -> bool:
    """Remove a file, a link or an empty folder. False if there is more in the folder."""
    try:
        with opened(open_folder(top, parts[:-1])) as folder:
            if stat.S_ISDIR(os.lstat(parts[-1], dir_fd=folder).st_mode):
                os.rmdir(parts[-1], dir_fd=folder)
            else:
                os.unlink(parts[-1], dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
        return False
    return True


def _change_mode(landing: Landing, parts: Parts, mode: int) -> bool:
    if not _may_change(landing, parts, "file"):
        return False
    with opened(open_file(landing.target, parts, os.O_PATH)) as file:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return False
        Path(f"/proc/self/fd/{file}").chmod(mode)
    return True


def _parts_of(change: FolderChange) -> Parts:
    return tuple(change.path.split("/"))


def run_as_owner(origin: Origin, work: Callable[[], T]) -> T:
    """Call `work`; as root, with the rights of the folder's owner, to whom new files belong then.

    Raises:
        MountError: the owner can't enter the folder.
    """
    owner, known_as = origin.folder.stat(), origin.known_as or origin.folder
    if os.geteuid() != 0 or owner.st_uid == 0:
        return work()

    def run() -> T:
        # Of this thread alone: the kernel takes away root's rights over files with the user id.
        libc = ctypes.CDLL(None)
        libc.setfsgid(owner.st_gid)
        libc.setfsuid(owner.st_uid)
        if libc.setfsuid(-1) != owner.st_uid or libc.setfsgid(-1) != owner.st_gid:
            raise MountError("the rights of the folder's owner can't be taken on", op="apply")
        try:
            os.close(os.open(known_as, os.O_RDONLY | os.O_DIRECTORY))
        except PermissionError as error:
            text = f"the owner of {known_as}, user {owner.st_uid}, can't enter it"
            hint = "let that user pass through the folders above it"
            raise MountError(text, op="apply", hint=hint) from error
        return work()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(run).result()
