"""`AgentProcess`: a program that an agent runs, as `AsyncProcess`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import signal as signals
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from corral.base.agent.channel import Channel, Explain, never, told
from corral.base.process import AsyncProcess, Ending, start_error
from corral.concurrency.portal import Portal
from corral.concurrency.waiting import wait_for
from corral.errors import CorralError, ExecError
from corral.inside.frames import PIECE_BYTES, WINDOW_BYTES, Packer, unpack
from corral.protocol import SpawnRequest
from corral.results import EndReason, StreamName, Usage

_START_SECONDS = 60.0
"""How long a program may take to start, in a sandbox that is short of everything."""
_ACK_BYTES = 64 * 1024
_GRACE_SECONDS = 10.0
"""If the agent does not end a program in time, the whole channel is ended so much later."""
_ASK_SECONDS = 10.0
_REST_SECONDS = 10.0
_MAX_SKIPPED_BYTES = 1 << 62
_MOST_OWED_BYTES = WINDOW_BYTES + 2 * PIECE_BYTES + 4 * 1024 * 1024
"""How much an agent may send before we acknowledge it: its window, what the pipes of an ended program still hold (a
megabyte each), and the end of output beyond its limit."""
_STREAMS: dict[bytes, StreamName] = {b"o": "stdout", b"e": "stderr"}
_PACKED: dict[bytes, StreamName] = {b"O": "stdout", b"E": "stderr"}
_NOTES = ("counted inside by wait4: the program and the children that it waited for",)


@dataclass(frozen=True, slots=True)
class Task:
    """A function of ours that the agent runs like a program, in a forked process without `execve`."""

    text: bytes
    """The Python text that defines it, from `inside.bundle`. It is sent once."""
    name: str
    request: dict[str, Any]
    """Its argument. It returns the exit code."""


class AgentProcess(AsyncProcess):
    """A program that an agent runs. Frames come on the channel's loop; callers may be in any loop."""

    def __init__(
        self,
        request: SpawnRequest,
        *,
        sandbox_id: str,
        portal: Portal,
        rlimits: Mapping[str, int] | None = None,
        inherit: bool = True,
        task: Task | None = None,
        was_out_of_memory: Callable[[], Awaitable[bool]] = never,
    ) -> None:
        """`inherit`: the program gets the agent's environment, too. `task`: run this instead of a program."""
        super().__init__(request, sandbox_id=sandbox_id)
        self._channel: Channel | None = None
        self._order: dict[str, Any] = {
            "argv": request.argv,
            "env": dict(request.env),
            "cwd": request.cwd,
            "pty": request.pty,
            "rows": request.rows,
            "columns": request.columns,
            "stdin": request.stdin,
            "limit": request.output_limit_bytes,
            "quiet": request.quiet,
            "timeout": request.timeout,
            "rlimits": dict(rlimits or {}),
            "inherit": inherit,
        }
        self._task = task
        if task is not None:
            self._order |= {"task": task.name, "request": task.request}
        self._was_out_of_memory = was_out_of_memory
        self._began = time.monotonic()
        self._made_by = os.getpid()
        self._portal = portal
        self._loop = portal.loop
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._number = 0
        self._owed = 0
        self._lagging = False
        self._ack_lock = threading.Lock()
        self._credit = WINDOW_BYTES
        self._room: asyncio.Event | None = None
        self._input_open = request.stdin or request.pty
        self._reason: EndReason | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._packer = Packer()
        self._turn: asyncio.Lock | None = None
        self._asking: asyncio.Task[None] | None = None
        self._rest: asyncio.Event | None = None

    async def launch(self, find_channel: Callable[[], Awaitable[Channel]], explain: Explain) -> None:
        """Start it, from any event loop, on the channel that `find_channel` gives. Cancelling this call ends it.

        Raises: as `start`, and what `find_channel` raises.
        """

        async def begin() -> None:
            await self.start(await find_channel(), explain)

        try:
            await self._portal.finish(begin())
        except asyncio.CancelledError:
            self.end_tree("cancelled")  # whether it was started already, or only will be
            raise

    # On the channel's loop.

    async def start(self, channel: Channel, explain: Explain) -> None:
        """Start it.

        Raises:
            WorkdirError, InvalidCommandError, ExecError: it could not be started.
            CorralError: the reason that `explain` gives, if the agent does not answer.
        """
        if self._begin(channel):
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await wait_for(self._started)
            except TimeoutError:
                # The request may have been taken by a program that reads the agent's terminal.
                error = await explain("exec")
                if isinstance(error, ExecError):
                    channel.give_up()
                self.lose(error)
                raise error from None

    def _begin(self, channel: Channel) -> bool:
        """Request the start. False if its end was requested meanwhile."""
        if self._reason is not None or self.ended:
            self.finish(Ending(128 + signals.SIGKILL, "cancelled", Usage(0.0), signal=int(signals.SIGKILL)))
            return False
        self._channel = channel
        self._room, self._turn = asyncio.Event(), asyncio.Lock()
        self._number = channel.enter(self)
        if self._task is not None:
            channel.load(self._task.text)
        self._say(b"S", json.dumps({**self._order, "packs": channel.packs}).encode("utf-8", "surrogatepass"))
        if self._request.timeout is not None:
            self._watch(self._request.timeout + _GRACE_SECONDS)
        return True

    def _say(self, kind: bytes, data: bytes = b"") -> None:
        if self._channel is not None:
            self._channel.say(kind, self._number, data)

    def hear(self, kind: bytes, data: bytes) -> None:
        if kind in _STREAMS:
            self._take(_STREAMS[kind], data)
        elif kind in _PACKED:
            self._take(_PACKED[kind], unpack(data))
        elif kind == b"s":
            self._pid = int(told(data)["pid"])
            if not self._started.done():
                self._started.set_result(None)
        elif kind == b"w":
            self._credit += int.from_bytes(data, "big")
            self._wake()
        elif kind == b"c":
            self._input_open = False
            self._wake()
        elif kind == b"k":
            self._skip(told(data))
        elif kind == b"x":
            self._end_with(told(data))
        elif kind == b"z":
            self._rest_ended()
        elif kind == b"f":
            message = told(data)
            self._over()
            error = start_error(message, cwd=self._request.cwd, sandbox_id=self._sandbox_id)
            self.finish(error)
            if not self._started.done():
                self._started.set_exception(error)

    def lose(self, error: CorralError) -> None:
        self._over()
        self._rest_ended()
        if not self._started.done():
            self._started.set_exception(error)
        elif isinstance(error, ExecError) and self._started.exception() is None:
            # A program has killed the agent, and was ended for that with all the others: that is a result.
            usage = Usage(time.monotonic() - self._began, notes=("what watched over it inside was ended",))
            reason: EndReason = "signalled"
            if self._request.timeout is not None and usage.wall_seconds >= self._request.timeout:
                reason = "timeout"
            ending = Ending(128 + signals.SIGKILL, self._reason or reason, usage, signal=int(signals.SIGKILL))
            self._asking = self._loop.create_task(self._find_reason(ending))
            return
        self.finish(error)

    def _take(self, stream: StreamName, data: bytes) -> None:
        with self._ack_lock:
            self._owed += len(data)
            self._lagging = True  # before feeding: a reader that catches up meanwhile resumes only then
            forged = self._owed > _MOST_OWED_BYTES + self._request.output_limit_bytes
        if forged:
            # Our agent would not send more: a program has written to the channel.
            if self._channel is not None:
                self._channel.give_up()
            return
        if not self.feed(stream, data):
            with self._ack_lock:
                self._lagging = False
            self._acknowledge()

    def _skip(self, message: dict[str, Any]) -> None:
        """Count output that the agent left out, because it would not be kept. The number is hostile input."""
        stream, left = _STREAMS[str(message["stream"]).encode()], int(message["bytes"])
        if not 0 < left <= _MAX_SKIPPED_BYTES:
            raise ValueError("not a size")
        self.leave_out(stream, left)

    def _acknowledge(self) -> None:
        with self._ack_lock:
            if self._owed < _ACK_BYTES:
                return
            owed, self._owed = self._owed, 0
        self._say(b"A", owed.to_bytes(8, "big"))

    def _end_with(self, message: dict[str, Any]) -> None:
        self._over()
        if not self._started.done():
            self._started.set_result(None)  # it has killed its warden before that could say that it runs
        number = message.get("signal")
        code = int(message["code"])
        reason: EndReason = "signalled" if number is not None else "exited"
        if self._reason is not None:
            reason = self._reason
        elif message.get("reason") == "timeout":
            reason = "timeout"
        cpu, peak = message.get("cpu"), message.get("peak")
        usage = Usage(
            wall_seconds=float(message["wall"]),
            cpu_seconds=float(cpu) if cpu is not None else None,
            peak_memory_bytes=int(peak) if peak is not None else None,
            notes=_NOTES,
        )
        ending = Ending(code, reason, usage, signal=int(number) if number is not None else None)
        if reason == "signalled" and number == signals.SIGKILL:
            # Not by us: it may have been out of memory, which only the backend knows.
            self._asking = self._loop.create_task(self._find_reason(ending))
        else:
            self.finish(ending)

    async def _find_reason(self, ending: Ending) -> None:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                if ending.reason == "signalled" and await self._was_out_of_memory():
                    ending = replace(ending, reason="oom")
        except TimeoutError:
            pass
        finally:
            self.finish(ending)

    def _over(self) -> None:
        if self._channel is not None:
            self._channel.leave(self._number)
        self._input_open = False
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._room is not None:
            self._room.set()

    def _watch(self, seconds: float) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        if not self.ended:
            self._watchdog = self._loop.call_later(min(seconds, 86400.0), self._end_all, seconds)

    def _end_all(self, seconds: float) -> None:
        if seconds > 86400.0:
            self._watch(seconds - 86400.0)
        elif not self.ended and self._channel is not None:
            # The agent does not answer: everything on its channel is ended without it.
            self._channel.give_up()

    def _rest_ended(self) -> None:
        if self._rest is not None:
            self._rest.set()

    # For callers in any loop.

    def _here(self) -> None:
        if os.getpid() != self._made_by:
            raise ExecError(
                "the program belongs to the parent of this forked process",
                sandbox_id=self._sandbox_id,
                op="exec",
            )

    async def _write(self, data: bytes) -> bool:
        self._here()
        return await self._portal.arun(self._write_all(data))

    async def _write_all(self, data: bytes) -> bool:
        assert self._turn is not None
        assert self._room is not None
        async with self._turn:
            for offset in range(0, max(1, len(data)), PIECE_BYTES):
                piece = data[offset : offset + PIECE_BYTES]
                while self._input_open and self._credit < len(piece):
                    self._room.clear()
                    await self._room.wait()
                if not self._input_open:
                    return False
                self._credit -= len(piece)
                small = self._packer.pack(piece) if self._channel is not None and self._channel.packs else None
                self._say(b"I" if small is None else b"J", piece if small is None else small)
        return True

    async def close_stdin(self) -> None:
        self._here()
        await self._portal.arun(self._close_stdin())

    async def _close_stdin(self) -> None:
        assert self._turn is not None
        async with self._turn:
            if self._input_open:
                self._input_open = self._request.pty
                self._say(b"E")

    async def _signal(self, number: int) -> None:
        self._here()
        self._call(self._say, b"G", number.to_bytes(4, "big"))

    async def _resize(self, *, rows: int, columns: int) -> None:
        self._here()
        self._call(self._say, b"R", struct.pack(">HH", rows, columns))

    def end_tree(self, reason: EndReason) -> None:
        if self.ended or os.getpid() != self._made_by:
            return
        self._reason = self._reason or reason
        self._call(self._say, b"K", reason.encode())
        self._call(self._watch, _GRACE_SECONDS)

    async def end_rest(self) -> None:
        if self.ended and self._channel is not None and os.getpid() == self._made_by:
            with contextlib.suppress(TimeoutError):
                await self._portal.arun(self._end_rest(self._channel))

    async def _end_rest(self, channel: Channel) -> None:
        if channel.lost:
            return
        self._rest = asyncio.Event()
        channel.listen(self._number, self)
        try:
            channel.say(b"Z", self._number)
            await asyncio.wait_for(self._rest.wait(), _REST_SECONDS)
        finally:
            channel.leave(self._number)

    def resume_reading(self) -> None:
        with self._ack_lock:
            if not self._lagging:
                return
            self._lagging = False
        if os.getpid() == self._made_by:
            self._call(self._acknowledge)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        """Call a function on the channel's loop, unless that is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)
