"""Searches the files of a tree, which `scripts.SEARCH` sends as one tar after the other."""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import AsyncIterator

from corral.base.files import MAX_ITEMS, too_many
from corral.base.shellfiles.tarstream import read_members
from corral.errors import SandboxFileError
from corral.inside.glob import compile_glob, is_included
from corral.inside.lines import find_lines, is_text
from corral.inside.tars.reading import BrokenArchiveError
from corral.results import GrepMatch

MAX_FILE_BYTES = 64 * 1024 * 1024
"""A larger file is not searched, but reported as unreadable."""
_MAX_UNREADABLE = 1000
_COMPLAINT = re.compile(r"find: (?:[‘'](.*)[’']|(.*)): ([^:]*)")
"""A complaint of find about a path: GNU's with quotes, busybox's without."""


def arguments(root: str, *, hidden: bool) -> tuple[str, str, str]:
    """The arguments of `scripts.SEARCH`."""
    return root, "all" if hidden else "visible", str(MAX_FILE_BYTES // 512)


async def grep(
    stream: AsyncIterator[bytes],
    root: str,
    wanted: re.Pattern[bytes],
    *,
    include: str | None,
    limit: int,
    without: frozenset[str] = frozenset(),
) -> tuple[tuple[GrepMatch, ...], bool]:
    """The lines that match, sorted by path and number, and True if there are more."""
    found: list[GrepMatch] = []
    async for path, content in _read_texts(stream, root, include):
        if path in without:
            continue
        for number, text in find_lines(io.BytesIO(content), wanted):
            if len(found) >= limit:
                return _sorted(found), True
            found.append(GrepMatch(path, number, text))
    return _sorted(found), False


async def find_files(
    stream: AsyncIterator[bytes], root: str, wanted: re.Pattern[bytes], *, include: str | None
) -> list[str]:
    """The files that have a match. Raises: SandboxFileTooLargeError."""
    found = []
    async for path, content in _read_texts(stream, root, include):
        if wanted.search(content):
            found.append(path)
            if len(found) > MAX_ITEMS:
                raise too_many(root, MAX_ITEMS, sandbox_id=None, op="replace")
    return sorted(found)


async def _read_texts(stream: AsyncIterator[bytes], root: str, include: str | None) -> AsyncIterator[tuple[str, bytes]]:
    asked = compile_glob(include) if include else None
    try:
        async for member in read_members(stream, several=True):
            about = member.about
            path = _clean(_locate(about.name, root))
            below = posixpath.relpath(path, root) if path != root else posixpath.basename(path)
            if about.kind != "file" or about.size > MAX_FILE_BYTES:
                continue
            if path != root and not is_included(posixpath.basename(path), below, asked):
                continue
            content = await member.read()
            if is_text(content):
                yield path, content
    except BrokenArchiveError as error:
        raise SandboxFileError(f"{root}: could not be searched: {error}", path=root, op="grep") from error


def _clean(name: str) -> str:
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


def _sorted(matches: list[GrepMatch]) -> tuple[GrepMatch, ...]:
    return tuple(sorted(matches, key=lambda match: (match.path, match.line)))


def find_unreadable(said: bytes, root: str) -> tuple[str, ...]:
    """The files that could not be searched, from the tools' complaints."""
    found: dict[str, None] = {}
    for line in said.decode("utf-8", "replace").splitlines():
        if line.startswith("corral-large:"):
            path, why = line.partition(":")[2], f"larger than {MAX_FILE_BYTES >> 20} MiB"
        elif line.startswith("corral-shut:"):
            path, why = line.partition(":")[2], "Permission denied"
        elif complaint := _COMPLAINT.fullmatch(line):
            path, why = complaint[1] or complaint[2], complaint[3]
        else:
            continue
        found[f"{_locate(path, root)}: {why}"] = None
        if len(found) >= _MAX_UNREADABLE:
            break
    return tuple(found)


def _locate(name: str, root: str) -> str:
    """The path of a name that `scripts.SEARCH` or `scripts.WALK` printed."""
    if name.startswith("././"):
        return root
    if name.startswith("./"):
        return f"{root.rstrip('/')}{name[1:]}"
    return name.replace("/./", "/")
