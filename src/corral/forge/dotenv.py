"""Lines NAME=VALUE, as in `.env` files. They never change the environment of this process."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

_MAX_BYTES = 1024 * 1024


def parse_lines(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Line number, name and value; None is the value of a line that is not NAME=VALUE.

    `export` may stand before it. A value in quotes is taken as it is; without quotes ` #` begins a comment.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip().removeprefix("export ").strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        yield number, name.strip(), _bare(value.strip()) if equals else None


def read_dotenv(names: Collection[str], *, folder: Path | None = None) -> dict[str, str]:
    """The values of these names in `.env` of the working folder. No other names: the folder may be a stranger's.

    An unreadable file and malformed lines are ignored: other programs use the file too.
    """
    path = (folder or Path.cwd()) / ".env"
    text = ""
    with contextlib.suppress(OSError):
        if path.is_file():  # opening a FIFO of that name would block
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES).decode("utf-8-sig", "replace")
    return {name: value for _, name, value in parse_lines(text) if value is not None and name in names}


def _bare(value: str) -> str:
    if value[:1] in ("'", '"') and (end := value.find(value[0], 1)) > 0:
        return value[1:end]
    return re.split(r"(?:^|\s)#", value, maxsplit=1)[0].strip()
