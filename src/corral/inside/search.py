"""Listing, globbing, searching and replacing over trees: results are structures, never parsed text.

The functions yield results one by one, so that memory stays flat; `Outcome` has the rest when they are done. They raise
what `corral.inside.files` raises.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Collection, Iterator
from typing import Any

from corral.inside.files import change, describe, open_regular
from corral.inside.glob import compile_glob, find_depth, is_included
from corral.inside.lines import SNIFF_BYTES, compile_pattern, find_lines, is_text, substitute
from corral.inside.nolinks import open_path, opened
from corral.inside.refusal import RefusedError

_PIECE_BYTES = 1 << 20
_LOOKED_AT_ONCE = 1000
_MAX_PATH_BYTES = 4095
"""Deeper trees are not searched: no path leads there, and each of their paths would take more memory."""
_MAX_UNREADABLE = 50
_NEVER_SEARCHED = frozenset(("/proc", "/sys", "/dev"))


class Outcome:
    """What a search reports besides its results."""

    def __init__(self) -> None:
        self.truncated = False
        self.unreadable: list[str] = []

    def leave_out(self, path: str, error: OSError | RefusedError) -> None:
        """Report a path that could not be read."""
        if len(self.unreadable) < _MAX_UNREADABLE:
            self.unreadable.append(f"{path}: {getattr(error, 'strerror', None) or error}")


def list_folder(path: str, *, depth: int = 1, links: bool = True) -> Iterator[dict[str, Any]]:
    """The entries of a folder by name, each folder before its own entries, down to a depth."""
    with _Tree.open(path, links=links) as tree:
        above = [tree.entries(path)]
        while above:
            found = next(above[-1], None)
            if found is None:
                above.pop()
                continue
            entry, info = found
            if isinstance(info, FileNotFoundError):
                continue  # it was removed meanwhile
            if isinstance(info, OSError):
                raise info
            yield describe(entry, info)
            if len(above) < depth and stat.S_ISDIR(info.st_mode):
                with contextlib.suppress(OSError):  # removed or not readable: the rest of the tree is still listed
                    above.append(tree.entries(entry))


def glob(
    path: str,
    pattern: str,
    *,
    limit: int,
    outcome: Outcome,
    hidden: bool = True,
    linked: bool = False,
    links: bool = True,
) -> Iterator[dict[str, Any]]:
    """Descriptions of what matches the pattern below a folder. With `linked`, only files with several hard links."""
    wanted, found = compile_glob(pattern), 0
    with _Tree.open(path, links=links) as tree:
        tree.entries(path)  # a missing root is an error, an unreadable folder below is only reported
        for entry, info in tree.walk(outcome, hidden=hidden, depth=find_depth(pattern)):
            if linked and (info.st_nlink == 1 or not stat.S_ISREG(info.st_mode)):
                continue
            if wanted.fullmatch(tree.relative(entry)):
                if found >= limit:
                    outcome.truncated = True
                    return
                found += 1
                yield describe(entry, info)


def grep(
    path: str,
    pattern: str,
    *,
    limit: int,
    outcome: Outcome,
    include: str | None = None,
    ignore_case: bool = False,
    fixed: bool = False,
    hidden: bool = False,
    without: Collection[str] = (),
    links: bool = True,
) -> Iterator[dict[str, Any]]:
    """Lines that match: `{"path": …, "line": number, "text": …}`."""
    wanted, found = compile_pattern(pattern, fixed=fixed, ignore_case=ignore_case), 0
    with _Tree.open(path, links=links) as tree:
        for entry in tree.files(include, outcome, hidden=hidden):
            if entry in without:
                continue
            for number, text in _find_in(tree, entry, wanted, outcome):
                if found >= limit:
                    outcome.truncated = True
                    return
                found += 1
                yield {"path": entry, "line": number, "text": text}


def replace(
    path: str,
    pattern: str,
    new: bytes,
    *,
    outcome: Outcome,
    include: str | None = None,
    ignore_case: bool = False,
    fixed: bool = True,
    hidden: bool = False,
    links: bool = True,
) -> Iterator[dict[str, Any]]:
    """Replace in every matching file below a path, each file atomically: `{"path": …, "replacements": …}`."""
    wanted = compile_pattern(pattern, fixed=fixed, ignore_case=ignore_case)
    with _Tree.open(path, links=links) as tree:
        for entry in tree.files(include, outcome, hidden=hidden):
            try:
                count = _replace_in(entry, wanted, new, fixed=fixed, links=links)
            except OSError as error:
                outcome.leave_out(entry, error)
            except RefusedError as error:
                if error.code == "replacement":
                    raise
                outcome.leave_out(entry, error)
            else:
                if count:
                    yield {"path": entry, "replacements": count}


class _Tree:
    """A tree to search, held by a descriptor. Below it no link is followed, not even one that is added meanwhile; on
    the path to it links are followed, unless it was opened without `links`."""

    def __init__(self, root: str, top: int, *, links: bool) -> None:
        self._root = root
        self._prefix = len(root.rstrip("/")) + 1
        self._top = top
        self._links = links

    @classmethod
    @contextlib.contextmanager
    def open(cls, root: str, *, links: bool) -> Iterator[_Tree]:
        flags = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
        with opened(open_path(root, flags, links=links)) as top:
            yield cls(root, top, links=links)

    def entries(self, folder: str) -> Iterator[tuple[str, os.stat_result | OSError]]:
        """The entries of one of its folders, sorted by name. Raises: OSError, at once."""
        with self._open_folder(folder) as descriptor, os.scandir(descriptor) as scan:
            names = sorted(entry.name for entry in scan)
        return self._look_at(folder, names)

    def _look_at(self, folder: str, names: list[str]) -> Iterator[tuple[str, os.stat_result | OSError]]:
        # In batches: a folder's entries may not fit into memory, and a tree may be deeper than descriptors suffice for.
        for start in range(0, len(names), _LOOKED_AT_ONCE):
            try:
                with self._open_folder(folder) as descriptor:
                    found = [(name, _lstat(name, descriptor)) for name in names[start : start + _LOOKED_AT_ONCE]]
            except OSError:
                return  # the folder was removed meanwhile
            yield from ((f"{folder.rstrip('/')}/{name}", info) for name, info in found)

    def _open_folder(self, folder: str) -> contextlib.AbstractContextManager[int]:
        return opened(open_path(self._below(folder), os.O_RDONLY | os.O_DIRECTORY, links=False, folder=self._top))

    def open_file(self, path: str) -> int:
        """One of its files. Raises: as `open_regular`."""
        if path == self._root:
            return open_regular(path, links=self._links)
        return open_regular(self._below(path), links=False, folder=self._top)

    def relative(self, path: str) -> str:
        """The path of an entry from the root. By its length alone: `os.path.relpath` would take longer than opening
        the file does."""
        return path[self._prefix :] or "."

    def _below(self, path: str) -> str:
        below = self.relative(path)
        if len(below) > _MAX_PATH_BYTES // 4 and len(os.fsencode(below)) > _MAX_PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return below

    def walk(self, outcome: Outcome, *, hidden: bool, depth: int | None = None) -> Iterator[tuple[str, os.stat_result]]:
        """Everything below, folders before their content, names sorted, links not followed. No recursion."""
        stack = [(self._root, 1)]
        while stack:
            folder, level = stack.pop()
            try:
                entries = self.entries(folder)
            except OSError as error:
                outcome.leave_out(folder, error)
                continue
            inner = []
            for path, info in entries:
                if path in _NEVER_SEARCHED or (not hidden and os.path.basename(path).startswith(".")):
                    continue
                if isinstance(info, OSError):
                    if not isinstance(info, FileNotFoundError):
                        outcome.leave_out(path, info)
                    continue
                yield path, info
                if stat.S_ISDIR(info.st_mode) and (depth is None or level < depth):
                    inner.append((path, level + 1))
            stack.extend(reversed(inner))

    def files(self, include: str | None, outcome: Outcome, *, hidden: bool) -> Iterator[str]:
        """The regular files below, or the one that it is."""
        if not stat.S_ISDIR(os.fstat(self._top).st_mode):
            yield self._root
            return
        asked = compile_glob(include) if include else None
        for path, info in self.walk(outcome, hidden=hidden):
            if stat.S_ISREG(info.st_mode) and is_included(os.path.basename(path), self.relative(path), asked):
                yield path


def _lstat(name: str, folder: int) -> os.stat_result | OSError:
    try:
        return os.lstat(name, dir_fd=folder)
    except OSError as error:
        return error


def _find_in(tree: _Tree, path: str, wanted: re.Pattern[bytes], outcome: Outcome) -> Iterator[tuple[int, str]]:
    try:
        descriptor = tree.open_file(path)
    except (OSError, RefusedError) as error:
        outcome.leave_out(path, error)
        return
    with os.fdopen(descriptor, "rb", buffering=1 << 16) as file:
        if is_text(os.pread(descriptor, SNIFF_BYTES, 0)):
            yield from find_lines(file, wanted, piece_bytes=_PIECE_BYTES)


def _replace_in(path: str, wanted: re.Pattern[bytes], new: bytes, *, fixed: bool, links: bool) -> int:
    count = 0

    def make(content: bytes) -> bytes | None:
        nonlocal count
        if not is_text(content):
            return None
        changed, count = substitute(content, wanted, new, fixed=fixed)
        return changed if count else None

    change(path, make, links=links)
    return count
