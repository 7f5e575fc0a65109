"""Reading artifacts on the host. They were made by somebody hostile: no link is followed, no read is unbounded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from corral.inside.nolinks import open_file

MAX_BYTES = 4 * 1024 * 1024
_WALKS = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
# O_NONBLOCK: a FIFO would keep us waiting before we could see what it is. Windows knows neither of the two.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_artifact(folder: Path, path: str) -> int:
    """A descriptor of a regular file below the folder; whoever asked closes it. The folder itself is ours.

    Raises:
        OSError: it is not there, not a regular file, or a link leads to it.
    """
    parts = path.split("/")
    if "\0" in path or (os.sep != "/" and os.sep in path) or any(part in ("", ".", "..") for part in parts):
        raise FileNotFoundError(f"{path!r} is not the name of an artifact")
    descriptor = open_file(folder, parts, _READ) if _WALKS else _look_first(folder, parts)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path!r} is not a regular file")
    return descriptor


def read_artifact(folder: Path, path: str, *, max_bytes: int = MAX_BYTES) -> tuple[bytes, bool]:
    """The first bytes of an artifact, and whether these are all. Raises: as `open_artifact`."""
    with os.fdopen(open_artifact(folder, path), "rb") as file:
        content = file.read(max_bytes + 1)
    return content[:max_bytes], len(content) <= max_bytes


def _look_first(folder: Path, parts: list[str]) -> int:
    """Where that is not possible: nobody else writes into the folder, so looking first is enough."""
    here = folder
    for part in parts:
        here = here / part
        if here.is_symlink():
            raise FileNotFoundError(f"{part!r} is a link")
    if not here.is_file():
        raise FileNotFoundError(f"{parts[-1]!r} is not a regular file")
    return os.open(here, _READ)
