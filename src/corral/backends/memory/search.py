"""Globbing and searching a tree in memory."""

from __future__ import annotations

import posixpath
import re

from corral.backends.memory.tree import READ, WRITE, Node, Tree
from corral.errors import SandboxFileError
from corral.results import FileInfo, GlobResult, GrepMatch, GrepResult, ReplaceResult

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
    """Where a `[…]` closes; 0 if it never does. A `]` that comes first stands for itself, and `^` for `!`."""
    at = start + (segment[start : start + 1] in ("!", "^"))
    return max(0, segment.find("]", at + 1))


def _class(body: str) -> str:
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


def glob(tree: Tree, root: str, pattern: str, *, hidden: bool, limit: int) -> GlobResult:
    """See `AsyncFiles.glob`."""
    wanted, unreadable, found = compile_glob(pattern), list[str](), list[FileInfo]()
    tree.folder(root)
    real = tree.existing(root)[0]
    for at, node in tree.walk(root, unreadable=unreadable, hidden=hidden):
        name = posixpath.relpath(at, real)
        if wanted.fullmatch(name):
            if len(found) >= limit:
                return GlobResult(tuple(found), truncated=True, unreadable=tuple(unreadable))
            found.append(tree.describe(f"{root.rstrip('/')}/{name}", node))
    return GlobResult(tuple(found), unreadable=tuple(unreadable))


def grep(
    tree: Tree, root: str, wanted: re.Pattern[bytes], *, include: str | None, hidden: bool, limit: int
) -> GrepResult:
    """See `AsyncFiles.grep`."""
    unreadable, found = list[str](), list[GrepMatch]()
    for at, node in _text_files(tree, root, include=include, hidden=hidden, unreadable=unreadable):
        for number, line in enumerate(_lines(node.data), start=1):
            if wanted.search(line):
                if len(found) >= limit:
                    return GrepResult(tuple(found), truncated=True, unreadable=tuple(unreadable))
                found.append(GrepMatch(at, number, line[:MAX_LINE_BYTES].decode("utf-8", "replace")))
    return GrepResult(tuple(found), unreadable=tuple(unreadable))


def replace(
    tree: Tree,
    root: str,
    wanted: re.Pattern[bytes],
    new: bytes,
    *,
    fixed: bool,
    include: str | None,
    hidden: bool,
) -> ReplaceResult:
    """See `AsyncFiles.replace`."""
    unreadable, counts = list[str](), dict[str, int]()
    for at, node in _text_files(tree, root, include=include, hidden=hidden, unreadable=unreadable):
        try:
            changed, count = wanted.subn((lambda _: new) if fixed else new, node.data)
            if count:
                tree.need(node, WRITE)
                tree.put(tree.find(at), Node("file", node.mode, data=changed))
                counts[at] = count
        except (re.error, IndexError) as error:
            raise SandboxFileError(f"{new!r} is not a replacement: {error}", op="replace") from error
        except OSError as error:
            unreadable.append(f"{at}: {error.strerror}")
    return ReplaceResult(counts, tuple(unreadable))


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return [line.rstrip(b"\r") for line in (lines if lines[-1] else lines[:-1])]


def _text_files(
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
            and (
                not wanted or wanted.fullmatch(posixpath.basename(at)) or wanted.fullmatch(posixpath.relpath(at, path))
            )
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
