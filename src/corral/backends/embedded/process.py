"""A program in an embedded sandbox: the pump reads its pipes, and its end arrives on its channel.

The pump is one thread per process of the host. It is not an event loop of a caller, because a program must be read even
if its caller's loop has ended, and because only a reader that does nothing else knows the order of the two streams.

Order: the pipes are those of `corral.inside.ready`, and epoll reports them in the order in which they were written. A
program that has printed much is polled every millisecond while it prints, and wakes the pump only after a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast, get_args

from corral.backends.embedded import seam
from corral.backends.embedded.seam import exec_error
from corral.base.process import AsyncProcess, Ending, no_terminal
from corral.concurrency.portal import PerProcess
from corral.engine import wire
from corral.engine.errors import GoneError, ProtocolError
from corral.errors import EngineFaultError
from corral.inside.ready import READ_BYTES, Loop, OutputReading, waiting_bytes
from corral.inside.starting import set_window
from corral.protocol import SpawnRequest
from corral.results import EndReason, StreamName, Usage

log = logging.getLogger("corral.embedded")


class Pump(Loop):
    """The thread that reads programs: a loop whose methods, except `loosen`, may be called in any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._orders: deque[Callable[[], None]] = deque()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(self._wake_reader, self._obey)
        self._thread = threading.Thread(target=self._run, name="corral-pump", daemon=True)
        self._thread.start()

    def again(self, callback: Callable[[], None]) -> None:
        self._do(functools.partial(super().again, callback))

    def call_at(self, key: object, moment: float, callback: Callable[[], None]) -> None:
        self._do(functools.partial(super().call_at, key, moment, callback))

    def cancel(self, key: object) -> None:
        self._do(functools.partial(super().cancel, key))

    def _do(self, order: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread:
            order()
            return
        self._orders.append(order)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b".")

    def _obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        while self._orders:
            self._orders.popleft()()

    def _run(self) -> None:
        while True:
            self.turn(3600.0)  # epoll accepts up to 24 days, and a timer may be later than that

    def _call(self, callback: Callable[[], None], descriptor: int | None = None) -> None:
        try:
            callback()
        except Exception:
            # This thread reads for all programs: an error with one must not stop the others.
            log.exception("a program's output could not be read any more, or a timer failed")
            if descriptor is not None:
                self.unwatch(descriptor)


get_pump = PerProcess(Pump).get
"""The pump of this process."""

_GRACE_SECONDS = 5.0
"""Init enforces timeouts by itself. If it does not report the end in time, the whole sandbox is ended."""
START_SECONDS = 60.0
REST_SECONDS = 5.0
_TERMINAL_SECONDS = 0.25
"""How long a terminal that a background program holds open is read after the end."""
PEAK_NOTE = "peak_memory_bytes is of the largest process, not of all together"
_EARLY_REASONS: tuple[EndReason, ...] = ("timeout", "cancelled")
"""The program was stopped early: its output is incomplete anyway, and not worth waiting for memory."""


def _drop_rest(descriptor: int, reading: OutputReading, pump: Pump) -> None:
    """Read and drop what comes through a pipe that a background child of an ended program holds, so that it can go on.

    There is no reference to the program, whose output would stay in memory as long as the child runs.
    """
    over = False

    def read() -> None:
        nonlocal over
        if over:
            return  # a nap that was not over yet
        data = reading.read(descriptor)
        over = data == b""
        if not over:
            reading.read_on(pump, descriptor, data, read)
        else:
            pump.unwatch(descriptor)
            os.close(descriptor)

    pump.hand_over(descriptor, read)
    read()  # mostly the end: most programs leave no child behind


class EmbeddedProcess(AsyncProcess):
    """A program of an embedded sandbox."""

    def __init__(
        self,
        *,
        sandbox_id: str,
        request: SpawnRequest,
        reading: OutputReading,
        outputs: dict[int, StreamName],
        stdin_fd: int | None,
        give_up: Callable[[], None],
    ) -> None:
        super().__init__(request, sandbox_id=sandbox_id)
        self._channel: socket.socket | None = None
        self._reading = reading
        self._outputs = outputs
        # The pump's thread closes these and others use them: read, copied and closed only under the lock.
        self._fds = threading.Lock()
        self._stdin_fd = stdin_fd
        self._terminal_fd: int | None = None
        self._give_up = give_up
        self._control: socket.socket | None = None
        self._tree = 0
        self._paused: set[int] = set()
        self._last_words: wire.Message | None = None
        # After the end: how many bytes of each pipe still belong to the result.
        self._rest: dict[int, int] | None = None
        self._pump: Pump = get_pump()
        self._begun = time.monotonic()
        # Before anything can write: pipes that are full when they are first read would tell no order.
        for descriptor in outputs:
            self._watch(descriptor)

    def _watch(self, output: int) -> None:
        self._pump.watch(output, functools.partial(self._take, output), edge=True)

    def begin(
        self, channel: socket.socket, message: wire.Message, descriptors: list[int], *, control: socket.socket
    ) -> None:
        """Init has started the program."""
        pid = message["started"]
        if not isinstance(pid, int) or pid < 1 or len(descriptors) != int(self._request.pty):
            wire.close_all(descriptors)
            raise ProtocolError("malformed message from init about a new program")
        if self._request.pty:
            (terminal,) = descriptors
            if not os.isatty(terminal):
                os.close(terminal)
                raise ProtocolError("init sent something other than a terminal")
            os.set_blocking(terminal, False)
            self._terminal_fd = self._stdin_fd = terminal
            self._outputs = {terminal: "stdout"}
            self._watch(terminal)
        self._channel = channel
        tree = message.get("tree")
        self._control, self._tree = control, tree if isinstance(tree, int) else 0
        self._pid = pid
        if self._request.timeout is not None:
            self._pump.call_at(self, self._begun + self._request.timeout + _GRACE_SECONDS, self._not_in_time)
        self._pump.watch(channel.fileno(), self._hear, edge=True)

    def abandon(self) -> None:
        """Clean up after a program that was not started."""
        self._reading.close_writers()
        for descriptor in list(self._outputs):
            self._drop_output(descriptor)
        if self._stdin_fd is not None:
            os.close(self._stdin_fd)
            self._stdin_fd = None

    # On the pump's thread.

    def _take(self, descriptor: int) -> None:
        stream = self._outputs.get(descriptor)
        if stream is None or descriptor in self._paused or self._rest is not None:
            return
        most = self.room(stream)
        data = self._reading.read(descriptor, terminal=descriptor == self._terminal_fd, most=most)
        if data:
            self._keep(stream, data, descriptor)
        elif data is not None:
            self._drop_output(descriptor)
            return
        self._reading.read_on(self._pump, descriptor, data, functools.partial(self._take, descriptor), most=most)

    def _keep(self, stream: StreamName, data: bytes, descriptor: int) -> None:
        self._reading.count(len(data), self._outputs, self._pump)
        # Paused first: a reader that catches up meanwhile must have something to resume.
        self._paused.add(descriptor)
        if not self.feed(stream, data):
            self._paused.discard(descriptor)

    def resume_reading(self) -> None:
        for descriptor in list(self._paused):
            self._paused.discard(descriptor)
            self._pump.again(functools.partial(self._take, descriptor))
        if self._rest is not None:
            self._pump.again(self._hear)  # its end waited for memory, too

    def _drop_output(self, descriptor: int) -> None:
        if self._outputs.pop(descriptor, None) is None:
            return  # the other thread was faster
        self._pump.unwatch(descriptor)
        if descriptor != self._terminal_fd:
            os.close(descriptor)
        else:
            self._end_terminal()

    def _hear(self) -> None:
        """Read the channel: the program has ended, or the sandbox. Called again when all output has been read."""
        if self.ended or self._channel is None:
            return
        if self._last_words is not None:
            self._end_after_output()
            return
        try:
            received = wire.hear(self._channel, allow_large=False)
        except BlockingIOError:
            return
        if received is None:
            self._finish_gone()
            return
        message, descriptors = received
        wire.close_all(descriptors)
        if not message.get("ended"):
            return
        self._last_words = message
        self._pump.cancel(self)  # init has reported in time
        if message.get("reason") in _EARLY_REASONS:
            self.stop_waiting()
        self._pump.again(self._hear)

    def _end_after_output(self) -> None:
        """Finish, now that everything written before the end has been read in order."""
        assert self._last_words is not None
        if self._rest is None and self._terminal_fd is not None and self._terminal_fd in self._outputs:
            # A terminal passes its last output on a moment later; it hangs up when all of it has been read.
            self._pump.call_at(self, time.monotonic() + _TERMINAL_SECONDS, self._end_terminal)
            self._pump.again(functools.partial(self._take, self._terminal_fd))
        else:
            self._finish(self._last_words)

    def _end_terminal(self) -> None:
        if self._last_words is not None and not self.ended:
            self._finish(self._last_words)

    def _finish(self, message: wire.Message) -> None:
        if not self._drain():
            return  # no memory for the rest yet; `resume_reading` continues here
        if "error" in message:
            self.finish(exec_error(message, cwd=self._request.cwd, sandbox_id=self._sandbox_id))
        else:
            try:
                self.finish(read_ending(message))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                self.finish(EngineFaultError(f"malformed end: {error!r}", sandbox_id=self._sandbox_id, op="exec"))
        self._let_go()

    def _drain(self) -> bool:
        """Read what was printed before the end. Later output of background children is not part of the result.

        False if it has to wait for memory.
        """
        if self._rest is None:
            self._paused.clear()
            self._rest = {descriptor: waiting_bytes(descriptor) for descriptor in self._outputs}
        for descriptor, count in self._rest.items():
            stream, remaining = self._outputs[descriptor], count
            while remaining > 0:
                if self.waits_for_room:
                    self._rest[descriptor] = remaining
                    return False
                data = self._reading.read(descriptor, most=self.room(stream) or READ_BYTES)
                if not data:
                    break
                remaining -= len(data)
                self.feed(stream, data)
            self._rest[descriptor] = 0
        return True

    def _finish_gone(self) -> None:
        self.stop_waiting()
        self._drain()
        self.end_gone()
        self._let_go()

    def _let_go(self) -> None:
        """Close all descriptors, except pipes that background children still hold: those are read to their end."""
        self._pump.cancel(self)
        self._rest = None
        self._reading.close_writers()
        if self._channel is not None:
            self._pump.unwatch(self._channel.fileno())
            self._channel.close()
        with self._fds:
            stdin, terminal = self._stdin_fd, self._terminal_fd
            self._stdin_fd = self._terminal_fd = None
            if stdin is not None and stdin != terminal:
                os.close(stdin)
            if terminal is not None:
                self._pump.unwatch(terminal)
                os.close(terminal)
                self._outputs.pop(terminal, None)
        for descriptor in self._outputs:
            _drop_rest(descriptor, self._reading, self._pump)
        self._outputs = {}

    def _not_in_time(self) -> None:
        """Init has not reported the end in time, and can't be trusted any more: end the whole sandbox."""
        if not self.ended and self._last_words is None:
            self._give_up()

    # What callers ask for.

    async def _write(self, data: bytes) -> bool:
        with self._fds:
            if self._stdin_fd is None:
                return False
            descriptor = os.dup(self._stdin_fd)
        return await seam.write_stdin(descriptor, data)

    async def close_stdin(self) -> None:
        if self._terminal_fd is not None:
            await self.write(b"\x04")
            return
        with self._fds:
            descriptor, self._stdin_fd = self._stdin_fd, None
            if descriptor is not None:
                os.close(descriptor)

    async def _signal(self, number: int) -> None:
        self._tell({"op": "signal", "number": number})

    async def _resize(self, *, rows: int, columns: int) -> None:
        with self._fds:
            if self._terminal_fd is None:
                raise no_terminal(self._sandbox_id)
            set_window(self._terminal_fd, rows, columns)

    def end_tree(self, reason: EndReason) -> None:
        if not self.ended:
            self._tell({"op": "kill", "reason": reason})
            self._pump.call_at(self, time.monotonic() + _GRACE_SECONDS, self._not_in_time)

    async def end_rest(self) -> None:
        if self._control is None or not self.ended:
            return
        with contextlib.suppress(GoneError, TimeoutError):
            async with asyncio.timeout(REST_SECONDS):  # init may not answer
                await seam.answer(await seam.ask(self._control, {"op": "end_rest", "tree": self._tree}))

    def _tell(self, message: wire.Message) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                wire.send(self._channel, message)


async def spawn(
    control: socket.socket, request: SpawnRequest, *, sandbox_id: str, uid: int, gid: int, give_up: Callable[[], None]
) -> EmbeddedProcess:
    """Ask init to start a program.

    Raises:
        GoneError: init has ended.
    """
    theirs: list[int] = []
    reading = OutputReading()
    stdin_fd, outputs = _open_pipes(request, reading, theirs)
    process = EmbeddedProcess(
        sandbox_id=sandbox_id, request=request, reading=reading, outputs=outputs, stdin_fd=stdin_fd, give_up=give_up
    )
    channel: socket.socket | None = None
    try:
        async with asyncio.timeout(START_SECONDS):
            channel = await seam.ask(control, describe(request, uid, gid), tuple(theirs))
            wire.close_all(theirs)
            theirs = []
            started, descriptors = await seam.receive(channel)
        if "started" not in started:
            wire.close_all(descriptors)
            raise exec_error(started, cwd=request.cwd, sandbox_id=sandbox_id)
        process.begin(channel, started, descriptors, control=control)
    except BaseException as error:
        wire.close_all(theirs)
        if not process.pid:
            process.abandon()
            if channel is not None:
                channel.close()  # this cancels the request: init ends the tree
        if isinstance(error, TimeoutError):
            give_up()  # an init that does not answer can't be trusted any more
            raise GoneError("init does not respond") from error
        raise
    return process


def describe(request: SpawnRequest, uid: int, gid: int) -> wire.Message:
    return {
        "op": "start",
        "argv": list(request.argv),
        "env": dict(request.env),
        "cwd": request.cwd,
        "uid": uid,
        "gid": gid,
        "pty": request.pty,
        "rows": request.rows,
        "columns": request.columns,
        "timeout": request.timeout,
        "read_only": list(request.read_only),
        "hidden": list(request.hidden),
    }


def _open_pipes(
    request: SpawnRequest, reading: OutputReading, theirs: list[int]
) -> tuple[int | None, dict[int, StreamName]]:
    """Our ends of the input and of the outputs. For a terminal there are none: init opens it."""
    outputs: dict[int, StreamName] = {}
    stdin_fd: int | None = None
    if request.pty:
        return stdin_fd, outputs
    if request.stdin:
        reader, stdin_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(stdin_fd, False)
    else:
        reader = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    theirs.append(reader)
    for name in get_args(StreamName):
        output, writer = reading.open_pipe()
        outputs[output] = name
        theirs.append(writer)
    return stdin_fd, outputs


def read_reason(reason: object) -> EndReason:
    """Raises: ValueError for an unknown reason."""
    if reason not in get_args(EndReason):
        raise ValueError("the end reason is unknown")
    return cast("EndReason", reason)


def read_ending(message: wire.Message) -> Ending:
    """The end of a program, from init's report, which is not trusted. Raises: KeyError, TypeError, ValueError …"""
    usage = message["usage"]
    cpu, peak = usage["cpu_seconds"], usage["peak_memory_bytes"]
    notes = [PEAK_NOTE]
    if usage.get("cpu_of") != "tree":
        notes.append("cpu_seconds leaves out processes that outlived the program")
    number = int(message["signal"])
    return Ending(
        exit_code=int(message["code"]) & 0xFFFF,
        reason=read_reason(message["reason"]),
        usage=Usage(
            wall_seconds=float(usage["wall_seconds"]),
            cpu_seconds=float(cpu) if cpu is not None else None,
            peak_memory_bytes=int(peak) if peak else None,
            notes=tuple(notes),
        ),
        signal=number or None,
        limit=str(message["limit"])[:20] or None,
        unjudged=message.get("unjudged") is True,
    )
