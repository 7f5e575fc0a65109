"""Which language a file is written in."""

from __future__ import annotations

import re
from pathlib import PurePath

from corral.errors import UnknownLanguageError
from corral.languages import find_language, language_names

DEFAULT = "python"
_EXTENSIONS = {
    "py": "python", "pyw": "python", "sh": "bash", "bash": "bash", "zsh": "bash",
    "js": "javascript", "mjs": "javascript", "cjs": "javascript", "jsx": "javascript",
    "ts": "typescript", "mts": "typescript", "cts": "typescript",
    "tsx": "typescript",
}  # fmt: skip
_SHELLS = ("bash", "sh")
_SHEBANG = re.compile(rb"#!\s*(\S+)(?:[ \t]+(.*))?")


def guess_language(name: str, source: bytes) -> str | None:
    """By the file's name, else by a #! line, else None. For a shell script the #! line comes first."""
    extension = PurePath(name).suffix.removeprefix(".").lower()
    by_name = _EXTENSIONS.get(extension) or _known(extension)
    by_line = _known_program(find_program(source))
    if by_name is None or (by_name in _SHELLS and by_line in _SHELLS):
        return by_line or by_name
    return by_name


def guess_language_of_text(source: bytes) -> str:
    """The language of a program without a file name: by its first line, else Python."""
    return _known_program(find_program(source)) or DEFAULT


def explain_unknown(name: str, source: bytes) -> str:
    """The message for a file of unknown language."""
    program = find_program(source)
    known = ", ".join(language_names())
    if program:
        return f"{name!r} is for {program!r}, which is not one of {known}; --language NAME runs it as one of them"
    return f"{name!r}: neither its name nor a #! line says what it is written in; give --language ({known})"


def find_program(source: bytes) -> str:
    """The program of a #! line, without its folder; empty without such a line."""
    found = _SHEBANG.match(source.partition(b"\n")[0])
    if found is None:
        return ""
    words = [found[1], *(found[2] or b"").split()]
    if words[0].endswith(b"/env"):
        words = [word for word in words[1:] if not word.startswith(b"-") and b"=" not in word]
    return words[0].rpartition(b"/")[2].decode("utf-8", "replace") if words else ""


def _known_program(program: str) -> str | None:
    return _known(program) or _known(re.sub(r"[\d.]+$", "", program))


def _known(name: str) -> str | None:
    try:
        return find_language(name).name if name else None
    except UnknownLanguageError:
        return None
