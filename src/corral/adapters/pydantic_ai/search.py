"""Finding files and lines: patterns as models write them, on top of what a sandbox's files can."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from corral.adapters.pydantic_ai.results import Found
from corral.base.files import DEFAULT_MATCH_LIMIT, AsyncFiles
from corral.errors import PolicyError, SandboxFileError, SandboxFileNotFoundError
from corral.results import FileInfo, GrepMatch
from corral.tools.permission import expand_braces
from corral.tools.reading import JUDGED_FILES, find_hidden_files, limit_search

_MAGIC = frozenset("*?[{")


async def find_files(
    files: AsyncFiles, pattern: str, *, root: str, shows: Callable[[str], bool] | None = None
) -> Found[FileInfo]:
    """Files that match and may be shown, by path, each once. Folders that can't be looked into are left out.

    Raises: SandboxFileNotFoundError for `root`.
    """
    found: dict[str, FileInfo] = {}
    truncated = False
    async with limit_search():
        for one in expand_braces(pattern):
            where, rest = _anchor(one, root)
            # Rules first, then the limit: what is not shown must not take its part of it.
            limit = DEFAULT_MATCH_LIMIT if shows is None else JUDGED_FILES
            result = await files.glob(rest, path=where, limit=limit)
            truncated = truncated or (result.truncated and shows is None)
            if result.truncated and shows is not None:
                raise PolicyError(f"more than {limit} files match, too many to keep rules in a search")
            found.update((info.path, info) for info in result.files if not info.is_folder)
    shown = [path for path in sorted(found) if shows is None or shows(path)]
    truncated = truncated or len(shown) > DEFAULT_MATCH_LIMIT
    return Found((found[path] for path in shown[:DEFAULT_MATCH_LIMIT]), truncated=truncated)


async def search_lines(
    files: AsyncFiles,
    pattern: str,
    *,
    root: str,
    include: str | None,
    hidden: bool,
    shows: Callable[[str], bool] | None = None,
) -> Found[GrepMatch]:
    """Lines that match, by path and number, each once; only of files that may be shown.

    Raises: SandboxFileNotFoundError for `root`.
    """
    found: dict[tuple[str, int], GrepMatch] = {}
    truncated = False
    async with limit_search():
        without = await find_hidden_files(files, root, hidden=hidden, shows=shows) if shows is not None else ()
        for one in expand_braces(include) if include else (None,):
            try:
                result = await files.grep(pattern, path=root, include=one, hidden=hidden, without=without)
            except SandboxFileNotFoundError:
                raise
            except SandboxFileError as error:
                if type(error) is not SandboxFileError:
                    raise
                # Not a regular expression, such as "print(": then it is meant as it stands.
                result = await files.grep(pattern, path=root, include=one, hidden=hidden, fixed=True, without=without)
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
