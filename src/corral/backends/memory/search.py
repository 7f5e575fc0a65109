"""Globbing and searching a tree in memory."""

from __future__ import annotations

import os
import re

from corral.backends.memory.tree import READ, Node, Tree
from corral.errors import SandboxFileError

_SNIFF_BYTES = 8192
MAX_LINE_BYTES = 4096


def compile_glob(pattern: str) -> re.Pattern[str]:
    """`*`, `?` and `[…]` stay within a name, `**` crosses folders."""
    parts: list[str] = []
    segments = pattern.strip("/").split("/")
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment == "**":
            parts.append(".*" if last else "(?:[^/]+/)*")
        else:
            parts.append(_translate(segment) + ("" if last else "/"))
    return re.compile("".join(parts), re.DOTALL)


def _translate(segment: str) -> str:
    words, position = [], 0
    while position < len(segment):
        char = segment[position]
        position += 1
        if char == "*":
            words.append("[^/]*")
        elif char == "?":
            words.append("[^/]")
        elif char == "[" and (end := _class_end(segment, position)):
            words.append(_class(segment[position:end]))
            position = end + 1
        else:
            words.append(re.escape(char))
    return "".join(words)


def _class_end(segment: str, start: int) -> int:
    """Where a `[…]` closes; 0 if it never does. A `]` that comes first stands for itself."""
    at = start + (segment[start : start + 1] == "!")
    return max(0, segment.find("]", at + 1))


def _class(body: str) -> str:
    negated = body.startswith("!")
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


def text_files(
    tree: Tree, root: str, *, include: str | None, hidden: bool, unreadable: list[str]
) -> list[tuple[str, Node]]:
    """The regular files below a path (or the one that it is) that hold text and may be read."""
    path, top = tree.existing(root)
    found: list[tuple[str, Node]] = [(path, top)]
    if top.kind == "folder":
        wanted = compile_glob(include) if include else None
        found = [
            (at, node)
            for at, node in tree.walk(path, unreadable=unreadable, hidden=hidden)
            if node.kind == "file"
            and (not wanted or wanted.fullmatch(os.path.basename(at)) or wanted.fullmatch(os.path.relpath(at, path)))
        ]
    readable = []
    for at, node in found:
        try:
            tree.need(node, READ)
        except OSError as error:
            unreadable.append(f"{at}: {error.strerror}")
            continue
        if node.kind == "file" and b"\0" not in node.data[:_SNIFF_BYTES]:
            readable.append((at, node))
    return readable
