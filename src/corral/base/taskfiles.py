"""TaskFiles: files by a Python function that an agent inside runs for each request (`corral.inside.filetask`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from corral.base.agent.process import Task
from corral.base.exchange import SPOOL_BYTES, Exchange, Known, exchanging, measured
from corral.base.filereports import file_error
from corral.base.files import CHUNK_BYTES, check_content, spool
from corral.base.process import AsyncProcess
from corral.base.requestfiles import Message, RequestFiles
from corral.errors import CapabilityError, ExecError, SandboxFileError, SandboxFileInterruptedError
from corral.inside.bundle import bundle
from corral.inside.jsonbounds import count_values
from corral.paths import describe
from corral.protocol import PathLike, SpawnRequest
from corral.results import WatchEvent
from corral.spec import USER

FILE_PARTS = (
    "nolinks", "refusal", "glob", "lines", "files", "search", "filerequests", "tars.reading", "tars.inflating",
    "tars.unpacking", "tars.writing", "filetask",
)  # fmt: skip
_STDERR_LIMIT_BYTES = 64 * 1024
_MAX_LINE_BYTES = 4 * 1024 * 1024
_MAX_VALUES = 200_000
_PUBLIC_NAMES = {"link": "symlink", "stage": "write"}

Spawn = Callable[[Message, bool], Awaitable[AsyncProcess]]
"""Starts `serve_files` inside with a request, as the code's user, in `/`; says whether it gets standard input."""


def file_text() -> bytes:
    """The Python text of everything that an agent does with files."""
    return bundle(*FILE_PARTS)


def file_task(message: Message) -> Task:
    """What an agent runs for a request."""
    return Task(file_text(), "serve_files", message)


def task_request(*, stdin: bool) -> SpawnRequest:
    """How it runs that."""
    return SpawnRequest(
        argv=(), env={}, cwd="/", user=USER, timeout=None, stdin=stdin, output_limit_bytes=_STDERR_LIMIT_BYTES,
        listened=True,
    )  # fmt: skip


class TaskFiles(RequestFiles):
    """Files of a sandbox with an agent. `guard` is asked before everything else.

    Of a tree that changes while it is packed, no more is taken than the sandbox's disk holds (`disk_bytes`).
    """

    def __init__(
        self, spawn: Spawn, *, workdir: str, sandbox_id: str, guard: Callable[[], None], disk_bytes: Callable[[], int]
    ) -> None:
        super().__init__(workdir=workdir)
        self._disk_bytes = disk_bytes
        self._spawn = spawn
        self._sandbox_id = sandbox_id
        self._guard = guard

    @contextlib.asynccontextmanager
    async def _task(
        self, message: Message, content: AsyncIterable[bytes] | None = None, *, path: str
    ) -> AsyncIterator[_Run]:
        """A request that is being answered, for as long as the block lasts. `content`: what it reads, in blocks."""
        self._guard()
        op = _PUBLIC_NAMES.get(message["op"]) or str(message["op"])

        async def spawn() -> AsyncProcess:
            try:
                return await self._spawn(message, content is not None)
            except ExecError as error:
                raise SandboxFileInterruptedError(
                    f"{path}: {error.message}", path=path, sandbox_id=self._sandbox_id, op=op, hint=error.hint
                ) from error

        async with exchanging(spawn(), content, gently=op == "write") as exchange:
            yield _Run(exchange, path=path, op=op, sandbox_id=self._sandbox_id)

    async def _ask(self, message: Message, payloads: Sequence[bytes] = (), *, path: str) -> Message:
        _, last = await self._collect(message, payloads, path=path)
        return last

    async def _batches(
        self, message: Message, payloads: Sequence[bytes] = (), *, path: str
    ) -> AsyncGenerator[tuple[list[Any], Message | None], None]:
        content = _frame_all(payloads) if payloads else None
        async with self._task({**message, "payloads": len(payloads)}, content, path=path) as run:
            while "items" in (line := await run.line()):
                yield line["items"], None
            await run.end()
            yield [], line

    # Reading and writing.

    async def read_stream(self, path: PathLike, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
        target = self.at(path)
        async with self._task({"op": "read", **describe(target)}, path=target) as run:
            size = int((await run.line())["size"])
            better = self._has_better_way(target, size)
            if not better:
                async for piece in run.rest():
                    for offset in range(0, len(piece), chunk_bytes):
                        yield piece[offset : offset + chunk_bytes]
                await run.end()
        if better:
            async for piece in self._read_large(target, size):
                for offset in range(0, len(piece), chunk_bytes):
                    yield piece[offset : offset + chunk_bytes]

    def _has_better_way(self, target: str, size: int) -> bool:
        """Whether a backend has another way for so much, which is `_read_large` and `_write_large`."""
        return False

    def _read_large(self, target: str, size: int) -> AsyncIterator[bytes]:
        raise NotImplementedError(f"no other way to read {size} bytes of {target}")

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
        target = self.at(path)
        self._guard()
        message: Message = {**describe(target), "parents": parents, "exclusive": exclusive, "append": append}
        if mode is not None:
            message["mode"] = mode
        data = check_content(content)
        if isinstance(data, bytes):
            stream: AsyncIterable[bytes] = Known(data)
            large = self._has_better_way(target, len(data))
        else:
            data, rest = await spool(data, limit_bytes=SPOOL_BYTES)
            stream = Known(data) if rest is None else rest
            large = rest is not None and self._has_better_way(target, SPOOL_BYTES << 10)
        if large and not append:
            return await self._write_large(target, message, stream)
        return await self._write(target, message, stream)

    async def _write(self, target: str, message: Message, content: AsyncIterable[bytes]) -> int:
        counted = measured(content)
        async with self._task({"op": "write", **message}, frame(counted), path=target) as run:
            try:
                line = await run.line()
                await run.end()
            except SandboxFileError:
                if counted.error is not None:
                    raise counted.error from None
                raise
        return int(line["size"])

    async def _write_large(self, target: str, message: Message, content: AsyncIterable[bytes]) -> int:
        raise NotImplementedError(f"no other way to write {target}")

    # Streams.

    async def watch(self, path: PathLike = ".", *, recursive: bool = True) -> AsyncIterator[WatchEvent]:
        self._guard()
        raise CapabilityError(
            "this backend does not support watch",
            sandbox_id=self._sandbox_id, op="watch", hint="call list or glob again and compare `modified`",
        )  # fmt: skip
        yield  # an async generator, as the contract has it

    async def pack(self, path: PathLike) -> AsyncIterator[bytes]:
        target = self.at(path)
        message: Message = {"op": "pack", "path": target, "max_changing_bytes": self._disk_bytes()}
        async with self._task(message, path=target) as run:
            async for piece in run.rest():
                yield piece
            await run.end()

    async def unpack(self, path: PathLike, archive: AsyncIterable[bytes]) -> int:
        target = self.at(path)
        counted = measured(archive)
        async with self._task({"op": "unpack", "path": target}, frame(counted), path=target) as run:
            try:
                line = await run.line()
                await run.end()
            except SandboxFileError:
                if counted.error is not None:
                    raise counted.error from None
                raise
        return int(line["count"])


class _Run:
    """A request that a process inside answers."""

    def __init__(self, exchange: Exchange, *, path: str, op: str, sandbox_id: str) -> None:
        self._process = exchange.process
        self._output = exchange.output
        self._path = path
        self._op = op
        self._sandbox_id = sandbox_id
        self._buffer = b""

    async def line(self) -> Message:
        """The next line of the answer. What comes from inside is hostile: it is bounded before it is parsed.

        Raises: as `end`, if there is none.
        """
        pieces, size = [self._buffer], len(self._buffer)
        while b"\n" not in pieces[-1]:
            piece = await anext(self._output, None)
            if piece is None:
                await self.end()
                raise self._error("the sandbox's reply is incomplete")
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_LINE_BYTES:
                raise self._error("the sandbox's reply is too large")
        data, _, self._buffer = b"".join(pieces).partition(b"\n")
        try:
            found = json.loads(data) if count_values(data, most=_MAX_VALUES) <= _MAX_VALUES else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._error("the sandbox's reply is malformed")
        return found

    async def rest(self) -> AsyncIterator[bytes]:
        """What follows, as it is."""
        if self._buffer:
            yield self._buffer
        async for piece in self._output:
            yield piece

    async def end(self) -> None:
        """Wait for its end. Raises: what it refused."""
        async for _ in self._output:
            pass
        result = await self._process.wait()
        if result.exit_code == 0:
            return
        said = result.stderr_bytes.strip().rpartition(b"\n")[2]
        with contextlib.suppress(ValueError, RecursionError):
            refusal = json.loads(said)
            if isinstance(refusal, dict):
                raise file_error(refusal, path=self._path, sandbox_id=self._sandbox_id, op=self._op)
        if result.signal is not None:
            raise SandboxFileInterruptedError(
                f"{self._path}: something inside has ended the operation",
                path=self._path, sandbox_id=self._sandbox_id, op=self._op, hint="look before you retry",
            )  # fmt: skip
        raise self._error(said.decode("utf-8", "replace")[:200] or f"exit code {result.exit_code}")

    def _error(self, text: str) -> SandboxFileError:
        return SandboxFileError(f"{self._path}: {text}", path=self._path, sandbox_id=self._sandbox_id, op=self._op)


async def frame(content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Content in blocks; without the empty one at the end if the stream fails."""
    async for piece in content:
        for offset in range(0, len(piece), SPOOL_BYTES):
            block = piece[offset : offset + SPOOL_BYTES]
            yield len(block).to_bytes(4, "big") + block
    yield bytes(4)


async def _frame_all(payloads: Sequence[bytes]) -> AsyncIterator[bytes]:
    for payload in payloads:
        async for piece in frame(Known(payload)):
            yield piece
