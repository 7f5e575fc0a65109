"""Indexes in folders of this machine: which folders a sandbox must see, and where, for their links to hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from corral.engine.base import ToolFolder

FOLDERS_AT = "/opt/corral/indexes"
_MAX_PAGES = 64
_MAX_PAGE_BYTES = 1 << 20
_MAX_LINKS = 200
"""Of one page."""
_LINK = re.compile(r"""<a\b[^>]*\bhref\s*=\s*["']?([^"'>\s]+)""", re.IGNORECASE)


class FolderError(ValueError):
    """A folder that is not shown to sandboxes; says why."""


def find_folder(text: str) -> Path | None:
    """The folder that a `file:` URL or a plain path names. None for any other URL, and for a relative path, which
    means another folder in each working folder."""
    parts = urlsplit(text)
    if parts.scheme == "file":
        return Path(unquote(parts.path)) if parts.netloc in ("", "localhost") else None
    path = Path(text).expanduser()
    return None if "://" in text or not path.is_absolute() else path


def show_folder(folder: Path, number: int) -> tuple[str, list[ToolFolder]]:
    """Where a sandbox sees this index, and what has to be shown.

    The pages of an index link to files beside it (`../../files/x.whl`): those folders are shown too, in the same
    position to each other, and nothing above them.

    Raises:
        FolderError: not a folder, or one that holds more than packages.
    """
    try:
        index = folder.resolve(strict=True)
        if not index.is_dir():
            raise FolderError("not a folder")
        linked = {path.resolve() for path in set(_linked_folders(index))}
    except OSError as error:
        raise FolderError(error.strerror or "can't be read") from None
    outside = [path for path in linked if not path.is_relative_to(index) and path.is_dir()]
    root = Path(os.path.commonpath([index.parent, *outside]))
    shown = sorted({root / path.relative_to(root).parts[0] for path in (index, *outside) if path != root})
    if root in (index, *outside):
        shown, root = [root], root.parent
    for path in shown:
        _check(path)
    at = f"{FOLDERS_AT}/{number}"
    folders = [ToolFolder(str(path), f"{at}/{path.relative_to(root)}") for path in shown]
    return f"{at}/{index.relative_to(root)}", folders


def _check(path: Path) -> None:
    """Raises: FolderError for a folder near the root, or with the home of the user in it."""
    home = Path("~").expanduser().resolve()
    if os.geteuid() == 0 and path.stat().st_mode & 0o005 != 0o005:
        raise FolderError(f"sandboxes can't read it: chmod o+rx {path}")  # they run under other user ids
    if len(path.parts) < 3 or home.is_relative_to(path) or path.is_relative_to("/proc"):
        raise FolderError(f"its links lead to {path}, which holds more than packages")


def _linked_folders(index: Path) -> Iterator[Path]:
    """The folders of the files that the first pages link to."""
    for page in islice(_pages(index), _MAX_PAGES):
        try:
            with page.open("rb") as file:
                text = file.read(_MAX_PAGE_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        for link in _LINK.findall(text)[:_MAX_LINKS]:
            parts = urlsplit(urljoin(page.as_uri(), link))
            if parts.scheme == "file":
                yield Path(unquote(parts.path)).parent


def _pages(index: Path) -> Iterable[Path]:
    yield index / "index.html"
    with os.scandir(index) as entries:
        for entry in entries:
            if entry.is_dir():
                yield Path(entry.path) / "index.html"
            elif entry.name.endswith(".html"):
                yield Path(entry.path)
