"""Glob patterns: `*`, `?` and `[…]` stay within a name, `**` crosses folders.

Used wherever a glob is matched: inside a sandbox and on the host, which is why it runs on Python 3.8 too.
"""

from __future__ import annotations

import re


def compile_glob(pattern: str) -> re.Pattern[str]:
    """The regular expression whose `fullmatch` of a relative path says whether the glob matches it.

    The text between two stars of a kind is matched as early as possible, without backtracking: that is enough for a
    glob, and keeps `*a*a*a*a*` and `**/a/**/a/**` from taking for ever. A model may have written the pattern.
    """
    segments = pattern.strip("/").split("/")
    once = _Once()
    runs = [""]
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment != "**":
            runs[-1] += _translate(segment, once) + ("" if last else "/")
        elif index == 0 or segments[index - 1] != "**":  # two in a row mean one
            runs.append("")
    if len(runs) == 1:
        return re.compile(runs[0], re.DOTALL)
    middle = "".join(once.match(f"(?:[^/]+/)*?{run}") for run in runs[1:-1])
    end = ".*" if segments[-1] == "**" else f"(?:[^/]+/)*{runs[-1]}"
    return re.compile(f"{runs[0]}{middle}{end}", re.DOTALL)


def find_depth(pattern: str) -> int | None:
    """How many folders deep a glob can match; None if there is no limit."""
    segments = pattern.strip("/").split("/")
    return None if "**" in segments else len(segments)


def split_absolute(pattern: str) -> tuple[str, str]:
    """Split an absolute pattern into its fixed folder and the rest, so that not all of / is walked."""
    parts = [part for part in pattern.split("/") if part]
    fixed = 0
    while fixed < len(parts) - 1 and not set(parts[fixed]) & set("*?["):
        fixed += 1
    return "/" + "/".join(parts[:fixed]), "/".join(parts[fixed:])


def is_included(name: str, below: str, include: re.Pattern[str] | None) -> bool:
    """True if a file's name, or its path below the searched folder, matches `include`."""
    return include is None or include.fullmatch(name) is not None or include.fullmatch(below) is not None


class _Once:
    """Atomic groups. `(?>…)` needs Python 3.11; a look-ahead that captures, then a reference to it, means the same."""

    def __init__(self) -> None:
        self._count = 0

    def match(self, expression: str) -> str:
        """An expression that matches as this one does first, without backtracking into it."""
        self._count += 1
        return f"(?=(?P<once{self._count}>{expression}))(?P=once{self._count})"


def _translate(segment: str, once: _Once) -> str:
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
    middle = "".join(once.match(f"[^/]*?{run}") for run in runs[1:-1] if run)
    return f"{runs[0]}{middle}[^/]*{runs[-1]}"


def _find_class_end(segment: str, start: int) -> int:
    """The index of the `]` that closes a class, or 0. A `]` that comes first is literal, and `^` means `!`."""
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
