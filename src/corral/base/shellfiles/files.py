"""`ShellFiles`: files by shell scripts that run inside. Matching and editing is done here, on the host."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

from corral.base.exchange import Exchange, Known, exchanging, measured
from corral.base.filereports import replace_text, told
from corral.base.files import CHUNK_BYTES, MAX_ITEMS, AsyncFiles, TextSearch, WriteRequest, too_many
from corral.base.process import AsyncProcess
from corral.base.shellfiles import scripts
from corral.base.shellfiles import search as searching
from corral.base.shellfiles.answers import make_error, parse_records, parse_stat
from corral.base.shellfiles.tarstream import Checked
from corral.concurrency.turn import Turn
from corral.concurrency.waiting import wait_for
from corral.errors import CorralError, EditConflictError, SandboxFileError
from corral.inside.glob import compile_glob, find_depth
from corral.inside.lines import MAX_EDIT_BYTES, substitute
from corral.inside.refusal import RefusedError
from corral.inside.tars.reading import BrokenArchiveError
from corral.paths import FollowedPath, SandboxPath
from corral.protocol import PathLike, SpawnRequest
from corral.results import EditResult, ExecResult, FileInfo, GlobResult, GrepResult, ReplaceResult

_MAX_SIZE_LINE_BYTES = 4096
_EDIT_ATTEMPTS = 8
_MAX_ANSWER_BYTES = 1024 * 1024
_STDERR_LIMIT_BYTES = 1024 * 1024

Spawn = Callable[[SpawnRequest], Awaitable[AsyncProcess]]
"""Starts a program inside, as `corral.protocol.SandboxPrimitives.spawn` does."""


class ShellFiles(AsyncFiles):
    """Files by shell scripts that run inside as `user`, in the root folder, with LC_ALL=C.

    Arguments are paths, numbers and words, never content: that goes in by stdin, and by nothing else.
    """

    def __init__(self, spawn: Spawn, *, user: str, workdir: str, sandbox_id: str, guard: Callable[[], None]) -> None:
        super().__init__(workdir=workdir, sandbox_id=sandbox_id, guard=guard)
        self._spawn = spawn
        self._user = user
        self._turn = Turn()

    @contextlib.asynccontextmanager
    async def _open(
        self, script: str, args: Sequence[str], *, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncIterator[Exchange]:
        """A running script, which has ended when the block has. The first argument is the path that it acts on."""
        self._guard()
        links = scripts.NO_LINKS if isinstance(args[0], FollowedPath) else scripts.LINKS
        request = SpawnRequest(
            argv=("/bin/sh", "-c", scripts.HELPERS + links + script, "sh", *args), env={"LC_ALL": "C"}, cwd="/",
            user=self._user, timeout=None, stdin=stdin is not None, output_limit_bytes=_STDERR_LIMIT_BYTES,
            listened=True,
        )  # fmt: skip
        async with exchanging(self._spawn(request), stdin) as run:
            yield run

    async def _finish(
        self, script: str, args: Sequence[str], *, stdin: AsyncIterable[bytes] | None = None
    ) -> tuple[bytes, ExecResult]:
        """Run a script; returns its output and its result. Raises: SandboxFileError if it prints far too much."""
        async with self._open(script, args, stdin=stdin) as run:
            output = bytearray()
            async for piece in run.output:
                output += piece
                if len(output) > _MAX_ANSWER_BYTES:
                    raise SandboxFileError("the sandbox's reply is too large", op="files")
            return bytes(output), await run.process.wait()

    async def _run(self, script: str, path: str, *args: str, op: str) -> bytes:
        """Run a small script to its end; returns its output."""
        output, end = await self._finish(script, (path, *args))
        self._check(end, path=path, op=op)
        return output

    def _check(self, end: ExecResult, *, path: str, op: str) -> None:
        if end.exit_code != 0:
            raise make_error(end.exit_code, end.stderr_bytes, path=path, op=op, sandbox_id=self._sandbox_id)

    # Reading and writing.

    async def read_stream(self, path: PathLike, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        target = self.at(path)
        head = b""
        async with self._open(scripts.READ, (target,)) as run:
            begun = False
            async for received in run.output:
                piece = received
                if not begun:  # the first line is the size
                    head += received
                    _, newline, piece = head.partition(b"\n")
                    begun = bool(newline)
                    if not begun and len(head) > _MAX_SIZE_LINE_BYTES:
                        text = f"{target}: the sandbox's reply is malformed"
                        raise SandboxFileError(text, path=target, sandbox_id=self._sandbox_id, op="read")
                for offset in range(0, len(piece), chunk_bytes):
                    yield piece[offset : offset + chunk_bytes]
            self._check(await run.process.wait(), path=target, op="read")

    async def _write(self, request: WriteRequest, data: bytes) -> None:
        await self._put(request.path, data, _describe(request), op="write")

    async def _swap(self, target: str, before: bytes, after: bytes) -> None:
        """Replace the content of a file. Raises: EditConflictError if it has changed since it was read."""
        await self._put(target, after, ("keep", "no", "swap", hashlib.sha256(before).hexdigest()), op="edit")

    async def _put(self, target: str, data: bytes, how: tuple[str, str, str, str], *, op: str) -> None:
        """Write content of a known size with one script, which gives up by itself if its input is cut short."""
        name = _new_name()
        args = (target, name, str(len(data)), *how, "all")
        try:
            _, end = await self._finish(scripts.WRITE, args, stdin=Known(data))
        except asyncio.CancelledError:
            await self._drop(target, name)
            raise
        self._check(end, path=target, op=op)

    async def _write_stream(self, request: WriteRequest, content: AsyncIterable[bytes]) -> int:
        """Write content of an unknown size: to a temporary file first, which is renamed when all content has come."""
        target, name, how = request.path, _new_name(), _describe(request)
        counted = measured(content)
        try:
            args = (target, name, "any", *how, "stage")
            _, end = await self._finish(scripts.WRITE, args, stdin=counted)
            if counted.error is not None:
                raise counted.error
            self._check(end, path=target, op="write")
            args = (target, name, str(counted.total), *how, "commit")
            _, end = await self._finish(scripts.WRITE, args)
            self._check(end, path=target, op="write")
        except BaseException:
            await self._drop(target, name)
            raise
        return counted.total

    async def _drop(self, target: str, name: str) -> None:
        """Remove the temporary file of a script that was ended in the middle, if the sandbox is still there."""
        with contextlib.suppress(CorralError):
            await wait_for(asyncio.ensure_future(self._finish(scripts.DROP, (target, name))))

    async def _edit(
        self, path: SandboxPath, old: bytes, new: bytes, *, replace_all: bool, expected_sha256: str | None
    ) -> EditResult:
        for attempt in range(_EDIT_ATTEMPTS):
            await self._turn.take()
            try:
                return await self._edit_once(path, old, new, replace_all=replace_all, expected=expected_sha256)
            except EditConflictError:
                if expected_sha256 is not None or attempt == _EDIT_ATTEMPTS - 1:
                    raise
            finally:
                self._turn.release()
        raise AssertionError("the last attempt returns or raises")

    async def _edit_once(
        self, path: SandboxPath, old: bytes, new: bytes, *, replace_all: bool, expected: str | None
    ) -> EditResult:
        content = await self.read(path, max_bytes=MAX_EDIT_BYTES)
        changed, result = replace_text(
            path, content, old, new, replace_all=replace_all, expected_sha256=expected, sandbox_id=self._sandbox_id
        )
        await self._swap(path, content, changed)
        return result

    # About files.

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        target = self.at(path)
        return parse_stat(target, await self._run(scripts.STAT, target, "-L" if follow else "", op="stat"))

    async def list(self, path: PathLike = ".") -> Sequence[FileInfo]:
        target = self.at(path)
        found: list[FileInfo] = []
        async with self._open(scripts.WALK, (target, "1", "all", "readable")) as run:
            async for info in parse_records(run.output, root=target):
                found.append(info)
                if len(found) > MAX_ITEMS:
                    raise too_many(target, MAX_ITEMS, sandbox_id=self._sandbox_id, op="list")
            self._check(await run.process.wait(), path=target, op="list")
        return sorted(found, key=lambda info: info.name)

    async def _glob(self, root: SandboxPath, pattern: str, *, hidden: bool, limit: int) -> GlobResult:
        wanted, found, prefix = compile_glob(pattern), list[FileInfo](), len(root.rstrip("/")) + 1
        args = (root, str(find_depth(pattern) or 0), "all" if hidden else "visible", "")
        async with self._open(scripts.WALK, args) as run:
            async for info in parse_records(run.output, root=root):
                if wanted.fullmatch(info.path[prefix:]):
                    if len(found) >= limit:
                        return GlobResult(_sorted(found), truncated=True)
                    found.append(info)
            end = await run.process.wait()
            self._check(end, path=root, op="glob")
        return GlobResult(_sorted(found), unreadable=searching.find_unreadable(end.stderr_bytes, root))

    async def _grep(self, search: TextSearch, *, limit: int, without: frozenset[str]) -> GrepResult:
        root = search.root
        with told(root, sandbox_id=self._sandbox_id, op="grep"):
            wanted = search.compile()
        async with self._open(scripts.SEARCH, searching.arguments(root, hidden=search.hidden)) as run:
            matches, truncated = await searching.grep(
                run.output, root, wanted, include=search.include, limit=limit, without=without
            )
            if truncated:
                return GrepResult(matches, truncated=True)
            end = await run.process.wait()
            self._check(end, path=root, op="grep")
        return GrepResult(matches, unreadable=searching.find_unreadable(end.stderr_bytes, root))

    async def _replace(self, search: TextSearch, new: bytes) -> ReplaceResult:
        root = search.root
        with told(root, sandbox_id=self._sandbox_id, op="replace"):
            wanted = search.compile()
        async with self._open(scripts.SEARCH, searching.arguments(root, hidden=search.hidden)) as run:
            places = await searching.find_files(run.output, root, wanted, include=search.include)
            end = await run.process.wait()
            self._check(end, path=root, op="replace")
        unreadable, counts = list(searching.find_unreadable(end.stderr_bytes, root)), dict[str, int]()
        for place in places:
            try:
                content = await self.read(place)
                changed, count = substitute(content, wanted, new, fixed=search.fixed)
                if count:
                    await self._swap(place, content, changed)
                    counts[place] = count
            except RefusedError as error:
                raise SandboxFileError(str(error), path=place, sandbox_id=self._sandbox_id, op="replace") from error
            except SandboxFileError as error:
                unreadable.append(error.message)
        return ReplaceResult(counts, tuple(unreadable))

    # Changing the tree.

    async def move(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        origin, goal = self.at(source), self.at(target)
        await self._run(scripts.MOVE, origin, goal, "overwrite" if overwrite else "", op="move")

    async def _remove(self, path: SandboxPath, *, recursive: bool) -> None:
        await self._run(scripts.REMOVE, path, "recursive" if recursive else "", op="remove")

    async def mkdir(self, path: PathLike, *, parents: bool = True, mode: int | None = None) -> None:
        target = self.at(path)
        mode_text = "" if mode is None else f"{mode:o}"
        await self._run(scripts.MKDIR, target, "parents" if parents else "", mode_text, op="mkdir")

    async def symlink(self, path: PathLike, target: str) -> None:
        link = self.at(path)
        await self._run(scripts.SYMLINK, link, target, op="symlink")

    async def chmod(self, path: PathLike, mode: int) -> None:
        target = self.at(path)
        await self._run(scripts.CHMOD, target, f"{mode & 0o7777:o}", op="chmod")

    # Streams.

    async def pack(self, path: PathLike) -> AsyncIterator[bytes]:
        target = self.at(path)
        async with self._open(scripts.PACK, (target,)) as run:
            async for piece in run.output:
                yield piece
            self._check(await run.process.wait(), path=target, op="pack")

    async def unpack(self, path: PathLike, archive: AsyncIterable[bytes]) -> int:
        target = self.at(path)
        self._guard()
        checked = Checked(archive, path=target)
        counted = measured(checked)
        _, end = await self._finish(scripts.UNPACK, (target,), stdin=counted)
        if isinstance(counted.error, BrokenArchiveError):
            text = f"{target}: malformed archive: {counted.error}"
            raise SandboxFileError(text, path=target, sandbox_id=self._sandbox_id, op="unpack") from counted.error
        if counted.error is not None:
            raise counted.error
        self._check(end, path=target, op="unpack")
        return checked.count


def _describe(request: WriteRequest) -> tuple[str, str, str, str]:
    """The arguments of `scripts.WRITE` from `mode` to `sha`."""
    mode = "keep" if request.mode is None else f"{request.mode:o}"
    how = "exclusive" if request.exclusive else "append" if request.append else "replace"
    return mode, "yes" if request.parents else "no", how, ""


def _new_name() -> str:
    return f".corral-{secrets.token_hex(8)}.tmp"


def _sorted(infos: list[FileInfo]) -> tuple[FileInfo, ...]:
    return tuple(sorted(infos, key=lambda info: info.path.split("/")))
