"""Globbing and searching a tree in memory."""

from __future__ import annotations

import io
import posixpath

from corral.backends.memory.tree import READ, WRITE, FileTree, Node
from corral.base.files import TextSearch
from corral.inside.glob import compile_glob, is_included
from corral.inside.lines import find_lines, is_text, substitute
from corral.results import FileInfo, GlobResult, GrepMatch, GrepResult, ReplaceResult


def glob(tree: FileTree, root: str, pattern: str, *, hidden: bool, limit: int) -> GlobResult:
    """The paths below a folder that match."""
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


def grep(tree: FileTree, search: TextSearch, *, limit: int, without: frozenset[str]) -> GrepResult:
    """The lines that match. Raises: RefusedError for an invalid pattern."""
    wanted = search.compile()
    unreadable, found = list[str](), list[GrepMatch]()
    for at, node in _text_files(tree, search, unreadable):
        if at in without:
            continue
        for number, text in find_lines(io.BytesIO(node.data), wanted):
            if len(found) >= limit:
                return GrepResult(tuple(found), truncated=True, unreadable=tuple(unreadable))
            found.append(GrepMatch(at, number, text))
    return GrepResult(tuple(found), unreadable=tuple(unreadable))


def replace(tree: FileTree, search: TextSearch, new: bytes) -> ReplaceResult:
    """Replace what matches. Raises: RefusedError for an invalid pattern."""
    wanted = search.compile()
    unreadable, counts = list[str](), dict[str, int]()
    for at, node in _text_files(tree, search, unreadable):
        try:
            changed, count = substitute(node.data, wanted, new, fixed=search.fixed)
            if count:
                tree.need(node, WRITE)
                tree.put(tree.find(at), Node("file", node.mode, data=changed))
                counts[at] = count
        except OSError as error:
            unreadable.append(f"{at}: {error.strerror}")
    return ReplaceResult(counts, tuple(unreadable))


def _text_files(tree: FileTree, search: TextSearch, unreadable: list[str]) -> list[tuple[str, Node]]:
    """The readable text files below a path, or the file at that path."""
    path, top = tree.existing(search.root)
    found: list[tuple[str, Node]] = [(path, top)]
    if top.kind == "folder":
        wanted = compile_glob(search.include) if search.include else None
        found = [
            (at, node)
            for at, node in tree.walk(path, unreadable=unreadable, hidden=search.hidden)
            if node.kind == "file" and is_included(posixpath.basename(at), posixpath.relpath(at, path), wanted)
        ]
    readable = []
    for at, node in found:
        try:
            tree.need(node, READ)
        except OSError as error:
            unreadable.append(f"{at}: {error.strerror}")
            continue
        if node.kind == "file" and is_text(node.data):
            readable.append((at, node))
    return readable
