"""Lines NAME=VALUE, as `.env` files have them. The process's own environment is never changed by them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

_MAX_BYTES = 1024 * 1024


def parse_lines(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Line number, name and value; None is the value of a line that is no NAME=VALUE.

    `export` may stand before it. A value in quotes is taken as it is; without quotes ` #` begins a comment.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip().removeprefix("export ").strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        yield number, name.strip(), _bare(value.strip()) if equals else None


def read_dotenv(names: Collection[str], *, folder: Path | None = None) -> dict[str, str]:
    """What `.env` in the working folder says of these names. No others count: the folder may be a stranger's.

    A file that can't be read, and lines that mean nothing, are passed over: it is somebody else's file as well.
    """
    path = (folder or Path.cwd()) / ".env"
    text = ""
    with contextlib.suppress(OSError):
        if path.is_file():  # a FIFO of that name would keep us waiting
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES).decode("utf-8-sig", "replace")
    return {name: value for _, name, value in parse_lines(text) if value is not None and name in names}


def _bare(value: str) -> str:
    if value[:1] in ("'", '"') and (end := value.find(value[0], 1)) > 0:
        return value[1:end]
    return re.split(r"(?:^|\s)#", value, maxsplit=1)[0].strip()
