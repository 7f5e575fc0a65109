"""Code blocks of a Markdown text, as CommonMark fences them, and as models write them.

A fence is three or more backticks or tildes; the block ends at a line with at least as many of the same character and
nothing else. After the opening fence comes the language, then any other text. Two things differ from CommonMark. A
block that is never closed is left out: the text was cut off, and half a program must not run. And in a block of
Markdown, fences that are opened inside are closed inside.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<signs>`{3,}|~{3,})(?P<info>.*)")
_LINE_END = re.compile(r"\r?\n")  # not splitlines: a form feed or U+2028 in a program is part of its line
_QUOTED = frozenset(("markdown", "md", "mdx"))
_GUESSED_CHARS = 200_000
_SHELL_STARTS = ("python ", "python3 ", "pip ", "pip3 ")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language as written (or guessed, or empty), its code, and its whole info string."""

    language: str
    code: str
    info: str = ""


@dataclass(slots=True)
class _Open:
    signs: str
    indent: int
    language: str
    info: str
    lines: list[str]
    inside: list[str]
    """The fences opened inside a block of Markdown."""


def find_blocks(text: str) -> list[Block]:
    """All closed blocks, in order. For a block without a language it is guessed from the code."""
    blocks: list[Block] = []
    current: _Open | None = None
    for line in _LINE_END.split(text):
        match = _FENCE.fullmatch(line)
        if current is None:
            current = _open(match)
        elif match is None or not _closes(match, current):
            current.lines.append(_dedent(line, current.indent))
        else:
            code = "\n".join(current.lines)
            blocks.append(Block(current.language or guess_language(code), code, current.info))
            current = None
    return blocks


def _open(match: re.Match[str] | None) -> _Open | None:
    if match is None:
        return None
    signs, info = match["signs"], match["info"].strip()
    if signs[0] == "`" and "`" in info:
        return None  # a code span that stands alone on its line
    return _Open(signs, len(match["indent"]), _language(info), info, [], [])


def _closes(match: re.Match[str], current: _Open) -> bool:
    """True if this fence ends the block; in a block of Markdown, fences that are opened inside are tracked."""
    signs, info = match["signs"], match["info"].strip()
    if current.language.lower() in _QUOTED:
        if info:
            if signs[0] == "~" or "`" not in info:
                current.inside.append(signs)
            return False
        if current.inside and _matches(signs, current.inside[-1]):
            current.inside.pop()
            return False
    return not info and _matches(signs, current.signs)


def _matches(signs: str, opening: str) -> bool:
    return signs[0] == opening[0] and len(signs) >= len(opening)


def _language(info: str) -> str:
    """The language in `python title="x"`, `{.python .numberLines}`, `c++`, `python:main.py` and `js,live`."""
    word = re.split(r"[\s,:]", info.strip("{} \t"), maxsplit=1)[0] if info else ""
    return word.strip("{}").removeprefix(".")


def _dedent(line: str, width: int) -> str:
    """The line without the indentation of its fence: a block in a list is indented as a whole."""
    indent = len(line) - len(line.lstrip(" \t"))
    return line[min(width, indent) :]


def guess_language(code: str) -> str:
    """The language that code looks like: "sh", "python", or "" if unknown."""
    if not code.strip():
        return ""
    if code.lstrip().startswith(_SHELL_STARTS):
        return "sh"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code[:_GUESSED_CHARS], "<block>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ""
    return "python"
