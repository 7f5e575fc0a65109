"""A program of the host: its streams are read by a thread of its own, its end is heard on its channel."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal as signals
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterable
from typing import Any

from corral.backends.unsafe_subprocess.grip import Grip
from corral.backends.unsafe_subprocess.streams import (
    EXACT_BYTES,
    NAP_SECONDS,
    READ_BYTES,
    Watch,
    count_waiting,
    end_packets,
    make_output_pipe,
    read_some,
    write_pipe,
)
from corral.base.process import AsyncProcess, Ending, as_bytes
from corral.errors import CorralError, ExecError, InvalidCommandError, WorkdirError
from corral.protocol import SpawnRequest
from corral.results import EndReason, StreamName, Usage

_START_SECONDS = 60.0
_GRACE_SECONDS = 10.0
"""The warden ends a program in time by itself. If it has not said so by then, the sandbox as a whole is ended."""
_REST_SECONDS = 10.0
_TERMINAL_SECONDS = 0.25
"""How long a terminal that a background program holds open is listened to after the end."""
_LAST_ROUNDS = 8
"""How often output is asked for after the end: enough for whatever a pipe holds, whoever goes on writing to it."""
_REASONS: tuple[EndReason, ...] = ("exited", "signalled", "timeout", "cancelled")
_NOTES = (
    "peak_memory_bytes is of the largest process, not of all together",
    "cpu_seconds leaves out processes that outlived the program",
)


class HostProcess(AsyncProcess):
    """A program of the host."""

    def __init__(self, grip: Grip, request: SpawnRequest) -> None:
        super().__init__(output_limit_bytes=request.output_limit_bytes, listened=request.listened)
        self._grip = grip
        self._request = request
        self._channel: socket.socket | None = None
        self._heard = b""
        self._pid = 0
        # Numbers that the thread closes and others use: read, copied and closed only under the lock.
        self._fds = threading.Lock()
        self._outputs: dict[int, StreamName] = {}
        self._writers: list[int] = []
        self._naps = False
        self._stdin: int | None = None
        self._terminal: int | None = None
        self._deadline = None if request.timeout is None else time.monotonic() + request.timeout + _GRACE_SECONDS
        self._printed = 0
        self._exact = not request.pty
        self._paused = False
        self._caught_up = threading.Event()
        self._listening = True
        self._last_words: dict[str, Any] | None = None
        self._last_rounds = _LAST_ROUNDS
        self._rest_ended = threading.Event()
        self._watch: Watch | None = None
        self._wake_reader = self._wake_writer = -1

    @property
    def pid(self) -> int:
        return self._pid

    # Beginning, in the caller's event loop.

    async def begin(self) -> None:
        """Start it. Cancelled in the middle, its channel closes, and its warden ends whatever has begun.

        Raises:
            WorkdirError, InvalidCommandError, ExecError, SandboxGoneError
        """
        theirs: list[int] = []
        try:
            watch = self._watch = Watch()
            self._wake_reader, self._wake_writer = os.pipe()
            os.set_blocking(self._wake_reader, False)
            os.set_blocking(self._wake_writer, False)
            self._open_streams(theirs)
            # Before anything can be written: pipes that are full when they are first looked at would tell no order.
            for descriptor in self._outputs:
                watch.add(descriptor, exact=self._exact)
            channel = self._channel = self._grip.open_channel()
            socket.send_fds(channel, [b"S"], theirs)
            _close(theirs)
            theirs = []
            async with asyncio.timeout(_START_SECONDS):
                started = await self._ask(channel)
            if "started" not in started:
                raise self._explain(started)
            self._pid = int(started["started"])
            threading.Thread(target=self._follow, name="corral-unsafe", daemon=True).start()
        except BaseException as error:
            _close(theirs)
            self._close_all()
            raise self._translate(error) from error

    def _translate(self, error: BaseException) -> BaseException:
        if isinstance(error, CorralError) or not isinstance(error, Exception):
            return error
        if isinstance(error, TimeoutError):
            self._grip.end()  # a keeper that does not answer can't be trusted with anything else either
        if isinstance(error, ConnectionError | TimeoutError):
            return self._explain_loss()
        return self._explain({"text": str(error)})

    def _open_streams(self, theirs: list[int]) -> None:
        """Ours into this object, the program's into the list."""
        request = self._request
        if request.pty:
            self._terminal, other = os.openpty()
            theirs += [other, os.dup(other), os.dup(other)]
            os.set_blocking(self._terminal, False)
            _set_size(self._terminal, request.rows, request.columns)
            self._outputs[self._terminal] = "stdout"
            return
        if request.stdin:
            reader, self._stdin = os.pipe()
            os.set_blocking(self._stdin, False)
            theirs.append(reader)
        else:
            theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        names: tuple[StreamName, ...] = ("stdout", "stderr")
        for name in names:
            reader, writer = make_output_pipe(self._writers)
            self._outputs[reader] = name
            theirs.append(writer)

    async def _ask(self, channel: socket.socket) -> dict[str, Any]:
        request, loop = self._request, asyncio.get_running_loop()
        content = json.dumps(
            {
                "argv": request.argv,
                "env": dict(request.env),
                "cwd": request.cwd,
                "timeout": request.timeout,
                "pty": request.pty,
            }
        ).encode()
        await loop.sock_sendall(channel, len(content).to_bytes(8, "big") + content)
        while b"\n" not in self._heard:
            data = await loop.sock_recv(channel, 65536)
            if not data:
                raise self._explain_loss()
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _explain(self, answer: dict[str, Any]) -> CorralError:
        where, code, text = self._grip.sandbox_id, answer.get("error"), answer.get("text", "")
        if code == "cwd":
            return WorkdirError(
                f"can't run in {self._request.cwd!r}: {text}", sandbox_id=where, op="exec", hint="create the folder"
            )
        if code == "too_big":
            return InvalidCommandError(
                "arguments and environment exceed the kernel's limit",
                sandbox_id=where,
                op="exec",
                hint="pass data as stdin= or in a file",
            )
        return ExecError(f"the program could not be started: {text}", sandbox_id=where, op="exec")

    def _explain_loss(self) -> CorralError:
        """Its channel broke: with the sandbox, or alone."""
        if not self._grip.is_alive():
            return self._grip.gone(op="exec")
        return ExecError(
            "the program's warden was killed", sandbox_id=self._grip.sandbox_id, op="exec", hint="check the system log"
        )

    # Following, in a thread of its own.

    def _follow(self) -> None:
        watch, channel = self._watch, self._channel
        assert watch is not None, "it was begun"
        assert channel is not None, "it was begun"
        try:
            watch.add(channel.fileno())
            watch.add(self._wake_reader)
            self._read_lines()
            while not self.ended or self._outputs or self._listening:
                self._turn(watch, channel)
        except Exception as error:  # noqa: BLE001 - whoever waits must be told, whatever it is
            self.finish(ExecError(f"lost track of the program: {error!r}"))
        finally:
            self._close_all()
            self._rest_ended.set()

    def _turn(self, watch: Watch, channel: socket.socket) -> None:
        ready = watch.wait(self._patience())
        if self._wake_reader in ready:
            read_some(self._wake_reader)
        taken = 0
        for descriptor in ready:
            if descriptor in self._outputs:
                self._take(watch, descriptor)
                taken += 1
        if self._listening and channel.fileno() in ready:
            self._hear(watch, channel)
        if self._paused and (self._caught_up.is_set() or self._last_words is not None):
            self._resume(watch)
        elif self._last_words is not None and not self.ended:
            self._last_rounds -= 1
            if not taken or self._last_rounds <= 0:
                self._end_after_output(watch)
        elif self._deadline is not None and time.monotonic() > self._deadline and not self.ended:
            self._grip.end()

    def _patience(self) -> float | None:
        if self.ended:
            return None
        if self._last_words is not None:
            return _TERMINAL_SECONDS if self._terminal is not None and self._outputs else 0.0
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic()) + 0.01

    def _take(self, watch: Watch, descriptor: int) -> None:
        # While the order is exact, a packet at a time: the next one may belong behind one of the other stream.
        data = read_some(descriptor, once=self._exact)
        if data is None:
            return
        if not data:
            self._drop_output(watch, descriptor)
            return
        if self.ended:
            return  # a child in the background goes on printing: read, so that it can live on, and forgotten
        self._printed += len(data)
        if self._exact and self._printed > EXACT_BYTES:
            self._exact = False
            end_packets(self._writers)
            room = [watch.loosen(other) for other in self._outputs]
            self._naps = all(room)
        self._caught_up.clear()
        if self.feed(self._outputs[descriptor], data) and self._last_words is None:
            self._paused = True
            for other in self._outputs:
                watch.remove(other)
        elif self._naps and len(data) < READ_BYTES // 4 and self._last_words is None:
            time.sleep(NAP_SECONDS)  # a turn for each line would cost more than the line

    def _resume(self, watch: Watch) -> None:
        self._paused = False
        for descriptor in self._outputs:
            watch.add(descriptor, exact=self._exact)  # which tells of what is there already

    def _drop_output(self, watch: Watch, descriptor: int) -> None:
        watch.remove(descriptor)
        with self._fds:
            del self._outputs[descriptor]
            if descriptor != self._terminal:
                os.close(descriptor)

    def _hear(self, watch: Watch, channel: socket.socket) -> None:
        try:
            data = channel.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._heard += data
            self._read_lines()
            return
        watch.remove(channel.fileno())
        self._listening = False
        self._rest_ended.set()
        if self._last_words is None and not self.ended:
            self.finish(self._explain_loss())
            self._let_go(watch)

    def _read_lines(self) -> None:
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "ended" in message:
                self._last_words = message
            elif "rest" in message:
                self._rest_ended.set()

    def _end_after_output(self, watch: Watch) -> None:
        """Everything written before the end has had its turn, in its order."""
        words = self._last_words
        assert words is not None, "it has ended"
        for descriptor, stream in list(self._outputs.items()):
            # Of what children in the background go on printing, as much as was there by now.
            if waiting := count_waiting(descriptor):
                self.feed(stream, read_some(descriptor, waiting) or b"")
        reason = next(known for known in _REASONS if known == words["reason"])
        usage = Usage(
            wall_seconds=words["wall_seconds"],
            cpu_seconds=words["cpu_seconds"],
            peak_memory_bytes=words["peak_memory_bytes"] or None,
            notes=_NOTES,
        )
        self.finish(Ending(words["ended"], reason, usage, signal=words["signal"] or None))
        self._let_go(watch)

    def _let_go(self, watch: Watch) -> None:
        """It takes no more input, and a terminal hangs up."""
        self._exact = False
        end_packets(self._writers)
        for descriptor in self._outputs:
            watch.loosen(descriptor)  # an end of file that came with a packet would not be told a second time
        with self._fds:
            if self._stdin is not None:
                os.close(self._stdin)
            if self._terminal is not None:
                watch.remove(self._terminal)
                self._outputs.pop(self._terminal, None)
                os.close(self._terminal)
            self._stdin = self._terminal = None

    def _close_all(self) -> None:
        end_packets(self._writers)
        with self._fds:
            descriptors = {*self._outputs, self._stdin, self._terminal, self._wake_reader, self._wake_writer}
            self._outputs = {}
            self._stdin = self._terminal = None
            self._wake_reader = self._wake_writer = -1
            _close(descriptor for descriptor in descriptors if descriptor is not None and descriptor >= 0)
            if self._channel is not None:
                # Not only closed: a process that was forked from us meanwhile may have it, too.
                with contextlib.suppress(OSError):
                    self._channel.shutdown(socket.SHUT_RDWR)
                self._channel.close()
                self._channel = None
            if self._watch is not None:
                self._watch.close()
                self._watch = None

    # What callers do, from any thread and event loop.

    def resume_reading(self) -> None:
        self._caught_up.set()
        self._wake()

    def _wake(self) -> None:
        with self._fds, contextlib.suppress(BlockingIOError):
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b".")

    def _tell(self, message: dict[str, Any]) -> None:
        with self._fds, contextlib.suppress(OSError):  # it has ended meanwhile
            if self._channel is not None:
                self._channel.send(json.dumps(message).encode() + b"\n")

    async def write(self, data: bytes | str) -> None:
        content = as_bytes(data)
        with self._fds:
            source = self._terminal if self._request.pty else self._stdin
            descriptor = os.dup(source) if source is not None else None
        if descriptor is None:
            raise ExecError("the program's stdin is closed", sandbox_id=self._grip.sandbox_id, op="write")
        try:
            await write_pipe(descriptor, content)
        except OSError as error:
            raise ExecError("the program has closed its stdin", sandbox_id=self._grip.sandbox_id, op="write") from error
        finally:
            os.close(descriptor)

    async def close_stdin(self) -> None:
        if self._request.pty:
            if not self.ended:
                await self.write(b"\x04")
            return
        with self._fds:
            descriptor, self._stdin = self._stdin, None
            if descriptor is not None:
                os.close(descriptor)

    async def signal(self, number: int) -> None:
        if not 1 <= int(number) < signals.NSIG:
            raise ExecError(f"{number!r} is not a signal", sandbox_id=self._grip.sandbox_id, op="signal")
        self._tell({"op": "signal", "number": int(number)})

    async def resize(self, *, rows: int, columns: int) -> None:
        with self._fds:
            if self._terminal is None:
                text = "the program has no terminal, or it has been closed"
                raise ExecError(text, sandbox_id=self._grip.sandbox_id, op="resize", hint="start it with pty=True")
            _set_size(self._terminal, rows, columns)

    def end_tree(self, reason: EndReason) -> None:
        if not self.ended:
            self._tell({"op": "kill", "reason": reason})
            self._deadline = time.monotonic() + _GRACE_SECONDS
            self._wake()

    async def end_rest(self) -> None:
        if self.ended and not self._rest_ended.is_set():
            self._tell({"op": "rest"})
            await asyncio.to_thread(self._rest_ended.wait, _REST_SECONDS)


def _set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
