"""`AsyncProcess`: a running program, its captured output, and running one to its end.

Output is kept with the order of both streams, and never more than was allowed. A backend feeds it from any
thread; callers may wait on it from any event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import signal as signals
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from corral.concurrency.closing import AsyncClosing
from corral.concurrency.waiting import cancel_all, still_running
from corral.errors import CorralError, EngineFaultError, ExecError, InvalidCommandError, SandboxGoneError, WorkdirError
from corral.protocol import OnOutput, SpawnRequest, Stdin
from corral.results import TIMEOUT_EXIT_CODE, Denial, EndReason, ExecResult, OutputChunk, StreamName, Usage

_MAX_SEGMENTS = 10_000
"""How many separate pieces of a stream are kept. A program that alternates between the streams byte by byte must not
cost a hundred times what it printed: beyond this, pieces are joined, and their order is lost."""
_SEGMENT_BYTES = 64 * 1024
"""A piece grows up to this size: dropping whole pieces from the front is cheap, cutting one is not."""

_FREE_BYTES = 16 * 1024
"""How much of a stream is kept without asking the allowance."""
_BLOCK_BYTES = 64 * 1024
_PART_BYTES, _PARTS = 160, 100
"""What a piece costs besides its bytes, and for how many pieces the allowance is asked at a time. Without room, pieces
are joined as well."""
_LEAST_BYTES = 4096
"""How much of a stream may always be read: reading less than a packet of a pipe loses the rest of it."""


class Allowance(Protocol):
    """How much output may be kept, where many share one process. Its owner gives it back as a whole."""

    def take(self, count: int) -> bool:
        """True if so many more bytes may be kept now. From any thread."""

    def ask(self, count: int, answer: Callable[[bool], None]) -> None:
        """Ask to keep so many more bytes: `answer` is called once there is room, from any thread, perhaps at once.

        It is called with False if there was no room for a long time, or if the bytes are not needed any more.
        """


ALLOWANCE: ContextVar[Allowance | None] = ContextVar("ALLOWANCE", default=None)
"""The allowance of the current call. A program waits for it, as for a slow reader; if it is refused, the program
continues, and the middle of its output is cut out before its limit is reached."""


@dataclass(slots=True)
class _Segment:
    position: int
    stream: StreamName
    data: bytearray


@dataclass(slots=True)
class _Stream:
    """One stream: its beginning and its end, with the middle dropped when it is too long."""

    head_limit: int
    tail_limit: int
    granted: int = _FREE_BYTES
    total: int = 0
    dropped: int = 0
    head_bytes: int = 0
    tail_bytes: int = 0
    head: list[_Segment] = field(default_factory=list)
    tail: deque[_Segment] = field(default_factory=deque)

    @property
    def kept(self) -> int:
        return self.head_bytes + self.tail_bytes

    @property
    def limit(self) -> int:
        return self.head_limit + self.tail_limit


class Capture:
    """Output of one program, bounded. Of a stream beyond the limit, the first and the last half are kept."""

    def __init__(self, limit_bytes: int, *, waits: bool = False) -> None:
        """With `waits`, a piece that the allowance has no room for is kept, and counted in `short`."""
        head = limit_bytes // 2
        self._streams: dict[StreamName, _Stream] = {
            "stdout": _Stream(head, limit_bytes - head),
            "stderr": _Stream(head, limit_bytes - head),
        }
        self._position = 0
        self._last: _Segment | None = None
        self._waits = waits
        self._parts = _PARTS
        """How many pieces may be kept separately before the allowance is asked again."""
        self.allowance = ALLOWANCE.get()

    def add(self, stream: StreamName, data: bytes) -> None:
        """Add a piece of output."""
        state = self._streams[stream]
        state.total += len(data)
        if self.allowance is not None:
            self._take_allowance(state, len(data), self.allowance)
            if not self._waits:
                self._cut(state, len(data))
        room = state.head_limit - state.head_bytes
        if room > 0:
            first = data[:room]
            self._append(state.head, stream, first)
            state.head_bytes += len(first)
            data = data[room:]
        if data:
            self._append(state.tail, stream, data)
            state.tail_bytes += len(data)
            self._trim(state)

    def leave_out(self, stream: StreamName, count: int) -> None:
        """Count bytes from the middle of a stream that were dropped before they came here."""
        state = self._streams[stream]
        state.total += count
        state.dropped += count

    def room(self, stream: StreamName) -> int | None:
        """How much more of a stream is best read at once; None if it does not matter."""
        state = self._streams[stream]
        if self.allowance is None or not self._waits or state.granted >= state.limit:
            return None
        self._take_allowance(state, _LEAST_BYTES, self.allowance)
        return max(state.granted - state.kept, _LEAST_BYTES)

    @property
    def short(self) -> int:
        """How many bytes are kept that the allowance has no room for yet."""
        if not self._waits:
            return 0
        return sum(max(0, state.kept - state.granted) for state in self._streams.values())

    def grant(self, count: int) -> None:
        """The allowance has granted so many of the missing bytes."""
        for state in self._streams.values():
            more = min(count, max(0, state.kept - state.granted))
            state.granted += more
            count -= more

    def stop_waiting(self) -> None:
        """Cut out what the allowance has no room for, now and from now on."""
        self._waits = False
        for state in self._streams.values():
            self._cut(state, 0)

    @staticmethod
    def _take_allowance(state: _Stream, more: int, allowance: Allowance) -> None:
        """Ask for room for so many more bytes."""
        wanted = min(state.kept + more, state.limit)
        while state.granted < wanted and allowance.take(_BLOCK_BYTES):
            state.granted += _BLOCK_BYTES

    def _cut(self, state: _Stream, more: int) -> None:
        """If so many more bytes were not granted, lower the limits to what was."""
        if state.granted >= min(state.kept + more, state.limit):
            return
        state.head_limit = min(state.head_limit, max(state.head_bytes, state.granted // 2))
        state.tail_limit = min(state.tail_limit, max(state.granted - state.head_limit, _FREE_BYTES))
        self._trim(state)

    def _append(self, where: list[_Segment] | deque[_Segment], stream: StreamName, data: bytes) -> None:
        joins = where and where[-1] is self._last and len(where[-1].data) < _SEGMENT_BYTES
        if joins or (where and (len(where) >= _MAX_SEGMENTS or not self._may_part())):
            where[-1].data += data
            return
        self._position += 1
        self._last = _Segment(self._position, stream, bytearray(data))
        where.append(self._last)

    def _may_part(self) -> bool:
        """True if a piece may be kept separately, which costs more than its bytes."""
        if self.allowance is None:
            return True
        if not self._parts and self.allowance.take(_PARTS * _PART_BYTES):
            self._parts = _PARTS
        may, self._parts = self._parts > 0, max(0, self._parts - 1)
        return may

    @staticmethod
    def _trim(state: _Stream) -> None:
        excess = state.tail_bytes - state.tail_limit
        while excess > 0:
            first = state.tail[0]
            cut = min(excess, len(first.data))
            if cut == len(first.data):
                state.tail.popleft()
            else:
                del first.data[:cut]
            state.dropped += cut
            state.tail_bytes -= cut
            excess -= cut

    @property
    def truncated(self) -> bool:
        """True if anything was dropped."""
        return any(state.dropped for state in self._streams.values())

    def total(self, stream: StreamName) -> int:
        """How many bytes the program printed, kept or not."""
        return self._streams[stream].total

    def stream(self, stream: StreamName) -> bytes:
        """What is kept of one stream, with a line where the middle is missing."""
        return b"".join(segment.data for segment in _with_marker(self._streams[stream], stream))

    def combined(self) -> bytes:
        """What is kept of both, in the order it was written."""
        return b"".join(segment.data for segment in self._in_order())

    @property
    def only_stream(self) -> StreamName | None:
        """The only stream with output; None if both have some, or neither."""
        printed = [name for name, state in self._streams.items() if state.total]
        return printed[0] if len(printed) == 1 else None

    def chunks(self) -> list[OutputChunk]:
        """What is kept, piece by piece, in order."""
        return [OutputChunk(segment.stream, bytes(segment.data)) for segment in self._in_order()]

    def _in_order(self) -> list[_Segment]:
        segments = [segment for name, state in self._streams.items() for segment in _with_marker(state, name)]
        return sorted(segments, key=lambda segment: segment.position)


def _with_marker(state: _Stream, stream: StreamName) -> list[_Segment]:
    if not state.dropped:
        return [*state.head, *state.tail]
    text = f"\n[corral: {state.dropped} bytes of {stream} left out]\n".encode()
    kept = state.tail or state.head[-1:]  # both are empty if nothing was to be kept
    position = kept[0].position if kept else 0
    return [*state.head, _Segment(position, stream, bytearray(text)), *state.tail]


Clear = Callable[[], Awaitable[None]]
"""Removes what a program needed, after its end. May be called from any event loop."""

STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")
_STDIN_CHUNK_BYTES = 256 * 1024
BACKLOG_BYTES = 1024 * 1024
"""How far a reader may lag behind before the program has to wait."""
_JOINED_BYTES = 256 * 1024
"""Pieces that wait for a reader are joined up to this size."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended, as reported by the backend."""

    exit_code: int
    reason: EndReason
    usage: Usage
    signal: int | None = None
    limit: str | None = None
    unjudged: bool = False
    """True if it left a connection behind that the network has not judged yet."""


class _Subscriber:
    """One reader of the output, in its own event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, backlog: list[OutputChunk], drained: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._chunks: deque[OutputChunk] = deque(backlog)
        self._bytes = 0
        self._ended = False
        self._waits = False
        self._lagged = False
        self._wakeup = asyncio.Event()
        self._drained = drained
        self._lock = threading.Lock()

    def push(self, chunk: OutputChunk | None) -> bool:
        """From any thread; None is the end. True if this reader lags too far behind."""
        if self._loop.is_closed():
            return False  # the reader has gone
        with self._lock:
            if chunk is None:
                self._ended = True
            else:
                self._chunks.append(chunk)
                self._bytes += len(chunk.data)
            full = self._bytes > BACKLOG_BYTES
            self._lagged = self._lagged or full
            # A reader that is busy looks again by itself; waking it for each piece would cost more than the piece.
            asleep, self._waits = self._waits, False
        if asleep:
            try:
                self._loop.call_soon_threadsafe(self._wakeup.set)
            except RuntimeError:  # its loop was closed at this moment
                return False
        return full

    async def next(self) -> OutputChunk | None:
        """The output of one stream since the last call; None at the end."""
        while True:
            with self._lock:
                if self._chunks:
                    chunk = self._pop()
                    caught_up = self._lagged and not self._chunks
                    self._lagged = self._lagged and not caught_up
                    break
                if self._ended:
                    return None
                self._wakeup.clear()
                self._waits = True
            await self._wakeup.wait()
        if caught_up:
            self._drained()
        return chunk

    def _pop(self) -> OutputChunk:
        """The oldest piece, joined with those of its stream that follow it."""
        first = self._chunks.popleft()
        size = len(first.data)
        pieces = [first.data]
        while self._chunks and self._chunks[0].stream == first.stream and size < _JOINED_BYTES:
            pieces.append(self._chunks.popleft().data)
            size += len(pieces[-1])
        self._bytes -= size
        return first if len(pieces) == 1 else OutputChunk(first.stream, b"".join(pieces))


class AsyncProcess(AsyncClosing):
    """A program that runs in the background. It outlives the call that started it, never the sandbox."""

    def __init__(self, request: SpawnRequest, *, sandbox_id: str) -> None:
        self._request = request
        self._sandbox_id = sandbox_id
        self._pid = 0
        """Set by the backend when it has started."""
        self._capture = Capture(request.output_limit_bytes, waits=True)
        self._asks = False
        # Subscribed from the beginning: a fast program could print beyond the limit before the reader comes.
        self._reserved: _Subscriber | None = self._subscribe([]) if request.listened else None
        self._subscribers = [self._reserved] if self._reserved is not None else []
        self._tap: Callable[[OutputChunk], None] | None = None
        self._lock = threading.Lock()
        self._end: concurrent.futures.Future[Ending | CorralError] = concurrent.futures.Future()
        self._clear: Clear | None = None
        self._denied: Callable[[], tuple[Denial, ...]] = tuple
        self._settle: Callable[[], Awaitable[None]] | None = None

    # What a backend provides.

    @abstractmethod
    async def _write(self, data: bytes) -> bool:
        """Write to its stdin, or its terminal. False if that is closed."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """Close its stdin, if it has one that is open. On a terminal: send the end-of-file character."""

    @abstractmethod
    async def _signal(self, number: int) -> None:
        """Signal the process group of the running program."""

    async def _resize(self, *, rows: int, columns: int) -> None:
        """Set the size of its terminal."""

    @abstractmethod
    def end_tree(self, reason: EndReason) -> None:
        """Start killing the program's process tree. Must not block; may be called again."""

    async def end_rest(self) -> None:
        """Kill processes that an ended program left running."""

    def resume_reading(self) -> None:
        """A reader that lagged behind has caught up. Only of use to backends that can make a program wait."""

    # What a backend calls.

    def feed(self, stream: StreamName, data: bytes) -> bool:
        """Add output. True if the backend should pause: a reader lags behind, or there is no memory for more."""
        chunk = OutputChunk(stream, data)
        with self._lock:
            if self._tap is None:
                self._capture.add(stream, data)
            else:
                self._tap(chunk)
            subscribers = list(self._subscribers)
        lagging = [subscriber.push(chunk) for subscriber in subscribers]
        return self._ask_for_room() or any(lagging)

    def leave_out(self, stream: StreamName, count: int) -> None:
        """Count output that the backend does not pass on, because it would not be kept."""
        with self._lock:
            self._capture.leave_out(stream, count)

    def room(self, stream: StreamName) -> int | None:
        """How much of a stream is best read at once; None if it does not matter."""
        with self._lock:
            return self._capture.room(stream) if self._tap is None else None

    @property
    def waits_for_room(self) -> bool:
        """True if its output waits until there is memory to keep more of it."""
        return self._asks

    def stop_waiting(self) -> None:
        """Don't wait for memory any more: cut out what does not fit, and let the program continue."""
        with self._lock:
            self._asks = False
            self._capture.stop_waiting()
        self.resume_reading()

    def _ask_for_room(self) -> bool:
        """Ask for memory to keep what was fed, if there is too little. True until that is answered."""
        with self._lock:
            short, allowance = self._capture.short, self._capture.allowance
            if self._asks or not short or allowance is None:
                return self._asks
            self._asks = True

        def answer(granted: bool) -> None:  # noqa: FBT001 - the signature of an allowance
            with self._lock:
                self._asks = False
                if granted:
                    self._capture.grant(short)
                else:
                    self._capture.stop_waiting()
            if not self._ask_for_room():  # the other stream may have been fed meanwhile
                self.resume_reading()

        allowance.ask(short, answer)
        return self._asks

    def finish(self, ending: Ending | CorralError) -> None:
        """The program has ended, or its end is unknown. Only the first call counts."""
        with self._lock:
            if self._end.done():
                return
            self._end.set_result(ending)
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            subscriber.push(None)

    def end_gone(self, text: str = "the sandbox ended while a program was running") -> None:
        """Report that the sandbox has ended."""
        self.finish(SandboxGoneError(text, sandbox_id=self._sandbox_id, op="exec", hint="make a new one"))

    # What is the same for all.

    @property
    def pid(self) -> int:
        """Its process id inside."""
        return self._pid

    async def write(self, data: bytes | str) -> None:
        """Write to its stdin, or its terminal. Raises: ExecError if its stdin is closed."""
        if not await self._write(as_bytes(data)):
            raise stdin_closed(self._sandbox_id)

    async def signal(self, number: int) -> None:
        """Signal its process group, unless the program has ended. Raises: ExecError if it is not a signal."""
        check_signal(number, sandbox_id=self._sandbox_id)
        if not self.ended:
            await self._signal(int(number))

    async def resize(self, *, rows: int, columns: int) -> None:
        """Set the terminal's size. Raises: ExecError if it has no terminal."""
        if not self._request.pty or self.ended:
            raise no_terminal(self._sandbox_id)
        await self._resize(rows=rows, columns=columns)

    def record(self, tap: Callable[[OutputChunk], None], end: Callable[[Ending | BaseException], None]) -> None:
        """Pass all output to one recorder, including what came before, and then the end.

        Both are called in the thread that reads the program, so they must be quick. The output is not kept here any
        more.
        """
        with self._lock:
            for chunk in self._capture.chunks():
                tap(chunk)
            self._capture = Capture(1)
            self._tap = tap
        self._end.add_done_callback(lambda done: end(done.result()))

    def clear_at_end(self, clear: Clear | None) -> None:
        """Have `clear` called after the end, by the first caller that sees it, in its event loop.

        The end itself comes in a thread without a loop, and the loop that started the program may be closed by then.
        """
        self._clear = clear

    def tell_denied(self, ask: Callable[[], tuple[Denial, ...]], settle: Callable[[], Awaitable[None]]) -> None:
        """Have results tell what the network has refused; `ask` is called when a result is made, and `settle` before if
        something was not judged yet."""
        self._denied, self._settle = ask, settle

    async def _clear_up(self) -> None:
        """Call it, if the program has ended and it was not called yet."""
        with self._lock:
            if not self._end.done() or isinstance(self._end.result(), CorralError):
                return  # if its end can't be known, the sandbox is gone
            clear, self._clear = self._clear, None
        if clear is not None:
            with contextlib.suppress(CorralError):  # the sandbox is gone or paused: how the program ended is known
                await clear()

    @property
    def ended(self) -> bool:
        """True if it has ended."""
        return self._end.done()

    def _subscribe(self, backlog: list[OutputChunk]) -> _Subscriber:
        return _Subscriber(asyncio.get_running_loop(), backlog, self._go_on)

    def _go_on(self) -> None:
        """A reader has caught up, or has left."""
        if not self._asks:
            self.resume_reading()

    async def output(self) -> AsyncGenerator[OutputChunk, None]:
        """The output in pieces, until the program ends. Unread output is kept up to the limit, then dropped.

        Raises:
            SandboxGoneError: the sandbox was deleted meanwhile.
        """
        with self._lock:
            subscriber, self._reserved = self._reserved, None
            if subscriber is None:
                subscriber = self._subscribe(self._capture.chunks())
                self._subscribers.append(subscriber)
                if self._end.done():
                    subscriber.push(None)
        try:
            while (chunk := await subscriber.next()) is not None:
                yield chunk
        finally:
            with self._lock:
                self._subscribers.remove(subscriber)
            self._go_on()
        await self._clear_up()
        if isinstance(ending := self._end.result(), CorralError):
            raise ending

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait for the end; may be called several times. A timeout here does not kill the program.

        Raises:
            TimeoutError: it is still running after `timeout`.
            SandboxGoneError: the sandbox was deleted meanwhile.
        """
        # Shielded: a cancelled caller stops waiting, and the others go on.
        try:
            ending = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._end)), timeout)
        except TimeoutError as error:
            raise still_running(timeout or 0.0) from error
        if isinstance(ending, CorralError):
            raise ending
        await self._clear_up()
        if ending.unjudged and self._settle is not None:
            await self._settle()
        return self._result(ending)

    async def kill(self) -> ExecResult:
        """Kill it with its process tree."""
        self.end_tree("cancelled")
        return await self.wait()

    async def aclose(self) -> None:
        """Kill it if it is still running, and close the handle. Idempotent."""
        if not self._end.done():
            self.end_tree("cancelled")
            self.stop_waiting()
            try:
                await self.wait()
            except CorralError:
                return  # the sandbox was deleted, with the program
        await self._clear_up()

    def _result(self, ending: Ending) -> ExecResult:
        denied = self._denied()
        with self._lock:
            capture = self._capture
            streams = {name: capture.stream(name) for name in STREAMS}
            only = capture.only_stream
            return ExecResult(
                exit_code=TIMEOUT_EXIT_CODE if ending.reason == "timeout" else ending.exit_code,
                reason=ending.reason,
                usage=ending.usage,
                stdout_bytes=streams["stdout"],
                stderr_bytes=streams["stderr"],
                output_bytes=streams[only] if only is not None else capture.combined(),  # not two copies of one text
                signal=ending.signal,
                truncated=capture.truncated,
                stdout_total_bytes=capture.total("stdout"),
                stderr_total_bytes=capture.total("stderr"),
                limit=ending.limit,
                denied=denied,
            )


def as_bytes(data: bytes | str) -> bytes:
    """Input for a program. Raises: ExecError if it is neither bytes nor a string."""
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise ExecError(f"input must be bytes or a string, not {type(data).__name__}")


def start_error(refusal: Mapping[str, Any], *, cwd: str, sandbox_id: str) -> CorralError:
    """The error for a program that could not be started, from the refusal of the agent or init inside."""
    code, text = str(refusal.get("error")), str(refusal.get("text", ""))
    where: dict[str, Any] = {"sandbox_id": sandbox_id, "op": "exec"}
    if code == "cwd":
        text = f"can't run in {cwd!r}: {text.rpartition(': ')[2]}"
        return WorkdirError(text, hint="create the folder, or pass another cwd", **where)
    if code == "too_big":
        text = "arguments and environment exceed the kernel's limit"
        return InvalidCommandError(text, hint="pass data as stdin= or in a file", **where)
    if code == "view":
        return InvalidCommandError(f"can't create a restricted view: {text}", **where)
    if code in ("fork", "pty"):
        return ExecError(text, hint="end some processes or terminals, or raise resources.processes", **where)
    return EngineFaultError(f"a program could not be set up: {text}", **where)


def stdin_closed(sandbox_id: str) -> ExecError:
    """The error for input that the program can't take any more."""
    return ExecError("the program's stdin is closed", sandbox_id=sandbox_id, op="write")


def no_terminal(sandbox_id: str) -> ExecError:
    """The error for a resize without a terminal."""
    text = "the program has no terminal, or it has been closed"
    return ExecError(text, sandbox_id=sandbox_id, op="resize", hint="start it with pty=True")


def check_signal(number: int, *, sandbox_id: str) -> None:
    """Raises: ExecError unless it is the number of a signal."""
    if isinstance(number, bool) or not 1 <= int(number) < signals.NSIG:
        text = f"{number!r} is not a signal"
        raise ExecError(text, sandbox_id=sandbox_id, op="signal", hint="for example signal.SIGTERM")


def check_input(stdin: object) -> None:
    """Raises: InvalidCommandError for an invalid stdin."""
    if stdin is not None and not isinstance(stdin, bytes | bytearray | memoryview | str | AsyncIterable):
        kind = type(stdin).__name__
        raise InvalidCommandError(f"stdin is {kind}", hint="pass bytes, a string, or an async iterable of bytes")


async def wait_for(process: AsyncProcess, *, stdin: Stdin, on_output: OnOutput | None) -> ExecResult:
    """Wait for a program's end, feeding it and passing its output on meanwhile. Raises: what the input raises."""
    if stdin is None:
        return await _listen(process, on_output)
    feeding = asyncio.ensure_future(_feed(process, stdin))
    listening = asyncio.ensure_future(_listen(process, on_output))
    try:
        await asyncio.wait((feeding, listening), return_when=asyncio.FIRST_COMPLETED)
        if feeding.done():
            feeding.result()
        return await listening
    finally:
        await cancel_all(feeding, listening)


async def _listen(process: AsyncProcess, on_output: OnOutput | None) -> ExecResult:
    if on_output is not None:
        async for chunk in process.output():
            answer = on_output(chunk)
            if inspect.isawaitable(answer):
                await answer
    return await process.wait()


async def _feed(process: AsyncProcess, stdin: Stdin) -> None:
    """Write all input, then close it. A program that does not read it all is not an error."""
    if isinstance(stdin, AsyncIterable):
        async for piece in stdin:
            if not await _offer(process, as_bytes(piece)):
                return
    elif stdin is not None:
        data = as_bytes(stdin)
        for offset in range(0, len(data), _STDIN_CHUNK_BYTES):
            if not await _offer(process, data[offset : offset + _STDIN_CHUNK_BYTES]):
                return
    with contextlib.suppress(CorralError):
        await process.close_stdin()


async def _offer(process: AsyncProcess, data: bytes) -> bool:
    try:
        await process.write(data)
    except CorralError:
        return False  # it has closed its stdin, or has ended
    return True
