"""Listing, globbing, searching and replacing over trees: results are structures, never parsed text."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator

from corral.engine import syscalls, wire
from corral.engine.agent.files import MAX_EDIT_BYTES, describe, open_path, open_regular, replacing
from corral.engine.agent.reply import RefusedError, Reply, read_all

_MAX_LINE_BYTES = 4096
_SNIFF_BYTES = 8192
_LOOKED_AT_ONCE = 1000
_NEVER_SEARCHED = frozenset(("/proc", "/sys", "/dev"))


def list_folder(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """The entries of a folder by name, each folder before its own entries, down to a depth."""
    depth = message.get("depth", 1)
    tree = _Tree(message)
    above = [tree.entries(tree.root)]
    while above:
        found = next(above[-1], None)
        if found is None:
            above.pop()
            continue
        path, info = found
        if isinstance(info, FileNotFoundError):
            continue  # it vanished meanwhile: then it is not listed
        if isinstance(info, OSError):
            raise info
        reply.add(describe(path, info), size=200 + len(path) * 6)
        if len(above) < depth and stat.S_ISDIR(info.st_mode):
            with contextlib.suppress(OSError):  # gone, or closed to us: the rest of the tree is still worth telling
                above.append(tree.entries(path))
    reply.flush()
    reply.send({})


class _Tree:
    """What is looked through: held by a descriptor, and below it no link is followed, also none that is put there
    meanwhile. On the way to it they are, unless the message says that there are none."""

    def __init__(self, message: wire.Message) -> None:
        self.root: str = message["path"]
        self._links: bool = message.get("links", True)
        self._top = open_path(self.root, os.O_PATH, links=self._links, magic=True)
        self.is_folder = stat.S_ISDIR(os.fstat(self._top).st_mode)

    def entries(self, folder: str) -> Iterator[tuple[str, os.stat_result | OSError]]:
        """What is in one of its folders, by name. Raises: OSError, at once."""
        with self._open_folder(folder) as descriptor, os.scandir(descriptor) as scan:
            names = sorted(entry.name for entry in scan)
        return self._look_at(folder, names)

    def _look_at(self, folder: str, names: list[str]) -> Iterator[tuple[str, os.stat_result | OSError]]:
        # Some at a time: a folder may have more of them than fit into memory, and trees be deeper than descriptors go.
        for start in range(0, len(names), _LOOKED_AT_ONCE):
            try:
                with self._open_folder(folder) as descriptor:
                    found = [(name, _lstat(name, descriptor)) for name in names[start : start + _LOOKED_AT_ONCE]]
            except OSError:
                return  # the folder vanished meanwhile, and what was in it
            yield from ((f"{folder.rstrip('/')}/{name}", info) for name, info in found)

    @contextlib.contextmanager
    def _open_folder(self, folder: str) -> Iterator[int]:
        path, flags = os.fsencode(self._below(folder)), os.O_RDONLY | os.O_DIRECTORY
        descriptor = syscalls.openat2(self._top, path, flags, resolve=syscalls.RESOLVE_NO_SYMLINKS)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open_file(self, path: str) -> int:
        """One of its files. Raises: as `open_regular`."""
        if path == self.root:
            return open_regular(path, links=self._links)
        return open_regular(self._below(path), links=False, folder=self._top)

    def _below(self, path: str) -> str:
        return path[len(self.root.rstrip("/")) :].lstrip("/") or "."


def _lstat(name: str, folder: int) -> os.stat_result | OSError:
    try:
        return os.lstat(name, dir_fd=folder)
    except OSError as error:
        return error


def glob(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Paths below `path` that match the pattern; `**` crosses folders. With `linked`, files with several hard links."""
    root, limit = message["path"], message["limit"]
    tree = _Tree(message)
    pattern = compile_glob(message["pattern"])
    errors: list[str] = []
    found = 0
    truncated = False
    tree.entries(root)  # a missing root is an error, an unreadable folder below is only reported
    linked = message.get("linked", False)
    segments = message["pattern"].strip("/").split("/")
    depth = None if "**" in segments else len(segments)  # deeper down nothing can match
    for path, info in _walk(tree, errors, hidden=message.get("hidden", True), depth=depth):
        if linked and (info.st_nlink == 1 or not stat.S_ISREG(info.st_mode)):
            continue
        if pattern.fullmatch(os.path.relpath(path, root)):
            if found >= limit:
                truncated = True
                break
            found += 1
            reply.add(describe(path, info), size=200 + len(path) * 6)
    reply.flush()
    reply.send({"truncated": truncated, "unreadable": errors[:50]})


def grep(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Lines that match, with file and number."""
    tree, limit = _Tree(message), message["limit"]
    pattern = _compile(message)
    include = compile_glob(message["include"]) if message.get("include") else None
    errors: list[str] = []
    without = _read_names(descriptors[0]) if descriptors else frozenset()
    found, truncated = 0, False
    for path in _files(tree, include, errors, hidden=message.get("hidden", False)):
        if path in without:
            continue
        for number, line in _matching_lines(tree, path, pattern, errors):
            if found >= limit:
                truncated = True
                break
            found += 1
            text = line[:_MAX_LINE_BYTES].decode("utf-8", "replace")
            reply.add({"path": path, "line": number, "text": text}, size=100 + 6 * len(text) + 6 * len(path))
        if truncated:
            break
    reply.flush()
    reply.send({"truncated": truncated, "unreadable": errors[:50]})


def _read_names(descriptor: int) -> frozenset[str]:
    names = read_all(descriptor, limit=MAX_EDIT_BYTES)
    return frozenset(names.decode("utf-8", "surrogateescape").split("\0"))


def replace(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Replace in every matching file below a path, each file atomically."""
    pattern = _compile(message)
    new = read_all(descriptors[0], limit=MAX_EDIT_BYTES)
    include = compile_glob(message["include"]) if message.get("include") else None
    errors: list[str] = []
    for path in _files(_Tree(message), include, errors, hidden=message.get("hidden", False)):
        try:
            count = _replace_in(path, pattern, new, fixed=bool(message.get("fixed")))
        except (OSError, RefusedError) as error:
            errors.append(f"{path}: {error}")
            continue
        if count:
            reply.add({"path": path, "replacements": count}, size=60 + 6 * len(path))
    reply.flush()
    reply.send({"unreadable": errors[:50]})


def compile_glob(pattern: str) -> re.Pattern[str]:
    """`*` and `?` stay within a name, `**` crosses folders."""
    parts = []
    segments: list[str] = []
    for segment in pattern.strip("/").split("/"):
        if segment != "**" or segments[-1:] != ["**"]:  # two in a row mean one, and would only cost time
            segments.append(segment)
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment == "**":
            parts.append(".*" if last else "(?:[^/]+/)*")
            continue
        parts.append(_segment(segment) + ("" if last else "/"))
    return re.compile("".join(parts), re.DOTALL)


def _segment(segment: str) -> str:
    """One name's pattern as a regular expression that never crosses a slash.

    What stands between two stars is matched as early as possible and never again (an atomic group): that is enough for
    a glob, and keeps `*a*a*a*a*` from taking for ever.
    """
    chunks = [""]
    position = 0
    while position < len(segment):
        character = segment[position]
        position += 1
        if character == "*":
            chunks.append("")
        elif character == "?":
            chunks[-1] += "[^/]"
        elif character == "[" and (end := _class_end(segment, position)):
            chunks[-1] += _class(segment[position:end])
            position = end + 1
        else:
            chunks[-1] += re.escape(character)
    if len(chunks) == 1:
        return chunks[0]
    middle = "".join(f"(?>[^/]*?{chunk})" for chunk in chunks[1:-1] if chunk)
    return f"{chunks[0]}{middle}[^/]*{chunks[-1]}"


def _class_end(segment: str, start: int) -> int:
    """Where a `[…]` closes; 0 if it never does. A `]` that comes first stands for itself, and `^` for `!`."""
    first = start + (segment[start : start + 1] in ("!", "^"))
    return max(0, segment.find("]", first + 1))


def _class(body: str) -> str:
    negated = body.startswith(("!", "^"))
    text, position, parts = body[negated:], 0, ""
    while position < len(text):
        low, high = text[position], text[position + 2 : position + 3]
        if text[position + 1 : position + 2] == "-" and high:
            parts += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
            position += 3
        else:
            parts += re.escape(low)
            position += 1
    if not parts:
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' if negated else ''}{parts}]"


def _compile(message: wire.Message) -> re.Pattern[bytes]:
    text = message["pattern"].encode("utf-8", "surrogateescape")
    flags = re.IGNORECASE if message.get("ignore_case") else 0
    try:
        return re.compile(re.escape(text) if message.get("fixed") else text, flags)
    except re.error as error:
        raise RefusedError("pattern", 0, f"not a regular expression: {error}") from error


def _walk(
    tree: _Tree, errors: list[str], *, hidden: bool, depth: int | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below, folders before their content, names sorted, links not followed. No recursion."""
    stack = [(tree.root, 1)]
    while stack:
        folder, level = stack.pop()
        try:
            entries = tree.entries(folder)
        except OSError as error:
            errors.append(f"{folder}: {error.strerror}")
            continue
        inner = []
        for path, info in entries:
            if path in _NEVER_SEARCHED or (not hidden and os.path.basename(path).startswith(".")):
                continue
            if isinstance(info, OSError):
                if not isinstance(info, FileNotFoundError):
                    errors.append(f"{path}: {info.strerror}")
                continue
            yield path, info
            if stat.S_ISDIR(info.st_mode) and (depth is None or level < depth):
                inner.append((path, level + 1))
        stack.extend(reversed(inner))


def _files(tree: _Tree, include: re.Pattern[str] | None, errors: list[str], *, hidden: bool) -> Iterator[str]:
    if not tree.is_folder:
        yield tree.root
        return
    for path, entry in _walk(tree, errors, hidden=hidden):
        if not stat.S_ISREG(entry.st_mode):
            continue
        if (
            include is None
            or include.fullmatch(os.path.basename(path))
            or include.fullmatch(os.path.relpath(path, tree.root))
        ):
            yield path


def _matching_lines(
    tree: _Tree, path: str, pattern: re.Pattern[bytes], errors: list[str]
) -> Iterator[tuple[int, bytes]]:
    try:
        descriptor = tree.open_file(path)
    except (OSError, RefusedError) as error:
        errors.append(f"{path}: {error}")
        return
    with os.fdopen(descriptor, "rb", buffering=1 << 16) as file:
        if b"\0" in os.pread(descriptor, _SNIFF_BYTES, 0):
            return  # binary
        number, told, whole = 0, 0, True
        while piece := file.readline(1 << 20):  # a "line" without end is looked at in pieces, and told of once
            number += whole
            whole = piece.endswith(b"\n")
            line = piece.rstrip(b"\r\n")
            if number != told and pattern.search(line):
                told = number
                yield number, line


def _replace_in(path: str, pattern: re.Pattern[bytes], new: bytes, *, fixed: bool) -> int:
    descriptor = open_regular(path)
    try:
        content = read_all(descriptor, limit=MAX_EDIT_BYTES)
    finally:
        os.close(descriptor)
    if b"\0" in content[:_SNIFF_BYTES]:
        return 0
    changed, count = pattern.subn((lambda _: new) if fixed else new, content)
    if count:
        with replacing({"path": path, "parents": False}) as target:
            view = memoryview(changed)
            while view:
                view = view[os.write(target, view) :]
    return count
