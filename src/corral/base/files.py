"""`AsyncFiles`: the files of a sandbox. A backend implements what is abstract, the rest is derived here.

`RequestFiles` implements most of it for backends with a file agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeVar

from corral.base import transfer
from corral.base.filereports import file_info, grep_match, parsing
from corral.errors import (
    CapabilityError,
    EditError,
    EngineFaultError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxNotFolderError,
)
from corral.inside.glob import split_absolute
from corral.inside.lines import compile_pattern
from corral.paths import HostPath, SandboxPath, describe, inside
from corral.protocol import PathLike
from corral.results import (
    DownloadResult,
    EditResult,
    FileInfo,
    GlobResult,
    GrepMatch,
    GrepResult,
    ReplaceResult,
    WatchEvent,
)

DEFAULT_READ_LIMIT_BYTES = 256 * 1024 * 1024
_MOST_LOOKED_AT = 1_000_000
DEFAULT_MATCH_LIMIT = 10_000
CHUNK_BYTES = 256 * 1024
MAX_ITEMS = 1_000_000
"""How many files `list` and `replace` return: memory here is bounded, whatever a program inside creates or says."""

T = TypeVar("T")

Message = dict[str, Any]
"""A request to a file agent, or its answer."""


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A file to write: what a backend gets for `write`."""

    path: SandboxPath
    mode: int | None
    parents: bool
    exclusive: bool
    append: bool

    def describe(self) -> Message:
        """As a request to a file agent, without its operation."""
        options = {"parents": self.parents, "exclusive": self.exclusive, "append": self.append}
        return {**describe(self.path), **options, **({} if self.mode is None else {"mode": self.mode})}


@dataclass(frozen=True, slots=True)
class TextSearch:
    """Where and for what text to search: what a backend gets for `grep` and `replace`."""

    root: SandboxPath
    pattern: str
    include: str | None
    ignore_case: bool
    fixed: bool
    hidden: bool

    def __post_init__(self) -> None:
        check_string(self.pattern, what="pattern")
        check_string(self.include or "", what="include")

    def compile(self) -> re.Pattern[bytes]:
        """Raises: RefusedError for an invalid regular expression."""
        return compile_pattern(self.pattern, fixed=self.fixed, ignore_case=self.ignore_case)

    def describe(self) -> Message:
        """As a request to a file agent, without its operation."""
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "root"}
        return {**describe(self.root), **options}


class AsyncFiles(ABC):
    """The files of a sandbox. Every method raises `SandboxGoneError`, `SandboxClosedError` and, beyond what is named,
    `SandboxPermissionError` without permission, `SandboxNoSpaceError` if the disk is full, and `SandboxFileError` for
    all other failures.

    A `FollowedPath` is one whose permission was checked: no link on it is followed, and `SandboxLinkError` means that a
    link was added since. `move`, `remove`, `mkdir`, `symlink`, `chmod`, `replace`, `watch`, `pack` and
    `unpack` treat it as any other path."""

    _spool_bytes = 1024 * 1024
    """A stream up to this size is collected first, and written like bytes."""

    def __init__(self, *, workdir: str, sandbox_id: str, guard: Callable[[], None]) -> None:
        """`guard` raises if the sandbox is closed or gone."""
        self._sandbox_id = sandbox_id
        self._guard = guard
        self.at: Callable[[PathLike], SandboxPath] = functools.partial(inside, workdir=workdir)
        """The absolute path of a caller's path. Backends with other paths override it."""

    # The primitives.

    @abstractmethod
    def read_stream(self, path: PathLike, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        """The content in pieces, up to the size the file had when opened. Raises: as `read`, without a limit."""

    @abstractmethod
    async def _write(self, request: WriteRequest, data: bytes) -> None:
        """`write` of bytes."""

    @abstractmethod
    async def _write_stream(self, request: WriteRequest, content: AsyncIterable[bytes]) -> int:
        """`write` of a long stream; returns the number of bytes."""

    @abstractmethod
    async def _edit(
        self, path: SandboxPath, old: bytes, new: bytes, *, replace_all: bool, expected_sha256: str | None
    ) -> EditResult:
        """`edit` with checked arguments."""

    @abstractmethod
    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        """About one file. Raises: SandboxFileNotFoundError, SandboxLinkError."""

    @abstractmethod
    async def list(self, path: PathLike = ".") -> Sequence[FileInfo]:
        """A folder's entries, sorted by name.

        Raises:
            SandboxFileNotFoundError, SandboxNotFolderError
            SandboxLinkError: a part of a `FollowedPath` became a link.
        """

    @abstractmethod
    async def _glob(self, root: SandboxPath, pattern: str, *, hidden: bool, limit: int) -> GlobResult:
        """`glob` with a relative pattern."""

    @abstractmethod
    async def _grep(self, search: TextSearch, *, limit: int, without: frozenset[str]) -> GrepResult:
        """`grep`."""

    @abstractmethod
    async def _replace(self, search: TextSearch, new: bytes) -> ReplaceResult:
        """`replace`."""

    @abstractmethod
    async def move(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        """Rename. Raises: SandboxFileNotFoundError, SandboxFileExistsError."""

    @abstractmethod
    async def _remove(self, path: SandboxPath, *, recursive: bool) -> None:
        """`remove`; a path that does not exist is an error."""

    @abstractmethod
    async def mkdir(self, path: PathLike, *, parents: bool = True, mode: int | None = None) -> None:
        """Create a folder; with `parents`, it may exist already.

        Raises:
            SandboxFileExistsError, SandboxFileNotFoundError
        """

    @abstractmethod
    async def symlink(self, path: PathLike, target: str) -> None:
        """Create a symlink. Raises: SandboxFileExistsError."""

    @abstractmethod
    async def chmod(self, path: PathLike, mode: int) -> None:
        """Set permission bits. Raises: SandboxFileNotFoundError."""

    @abstractmethod
    def pack(self, path: PathLike) -> AsyncIterator[bytes]:
        """A tree as a tar stream: modes, links and empty folders kept, names relative.

        Raises:
            SandboxFileNotFoundError
        """

    @abstractmethod
    async def unpack(self, path: PathLike, archive: AsyncIterable[bytes]) -> int:
        """Unpack a tar stream (plain or compressed) below a folder; returns the number of members.

        Raises:
            SandboxFileError: a malformed archive, or a member outside the folder.
        """

    # What is derived.

    async def write(
        self,
        path: PathLike,
        content: bytes | str | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
        append: bool = False,
    ) -> int:
        """Write atomically: readers see the old or the new content. Keeps the mode of a file it replaces.

        Returns the number of bytes.

        Raises:
            SandboxIsFolderError, SandboxFileKindError: the target is not a regular file.
            SandboxFileExistsError: `exclusive` and it exists.
            SandboxFileNotFoundError: `parents=False` and the folder is missing.
            SandboxNotFolderError: a parent is not a folder.
            SandboxLinkError: a part of a `FollowedPath` became a link.
        """
        request = WriteRequest(self.at(path), mode, parents, exclusive, append)
        self._guard()
        data = check_content(content)
        if not isinstance(data, bytes):
            data, rest = await spool(data, limit_bytes=self._spool_bytes)
            if rest is not None:
                return await self._write_stream(request, rest)
        await self._write(request, data)
        return len(data)

    async def glob(
        self, pattern: str, *, path: PathLike = ".", hidden: bool = True, limit: int = DEFAULT_MATCH_LIMIT
    ) -> GlobResult:
        """Paths that match; `**` crosses folders. Raises: SandboxFileNotFoundError and SandboxLinkError, for `path`."""
        root = self.at(path)
        if check_string(pattern, what="pattern").startswith("/"):
            folder, pattern = split_absolute(pattern)
            root = SandboxPath(folder)
        return await self._glob(root, pattern, hidden=hidden, limit=limit)

    async def grep(
        self,
        pattern: str,
        *,
        path: PathLike = ".",
        include: str | None = None,
        ignore_case: bool = False,
        fixed: bool = False,
        hidden: bool = False,
        limit: int = DEFAULT_MATCH_LIMIT,
        without: Collection[str] = (),
    ) -> GrepResult:
        """Lines that match a regular expression (or a fixed text), in text files; `limit` of them at most.

        Files in `without`, by absolute path as `glob` returns them, are skipped and not counted.

        Raises:
            SandboxFileError: invalid regular expression.
            SandboxFileNotFoundError, SandboxLinkError: for `path`.
        """
        search = TextSearch(self.at(path), pattern, include, ignore_case, fixed, hidden)
        return await self._grep(search, limit=limit, without=frozenset(without))

    async def replace(
        self,
        pattern: str,
        new: str | bytes,
        *,
        path: PathLike = ".",
        include: str | None = None,
        ignore_case: bool = False,
        fixed: bool = True,
        hidden: bool = False,
    ) -> ReplaceResult:
        """Replace in all text files below a path, each atomically.

        Raises:
            SandboxFileError: invalid regular expression.
            SandboxFileNotFoundError: for `path`.
        """
        search = TextSearch(self.at(path), pattern, include, ignore_case, fixed, hidden)
        return await self._replace(search, encode(new, what="new"))

    async def remove(self, path: PathLike, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Delete. Raises: SandboxFileNotFoundError; SandboxFileExistsError for a folder that is not empty."""
        try:
            await self._remove(self.at(path), recursive=recursive)
        except (SandboxFileNotFoundError, SandboxNotFolderError):
            if not missing_ok:
                raise

    async def watch(self, path: PathLike = ".", *, recursive: bool = True) -> AsyncIterator[WatchEvent]:
        """Changes below a folder, from now on, until the iterator is closed.

        Raises:
            SandboxFileNotFoundError, SandboxNotFolderError
            CapabilityError: not supported by this backend.
        """
        self._guard()
        raise CapabilityError(
            "this backend does not support watch",
            sandbox_id=self._sandbox_id,
            op="watch",
            hint="call list or glob again and compare `modified`",
        )
        yield  # an async generator, like those of the backends that support it

    async def list_batches(self, path: PathLike = ".", *, depth: int = 1) -> AsyncIterator[Sequence[FileInfo]]:
        """The entries of `list`, each folder followed by its contents, down to a depth; in batches if supported.

        For streaming. Raises: as `list`, for `path` itself; folders below that can't be read are left out.
        """
        for info in await self.list(path):
            yield [info]
            if depth > 1 and info.is_folder:
                with contextlib.suppress(SandboxFileError):
                    async for batch in self.list_batches(info.path, depth=depth - 1):
                        yield batch

    async def glob_batches(self, pattern: str, *, path: PathLike, limit: int) -> AsyncIterator[Sequence[FileInfo]]:
        """The results of `glob`, in batches if supported. Raises: as `glob`."""
        yield (await self.glob(pattern, path=path, limit=limit)).files

    async def find_linked(self, path: PathLike, *, limit: int) -> GlobResult:
        """The files below a folder that have more than one hard link, or may have. Raises: as `glob`."""
        found = await self.glob("**", path=path, hidden=True, limit=_MOST_LOOKED_AT)
        linked = tuple(info for info in found.files if info.kind == "file" and info.links != 1)
        return GlobResult(linked[:limit], found.truncated or len(linked) > limit, found.unreadable)

    async def grep_batches(self, text: str, *, path: PathLike, limit: int) -> AsyncIterator[Sequence[GrepMatch]]:
        """The results of `grep` for a fixed text, in hidden files as well; in batches if supported."""
        yield (await self.grep(text, path=path, fixed=True, hidden=True, limit=limit)).matches

    async def read(self, path: PathLike, *, max_bytes: int = DEFAULT_READ_LIMIT_BYTES) -> bytes:
        """The whole content.

        Raises:
            SandboxFileNotFoundError, SandboxIsFolderError
            SandboxFileKindError: a FIFO, device, socket, or a file of /proc.
            SandboxLinkError: a part of a `FollowedPath` became a link.
            SandboxFileTooLargeError: more than `max_bytes`, also if it grows while being read.
        """
        content = bytearray()
        # Closed here: its process inside ends now, not when it is garbage collected.
        async with contextlib.aclosing(self.read_stream(path)) as stream:
            async for chunk in stream:
                content += chunk
                if len(content) > max_bytes:
                    self._refuse_size(self.at(path), max_bytes)
        return bytes(content)

    async def read_text(
        self,
        path: PathLike,
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        max_bytes: int = DEFAULT_READ_LIMIT_BYTES,
    ) -> str:
        """The content as text. Raises: as `read`, and UnicodeDecodeError."""
        return (await self.read(path, max_bytes=max_bytes)).decode(encoding, errors)

    async def edit(
        self,
        path: PathLike,
        old: str | bytes,
        new: str | bytes,
        *,
        replace_all: bool = False,
        expected_sha256: str | None = None,
    ) -> EditResult:
        """Replace text in a file by compare-and-swap; all other bytes are kept.

        Raises:
            SandboxFileNotFoundError
            EditError: `old` is empty, not found, or found more than once without `replace_all`.
            EditConflictError: the content is not `expected_sha256`, or keeps changing.
            SandboxLinkError: a part of a `FollowedPath` became a link.
        """
        target = self.at(path)
        before, after = encode(old, what="old"), encode(new, what="new")
        if not before:
            raise EditError("the text to replace is empty", path=target, op="edit", hint="pass the text to replace")
        return await self._edit(target, before, after, replace_all=replace_all, expected_sha256=expected_sha256)

    async def exists(self, path: PathLike) -> bool:
        """True if the path exists; False for a broken link."""
        try:
            await self.stat(path)
        except (SandboxFileNotFoundError, NotADirectoryError):
            return False
        return True

    async def upload(self, source: HostPath | str, target: PathLike) -> None:
        """Copy a file or folder of the host into the sandbox. Raises: FileNotFoundError for `source`."""
        origin = HostPath(source)
        if not await asyncio.to_thread(origin.exists):
            raise FileNotFoundError(f"nothing to upload: {str(source)!r} does not exist")
        if await asyncio.to_thread(origin.is_dir):
            # Closed here, not when it is garbage collected: a cancelled upload must not keep its pipe.
            async with contextlib.aclosing(transfer.pack_host_tree(origin)) as archive:
                await self.unpack(target, archive)
            return
        if not await asyncio.to_thread(origin.is_file):
            raise SandboxFileError(f"{origin.name!r} is neither a file nor a folder", op="upload")
        mode = (await asyncio.to_thread(os.stat, origin)).st_mode & 0o777
        if str(target).endswith("/") or await self._is_folder(target):
            target = f"{str(target).rstrip('/')}/{origin.name}"
        async with contextlib.aclosing(transfer.read_host_file(origin)) as content:
            await self.write(target, content, mode=mode)

    async def download(
        self,
        source: PathLike,
        target: HostPath | str,
        *,
        max_bytes: int | None = None,
        git_settings: bool = False,
        git_settings_to: HostPath | str | None = None,
    ) -> DownloadResult:
        """Copy a file or folder of the sandbox to the host. Links that lead out of the folder are left out.

        Files of a folder that make git run programs are left out as well (`.git/config`, hooks and similar files of any
        repository, and files that the host's git settings name, such as `core.hooksPath=.husky`): the host keeps its
        own, and the result lists them. `git_settings=True` copies them, too; `git_settings_to` puts them into another
        folder. Commits, branches and other files are always copied.

        Raises:
            SandboxFileNotFoundError
            SandboxFileTooLargeError: more than `max_bytes` in all.
            FileExistsError: `target` is neither a folder to copy into, nor a file to replace.
        """
        goal = HostPath(target)
        info = await self.stat(source)
        if info.is_folder:
            aside = HostPath(git_settings_to) if git_settings_to is not None else None
            left_out = await transfer.unpack_to_host(
                self.pack(source), goal, max_bytes=max_bytes, git_settings=git_settings, aside=aside
            )
            return DownloadResult(left_out)
        if await asyncio.to_thread(goal.is_dir):
            goal = goal / info.name
        await transfer.write_host_file(self.read_stream(source), goal, mode=info.mode & 0o777, max_bytes=max_bytes)
        return DownloadResult()

    def _refuse_size(self, path: str, max_bytes: int) -> NoReturn:
        raise SandboxFileTooLargeError(
            f"{path} has more than {max_bytes} bytes",
            path=path,
            op="read",
            hint="raise max_bytes, or use read_stream or download",
        )

    async def _is_folder(self, path: PathLike) -> bool:
        try:
            return (await self.stat(path)).is_folder
        except SandboxFileError:
            return False


class RequestFiles(AsyncFiles):
    """Files by requests to an agent inside that runs `corral.inside.filerequests`, over any wire.

    These are all operations without a stream of content. A backend sends the requests, and implements reading and
    writing.
    """

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
        """All items of an answer, and its final message. Raises: SandboxFileError for more than were asked for."""
        items: list[Any] = []
        most = int(message.get("limit", MAX_ITEMS))
        async with contextlib.aclosing(self._batches(message, payloads, path=path)) as batches:
            async for batch, last in batches:
                with self._parsing(path, str(message["op"])):
                    items.extend(batch)
                if len(items) > most:
                    raise too_many(path, most, sandbox_id=self._sandbox_id, op=str(message["op"]))
                if last is not None:
                    return items, last
        raise EngineFaultError("the file agent's answer has no end", op=str(message["op"]))

    def _parsing(self, path: str, op: str) -> contextlib.AbstractContextManager[None]:
        return parsing(path, sandbox_id=self._sandbox_id, op=op)

    async def _edit(
        self, path: SandboxPath, old: bytes, new: bytes, *, replace_all: bool, expected_sha256: str | None
    ) -> EditResult:
        message = {"op": "edit", **describe(path), "replace_all": replace_all, "expected_sha256": expected_sha256}
        answer = await self._ask(message, (old, new), path=path)
        with self._parsing(path, "edit"):
            return EditResult(path, int(answer["replacements"]), str(answer["sha256"]), int(answer["size"]))

    # About files.

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        target = self.at(path)
        answer = await self._ask({"op": "stat", **describe(target), "follow": follow}, path=target)
        with self._parsing(target, "stat"):
            return file_info(answer["stat"])

    async def list(self, path: PathLike = ".") -> Sequence[FileInfo]:
        target = self.at(path)
        items, _ = await self._collect({"op": "list", **describe(target)}, path=target)
        with self._parsing(target, "list"):
            return [file_info(item) for item in items]

    async def _glob(self, root: SandboxPath, pattern: str, *, hidden: bool, limit: int) -> GlobResult:
        return await self._find(root, pattern=pattern, hidden=hidden, limit=limit)

    async def find_linked(self, path: PathLike, *, limit: int) -> GlobResult:
        # Filtered inside: the other files are not sent.
        return await self._find(self.at(path), pattern="**", linked=True, limit=limit)

    async def _find(self, root: SandboxPath, **options: object) -> GlobResult:
        items, last = await self._collect({"op": "glob", **describe(root), **options}, path=root)
        with self._parsing(root, "glob"):
            return GlobResult(tuple(map(file_info, items)), bool(last["truncated"]), _texts(last["unreadable"]))

    def list_batches(self, path: PathLike = ".", *, depth: int = 1) -> AsyncIterator[Sequence[FileInfo]]:
        return self._parsed({"op": "list", "path": self.at(path), "depth": depth}, file_info)

    def glob_batches(self, pattern: str, *, path: PathLike, limit: int) -> AsyncIterator[Sequence[FileInfo]]:
        message = {"op": "glob", "path": self.at(path), "pattern": pattern, "hidden": True, "limit": limit}
        return self._parsed(message, file_info)

    def grep_batches(self, text: str, *, path: PathLike, limit: int) -> AsyncIterator[Sequence[GrepMatch]]:
        message = {"op": "grep", "path": self.at(path), "pattern": text, "fixed": True, "hidden": True, "limit": limit}
        return self._parsed(message, grep_match)

    async def _parsed(self, message: Message, parse: Callable[[Message], T]) -> AsyncIterator[Sequence[T]]:
        async with contextlib.aclosing(self._batches(message, path=message["path"])) as batches:
            async for items, _ in batches:
                with self._parsing(message["path"], str(message["op"])):
                    parsed = [parse(item) for item in items]
                yield parsed

    async def _grep(self, search: TextSearch, *, limit: int, without: frozenset[str]) -> GrepResult:
        message = {"op": "grep", **search.describe(), "limit": limit}
        # As a payload: there may be more of them than fit into a message.
        names = "\0".join(without).encode("utf-8", "surrogateescape")
        items, last = await self._collect(message, (names,) if names else (), path=search.root)
        with self._parsing(search.root, "grep"):
            return GrepResult(tuple(map(grep_match, items)), bool(last["truncated"]), _texts(last["unreadable"]))

    async def _replace(self, search: TextSearch, new: bytes) -> ReplaceResult:
        message = {"op": "replace", **search.describe()}
        items, last = await self._collect(message, (new,), path=search.root)
        with self._parsing(search.root, "replace"):
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


def too_many(path: str, most: int, *, sandbox_id: str | None, op: str) -> SandboxFileTooLargeError:
    """The error for more files or matches than a result holds."""
    return SandboxFileTooLargeError(
        f"{path}: more than {most:,} results", path=path, sandbox_id=sandbox_id, op=op, hint="use glob with a limit"
    )


def check_string(value: str, *, what: str) -> str:
    """The value. Raises: TypeError if it is not a string."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {type(value).__name__}")
    return value


def encode(text: str | bytes, *, what: str = "text") -> bytes:
    """Bytes unchanged, text as UTF-8 (surrogates stand for bytes that are not UTF-8). Raises: TypeError."""
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    if isinstance(text, bytes | bytearray | memoryview):  # not whatever bytes() takes: bytes(5) is five NUL bytes
        return bytes(text)
    raise TypeError(f"{what} must be a string or bytes, not {type(text).__name__}")


def check_content(content: bytes | str | AsyncIterable[bytes]) -> bytes | AsyncIterable[bytes]:
    """The content to write: bytes, or a stream of them. Raises: TypeError."""
    if isinstance(content, AsyncIterable):
        return content
    if isinstance(content, str | bytes | bytearray | memoryview):
        return encode(content)
    raise TypeError(f"content must be bytes, a string or an async iterable of bytes, not {type(content).__name__}")


async def spool(stream: AsyncIterable[bytes], *, limit_bytes: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """The content of a short stream; for one longer than the limit, all of it as a stream again."""
    source, begun = aiter(stream), bytearray()
    async for piece in source:
        begun += piece
        if len(begun) > limit_bytes:
            return b"", _chain(bytes(begun), source)
    return bytes(begun), None


async def _chain(begun: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield begun
    async for piece in rest:
        yield piece


def _texts(items: Sequence[object]) -> tuple[str, ...]:
    return tuple(str(item) for item in items)
