"""Completes the list of paths to hide from a call: hiding a path alone does not hide the file.

Another hard link shows the same content. A path that is longer than the kernel accepts can't be hidden by name, but a
program gets there step by step.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Iterable, Mapping

from corral.base.files import AsyncFiles
from corral.errors import PolicyError, SandboxFileError, SandboxPermissionError
from corral.results import FileInfo, GlobResult

MAX_HIDDEN = 10_000
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt/corral", "/dev", "/proc", "/sys")
"""Folders that every program needs."""
_SHARED_MEMORY = "/dev/shm"
_MOST_UNREADABLE = 50
"""Backends report no more unreadable folders than this."""
_MOST_LINKED = 100_000
_ASKED_ONE_BY_ONE = 16
"""Up to this many hidden folders are searched one by one; for more, the whole working folder is searched."""
_LONGEST_PATH = 4000
"""The kernel accepts 4,095 bytes, and a view is prepared under a longer path."""
_DEEPEST = 200
"""Every folder above a hidden path gets its own mount: two thousand of them take seconds."""
_SHOWN_CHARS = 100

HiddenPaths = Mapping[str, FileInfo | None]
"""Real path → its file; None for a folder that could not be read."""


async def complete(files: AsyncFiles, found: HiddenPaths, *, workdir: str) -> tuple[str, ...]:
    """The paths to hide so that none of these files can be seen; paths below another hidden path are left out.

    Raises:
        PolicyError: there are too many.
        SandboxFileError: the sandbox could not be searched for other names of a file.
    """
    reachable = {short: info if short == path else None for path, info in found.items() for short in [_cut(path)]}
    hidden = {path: reachable[path] for path in leave_outermost(reachable)}
    kept = leave_outermost({*hidden, *map(_cut, await _find_other_names(files, hidden, workdir))})
    if len(kept) > MAX_HIDDEN:
        raise PolicyError(f"the rules hide more than {MAX_HIDDEN} files, too many for a command")
    return kept


def find_unreadable(result: GlobResult) -> set[str]:
    """The folders that could not be read, which may contain anything: `chmod 300` makes a folder unreadable.

    Raises:
        PolicyError: there are too many for the backend to report all of them.
    """
    found = {text.rpartition(": ")[0] for text in result.unreadable} - {""}
    if len(result.unreadable) >= _MOST_UNREADABLE:
        raise PolicyError(
            "Access denied: too many unreadable folders, such as "
            f"{shorten_path(min(found, default='/'))}; make them readable or remove them"
        )
    return found


def leave_outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths that are not below another one of them: what is in a hidden folder is hidden with it."""
    found = set(paths)
    return tuple(path for path in sorted(found) if not any(above in found for above in _folders_above(path)))


def is_below(path: str, folder: str) -> bool:
    """True if a path is the folder, or in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def shorten_path(path: str) -> str:
    """A path for messages: of a very long one, the beginning and the end."""
    if len(path) <= _SHOWN_CHARS:
        return path
    return f"{path[: _SHOWN_CHARS // 2]}…{path[-_SHOWN_CHARS // 2 :]} ({path.count('/')} folders deep)"


def _folders_above(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _cut(path: str) -> str:
    """The path; if it is too long or too deep to be hidden, the deepest folder above it that can be."""
    path = "/".join(path.split("/")[: _DEEPEST + 1])
    while len(os.fsencode(path)) > _LONGEST_PATH:
        path = posixpath.dirname(path)
    return path


# Hard links.


async def _find_other_names(files: AsyncFiles, hidden: HiddenPaths, workdir: str) -> set[str]:
    """Other hard links to the hidden files; system folders are not searched."""
    names = _Names(files)
    names.take(info for info in hidden.values() if info is not None)
    folders = [path for path, info in hidden.items() if info is None or info.is_folder]
    if len(folders) > _ASKED_ONE_BY_ONE:
        folders = [workdir, *(path for path in folders if not is_below(path, workdir))]
    for folder in folders:
        await names.look_into(folder)
    ids = {file_id for file_id, paths in names.known.items() if any(_is_hidden(path, hidden) for path in paths)}
    if not names.lacks(ids):
        return names.all_of(ids)
    for folder in (workdir, *await _find_tops(files, "/"), _SHARED_MEMORY):
        if names.lacks(ids):
            await names.look_into(folder)
    # The missing names may be in folders that can't be listed.
    return names.all_of(ids) | (names.find_unreadable() if names.lacks(ids) else set())


async def _find_tops(files: AsyncFiles, above: str) -> list[str]:
    """The folders to search: the whole sandbox except the system folders."""
    found: list[str] = []
    for info in await files.list(above):
        if not info.is_folder or info.path in SYSTEM:
            continue
        holds_system = any(is_below(system, info.path) for system in SYSTEM)
        found += await _find_tops(files, info.path) if holds_system else [info.path]
    return found


def _is_hidden(path: str, hidden: HiddenPaths) -> bool:
    return path in hidden or any(above in hidden for above in _folders_above(path))


class _Names:
    """The paths found so far for files with several hard links."""

    def __init__(self, files: AsyncFiles) -> None:
        self._files = files
        self._links: dict[str, float] = {}
        self._searched: list[GlobResult] = []
        self._shut: set[str] = set()
        self.known: dict[str, set[str]] = {}

    def take(self, infos: Iterable[FileInfo]) -> None:
        for info in infos:
            if info.kind == "file" and info.file_id is not None and info.links != 1:
                self.known.setdefault(info.file_id, set()).add(info.path)
                self._links[info.file_id] = info.links if info.links is not None else math.inf

    async def look_into(self, folder: str) -> None:
        try:
            found = await self._files.find_linked(folder, limit=_MOST_LINKED)
        except SandboxPermissionError:
            self._shut.add(folder)
            return
        except SandboxFileError:
            return  # it is gone
        if found.truncated:
            raise PolicyError(
                f"there are more than {_MOST_LINKED} hard links in {shorten_path(folder)}, too many to hide"
            )
        self._searched.append(found)
        self.take(found.files)

    def lacks(self, ids: Iterable[str]) -> bool:
        """True if one of these files has more names than are known."""
        return any(len(self.known[file_id]) < self._links[file_id] for file_id in ids)

    def all_of(self, ids: Iterable[str]) -> set[str]:
        return {path for file_id in ids for path in self.known[file_id]}

    def find_unreadable(self) -> set[str]:
        """The folders that could not be read. Raises: PolicyError for too many."""
        return self._shut.union(*(find_unreadable(result) for result in self._searched))
