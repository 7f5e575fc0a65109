"""TaskFiles: files by a Python function that an agent inside runs for each request (`corral.inside.filetask`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from corral.base.agent.process import Task
from corral.base.exchange import SPOOL_BYTES, Exchange, Known, exchanging, measured
from corral.base.filereports import file_error
from corral.base.files import CHUNK_BYTES, Message, RequestFiles, WriteRequest
from corral.base.process import AsyncProcess
from corral.errors import ExecError, SandboxFileError, SandboxFileInterruptedError
from corral.inside.bundle import bundle
from corral.inside.jsonbounds import count_values
from corral.paths import describe
from corral.protocol import PathLike, SpawnRequest
from corral.spec import USER

FILE_PARTS = (
    "writing", "nolinks", "refusal", "glob", "lines", "files", "search", "filerequests", "tars.reading",
    "tars.inflating", "tars.unpacking", "tars.writing", "filetask",
)  # fmt: skip
_STDERR_LIMIT_BYTES = 64 * 1024
_MAX_LINE_BYTES = 4 * 1024 * 1024
_MAX_VALUES = 200_000
_PUBLIC_NAMES = {"link": "symlink", "stage": "write"}
_CHANGING_FILES = ("write", "edit", "replace")
"""They write to a temporary file first, and would leave it if they were killed."""

Spawn = Callable[[Message, bool], Awaitable[AsyncProcess]]
"""Starts `serve_files` inside with a request, as the code's user, in `/`; True: with a stdin."""


def file_text() -> bytes:
    """The Python text of everything that an agent does with files."""
    return bundle(*FILE_PARTS)


def file_task(message: Message) -> Task:
    """The task that an agent runs for a request."""
    return Task(file_text(), "serve_files", message)


def task_request(*, stdin: bool) -> SpawnRequest:
    """How the agent runs it."""
    return SpawnRequest(
        argv=(), env={}, cwd="/", user=USER, timeout=None, stdin=stdin, output_limit_bytes=_STDERR_LIMIT_BYTES,
        listened=True,
    )  # fmt: skip


class TaskFiles(RequestFiles):
    """Files of a sandbox with an agent.

    Of a tree that changes while it is packed, no more is taken than the sandbox's disk holds (`disk_bytes`).
    """

    def __init__(
        self, spawn: Spawn, *, workdir: str, sandbox_id: str, guard: Callable[[], None], disk_bytes: Callable[[], int]
    ) -> None:
        super().__init__(workdir=workdir, sandbox_id=sandbox_id, guard=guard)
        self._disk_bytes = disk_bytes
        self._spawn = spawn

    @contextlib.asynccontextmanager
    async def _task(
        self, message: Message, content: AsyncIterable[bytes] | None = None, *, path: str
    ) -> AsyncIterator[_Run]:
        """Run a request while the block lasts. `content` is its input, in blocks."""
        self._guard()
        op = _PUBLIC_NAMES.get(message["op"]) or str(message["op"])

        async def spawn() -> AsyncProcess:
            try:
                return await self._spawn(message, content is not None)
            except ExecError as error:
                raise SandboxFileInterruptedError(
                    f"{path}: {error.message}", path=path, sandbox_id=self._sandbox_id, op=op, hint=error.hint
                ) from error

        async with exchanging(spawn(), content, gently=op in _CHANGING_FILES) as exchange:
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

    async def read_stream(self, path: PathLike, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        target = self.at(path)
        async with self._task({"op": "read", **describe(target)}, path=target) as run:
            line = await run.line()
            with self._parsing(target, "read"):
                size = int(line["size"])
            pieces = self._read_large(target, size)
            if pieces is None:
                async for piece in _cut(run.rest(), chunk_bytes):
                    yield piece
                await run.end()
                return
        async for piece in _cut(pieces, chunk_bytes):
            yield piece

    def _read_large(self, target: str, size: int) -> AsyncIterator[bytes] | None:
        """The content of a large file, if the backend has a better way than the agent; else None."""
        return None

    async def _write(self, request: WriteRequest, data: bytes) -> None:
        await self._write_stream(request, Known(data))

    async def _write_stream(self, request: WriteRequest, content: AsyncIterable[bytes]) -> int:
        line = await self._send({"op": "write", **request.describe()}, content, path=request.path)
        with self._parsing(request.path, "write"):
            return int(line["size"])

    async def _send(self, message: Message, content: AsyncIterable[bytes], *, path: str) -> Message:
        """The answer to a request with content. Raises: what the agent refuses, or the content raised."""
        counted = measured(content)
        async with self._task(message, frame(counted), path=path) as run:
            try:
                line = await run.line()
                await run.end()
            except SandboxFileError:
                if counted.error is not None:
                    raise counted.error from None
                raise
        return line

    # Streams.

    async def pack(self, path: PathLike) -> AsyncIterator[bytes]:
        target = self.at(path)
        message: Message = {"op": "pack", "path": target, "max_changing_bytes": self._disk_bytes()}
        async with self._task(message, path=target) as run:
            async for piece in run.rest():
                yield piece
            await run.end()

    async def unpack(self, path: PathLike, archive: AsyncIterable[bytes]) -> int:
        target = self.at(path)
        line = await self._send({"op": "unpack", "path": target}, archive, path=target)
        with self._parsing(target, "unpack"):
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
        """The next line of the answer, bounded before it is parsed: what comes from inside is hostile.

        Raises: as `end`, if the answer is incomplete.
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
        """The rest of the answer, unparsed."""
        if self._buffer:
            yield self._buffer
        async for piece in self._output:
            yield piece

    async def end(self) -> None:
        """Wait for its end. Raises: the error that it reports."""
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
                f"{self._path}: a program in the sandbox interrupted the operation",
                path=self._path, sandbox_id=self._sandbox_id, op=self._op, hint="check its effect, then retry",
            )  # fmt: skip
        raise self._error(said.decode("utf-8", "replace")[:200] or f"exit code {result.exit_code}")

    def _error(self, text: str) -> SandboxFileError:
        return SandboxFileError(f"{self._path}: {text}", path=self._path, sandbox_id=self._sandbox_id, op=self._op)


async def frame(content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Content in blocks. An empty block marks the end, unless the stream fails."""
    async for piece in content:
        for offset in range(0, len(piece), SPOOL_BYTES):
            block = piece[offset : offset + SPOOL_BYTES]
            yield len(block).to_bytes(4, "big") + block
    yield bytes(4)


async def _cut(pieces: AsyncIterator[bytes], chunk_bytes: int) -> AsyncIterator[bytes]:
    async for piece in pieces:
        for offset in range(0, len(piece), chunk_bytes):
            yield piece[offset : offset + chunk_bytes]


async def _frame_all(payloads: Sequence[bytes]) -> AsyncIterator[bytes]:
    for payload in payloads:
        async for piece in frame(Known(payload)):
            yield piece
