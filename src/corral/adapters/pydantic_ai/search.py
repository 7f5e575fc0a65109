"""Finding files and lines: patterns as models write them, on top of what a sandbox's files can."""

from __future__ import annotations

import posixpath

from corral.errors import SandboxFileError, SandboxFileNotFoundError
from corral.files import FilesBase
from corral.results import FileInfo, GrepMatch
from corral.tools.permission import expand_braces

_MAGIC = frozenset("*?[{")


async def find_files(files: FilesBase, pattern: str, *, root: str) -> list[FileInfo]:
    """Files that match, by path, each once. Folders that can't be looked into are left out, not an error.

    Raises: SandboxFileNotFoundError for `root`.
    """
    found: dict[str, FileInfo] = {}
    for one in expand_braces(pattern):
        where, rest = _anchor(one, root)
        result = await files.glob(rest, path=where)
        found.update((info.path, info) for info in result.files if not info.is_folder)
    return [found[path] for path in sorted(found)]


async def search_lines(
    files: FilesBase, pattern: str, *, root: str, include: str | None, hidden: bool
) -> list[GrepMatch]:
    """Lines that match, by path and number, each once.

    Raises: SandboxFileNotFoundError for `root`.
    """
    found: dict[tuple[str, int], GrepMatch] = {}
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
        found.update(((match.path, match.line), match) for match in result.matches)
    return [found[key] for key in sorted(found)]


def _anchor(pattern: str, root: str) -> tuple[str, str]:
    """Where to look, and for what. A name without a folder is looked for at any depth."""
    if not pattern.startswith("/"):
        return root, pattern if "/" in pattern.strip("/") else f"**/{pattern}"
    parts = [part for part in pattern.split("/") if part]
    fixed = 0
    while fixed < len(parts) - 1 and not _MAGIC & set(parts[fixed]):
        fixed += 1
    return posixpath.join("/", *parts[:fixed]), "/".join(parts[fixed:])
