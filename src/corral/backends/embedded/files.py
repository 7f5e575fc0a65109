"""Files of an embedded sandbox, through the file agent inside it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future

from corral.backends.embedded import seam
from corral.backends.embedded.seam import mapped
from corral.backends.embedded.writerthread import WriterThread
from corral.base.filereports import file_error
from corral.base.files import CHUNK_BYTES, DEFAULT_READ_LIMIT_BYTES, RequestFiles, WriteRequest
from corral.concurrency.waiting import wait_for
from corral.engine import wire
from corral.engine.errors import GoneError
from corral.errors import SandboxFileInterruptedError, SandboxFileKindError
from corral.inside.nolinks import is_of_proc, opened
from corral.paths import SandboxPath, describe
from corral.protocol import PathLike
from corral.results import WatchEvent

_SEARCH_SECONDS = 300
_ANSWER_SECONDS = 300
"""No single file takes that long: an agent that is silent for so long has been tampered with."""
_REPEATABLE = frozenset(("stat", "open"))
_ATTEMPTS = 3
_PUBLIC_NAMES: dict[str, str] = {"open": "read", "write_stream": "write"}


class AgentClient:
    """The connection to the file agent of one sandbox, for any thread and event loop. Started when first needed."""

    def __init__(
        self,
        *,
        sandbox_id: str,
        open_agent: Callable[[], Awaitable[socket.socket]],
        ping: Callable[[], Awaitable[None]],
        ensure_open: Callable[[], None],
    ) -> None:
        self._ensure_open = ensure_open
        self._lock = threading.Lock()
        self._sandbox_id = sandbox_id
        self._ping = ping
        self._open_agent = open_agent
        self._agent: socket.socket | None = None
        self._opening: Future[None] | None = None

    def close(self) -> None:
        """Close the connection; the next request starts another agent."""
        if self._agent is not None:
            self._forget(self._agent)

    async def _find_agent(self) -> socket.socket:
        """The agent. The first caller starts it, in any thread and event loop; the others wait."""
        while True:
            with self._lock:
                if self._agent is not None:
                    return self._agent
                other, mine = self._opening, Future[None]()
                if other is None:
                    self._opening = mine
            if other is not None:
                await wait_for(other)
                continue
            try:
                agent = await self._open_agent()
                with self._lock:
                    self._agent = agent
                return agent
            finally:
                with self._lock:
                    self._opening = None
                mine.set_result(None)  # if it failed, one of those that wait tries

    async def _request(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> socket.socket:
        self._ensure_open()
        for _ in range(2):
            agent = await self._find_agent()
            try:
                return await seam.ask(agent, message, descriptors)
            except GoneError:
                # The agent can be killed from inside (rootless, where it shares the code's uid): start another, once.
                self._forget(agent)
        raise GoneError("the file agent keeps exiting")

    def _forget(self, agent: socket.socket) -> None:
        with self._lock:
            if self._agent is agent:
                self._agent = None
        agent.close()

    async def ask(self, message: wire.Message, descriptors: tuple[int, ...] = (), *, path: str) -> wire.Message:
        """The answer to a request. Raises: as `talking`, and what the agent refuses."""
        answer, received = await self.ask_for_descriptors(message, descriptors, path=path)
        wire.close_all(received)
        return answer

    async def ask_for_descriptors(
        self, message: wire.Message, descriptors: tuple[int, ...] = (), *, path: str
    ) -> tuple[wire.Message, list[int]]:
        """The same, with descriptors. Some requests are repeated if the agent is killed before it answers."""
        for attempt in range(_ATTEMPTS if message["op"] in _REPEATABLE else 1, 0, -1):
            try:
                async with self.talking(message, descriptors, path=path) as sock:
                    answer, received = await seam.receive_within(sock, _ANSWER_SECONDS)
                break
            except SandboxFileInterruptedError:
                if attempt == 1:
                    raise
        try:
            self.check(answer, path, message["op"])
        except BaseException:
            wire.close_all(received)
            raise
        return answer, received

    @contextlib.asynccontextmanager
    async def talking(
        self, message: wire.Message, descriptors: tuple[int, ...] = (), *, path: str
    ) -> AsyncIterator[socket.socket]:
        """Send a request, and yield the socket of its answer.

        Raises:
            SandboxGoneError: the sandbox has ended.
            SandboxFileInterruptedError: only the agent has ended: the operation may or may not have been done.
        """
        operation = _PUBLIC_NAMES.get(message["op"]) or str(message["op"])
        with mapped(sandbox_id=self._sandbox_id, op=operation):
            try:
                with await self._request(message, descriptors) as sock:
                    yield sock
            except GoneError as error:
                await self._ping()
                self.close()
                raise SandboxFileInterruptedError(
                    f"{path}: the operation was interrupted by a program in the sandbox",
                    path=path,
                    sandbox_id=self._sandbox_id,
                    op=operation,
                    hint="a program in the sandbox killed the file agent; check its effect, then retry",
                ) from error

    def check(self, answer: wire.Message, path: str, operation: str) -> wire.Message:
        """Returns the answer. Raises: its error, if it is a refusal."""
        if "error" in answer:
            raise file_error(answer, path=path, sandbox_id=self._sandbox_id, op=operation)
        return answer


class EmbeddedFiles(RequestFiles):
    """Files of an embedded sandbox."""

    _spool_bytes = 64 * 1024  # a stream costs a fork of the agent, and a thread here

    def __init__(
        self, agent: AgentClient, *, workdir: str, sandbox_id: str, guard: Callable[[], None],
        disk_bytes: Callable[[], int],
    ) -> None:  # fmt: skip
        super().__init__(workdir=workdir, sandbox_id=sandbox_id, guard=guard)
        self._disk_bytes = disk_bytes
        self._agent = agent
        self.close = agent.close

    # Reading and writing.

    async def read(self, path: PathLike, *, max_bytes: int = DEFAULT_READ_LIMIT_BYTES) -> bytes:
        # A file that is too large, perhaps sparse, is refused before any of it is read.
        target = self.at(path)
        info = await self.stat(target)
        if info.kind == "file" and info.size > max_bytes:
            self._refuse_size(target, max_bytes)
        return await super().read(target, max_bytes=max_bytes)

    async def read_stream(self, path: PathLike, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        target = self.at(path)
        descriptor = await self._open(target)
        async with contextlib.aclosing(_read_descriptor(descriptor, chunk_bytes=chunk_bytes)) as stream:
            async for chunk in stream:
                yield chunk

    async def _open(self, path: SandboxPath) -> int:
        """An open descriptor, checked again on this side: a regular file outside /proc."""
        answer, descriptors = await self._agent.ask_for_descriptors({"op": "open", **describe(path)}, path=path)
        if len(descriptors) != 1:
            wire.close_all(descriptors)
            raise file_error(answer, path=path, sandbox_id=self._sandbox_id, op="read")
        descriptor = descriptors[0]
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or is_of_proc(descriptor):
            os.close(descriptor)
            raise SandboxFileKindError(f"{path}: not a regular file", path=path, sandbox_id=self._sandbox_id, op="read")
        return descriptor

    async def _write(self, request: WriteRequest, data: bytes) -> None:
        carrier = wire.memory_file(data) if len(data) < CHUNK_BYTES else await asyncio.to_thread(wire.memory_file, data)
        try:
            await self._agent.ask({"op": "write", **request.describe()}, (carrier,), path=request.path)
        finally:
            os.close(carrier)

    async def _write_stream(self, request: WriteRequest, content: AsyncIterable[bytes]) -> int:
        path, total = request.path, 0
        # Closing the socket without a commit makes the agent delete the unfinished file.
        async with self._agent.talking({"op": "write_stream", **request.describe()}, path=path) as sock:
            opened, descriptors = await seam.receive(sock)
            if "opened" not in opened or len(descriptors) != 1:
                wire.close_all(descriptors)
                raise file_error(opened, path=path, sandbox_id=self._sandbox_id, op="write")
            with WriterThread(descriptors[0]) as writer:
                try:
                    async for piece in content:
                        total += len(piece)
                        await self._put(writer, piece, path)
                except BaseException:
                    await self._tell(sock, {"commit": False})
                    await asyncio.shield(seam.receive(sock))  # until the unfinished file is deleted
                    raise
            await self._tell(sock, {"commit": True})
            answer = await seam.receive_message(sock)
        self._agent.check(answer, path, "write")
        return total

    async def _tell(self, sock: socket.socket, message: wire.Message) -> None:
        try:
            await seam.send(sock, message)
        except BrokenPipeError as error:
            raise GoneError("the file agent is gone") from error

    async def _put(self, writer: WriterThread, piece: bytes, path: str) -> None:
        try:
            await writer.write(piece)
        except OSError as error:
            refusal = {"error": "os", "errno": error.errno, "text": error.strerror}
            raise file_error(refusal, path=path, sandbox_id=self._sandbox_id, op="write") from error

    async def _ask(self, message: wire.Message, payloads: Sequence[bytes] = (), *, path: str) -> wire.Message:
        with _carried(payloads) as carriers:
            return await self._agent.ask(message, carriers, path=path)

    async def _batches(
        self, message: wire.Message, payloads: Sequence[bytes] = (), *, path: str
    ) -> AsyncGenerator[tuple[list[wire.Message], wire.Message | None], None]:
        message = {"timeout": _SEARCH_SECONDS, **message}
        with _carried(payloads) as carriers:
            async with self._agent.talking(message, carriers, path=path) as sock:
                while "items" in (part := await seam.receive_message(sock)):
                    yield part["items"], None
                    await asyncio.sleep(0)  # a fast agent must not block this event loop
                yield [], self._agent.check(part, path, message["op"])

    # Streams.

    async def watch(self, path: PathLike = ".", *, recursive: bool = True) -> AsyncIterator[WatchEvent]:
        target = self.at(path)
        message = {"op": "watch", "path": target, "recursive": recursive}
        async with self._agent.talking(message, path=target) as sock:
            while True:
                part = self._agent.check(await seam.receive_message(sock), target, "watch")
                with self._parsing(target, "watch"):
                    items = part.get("items", ())
                    events = [WatchEvent(str(item["path"]), item["kind"], bool(item["folder"])) for item in items]
                for event in events:
                    yield event

    async def pack(self, path: PathLike) -> AsyncIterator[bytes]:
        target = self.at(path)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        with closing_descriptors(reader, writer) as close:
            message = {"op": "pack", "path": target, "max_changing_bytes": self._disk_bytes()}
            async with self._agent.talking(message, (writer,), path=target) as sock:
                close(writer)
                while chunk := await seam.read_pipe(reader, CHUNK_BYTES):
                    yield chunk
                answer = await seam.receive_message(sock)
        self._agent.check(answer, target, "pack")

    async def unpack(self, path: PathLike, archive: AsyncIterable[bytes]) -> int:
        target = self.at(path)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writer, False)
        with closing_descriptors(reader, writer) as close:
            async with self._agent.talking({"op": "unpack", "path": target}, (reader,), path=target) as sock:
                close(reader)
                try:
                    async for chunk in archive:
                        await seam.write_pipe(writer, chunk)
                except BrokenPipeError:
                    pass  # the agent has stopped reading; its answer says why
                close(writer)
                answer = await seam.receive_message(sock)
        with self._parsing(target, "unpack"):
            return int(self._agent.check(answer, target, "unpack")["count"])


async def _read_descriptor(descriptor: int, *, chunk_bytes: int) -> AsyncGenerator[bytes, None]:
    """The content of an open regular file, which is closed at the end.

    Up to the size it had when opened: a file may grow for ever.
    """
    with opened(descriptor):
        size, place = os.fstat(descriptor).st_size, 0
        while place < size:
            chunk = await _read_at(descriptor, min(chunk_bytes, size - place), place)
            if not chunk:
                return
            place += len(chunk)
            yield chunk
            await asyncio.sleep(0)


async def _read_at(descriptor: int, count: int, place: int) -> bytes:
    """Read at once what is in memory; what must come from a disk is read in a thread, not to block the event loop."""
    if hasattr(os, "preadv"):
        buffer = bytearray(count)
        try:
            return bytes(buffer[: os.preadv(descriptor, [buffer], place, getattr(os, "RWF_NOWAIT", 0))])
        except BlockingIOError:
            return await asyncio.to_thread(_read_own, os.dup(descriptor), count, place)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    return os.pread(descriptor, count, place)


def _read_own(descriptor: int, count: int, place: int) -> bytes:
    """With its own descriptor: a cancelled caller closes the other one while the thread still reads."""
    with opened(descriptor):
        return os.pread(descriptor, count, place)


@contextlib.contextmanager
def closing_descriptors(*descriptors: int) -> Iterator[Callable[[int], None]]:
    """Closes the descriptors at the end, except those already closed with the function that it yields."""
    still_open = set(descriptors)

    def close(descriptor: int) -> None:
        still_open.discard(descriptor)
        os.close(descriptor)

    try:
        yield close
    finally:
        wire.close_all(still_open)


@contextlib.contextmanager
def _carried(payloads: Sequence[bytes]) -> Iterator[tuple[int, ...]]:
    """Payloads as files in memory, whose descriptors are sent with a message."""
    carriers = tuple(map(wire.memory_file, payloads))
    try:
        yield carriers
    finally:
        wire.close_all(carriers)
