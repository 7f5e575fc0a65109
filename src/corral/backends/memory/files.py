"""The files of a sandbox in memory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Sequence

from corral.backends.memory import archive as archives
from corral.backends.memory import search as searching
from corral.backends.memory.tree import WRITE, FileTree, Node, Spot, refuse
from corral.base.filereports import replace_text, told
from corral.base.files import CHUNK_BYTES, AsyncFiles, TextSearch, WriteRequest
from corral.errors import became_a_link
from corral.paths import FollowedPath, SandboxPath
from corral.protocol import PathLike
from corral.results import EditResult, FileInfo, GlobResult, GrepResult, ReplaceResult, WatchEvent


class MemoryFiles(AsyncFiles):
    """Files in memory."""

    def __init__(self, tree: FileTree, *, workdir: str, sandbox_id: str, guard: Callable[[], None]) -> None:
        super().__init__(workdir=workdir, sandbox_id=sandbox_id, guard=guard)
        self._tree = tree

    @contextlib.contextmanager
    def _acting(self, path: str, op: str) -> Iterator[FileTree]:
        """Around every operation: checks that the sandbox exists, locks the tree, and translates errors."""
        self._guard()
        with told(path, sandbox_id=self._sandbox_id, op=op), self._tree.lock:
            if isinstance(path, FollowedPath) and self._tree.has_link(path):
                raise became_a_link(path, sandbox_id=self._sandbox_id, op=op)
            yield self._tree

    # Reading and writing.

    async def read_stream(self, path: PathLike, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        target = self.at(path)
        with self._acting(target, "read") as tree:
            data = tree.regular(target).data
        for offset in range(0, len(data), chunk_bytes):
            yield data[offset : offset + chunk_bytes]
            await asyncio.sleep(0)
            self._guard()

    async def _write(self, request: WriteRequest, data: bytes) -> None:
        target, mode = request.path, request.mode
        await asyncio.sleep(0)
        with self._acting(target, "write") as tree:
            if request.parents:
                tree.make_folders(posixpath.dirname(target))
            spot = tree.find(target)
            before = _replaceable(tree, spot, exclusive=request.exclusive)
            if before is not None:
                mode = before.mode if mode is None else mode
            old = before.data if request.append and before is not None else b""
            tree.put(spot, Node("file", 0o644 if mode is None else mode, data=old + data))

    async def _write_stream(self, request: WriteRequest, content: AsyncIterable[bytes]) -> int:
        data = b"".join([piece async for piece in content])
        await self._write(request, data)
        return len(data)

    async def _edit(
        self, path: SandboxPath, old: bytes, new: bytes, *, replace_all: bool, expected_sha256: str | None
    ) -> EditResult:
        with self._acting(path, "edit") as tree:
            spot = tree.find(path)
            node = tree.regular(path)
            changed, result = replace_text(
                path, node.data, old, new,
                replace_all=replace_all, expected_sha256=expected_sha256, sandbox_id=self._sandbox_id,
            )  # fmt: skip
            tree.put(spot, Node("file", node.mode, data=changed))
        return result

    # About files.

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        target = self.at(path)
        with self._acting(target, "stat") as tree:
            return tree.describe(target, tree.existing(target, follow=follow)[1])

    async def list(self, path: PathLike = ".") -> Sequence[FileInfo]:
        target = self.at(path)
        with self._acting(target, "list") as tree:
            folder = tree.folder(target)
            prefix = target.rstrip("/")
            return [tree.describe(f"{prefix}/{name}", node) for name, node in sorted(folder.children.items())]

    async def _glob(self, root: SandboxPath, pattern: str, *, hidden: bool, limit: int) -> GlobResult:
        with self._acting(root, "glob") as tree:
            return searching.glob(tree, root, pattern, hidden=hidden, limit=limit)

    async def _grep(self, search: TextSearch, *, limit: int, without: frozenset[str]) -> GrepResult:
        with self._acting(search.root, "grep") as tree:
            return searching.grep(tree, search, limit=limit, without=without)

    async def _replace(self, search: TextSearch, new: bytes) -> ReplaceResult:
        with self._acting(search.root, "replace") as tree:
            return searching.replace(tree, search, new)

    # Changing the tree.

    async def move(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        origin, goal = self.at(source), self.at(target)
        with self._acting(origin, "move") as tree:
            spot, aim = tree.find(origin, follow=False), tree.find(goal, follow=False)
            if spot.node is None:
                refuse(errno.ENOENT)
            if aim.node is spot.node and overwrite:
                return
            if f"{aim.path}/".startswith(f"{spot.path}/"):
                refuse(errno.EINVAL)
            if aim.node is not None:
                _check_overwrite(spot.node, aim.node, overwrite=overwrite)
                tree.forget(tree.take_away(aim))
            moved = tree.take_away(spot)
            if moved.kind == "file":
                tree.forget(moved)  # `put` counts it again
            tree.put(Spot(aim.path, aim.parent, aim.name, None), moved)

    async def _remove(self, path: SandboxPath, *, recursive: bool) -> None:
        with self._acting(path, "remove") as tree:
            spot = tree.find(path, follow=False)
            if spot.node is not None and spot.node.children and not recursive:
                refuse(errno.ENOTEMPTY)
            tree.forget(tree.take_away(spot))

    async def mkdir(self, path: PathLike, *, parents: bool = True, mode: int | None = None) -> None:
        target = self.at(path)
        with self._acting(target, "mkdir") as tree:
            if parents:
                tree.make_folders(target, taken=errno.EEXIST)
            else:
                spot = tree.find(target)
                if spot.node is not None:
                    refuse(errno.EEXIST)
                tree.put(spot, Node("folder", 0o755))
            if mode is not None:
                tree.existing(target)[1].mode = mode

    async def symlink(self, path: PathLike, target: str) -> None:
        link = self.at(path)
        with self._acting(link, "symlink") as tree:
            spot = tree.find(link, follow=False)
            if spot.node is not None:
                refuse(errno.EEXIST)
            tree.put(spot, Node("link", 0o777, target=target))

    async def chmod(self, path: PathLike, mode: int) -> None:
        target = self.at(path)
        with self._acting(target, "chmod") as tree:
            node = tree.existing(target)[1]
            if node.uid == 0:
                refuse(errno.EPERM)
            node.mode = mode & 0o7777

    # Streams.

    async def watch(self, path: PathLike = ".", *, recursive: bool = True) -> AsyncIterator[WatchEvent]:
        target, events, loop = self.at(path), asyncio.Queue[WatchEvent](), asyncio.get_running_loop()
        with self._acting(target, "watch") as tree:
            tree.folder(target)
            root = tree.existing(target)[0].rstrip("/")

        def pass_on(event: WatchEvent) -> None:
            parent = posixpath.dirname(event.path).rstrip("/")
            if parent == root or (recursive and f"{parent}/".startswith(f"{root}/")):
                loop.call_soon_threadsafe(events.put_nowait, event)

        stop = tree.listen(pass_on)
        try:
            while True:
                yield await events.get()
        finally:
            stop()

    async def pack(self, path: PathLike) -> AsyncIterator[bytes]:
        target = self.at(path)
        with self._acting(target, "pack") as tree:
            data = archives.pack(tree, target)
        for offset in range(0, len(data), CHUNK_BYTES):
            yield data[offset : offset + CHUNK_BYTES]

    async def unpack(self, path: PathLike, archive: AsyncIterable[bytes]) -> int:
        target = self.at(path)
        self._guard()
        data = b"".join([chunk async for chunk in archive])
        with self._acting(target, "unpack") as tree:
            return archives.unpack(tree, target, data)


def _replaceable(tree: FileTree, spot: Spot, *, exclusive: bool) -> Node | None:
    if spot.node is not None:
        if exclusive:
            refuse(errno.EEXIST)
        if spot.node.kind != "file":
            refuse(errno.EISDIR if spot.node.kind == "folder" else errno.EINVAL)
        tree.need(spot.node, WRITE)
    return spot.node


def _check_overwrite(moved: Node, there: Node, *, overwrite: bool) -> None:
    if not overwrite:
        refuse(errno.EEXIST)
    if there.kind == "folder" and moved.kind != "folder":
        refuse(errno.EISDIR)
    if there.kind != "folder" and moved.kind == "folder":
        refuse(errno.ENOTDIR)
    if there.children:
        refuse(errno.ENOTEMPTY)
