"""The files of a sandbox: by the agent's operations, and large ones by the service's transfers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from corral.backends.daytona.loop import get_loop
from corral.backends.daytona.remote import Remote
from corral.backends.daytona.seam import ServiceError, reading
from corral.base.exchange import Known, measured
from corral.base.files import WriteRequest
from corral.base.taskfiles import Spawn, TaskFiles, frame
from corral.concurrency.closing import close_iterator
from corral.errors import CorralError, ExecError, SandboxFileError, SandboxFileNotFoundError
from corral.paths import FollowedPath

T = TypeVar("T")

LARGE_BYTES = 4 * 1024 * 1024
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./ @+,=~-]{1,1024}")
"""Paths that every client and server encodes alike. Files with other paths go over the channel."""


class DaytonaFiles(TaskFiles):
    """Files of a sandbox of the service."""

    def __init__(
        self, remote: Remote, spawn: Spawn, *, workdir: str, guard: Callable[[], None], disk_bytes: Callable[[], int]
    ) -> None:
        super().__init__(spawn, workdir=workdir, sandbox_id=remote.id, guard=guard, disk_bytes=disk_bytes)
        self._remote = remote

    # Reading.

    def _read_large(self, target: str, size: int) -> AsyncIterator[bytes] | None:
        return self._fetch(target, size) if size > LARGE_BYTES and _may_transfer(target) else None

    async def _fetch(self, target: str, size: int) -> AsyncIterator[bytes]:
        async def begin(box: Any) -> AsyncIterator[bytes]:
            return aiter(await box.fs.download_file_stream(target, 0))

        stream = await self._transfer(begin, path=target, op="read")
        try:
            while size > 0 and (piece := await self._transfer(lambda _: _next(stream), path=target, op="read")):
                yield piece[:size]  # of a growing file, only its size at the start
                size -= len(piece)
        finally:
            with contextlib.suppress(Exception):  # the rest is not needed
                await get_loop().finish(close_iterator(stream))

    # Writing.

    async def _write(self, request: WriteRequest, data: bytes) -> None:
        large = len(data) > LARGE_BYTES
        await (self._write_stream if large else super()._write_stream)(request, Known(data))

    async def _write_stream(self, request: WriteRequest, content: AsyncIterable[bytes]) -> int:
        target = request.path
        if request.append or not _may_transfer(target):
            return await super()._write_stream(request, content)
        counted, source = measured(content), asyncio.get_running_loop().create_future()
        message = request.describe()
        del message["append"], message["links"]
        async with self._task({"op": "stage", **message}, frame(_when(source)), path=target) as run:
            if _PLAIN_PATH.fullmatch(place := str((await run.line()).get("place"))):
                try:
                    await self._upload(place, counted, path=target)
                except CorralError:
                    if counted.error is not None:
                        raise counted.error from None
                    raise
                source.set_result(str(counted.total).encode())
                await run.line()
                await run.end()
                return counted.total
        return await super()._write_stream(request, content)

    async def _upload(self, place: str, content: AsyncIterable[bytes], *, path: str) -> None:
        source = _Lent(content)

        async def send(box: Any) -> None:
            await box.fs.upload_file_stream(aiter(source), place, 0)

        try:
            await self._transfer(send, path=path, op="write")
        finally:
            await source.close()

    async def _transfer(self, work: Callable[[Any], Awaitable[T]], *, path: str, op: str) -> T:
        """Call the SDK for a transfer. Here a 404 is a missing file, unless the sandbox is gone too."""
        self._guard()

        async def ask() -> T:
            with reading():
                return await work(await self._remote.box())

        try:
            return await get_loop().arun(ask())
        except ServiceError as refusal:
            error = await get_loop().arun(self._remote.explain(op))
            if not isinstance(error, ExecError):
                raise error from refusal
            kind = SandboxFileNotFoundError if refusal.status == 404 else SandboxFileError
            raise kind(f"{path}: {refusal.message}", path=path, sandbox_id=self._sandbox_id, op=op) from refusal


def _may_transfer(path: str) -> bool:
    """True if the service may transfer it by its path: it follows every link, also those that must not be followed."""
    return _PLAIN_PATH.fullmatch(path) is not None and not isinstance(path, FollowedPath)


async def _when(known: Awaitable[bytes]) -> AsyncIterator[bytes]:
    yield await known


async def _next(stream: AsyncIterator[bytes]) -> bytes | None:
    """The next piece that is not empty; None at the end."""
    async for piece in stream:
        if piece:
            return piece
    return None


class _Lent:
    """A stream of the caller's event loop, read on ours."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = aiter(stream)
        self._loop = asyncio.get_running_loop()
        self._pulling: asyncio.Task[Any] | None = None
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            piece = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._pull(), self._loop))
            if piece is None:
                return
            yield piece

    async def _pull(self) -> bytes | None:
        self._pulling = asyncio.current_task()
        return None if self._closed else await _next(self._stream)

    async def close(self) -> None:
        """Stop reading, and close the stream. On the caller's loop."""
        self._closed = True
        if self._pulling is not None:
            self._pulling.cancel()
            await asyncio.wait((self._pulling,))
        await close_iterator(self._stream)
