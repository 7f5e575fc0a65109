"""A tree of files in memory that behaves like POSIX: modes, links, times, one user, a limit in bytes.

Errors are `OSError`s with the number that a kernel would return. Methods may be called from any thread.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from corral.results import FileInfo, FileKind, WatchEvent
from corral.spec import HOME

UID = GID = 1000
READ, WRITE, SEARCH = 4, 2, 1
_MAX_LINKS = 40
_MAX_NAME_BYTES = 255

Change = Literal["created", "modified", "written", "removed"]


@dataclass(slots=True, eq=False)
class Node:
    """A file, folder, link or something special."""

    kind: FileKind
    mode: int
    uid: int = UID
    data: bytes = b""
    target: str = ""
    children: dict[str, Node] = field(default_factory=dict)
    modified: float = field(default_factory=time.time)

    @property
    def size(self) -> int:
        """The size, as `stat` reports it."""
        return len(self.data) if self.kind == "file" else len(os.fsencode(self.target))


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of a path, with all links resolved. `node` is None if only the last name does not exist."""

    path: str
    parent: Node
    name: str
    node: Node | None


def refuse(number: int) -> NoReturn:
    """Raises: OSError with that number."""
    raise OSError(number, os.strerror(number))


class FileTree:
    """The files of one sandbox, as the user inside sees them."""

    def __init__(self, *, workdir: str, limit_bytes: int) -> None:
        self.lock = threading.RLock()
        self.root = Node("folder", 0o755, uid=0)
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._listeners: list[Callable[[WatchEvent], None]] = []
        for path in ("/bin", "/etc", "/usr/bin", "/dev", "/home"):
            self._found(path, uid=0, mode=0o755)
        self._found("/tmp", uid=0, mode=0o1777)
        for path in (HOME, "/workspace", "/workspaces", workdir):
            self._found(path, uid=UID, mode=0o755)
        self.folder("/dev").children["null"] = Node("device", 0o666, uid=0)
        self.folder("/etc").children["hostname"] = Node("file", 0o644, uid=0, data=b"corral\n")

    def _found(self, path: str, *, uid: int, mode: int) -> None:
        """Create an initial folder, without permission checks."""
        here = self.root
        for part in filter(None, path.split("/")):
            here = here.children.setdefault(part, Node("folder", mode, uid=uid))

    # Finding.

    def find(self, path: str, *, follow: bool = True) -> Spot:
        """Resolve a path. Raises: ENOENT, ENOTDIR, ELOOP, EACCES, ENAMETOOLONG."""
        todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        names: list[str] = []
        nodes, links = [self.root], 0
        while todo:
            part = todo.pop()
            here = nodes[-1]
            if here.kind != "folder":
                refuse(errno.ENOTDIR)
            if len(os.fsencode(part)) > _MAX_NAME_BYTES:
                refuse(errno.ENAMETOOLONG)
            if part == "..":
                names, nodes = names[:-1], nodes[: max(1, len(nodes) - 1)]
                continue
            self.need(here, SEARCH)
            child = here.children.get(part)
            if child is None:
                if todo:
                    refuse(errno.ENOENT)
                return Spot("/" + "/".join([*names, part]), here, part, None)
            if child.kind == "link" and (follow or todo):
                links += 1
                if links > _MAX_LINKS:
                    refuse(errno.ELOOP)
                if child.target.startswith("/"):
                    names, nodes = [], [self.root]
                todo.extend(word for word in reversed(child.target.split("/")) if word not in ("", "."))
                continue
            nodes.append(child)
            names.append(part)
        parent = nodes[-2] if len(nodes) > 1 else self.root
        return Spot("/" + "/".join(names), parent, names[-1] if names else "", nodes[-1])

    def has_link(self, path: str) -> bool:
        """True if a part of a path is a link."""
        here: Node | None = self.root
        for part in filter(None, path.split("/")):
            here = here.children.get(part) if here is not None else None
            if here is not None and here.kind == "link":
                return True
        return False

    def existing(self, path: str, *, follow: bool = True) -> tuple[str, Node]:
        """The real path and its node. Raises: as `find`, and ENOENT."""
        spot = self.find(path, follow=follow)
        if spot.node is None:
            refuse(errno.ENOENT)
        return spot.path, spot.node

    def regular(self, path: str) -> Node:
        """A readable regular file. Raises: as `find`, EISDIR, EINVAL for other kinds."""
        node = self.existing(path)[1]
        if node.kind != "file":
            refuse(errno.EISDIR if node.kind == "folder" else errno.EINVAL)
        self.need(node, READ)
        return node

    def folder(self, path: str) -> Node:
        """A readable folder. Raises: as `find`."""
        node = self.existing(path)[1]
        if node.kind != "folder":
            refuse(errno.ENOTDIR)
        self.need(node, READ)
        return node

    def need(self, node: Node, bit: int) -> None:
        """Raises: EACCES if the user lacks that permission."""
        if not (node.mode >> (6 if node.uid == UID else 0)) & bit:
            refuse(errno.EACCES)

    def describe(self, path: str, node: Node) -> FileInfo:
        """The information that `stat` returns."""
        target = node.target if node.kind == "link" else None
        group = GID if node.uid == UID else 0
        return FileInfo(path, node.kind, node.size, node.mode, node.modified, node.uid, group, target)

    def walk(self, path: str, *, unreadable: list[str], hidden: bool) -> Iterator[tuple[str, Node]]:
        """Everything below a path: folders before their content, names sorted, links not followed."""
        stack = [self.existing(path)]
        while stack:
            at, folder = stack.pop()
            try:
                self.need(folder, READ)
            except OSError as error:
                unreadable.append(f"{at}: {error.strerror}")
                continue
            inner = []
            for name, node in sorted(folder.children.items()):
                if hidden or not name.startswith("."):
                    below = f"{at.rstrip('/')}/{name}"
                    yield below, node
                    if node.kind == "folder":
                        inner.append((below, node))
            stack.extend(reversed(inner))

    # Changing.

    def put(self, spot: Spot, node: Node) -> None:
        """Place a node at a spot, replacing the old one. Raises: EACCES, ENOSPC."""
        self.need(spot.parent, WRITE)
        grown = node.size - (spot.node.size if spot.node is not None and spot.node.kind == "file" else 0)
        if node.kind == "file" and self._used_bytes + grown > self._limit_bytes:
            refuse(errno.ENOSPC)
        self._used_bytes += grown if node.kind == "file" else 0
        spot.parent.children[spot.name] = node
        spot.parent.modified = time.time()
        if spot.node is None:
            self.tell(spot.path, "created", folder=node.kind == "folder")
        if node.kind == "file":
            self.tell(spot.path, "written")

    def take_away(self, spot: Spot) -> Node:
        """Remove a node from its folder, and return it. Raises: EACCES, EPERM."""
        if spot.node is None or not spot.name:
            refuse(errno.ENOENT if spot.name else errno.EPERM)
        self.need(spot.parent, WRITE)
        if spot.parent.mode & 0o1000 and spot.node.uid != UID:
            refuse(errno.EPERM)  # sticky: only the owner may
        del spot.parent.children[spot.name]
        spot.parent.modified = time.time()
        self.tell(spot.path, "removed", folder=spot.node.kind == "folder")
        return spot.node

    def forget(self, node: Node) -> None:
        """Subtract the bytes of a removed node from the used ones."""
        stack = [node]
        while stack:
            current = stack.pop()
            self._used_bytes -= current.size if current.kind == "file" else 0
            stack.extend(current.children.values())

    def make_folders(self, path: str, *, taken: int = errno.ENOTDIR) -> None:
        """`mkdir -p`. Raises: ENOTDIR if a part is not a folder, `taken` if it is the last one."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for count in range(1, len(parts) + 1):
            spot = self.find("/" + "/".join(parts[:count]))
            if spot.node is None:
                self.put(spot, Node("folder", 0o755))
            elif spot.node.kind != "folder":
                refuse(taken if count == len(parts) else errno.ENOTDIR)

    @property
    def used_bytes(self) -> int:
        """The size of all files."""
        return self._used_bytes

    # Watching.

    def listen(self, listener: Callable[[WatchEvent], None]) -> Callable[[], None]:
        """Call a function with every change; returns a function that ends this."""
        with self.lock:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tell(self, path: str, kind: Change, *, folder: bool = False) -> None:
        """Report a change to all listeners."""
        for listener in list(self._listeners):
            listener(WatchEvent(path, kind, folder))
