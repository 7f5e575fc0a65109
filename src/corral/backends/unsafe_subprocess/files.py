"""Files of a sandbox that is a folder of the host. Reading is free; what is changed must lie in the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeVar

from corral.backends.unsafe_subprocess import tree
from corral.backends.unsafe_subprocess.folders import Names
from corral.base.files import (
    CHUNK_BYTES,
    DEFAULT_MATCH_LIMIT,
    DEFAULT_READ_LIMIT_BYTES,
    AsyncFiles,
    check_content,
    encode,
    replace_text,
    stream_descriptor,
)
from corral.base.shellfiles import patterns, search
from corral.errors import FILE_ERRORS_BY_ERRNO, CapabilityError, CorralError, SandboxFileError, became_a_link
from corral.inside.nolinks import LinkFoundError
from corral.inside.tars.reading import BrokenArchiveError
from corral.inside.tars.unpacking import LeadsOutError, make_folders, unpack_tree
from corral.inside.tars.writing import pack_tree
from corral.paths import FollowedPath, SandboxPath
from corral.protocol import PathLike
from corral.results import EditResult, FileInfo, GlobResult, GrepMatch, GrepResult, ReplaceResult, WatchEvent

T = TypeVar("T")

_MAX_UNREADABLE = 50


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
                    raise tree.refuse(errno.EINVAL)
            raise tree.refuse(errno.EACCES)
        return real

    @contextlib.contextmanager
    def _told(self, path: str, op: str) -> Iterator[None]:
        """The kernel's errors, and those of the functions below us, as ours."""
        shown = path if len(path) <= 300 else f"{path[:150]} … {path[-100:]}"
        try:
            yield
        except CorralError as error:
            error.sandbox_id = error.sandbox_id or self._sandbox_id
            raise
        except LinkFoundError as error:
            raise became_a_link(path, sandbox_id=self._sandbox_id, op=op) from error
        except OSError as error:
            kind = FILE_ERRORS_BY_ERRNO.get(error.errno or 0, SandboxFileError)
            text = f"{shown}: {error.strerror or error}"
            raise kind(text, path=path, sandbox_id=self._sandbox_id, op=op) from error

    async def _work(self, work: Callable[[tree.Stop], T]) -> T:
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
        target = self._begin(path)
        with self._told(target, "read"):
            size, links = os.stat(target).st_size, _has_links(target)
            if size < CHUNK_BYTES:
                content = tree.read_whole(target, max_bytes, links=links)
            else:
                content = await self._work(lambda _: tree.read_whole(target, max_bytes, links=links))
            if content is None:
                self._refuse_size(target, max_bytes)
        return content

    async def read_stream(self, path: PathLike, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
        target = self._begin(path)
        with self._told(target, "read"):
            async with contextlib.aclosing(
                stream_descriptor(tree.open_regular(target, links=_has_links(target)), chunk_bytes=chunk_bytes)
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
        with self._told(target, "write"):
            real = self._ours(target, follow=True)
            replacing = tree.Replacing(
                real, mode=mode, parents=parents, exclusive=exclusive, append=append, links=_has_links(target)
            )
        total = 0
        try:
            async for piece in _pieces(given):
                with self._told(target, "write"):
                    replacing.write(piece)
                total += len(piece)
        except BaseException:
            replacing.abandon()
            raise
        with self._told(target, "write"):
            replacing.commit()
        return total

    async def _edit(
        self, path: SandboxPath, old: bytes, new: bytes, *, replace_all: bool, expected_sha256: str | None
    ) -> EditResult:
        self._guard()
        result: EditResult | None = None

        def edit(content: bytes) -> bytes:
            nonlocal result
            changed, result = replace_text(
                path, content, old, new,
                replace_all=replace_all, expected_sha256=expected_sha256, sandbox_id=self._sandbox_id,
            )  # fmt: skip
            return changed

        with self._told(path, "edit"):
            self._ours(path, follow=True)
            tree.change(path, edit, links=_has_links(path))
        assert result is not None, "every edit changes"
        return result

    # About files.

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        target = self._begin(path)
        with self._told(target, "stat"):
            if not _has_links(target):
                return tree.describe(target, tree.look(target))
            return tree.describe(target, os.stat(target) if follow else os.lstat(target))

    async def list(self, path: PathLike = ".") -> Sequence[FileInfo]:
        target = self._begin(path)

        def work(stop: tree.Stop) -> list[FileInfo]:
            found = []
            for entry, info in tree.list_folder(target, links=_has_links(target)):
                if isinstance(info, os.stat_result):
                    found.append(tree.describe(entry, info))
                elif not isinstance(info, FileNotFoundError):
                    raise info
            return found

        with self._told(target, "list"):
            return await self._work(work)

    async def glob(
        self, pattern: str, *, path: PathLike = ".", hidden: bool = True, limit: int = DEFAULT_MATCH_LIMIT
    ) -> GlobResult:
        root = self._begin(path)
        if pattern.startswith("/"):
            root, pattern = _split_pattern(self._names.resolve(pattern))

        def work(stop: tree.Stop) -> GlobResult:
            wanted = patterns.compile_glob(pattern)
            found: list[FileInfo] = []
            unreadable: list[str] = []
            os.stat(root)
            for entry, info in tree.walk(root, unreadable, stop, hidden=hidden, links=_has_links(root)):
                if wanted.fullmatch(os.path.relpath(entry, root)):
                    if len(found) >= limit:
                        return GlobResult(tuple(found), truncated=True, unreadable=_some(unreadable))
                    found.append(tree.describe(entry, info))
            return GlobResult(tuple(found), unreadable=_some(unreadable))

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
        root, wanted = self._begin(path), patterns.compile_pattern(pattern, fixed=fixed, ignore_case=ignore_case)
        skipped = frozenset(without)

        def work(stop: tree.Stop) -> GrepResult:
            found: list[GrepMatch] = []
            unreadable: list[str] = []
            for entry, content in _texts(root, include, unreadable, stop, hidden=hidden):
                if entry in skipped:
                    continue
                for number, text in patterns.find_lines(content, wanted):
                    if len(found) >= limit:
                        return GrepResult(tuple(found), truncated=True, unreadable=_some(unreadable))
                    found.append(GrepMatch(entry, number, text))
            return GrepResult(tuple(found), unreadable=_some(unreadable))

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
        root, wanted = self._begin(path), patterns.compile_pattern(pattern, fixed=fixed, ignore_case=ignore_case)

        def work(stop: tree.Stop) -> ReplaceResult:
            counts: dict[str, int] = {}
            unreadable: list[str] = []
            for entry, _ in _texts(root, include, unreadable, stop, hidden=hidden):
                try:
                    self._ours(entry)
                    tree.change(entry, partial(substitute, entry, counts))
                except (OSError, CorralError) as error:
                    unreadable.append(f"{entry}: {error}")
            return ReplaceResult(counts, _some(unreadable))

        def substitute(entry: str, counts: dict[str, int], content: bytes) -> bytes | None:
            changed, count = search.substitute(content, wanted, encode(new), fixed=fixed)
            if count:
                counts[entry] = count
            return changed if count else None

        with self._told(root, "replace"):
            self._ours(root)
            try:
                return await self._work(work)
            except search.BadReplacementError as error:
                raise SandboxFileError(f"{new!r} is not a replacement: {error}", op="replace") from error

    # Changing the tree.

    async def move(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        origin, goal = self._begin(source), self.at(target)
        with self._told(origin, "move"):
            tree.move(self._ours(origin), self._ours(goal), overwrite=overwrite)

    async def remove(self, path: PathLike, *, recursive: bool = False, missing_ok: bool = False) -> None:
        target = self._begin(path)
        with self._told(target, "remove"):
            try:
                real = self._ours(target)
                os.lstat(real)
                await self._work(lambda _: tree.remove(real, recursive=recursive))
            except (FileNotFoundError, NotADirectoryError):
                if not missing_ok:
                    raise

    async def mkdir(self, path: PathLike, *, parents: bool = True, mode: int | None = None) -> None:
        target = self._begin(path)
        with self._told(target, "mkdir"):
            real = self._ours(target, follow=parents)
            if parents:
                make_folders(real, mode=0o755)
            else:
                os.mkdir(real)
                os.chmod(real, 0o755)
            if mode is not None:
                os.chmod(real, mode)

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


def _split_pattern(pattern: str) -> tuple[SandboxPath, str]:
    """The folder that an absolute pattern begins with, and the rest: the whole host is not walked for it."""
    parts = pattern.strip("/").split("/")
    fixed = 0
    while fixed < len(parts) - 1 and not any(sign in parts[fixed] for sign in "*?["):
        fixed += 1
    return SandboxPath("/" + "/".join(parts[:fixed])), "/".join(parts[fixed:])


def _texts(
    root: str, include: str | None, unreadable: list[str], stop: tree.Stop, *, hidden: bool
) -> Iterator[tuple[str, bytes]]:
    """The text files below a path, or the one that it is."""
    asked, links = patterns.compile_glob(include) if include else None, _has_links(root)
    if stat.S_ISDIR(os.stat(root).st_mode):
        every = tree.walk(root, unreadable, stop, hidden=hidden, links=links)
    else:
        every, asked = iter([(root, os.stat(root))]), None
    for entry, info in every:
        if stop():
            raise tree.StoppedError
        if not stat.S_ISREG(info.st_mode):
            continue
        if not patterns.is_included(os.path.basename(entry), os.path.relpath(entry, root), asked):
            continue
        try:
            content = tree.read_whole(entry, search.MAX_FILE_BYTES, links=links)
        except OSError as error:
            if entry == root and isinstance(error, LinkFoundError):
                raise
            unreadable.append(f"{entry}: {error.strerror}")
            continue
        if content is None:
            unreadable.append(f"{entry}: larger than {search.MAX_FILE_BYTES >> 20} MiB")
        elif patterns.is_text(content):
            yield entry, content


def _some(unreadable: list[str]) -> tuple[str, ...]:
    return tuple(unreadable[:_MAX_UNREADABLE])


def _pack(path: str, writer: int) -> None:
    with os.fdopen(writer, "wb", buffering=CHUNK_BYTES) as sink:
        pack_tree(path, sink.write)


def _unpack(path: str, reader: int) -> int:
    with os.fdopen(reader, "rb", buffering=0) as source:
        count = unpack_tree(path, iter(lambda: source.read(CHUNK_BYTES), b""))
        while source.read(CHUNK_BYTES):  # to the end, so that the writer does not fail on the padding
            pass
        return count


def _write_all(descriptor: int, data: bytes, stop: tree.Stop) -> None:
    view = memoryview(data)
    while view and not stop():
        view = view[os.write(descriptor, view) :]
