"""Which language a file is written in."""

from __future__ import annotations

import re
from pathlib import PurePath

from corral.errors import UnknownLanguageError
from corral.languages import find_language

DEFAULT = "python"
_EXTENSIONS = {
    "py": "python", "pyw": "python", "sh": "bash", "bash": "bash", "zsh": "bash",
    "js": "javascript", "mjs": "javascript", "cjs": "javascript", "jsx": "javascript",
    "ts": "typescript", "mts": "typescript", "cts": "typescript",
    "tsx": "typescript",
}  # fmt: skip
_SHEBANG = re.compile(rb"#!\s*(\S+)(?:[ \t]+(.*))?")


def guess_language(name: str, source: bytes) -> str:
    """By the first line if that begins with #!, else by the file's name, else Python."""
    by_line = _from_shebang(source)
    if by_line is not None:
        return by_line
    extension = PurePath(name).suffix.removeprefix(".").lower()
    if extension in _EXTENSIONS:
        return _EXTENSIONS[extension]
    return _known(extension) or DEFAULT


def _from_shebang(source: bytes) -> str | None:
    found = _SHEBANG.match(source.partition(b"\n")[0])
    if found is None:
        return None
    words = [found[1], *(found[2] or b"").split()]
    if words[0].endswith(b"/env"):
        words = [word for word in words[1:] if not word.startswith(b"-") and b"=" not in word]
    if not words:
        return None
    program = words[0].rpartition(b"/")[2].decode("utf-8", "replace")
    return _known(program) or _known(re.sub(r"[\d.]+$", "", program))


def _known(name: str) -> str | None:
    try:
        return find_language(name).name if name else None
    except UnknownLanguageError:
        return None
