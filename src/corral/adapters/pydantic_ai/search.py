"""Finding files and lines: patterns as models write them, on top of what a sandbox's files can."""

from __future__ import annotations

import posixpath

from corral.adapters.pydantic_ai.results import Found
from corral.errors import SandboxFileError, SandboxFileNotFoundError
from corral.files import FilesBase
from corral.results import FileInfo, GrepMatch
from corral.tools.permission import expand_braces
from corral.tools.reading import limit_search

_MAGIC = frozenset("*?[{")


async def find_files(files: FilesBase, pattern: str, *, root: str) -> Found[FileInfo]:
    """Files that match, by path, each once. Folders that can't be looked into are left out, not an error.

    Raises: SandboxFileNotFoundError for `root`.
    """
    found: dict[str, FileInfo] = {}
    truncated = False
    async with limit_search():
        for one in expand_braces(pattern):
            where, rest = _anchor(one, root)
            result = await files.glob(rest, path=where)
            truncated = truncated or result.truncated
            found.update((info.path, info) for info in result.files if not info.is_folder)
    return Found((found[path] for path in sorted(found)), truncated=truncated)


async def search_lines(
    files: FilesBase, pattern: str, *, root: str, include: str | None, hidden: bool
) -> Found[GrepMatch]:
    """Lines that match, by path and number, each once.

    Raises: SandboxFileNotFoundError for `root`.
    """
    found: dict[tuple[str, int], GrepMatch] = {}
    truncated = False
    async with limit_search():
        for one in expand_braces(include) if include else (None,):
            try:
                result = await files.grep(pattern, path=root, include=one, hidden=hidden)
            except SandboxFileNotFoundError:
                raise
            except SandboxFileError as error:
                if type(error) is not SandboxFileError:
                    raise
                # Not a regular expression, such as "print(": then it is meant as it stands.
                result = await files.grep(pattern, path=root, include=one, hidden=hidden, fixed=True)
            truncated = truncated or result.truncated
            found.update(((match.path, match.line), match) for match in result.matches)
    return Found((found[key] for key in sorted(found)), truncated=truncated)


def _anchor(pattern: str, root: str) -> tuple[str, str]:
    """Where to look, and for what. A name without a folder is looked for at any depth."""
    if not pattern.startswith("/"):
        return root, pattern if "/" in pattern.strip("/") else f"**/{pattern}"
    parts = [part for part in pattern.split("/") if part]
    fixed = 0
    while fixed < len(parts) - 1 and not _MAGIC & set(parts[fixed]):
        fixed += 1
    return posixpath.join("/", *parts[:fixed]), "/".join(parts[fixed:])
