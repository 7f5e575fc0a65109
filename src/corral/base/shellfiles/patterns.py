"""Patterns, applied on our side: names against a glob, lines against a regular expression."""

from __future__ import annotations

import re

from corral.errors import SandboxFileError

MAX_LINE_BYTES = 4096
_SNIFF_BYTES = 8192


def compile_glob(pattern: str) -> re.Pattern[str]:
    """`*`, `?` and `[…]` stay within a name, `**` crosses folders.

    What stands between two of a kind is matched as early as possible and never again (an atomic group): that is enough
    for a glob, and keeps `*a*a*a*a*` and `**/a/**/a/**` from taking for ever. It is matched on our side, and a model
    may have written it.
    """
    segments = pattern.strip("/").split("/")
    runs = [""]
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment != "**":
            runs[-1] += _translate(segment) + ("" if last else "/")
        elif index == 0 or segments[index - 1] != "**":  # two in a row mean one
            runs.append("")
    if len(runs) == 1:
        return re.compile(runs[0], re.DOTALL)
    middle = "".join(f"(?>(?:[^/]+/)*?{run})" for run in runs[1:-1])
    end = ".*" if segments[-1] == "**" else f"(?:[^/]+/)*{runs[-1]}"
    return re.compile(f"{runs[0]}{middle}{end}", re.DOTALL)


def find_depth(pattern: str) -> int:
    """How deep a glob can reach; 0 if there is no end."""
    segments = pattern.strip("/").split("/")
    return 0 if "**" in segments else len(segments)


def _translate(segment: str) -> str:
    runs, position = [""], 0
    while position < len(segment):
        char = segment[position]
        position += 1
        if char == "*":
            runs.append("")
        elif char == "?":
            runs[-1] += "[^/]"
        elif char == "[" and (end := _find_class_end(segment, position)):
            runs[-1] += _translate_class(segment[position:end])
            position = end + 1
        else:
            runs[-1] += re.escape(char)
    if len(runs) == 1:
        return runs[0]
    middle = "".join(f"(?>[^/]*?{run})" for run in runs[1:-1] if run)
    return f"{runs[0]}{middle}[^/]*{runs[-1]}"


def _find_class_end(segment: str, start: int) -> int:
    """Where a `[…]` closes; 0 if it never does. A `]` that comes first stands for itself, and `^` for `!`."""
    at = start + (segment[start : start + 1] in ("!", "^"))
    return max(0, segment.find("]", at + 1))


def _translate_class(body: str) -> str:
    negated = body.startswith(("!", "^"))
    chars, text, position = [], body[negated:], 0
    while position < len(text):
        low, high = text[position], text[position + 2 : position + 3]
        if text[position + 1 : position + 2] == "-" and high:
            if low <= high:
                chars.append(f"{re.escape(low)}-{re.escape(high)}")
            position += 3
        else:
            chars.append(re.escape(low))
            position += 1
    if not chars:
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' if negated else ''}{''.join(chars)}]"


def compile_pattern(pattern: str, *, fixed: bool, ignore_case: bool) -> re.Pattern[bytes]:
    """Raises: SandboxFileError for what is not a regular expression."""
    text = pattern.encode("utf-8", "surrogateescape")
    try:
        return re.compile(re.escape(text) if fixed else text, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise SandboxFileError(f"{pattern!r} is not a regular expression: {error}", op="grep") from error


def is_text(content: bytes) -> bool:
    """Whether it looks like text: no NUL at its beginning."""
    return b"\0" not in content[:_SNIFF_BYTES]


def find_lines(content: bytes, wanted: re.Pattern[bytes]) -> list[tuple[int, str]]:
    """The lines that match, with their numbers; each is cut at `MAX_LINE_BYTES`."""
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = []
    for number, raw in enumerate(lines, start=1):
        line = raw.rstrip(b"\r")
        if wanted.search(line):
            found.append((number, line[:MAX_LINE_BYTES].decode("utf-8", "replace")))
    return found


def is_included(name: str, below: str, include: re.Pattern[str] | None) -> bool:
    """Whether a file is asked for, by its name or by its path below the folder that is searched."""
    return include is None or include.fullmatch(name) is not None or include.fullmatch(below) is not None
