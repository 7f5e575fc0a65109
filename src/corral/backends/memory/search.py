"""Globbing and searching a tree in memory."""

from __future__ import annotations

import posixpath
import re

from corral.backends.memory.tree import READ, WRITE, Node, Tree
from corral.base.shellfiles.patterns import compile_glob
from corral.errors import SandboxFileError
from corral.results import FileInfo, GlobResult, GrepMatch, GrepResult, ReplaceResult

_SNIFF_BYTES = 8192
MAX_LINE_BYTES = 4096


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
    tree: Tree,
    root: str,
    wanted: re.Pattern[bytes],
    *,
    include: str | None,
    hidden: bool,
    limit: int,
    without: frozenset[str] = frozenset(),
) -> GrepResult:
    """See `AsyncFiles.grep`."""
    unreadable, found = list[str](), list[GrepMatch]()
    for at, node in _text_files(tree, root, include=include, hidden=hidden, unreadable=unreadable):
        if at in without:
            continue
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
