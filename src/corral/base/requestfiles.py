"""RequestFiles: files by requests to an agent inside that runs `corral.inside.filerequests`, over any wire."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from corral.base.filereports import file_info, grep_match
from corral.base.files import AsyncFiles, TextSearch, WriteRequest
from corral.errors import EngineFaultError, SandboxFileError
from corral.paths import SandboxPath, describe
from corral.protocol import PathLike
from corral.results import EditResult, FileInfo, GlobResult, GrepMatch, GrepResult, ReplaceResult

Message = dict[str, Any]


class RequestFiles(AsyncFiles):
    """All operations without a stream of content. A backend sends the requests, and implements reading and writing."""

    @abstractmethod
    async def _ask(self, message: Message, payloads: Sequence[bytes] = (), *, path: str) -> Message:
        """The answer to a request. Raises: what the agent refuses."""

    @abstractmethod
    def _batches(
        self, message: Message, payloads: Sequence[bytes] = (), *, path: str
    ) -> AsyncGenerator[tuple[list[Any], Message | None], None]:
        """An answer in batches of items; the last batch is empty, and comes with the final message."""

    async def _collect(
        self, message: Message, payloads: Sequence[bytes] = (), *, path: str
    ) -> tuple[list[Any], Message]:
        """All items of an answer, and its final message."""
        items: list[Any] = []
        async with contextlib.aclosing(self._batches(message, payloads, path=path)) as batches:
            async for batch, last in batches:
                items.extend(batch)
                if last is not None:
                    return items, last
        raise EngineFaultError("the file agent's answer has no end", op=str(message["op"]))

    async def _edit(
        self, path: SandboxPath, old: bytes, new: bytes, *, replace_all: bool, expected_sha256: str | None
    ) -> EditResult:
        message = {"op": "edit", **describe(path), "replace_all": replace_all, "expected_sha256": expected_sha256}
        answer = await self._ask(message, (old, new), path=path)
        return EditResult(path, int(answer["replacements"]), str(answer["sha256"]), int(answer["size"]))

    # About files.

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        target = self.at(path)
        return file_info((await self._ask({"op": "stat", **describe(target), "follow": follow}, path=target))["stat"])

    async def list(self, path: PathLike = ".") -> Sequence[FileInfo]:
        target = self.at(path)
        items, _ = await self._collect({"op": "list", **describe(target)}, path=target)
        return [file_info(item) for item in items]

    async def list_batches(self, path: PathLike = ".", *, depth: int = 1) -> AsyncIterator[Sequence[FileInfo]]:
        target = self.at(path)
        batches = self._batches({"op": "list", "path": target, "depth": depth}, path=target)
        async with contextlib.aclosing(batches):
            async for items, _ in batches:
                yield [file_info(item) for item in items]

    async def _glob(self, root: SandboxPath, pattern: str, *, hidden: bool, limit: int) -> GlobResult:
        message = {"op": "glob", **describe(root), "pattern": pattern, "hidden": hidden, "limit": limit}
        items, last = await self._collect(message, path=root)
        return GlobResult(tuple(file_info(item) for item in items), bool(last["truncated"]), _texts(last["unreadable"]))

    async def find_linked(self, path: PathLike, *, limit: int) -> GlobResult:
        # Filtered inside: the other files are not sent.
        root = self.at(path)
        message = {"op": "glob", **describe(root), "pattern": "**", "linked": True, "limit": limit}
        items, last = await self._collect(message, path=root)
        return GlobResult(tuple(file_info(item) for item in items), bool(last["truncated"]), _texts(last["unreadable"]))

    async def glob_batches(self, pattern: str, *, path: PathLike, limit: int) -> AsyncIterator[Sequence[FileInfo]]:
        root = self.at(path)
        message = {"op": "glob", "path": root, "pattern": pattern, "hidden": True, "limit": limit}
        async with contextlib.aclosing(self._batches(message, path=root)) as batches:
            async for items, _ in batches:
                yield [file_info(item) for item in items]

    async def grep_batches(self, text: str, *, path: PathLike, limit: int) -> AsyncIterator[Sequence[GrepMatch]]:
        root = self.at(path)
        message = {"op": "grep", "path": root, "pattern": text, "fixed": True, "hidden": True, "limit": limit}
        async with contextlib.aclosing(self._batches(message, path=root)) as batches:
            async for items, _ in batches:
                yield [grep_match(item) for item in items]

    async def _grep(self, search: TextSearch, *, limit: int, without: frozenset[str]) -> GrepResult:
        message = {"op": "grep", **describe(search.root), **_describe_search(search), "limit": limit}
        # As a payload: there may be more of them than fit into a message.
        names = "\0".join(without).encode("utf-8", "surrogateescape")
        items, last = await self._collect(message, (names,) if names else (), path=search.root)
        return GrepResult(tuple(map(grep_match, items)), bool(last["truncated"]), _texts(last["unreadable"]))

    async def _replace(self, search: TextSearch, new: bytes) -> ReplaceResult:
        message = {"op": "replace", "path": search.root, **_describe_search(search)}
        items, last = await self._collect(message, (new,), path=search.root)
        return ReplaceResult({str(i["path"]): int(i["replacements"]) for i in items}, _texts(last["unreadable"]))

    # Changing the tree.

    async def move(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        message = {"op": "move", "source": self.at(source), "target": self.at(target), "overwrite": overwrite}
        await self._ask(message, path=self.at(source))

    async def _remove(self, path: SandboxPath, *, recursive: bool) -> None:
        if path == "/":
            raise SandboxFileError("the root folder can't be removed", path=path, op="remove")
        await self._ask({"op": "remove", "path": path, "recursive": recursive}, path=path)

    async def mkdir(self, path: PathLike, *, parents: bool = True, mode: int | None = None) -> None:
        message = {"op": "mkdir", "path": self.at(path), "parents": parents}
        if mode is not None:
            message["mode"] = mode
        await self._ask(message, path=self.at(path))

    async def symlink(self, path: PathLike, target: str) -> None:
        await self._ask({"op": "link", "path": self.at(path), "target": target}, path=self.at(path))

    async def chmod(self, path: PathLike, mode: int) -> None:
        await self._ask({"op": "chmod", "path": self.at(path), "mode": mode}, path=self.at(path))


def describe_write(request: WriteRequest) -> Message:
    """A request to write, without its operation."""
    message = {
        **describe(request.path),
        "parents": request.parents,
        "exclusive": request.exclusive,
        "append": request.append,
    }
    return message if request.mode is None else {**message, "mode": request.mode}


def _describe_search(search: TextSearch) -> Message:
    return {
        "pattern": search.pattern,
        "include": search.include,
        "ignore_case": search.ignore_case,
        "fixed": search.fixed,
        "hidden": search.hidden,
    }


def _texts(items: Sequence[object]) -> tuple[str, ...]:
    return tuple(str(item) for item in items)
