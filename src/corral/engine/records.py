"""Recorded programs of a detached sandbox: the keeper holds their input or terminal, and writes their records.

Clients read the records from the disk themselves, and write to a program through a copy of its input; so a client that
is slow, floods or does not read delays only itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from corral.engine import wire
from corral.engine.client import ask
from corral.engine.recordfile import DiskBudget, RecordWriter
from corral.inside.ready import READ_BYTES, Loop, OutputReading, waiting_bytes

MAX_RECORDS = 1000
_PAGE = 25
_ENTRY_BYTES = 64 * 1024
_GRACE_SECONDS = 5.0
"""Init enforces a program's timeout. If it does not report the end so much later, the whole sandbox is killed."""
_TERMINAL_SECONDS = 0.25
"""How long a terminal is read after the program's end, if a background process holds it open."""
_TIMEOUT_CODE = 124


class RecordedProgram:
    """A recorded program, from its start until its record is deleted."""

    def __init__(
        self, loop: Loop, writer: RecordWriter, *, number: int, name: str, pty: bool, give_up: Callable[[], None]
    ) -> None:
        self.number = number
        self.name = name
        self.pty = pty
        self.started = time.time()
        self.pid = 0
        self.tree = 0
        self.running = True
        self.writer = writer
        self.stdin_fd: int | None = None
        self.on_start: Callable[[wire.Message], None] = lambda _: None
        self._loop = loop
        self._give_up = give_up
        self._channel: socket.socket | None = None
        self._reading = OutputReading()
        self._outputs: dict[int, str] = {}
        self._last_words: wire.Message | None = None
        self._listeners: list[socket.socket] = []
        self._waiters: list[socket.socket] = []
        self._end: dict[str, Any] = {}
        self._forgotten = False

    def begin(self, control: socket.socket, program: dict[str, Any]) -> None:
        """Ask init to start it. Raises: GoneError."""
        theirs: list[int] = []
        try:
            self._open_pipes(theirs)
            message = {**program, "op": "start", "outlive_client": True}
            self._channel = ask(control, message, tuple(theirs))
        finally:
            wire.close_all(theirs)
        self._channel.setblocking(False)
        self._loop.watch(self._channel.fileno(), self._hear)
        timeout = program.get("timeout")
        if timeout is not None:
            self._loop.call_at(self, time.monotonic() + float(timeout) + _GRACE_SECONDS, self._give_up)

    def abandon(self) -> None:
        """Close everything: it was never started."""
        self.running = False
        self.close_stdin(even_terminal=True)
        self._reading.close_writers()
        for descriptor in list(self._outputs):
            self._drop(descriptor)

    def _open_pipes(self, theirs: list[int]) -> None:
        if self.pty:
            return
        reader, self.stdin_fd = os.pipe2(os.O_CLOEXEC)
        theirs.append(reader)
        os.set_blocking(self.stdin_fd, False)
        for kind in ("stdout", "stderr"):
            output, writer = self._reading.open_pipe()
            theirs.append(writer)
            self._outputs[output] = kind
            self._listen(output)

    def _listen(self, descriptor: int) -> None:
        # Edge-triggered, and before the program can write: that keeps the order of output.
        self._loop.watch(descriptor, functools.partial(self._take, descriptor), edge=True)

    # Output.

    def _take(self, descriptor: int) -> None:
        kind = self._outputs.get(descriptor)
        if kind is None:
            return
        data = self._reading.read(descriptor, terminal=self.pty)
        if data:
            self._keep(kind, data)
        elif data is not None:
            self._drop(descriptor)
            return
        self._reading.read_on(self._loop, descriptor, data, functools.partial(self._take, descriptor))

    def _keep(self, kind: str, data: bytes) -> None:
        if not self.running or self._forgotten:
            return  # output of a background child: read, so that it does not block, and dropped
        self._reading.count(len(data), self._outputs, self._loop)
        for start in range(0, len(data), _ENTRY_BYTES):
            self.append(kind, data[start : start + _ENTRY_BYTES])

    def append(self, kind: str, data: bytes) -> int:
        """Write an entry, and notify waiting readers."""
        offset = self.writer.append(kind, data)
        self._tell({"ok": True})
        return offset

    def _drop(self, descriptor: int) -> None:
        del self._outputs[descriptor]
        self._loop.unwatch(descriptor)
        if descriptor != self.stdin_fd:
            os.close(descriptor)
        elif self._last_words is not None:
            self._finish()

    # Reports of init.

    def _hear(self) -> None:
        if self._channel is None:
            return
        try:
            received = wire.hear(self._channel, allow_large=False)
        except BlockingIOError:
            return
        if received is None:
            self._stop_hearing()
            return  # init has ended, and the sandbox with it: the keeper sees that elsewhere
        message, descriptors = received
        if message.get("ended") or "error" in message:
            wire.close_all(descriptors)
            self._stop_hearing()
            self._last_words = message
            self._loop.again(self._end_after_output)
        elif "started" in message and not self.pid:
            self._announce(message, descriptors)
        else:
            wire.close_all(descriptors)

    def _announce(self, message: wire.Message, descriptors: list[int]) -> None:
        pid = message["started"]
        terminal = descriptors.pop(0) if self.pty and descriptors else None
        wire.close_all(descriptors)
        if terminal is not None and not os.isatty(terminal):
            os.close(terminal)
            terminal = None
        if not isinstance(pid, int) or pid < 1 or (self.pty and terminal is None):
            self._give_up()  # malformed: init is not trusted
            return
        self.pid = pid
        self.tree = int(message["tree"]) if isinstance(message.get("tree"), int) else 0
        if terminal is not None:
            os.set_blocking(terminal, False)
            self.stdin_fd = terminal
            self._outputs[terminal] = "stdout"
            self._listen(terminal)
            self._loop.again(lambda: self._take(terminal))
        self.on_start({"ok": True})

    def _stop_hearing(self) -> None:
        assert self._channel is not None
        self._loop.unwatch(self._channel.fileno())
        self._channel.close()
        self._channel = None

    def _end_after_output(self) -> None:
        """All output before the end has been read by now."""
        if self.pty and self.stdin_fd in self._outputs:
            # A terminal delivers its last output a moment later, and hangs up when all of it has been read.
            self._loop.call_at(self, time.monotonic() + _TERMINAL_SECONDS, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        if not self.running or self._last_words is None:
            return
        for descriptor, kind in list(self._outputs.items()):
            remaining = waiting_bytes(descriptor)
            while remaining > 0:
                try:
                    data = os.read(descriptor, READ_BYTES)
                except OSError:
                    break
                remaining -= len(data) or remaining
                self._keep(kind, data)
        self._loop.cancel(self)
        self._reading.close_writers()
        self.running = False
        if "error" in self._last_words:
            self.on_start(self._last_words)  # it never ran
        self._end = _describe_end(self._last_words)
        if not self._forgotten:
            self.writer.append("end", json.dumps(self._end).encode())
        self.writer.close()
        self.close_stdin(even_terminal=True)
        self._tell({"ok": True})
        waiters, self._waiters = self._waiters, []
        for reply in waiters:
            self.wait(reply)
        for descriptor in list(self._outputs):
            self._take(descriptor)

    # Requests of clients.

    def listen(self, since: int, reply: socket.socket) -> None:
        """Answer as soon as there is an entry at or after an offset."""
        self._listeners.append(reply)
        if self.writer.next_offset > since or not self.running:
            self._tell({"ok": True})

    def wait(self, reply: socket.socket) -> None:
        """Answer when it has ended."""
        if self.running:
            self._waiters.append(reply)
        else:
            wire.answer(reply, {"ok": True, "end": self._end})

    def _tell(self, message: wire.Message) -> None:
        listeners, self._listeners = self._listeners, []
        for reply in listeners:
            wire.answer(reply, {**message, "running": self.running})

    def tell_init(self, message: wire.Message) -> None:
        """Send init a message about the program, if it runs. Raises: OSError if init does not read."""
        if self._channel is not None:
            wire.send(self._channel, message, wait=False)

    def kill(self) -> None:
        """Kill its whole tree; if init does not, the sandbox is killed."""
        if self.running:
            with contextlib.suppress(OSError):
                self.tell_init({"op": "kill", "reason": "cancelled"})
            self._loop.call_at(self, time.monotonic() + _GRACE_SECONDS, self._give_up)

    def close_stdin(self, *, even_terminal: bool = False) -> None:
        """Close its input."""
        if self.stdin_fd is None or (self.pty and not even_terminal):
            return
        if self._outputs.pop(self.stdin_fd, None) is not None:
            self._loop.unwatch(self.stdin_fd)
        os.close(self.stdin_fd)
        self.stdin_fd = None

    def forget(self) -> None:
        """Delete the record. Later output of the program is dropped."""
        self._forgotten = True
        self._tell({"error": "not_recorded", "text": self.name})
        self.writer.delete()

    def describe(self) -> wire.Message:
        """The program as a list shows it."""
        return {
            "number": self.number,
            "name": self.name,
            "pid": self.pid,
            "pty": self.pty,
            "running": self.running,
            "started": self.started,
            "first_offset": self.writer.first_offset,
            "next_offset": self.writer.next_offset,
        }


class Records:
    """All recorded programs of a sandbox, by number and by name."""

    def __init__(
        self, loop: Loop, folder: str, control: socket.socket, give_up: Callable[[], None], *, budget: DiskBudget
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._budget = budget
        self._control = control
        self._give_up = give_up
        self._programs: dict[int, RecordedProgram] = {}
        self._last = 0

    def answer(self, message: wire.Message, reply: socket.socket) -> None:
        """Answer a client. Raises: OSError, EngineError; KeyError, TypeError, ValueError for a malformed request."""
        do = message["do"]
        if do == "start":
            self._start(message, reply)
            return
        if do == "list":
            after = int(message["after"])
            page = [program for number, program in self._programs.items() if number > after and program.pid][:_PAGE]
            wire.answer(reply, {"ok": True, "records": [program.describe() for program in page]})
            return
        program = self._find(message)
        if program is None:
            wire.answer(reply, {"error": "not_recorded", "text": "no recorded program of that name"})
        elif do == "find":
            wire.answer(reply, {"ok": True, **program.describe()})
        elif do == "listen":
            program.listen(int(message["since"]), reply)
        elif do == "wait":
            program.wait(reply)
        elif do == "stdin":
            wire.answer(reply, {"ok": True}, () if program.stdin_fd is None else (program.stdin_fd,))
        elif do == "end_rest":
            # Init answers the client itself: the keeper never waits for a process inside.
            wire.send(self._control, {"op": "end_rest", "tree": program.tree}, (reply.fileno(),))
            reply.close()
        elif do == "note":
            self._note(program, str(message["data"]).encode("latin-1"), reply)
        else:
            self._act(program, message)
            wire.answer(reply, {"ok": True})

    def _act(self, program: RecordedProgram, message: wire.Message) -> None:
        do = message["do"]
        if do == "close_stdin":
            program.close_stdin()
        elif do == "signal":
            program.tell_init({"op": "signal", "number": int(message["number_of_signal"])})
        elif do == "kill":
            program.kill()
        elif do == "forget":
            program.kill()
            self._forget(program)
        else:
            raise ValueError(f"unknown: {do!r:.100}")

    def _find(self, message: wire.Message) -> RecordedProgram | None:
        if "number" in message:
            return self._programs.get(int(message["number"]))
        return next((program for program in self._programs.values() if program.name == message["name"]), None)

    def _start(self, message: wire.Message, reply: socket.socket) -> None:
        name = str(message["name"])
        if any(program.name == name for program in self._programs.values()):
            wire.answer(reply, {"error": "name_taken", "text": name})
            return
        if len(self._programs) >= MAX_RECORDS:
            wire.answer(reply, {"error": "too_many", "text": f"there are {MAX_RECORDS} recorded programs: forget some"})
            return
        note = None if message.get("note") is None else str(message["note"]).encode("latin-1")
        if note is not None and not self._budget.takes_note(len(note)):
            wire.answer(reply, {"error": "too_many", "text": "there are too many notes in the records of this sandbox"})
            return
        self._last += 1
        folder, limit = os.path.join(self._folder, str(self._last)), max(1, int(message["limit"]))
        writer = RecordWriter(folder, limit, self._budget)
        program = RecordedProgram(
            self._loop, writer, number=self._last, name=name, pty=bool(message["pty"]), give_up=self._give_up
        )
        self._programs[program.number] = program

        def announce(answer: wire.Message) -> None:
            """Reply once. If the client has gone meanwhile, the program is killed, since it would never be used."""
            program.on_start = lambda _: None
            if "error" in answer:
                self._forget(program)
            if not wire.answer(reply, {**answer, **program.describe()}):
                program.kill()
                self._forget(program)

        program.on_start = announce
        try:
            if note is not None:
                writer.append("note", note)
            program.begin(self._control, dict(message["program"]))
        except BaseException:
            program.abandon()
            self._forget(program)
            raise

    def _forget(self, program: RecordedProgram) -> None:
        self._programs.pop(program.number, None)
        program.forget()

    @staticmethod
    def _note(program: RecordedProgram, data: bytes, reply: socket.socket) -> None:
        if not program.running:
            wire.answer(reply, {"error": "ended", "text": "the program has ended, and its record was deleted"})
        elif not program.writer.takes_note(len(data)):
            wire.answer(reply, {"error": "too_many", "text": "too many notes in this record"})
        else:
            wire.answer(reply, {"ok": True, "offset": program.append("note", data)})


def _describe_end(message: wire.Message) -> dict[str, Any]:
    """Init's report for the record. Any part of it may be malformed: init is not trusted."""
    with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
        reason = str(message["reason"])[:20]
        usage = message["usage"]
        cpu = usage["cpu_seconds"]
        return {
            "exit_code": _TIMEOUT_CODE if reason == "timeout" else int(message["code"]) & 0xFFFF,
            "reason": reason,
            "signal": int(message["signal"]) or None,
            "limit": str(message["limit"])[:20],
            "wall_seconds": float(usage["wall_seconds"]),
            "cpu_seconds": None if cpu is None else float(cpu),
            "peak_memory_bytes": int(usage["peak_memory_bytes"] or 0),
        }
    return {"exit_code": 255, "reason": "cancelled", "signal": None}
