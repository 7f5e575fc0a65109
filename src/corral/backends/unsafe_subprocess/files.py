"""Files of a sandbox that is a folder of the host. Reading is free; what is changed must lie in the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from corral.backends.unsafe_subprocess.folders import Names
from corral.base.filereports import file_info, grep_match, told
from corral.base.files import (
    CHUNK_BYTES,
    DEFAULT_MATCH_LIMIT,
    DEFAULT_READ_LIMIT_BYTES,
    AsyncFiles,
    check_content,
    encode,
    stream_descriptor,
)
from corral.errors import CapabilityError, SandboxFileError
from corral.inside import files, search
from corral.inside.glob import split_absolute
from corral.inside.tars.reading import BrokenArchiveError
from corral.inside.tars.unpacking import LeadsOutError, unpack_tree
from corral.inside.tars.writing import pack_tree
from corral.paths import FollowedPath, SandboxPath
from corral.protocol import PathLike
from corral.results import EditResult, FileInfo, GlobResult, GrepResult, ReplaceResult, WatchEvent

T = TypeVar("T")

Stop = Callable[[], bool]
"""Whether the caller has stopped waiting."""


class _StoppedError(Exception):
    """The caller has stopped waiting."""


class HostFiles(AsyncFiles):
    """Files of the host. Short work is done at once, and long work in a thread that can be stopped."""

    def __init__(self, *, workdir: str, names: Names, sandbox_id: str, guard: Callable[[], None]) -> None:
        super().__init__(workdir=workdir)
        self._names = names
        self._plain, self.at = self.at, self._real
        self._sandbox_id = sandbox_id
        self._guard = guard

    def _real(self, path: PathLike) -> SandboxPath:
        """The real path that a caller's stands for."""
        kind = FollowedPath if isinstance(path, FollowedPath) else SandboxPath
        return kind(self._names.resolve(self._plain(path)))

    def _begin(self, path: PathLike) -> SandboxPath:
        self._guard()
        return self.at(path)

    def _ours(self, path: str, *, follow: bool = False) -> str:
        """A path that may be changed. Raises: PermissionError."""
        folder, name = os.path.split(path)
        if isinstance(path, FollowedPath):
            real: str = path
        else:
            real = os.path.realpath(path) if follow or name == ".." else os.path.join(os.path.realpath(folder), name)
        if not self._names.is_ours(real):
            with contextlib.suppress(FileNotFoundError):
                if follow and not stat.S_ISREG(mode := os.stat(real).st_mode) and not stat.S_ISDIR(mode):
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real

    def _told(self, path: str, op: str) -> contextlib.AbstractContextManager[None]:
        return told(path, sandbox_id=self._sandbox_id, op=op)

    async def _work(self, work: Callable[[Stop], T]) -> T:
        """Do it in a thread. Who is cancelled waits until it has stopped: nothing goes on behind their back."""
        stop = threading.Event()
        task = asyncio.ensure_future(asyncio.to_thread(work, stop.is_set))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()
            raise

    # Reading and writing.

    async def read(self, path: PathLike, *, max_bytes: int = DEFAULT_READ_LIMIT_BYTES) -> bytes:
        # A file that is too large, sparse or not, is refused before any of it is read.
        target = self._begin(path)
        info = await self.stat(target)
        if info.kind == "file" and info.size > max_bytes:
            self._refuse_size(target, max_bytes)
        return await super().read(target, max_bytes=max_bytes)

    async def read_stream(self, path: PathLike, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
        target = self._begin(path)
        with self._told(target, "read"):
            async with contextlib.aclosing(
                stream_descriptor(files.open_regular(target, links=_has_links(target)), chunk_bytes=chunk_bytes)
            ) as stream:
                async for chunk in stream:
                    yield chunk

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
        target = self._begin(path)
        given = check_content(content)
        total = 0
        with contextlib.ExitStack() as stack:
            with self._told(target, "write"):
                real = self._ours(target, follow=True)
                descriptor = stack.enter_context(
                    files.replacing(
                        real, mode=mode, parents=parents, exclusive=exclusive, append=append, links=_has_links(target)
                    )
                )
            async for piece in _pieces(given):
                with self._told(target, "write"):
                    files.write_all(descriptor, piece)
                total += len(piece)
            with self._told(target, "write"):
                stack.close()
        return total

    async def _edit(
        self, path: SandboxPath, old: bytes, new: bytes, *, replace_all: bool, expected_sha256: str | None
    ) -> EditResult:
        self._guard()
        with self._told(path, "edit"):
            self._ours(path, follow=True)
            about = files.edit(
                path, old, new, replace_all=replace_all, expected_sha256=expected_sha256, links=_has_links(path)
            )
        return EditResult(path, **about)

    # About files.

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        target = self._begin(path)
        with self._told(target, "stat"):
            return file_info(files.look(target, follow=follow, links=_has_links(target)))

    async def list(self, path: PathLike = ".") -> Sequence[FileInfo]:
        target = self._begin(path)

        def work(stop: Stop) -> list[FileInfo]:
            return [file_info(item) for item in search.list_folder(target, links=_has_links(target))]

        with self._told(target, "list"):
            return await self._work(work)

    async def glob(
        self, pattern: str, *, path: PathLike = ".", hidden: bool = True, limit: int = DEFAULT_MATCH_LIMIT
    ) -> GlobResult:
        root = self._begin(path)
        if pattern.startswith("/"):
            folder, pattern = split_absolute(self._names.resolve(pattern))
            root = SandboxPath(folder)

        def work(stop: Stop) -> GlobResult:
            outcome = search.Outcome(_ending(stop))
            found = search.glob(root, pattern, limit=limit, outcome=outcome, hidden=hidden, links=_has_links(root))
            return GlobResult(tuple(map(file_info, found)), outcome.truncated, tuple(outcome.unreadable))

        with self._told(root, "glob"):
            return await self._work(work)

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
        root, skipped = self._begin(path), frozenset(without)

        def work(stop: Stop) -> GrepResult:
            outcome = search.Outcome(_ending(stop))
            found = search.grep(
                root, pattern, limit=limit, outcome=outcome, include=include, ignore_case=ignore_case, fixed=fixed,
                hidden=hidden, without=skipped, links=_has_links(root),
            )  # fmt: skip
            return GrepResult(tuple(map(grep_match, found)), outcome.truncated, tuple(outcome.unreadable))

        with self._told(root, "grep"):
            return await self._work(work)

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
        root, text = self._begin(path), encode(new)

        def work(stop: Stop) -> ReplaceResult:
            outcome = search.Outcome(_ending(stop))
            done = search.replace(
                root, pattern, text, outcome=outcome, include=include, ignore_case=ignore_case, fixed=fixed,
                hidden=hidden, links=_has_links(root), may_change=self._ours,
            )  # fmt: skip
            return ReplaceResult({item["path"]: item["replacements"] for item in done}, tuple(outcome.unreadable))

        with self._told(root, "replace"):
            self._ours(root)
            return await self._work(work)

    # Changing the tree.

    async def move(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        origin, goal = self._begin(source), self.at(target)
        with self._told(origin, "move"):
            files.move(self._ours(origin), self._ours(goal), overwrite=overwrite)

    async def remove(self, path: PathLike, *, recursive: bool = False, missing_ok: bool = False) -> None:
        target = self._begin(path)
        with self._told(target, "remove"):
            try:
                real = self._ours(target)
                os.lstat(real)
                await self._work(lambda _: files.remove(real, recursive=recursive))
            except (FileNotFoundError, NotADirectoryError):
                if not missing_ok:
                    raise

    async def mkdir(self, path: PathLike, *, parents: bool = True, mode: int | None = None) -> None:
        target = self._begin(path)
        with self._told(target, "mkdir"):
            real = self._ours(target, follow=parents)
            files.make_folder(real, parents=parents, mode=mode)

    async def symlink(self, path: PathLike, target: str) -> None:
        link = self._begin(path)
        with self._told(link, "symlink"):
            os.symlink(target, self._ours(link))

    async def chmod(self, path: PathLike, mode: int) -> None:
        target = self._begin(path)
        with self._told(target, "chmod"):
            os.chmod(self._ours(target, follow=True), mode)

    # Streams.

    async def watch(self, path: PathLike = ".", *, recursive: bool = True) -> AsyncIterator[WatchEvent]:
        self._guard()
        raise CapabilityError(
            "the unsafe-subprocess backend does not support watch",
            sandbox_id=self._sandbox_id, op="watch", hint="call list or glob again and compare `modified`",
        )  # fmt: skip
        yield  # an async generator, as the contract has it

    async def pack(self, path: PathLike) -> AsyncIterator[bytes]:
        target = self._begin(path)
        with self._told(target, "pack"):
            os.lstat(target)
            reader, writer = os.pipe()
            task = asyncio.ensure_future(asyncio.to_thread(_pack, target, writer))
            try:
                with os.fdopen(reader, "rb", buffering=0) as source:
                    while chunk := await self._work(lambda _: source.read(CHUNK_BYTES)):
                        yield chunk
            finally:
                with contextlib.suppress(BrokenPipeError):
                    await asyncio.shield(task)

    async def unpack(self, path: PathLike, archive: AsyncIterable[bytes]) -> int:
        target = self._begin(path)
        with self._told(target, "unpack"):
            real = self._ours(target, follow=True)
            reader, writer = os.pipe()
            task = asyncio.ensure_future(asyncio.to_thread(_unpack, real, reader))
            try:
                with os.fdopen(writer, "wb", buffering=0) as sink:
                    async for piece in archive:
                        await self._work(partial(_write_all, sink.fileno(), piece))
            except BrokenPipeError:
                pass  # it has stopped; its own error says why
            finally:
                (outcome,) = await asyncio.shield(asyncio.gather(task, return_exceptions=True))
            if isinstance(outcome, BrokenArchiveError | LeadsOutError):
                text = f"{target}: malformed archive: {outcome}"
                raise SandboxFileError(text, path=target, sandbox_id=self._sandbox_id, op="unpack") from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        return outcome


async def _pieces(content: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes | memoryview]:
    if not isinstance(content, bytes):
        async for piece in content:
            yield piece
            await asyncio.sleep(0)
        return
    view = memoryview(content)
    for offset in range(0, len(view), 4 * CHUNK_BYTES):
        if offset:
            await asyncio.sleep(0)
        yield view[offset : offset + 4 * CHUNK_BYTES]


def _has_links(path: str) -> bool:
    """Whether links in it are to be followed."""
    return not isinstance(path, FollowedPath)


def _ending(stop: Stop) -> Callable[[], None]:
    def check() -> None:
        if stop():
            raise _StoppedError

    return check


def _pack(path: str, writer: int) -> None:
    with os.fdopen(writer, "wb", buffering=CHUNK_BYTES) as sink:
        pack_tree(path, sink.write)


def _unpack(path: str, reader: int) -> int:
    with os.fdopen(reader, "rb", buffering=0) as source:
        count = unpack_tree(path, iter(lambda: source.read(CHUNK_BYTES), b""))
        while source.read(CHUNK_BYTES):  # to the end, so that the writer does not fail on the padding
            pass
        return count


def _write_all(descriptor: int, data: bytes, stop: Stop) -> None:
    view = memoryview(data)
    while view and not stop():
        view = view[os.write(descriptor, view) :]
