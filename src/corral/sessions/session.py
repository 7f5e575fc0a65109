"""ShellSession: one shell that runs command after command, and keeps its state between them.

The shell is a recorded program that runs a small driver. The driver reads names of commands from its stdin, one after
the other (so the queue outlives this process), and sources each from a file in a private folder: the working folder,
variables, functions and everything else in the shell stay for the next command. Each command has its own standard input
and output. `corral.sessions.transcript` reads the record, which holds the whole state of a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, Unpack

from corral.base.command import with_bash
from corral.base.process import Capture, as_bytes
from corral.concurrency.waiting import cancel_all, in_time, still_running, wait_for
from corral.errors import (
    CorralError,
    ExecError,
    InvalidCommandError,
    NameTakenError,
    NotRecordedError,
    SandboxGoneError,
    SessionEndedError,
)
from corral.protocol import SessionOptions
from corral.results import Denial, OutputChunk, StreamName
from corral.sessions.record import DEFAULT_RECORD_BYTES, Entry, Recorded
from corral.sessions.records import check_name
from corral.sessions.shell import DRIVER, FEED, PLACE, RUN, SIGNAL
from corral.sessions.transcript import KEPT_BYTES, CommandState, Demux, Piece, Transcript, ended_streams

if TYPE_CHECKING:
    from corral.client.sandbox import AsyncSandbox

prefix = "session:"
"""The prefix of sessions' names as recorded programs."""

_HELPER_SECONDS = 60.0
_INTERRUPT_SECONDS = 1.5
_INTERRUPT_TRIES = 10
_TERMINATE_TENTHS = 20
_FED_SECONDS = 1.0
_NOTED_CHARACTERS = 64 * 1024
"""How much of a command's text is kept in the record."""
_MAX_WAITING = 1000
"""How many commands may be queued, if their texts take no more memory than `KEPT_BYTES`."""


@dataclass(frozen=True, slots=True)
class SessionCommand:
    """A command of a session, and its current state."""

    id: str
    text: str
    exit_code: int | None
    """None while it is queued or running. -1 if its end was lost with dropped output."""
    started: float
    """When it was submitted, as Unix time."""
    begun: bool
    """True if the shell has started it."""
    denied: tuple[Denial, ...] = field(default=(), compare=False)
    """What the sandbox tried to reach while `run` waited for it, and was refused."""


@dataclass(frozen=True, slots=True)
class SessionLogs:
    """The output of a command so far."""

    stdout: bytes
    stderr: bytes
    output: bytes
    """Both, in order."""
    chunks: tuple[OutputChunk, ...]
    """The same, piece by piece."""
    lost_bytes: int = 0
    """About how many bytes the record dropped, besides those that the call's limit cut."""
    truncated: bool = False
    """True if anything is missing; lines in the output say where, and how much."""


class ShellSession:
    """A shell that keeps its state. It outlives this handle, and this process if the backend supports it."""

    def __init__(self, box: AsyncSandbox, recorded: Recorded) -> None:
        self._box = box
        self._recorded = recorded
        self._transcript = Transcript()
        self._lock = threading.Lock()

    @classmethod
    async def open(
        cls,
        box: AsyncSandbox,
        name: str,
        *,
        limit_bytes: int = DEFAULT_RECORD_BYTES,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """Start a shell: bash if the sandbox has it, else sh.

        Raises:
            NameTakenError: a session of that name already exists.
            InvalidCommandError, WorkdirError: as `exec`.
        """
        nonce = secrets.token_hex(16)
        folder = f"{box.temporary}/.corral-session-{secrets.token_hex(8)}"
        about = {"session": {"nonce": nonce, "folder": folder, "user": options.get("user")}}
        try:
            recorded = await box.start_recorded(
                with_bash("-c", DRIVER, "shell", nonce, folder),
                name=check_name(name, prefix=prefix),
                limit_bytes=limit_bytes,
                note=json.dumps(about).encode(),
                **options,
            )
        except NameTakenError as error:
            raise NameTakenError(f"a session named {name!r} already exists", op="open_session") from error
        return cls(box, recorded)

    @classmethod
    async def attach(cls, box: AsyncSandbox, name: str) -> Self:
        """A handle to an open session, also of another process. Raises: NotRecordedError."""
        try:
            session = cls(box, await box.find_recorded(prefix + name))
        except NotRecordedError as error:
            raise NotRecordedError(f"session {name!r:.200} not found", op="find_session") from error
        await session._catch_up()
        return session

    @property
    def name(self) -> str:
        """Its name in the sandbox."""
        return self._recorded.name.removeprefix(prefix)

    @property
    def pid(self) -> int:
        """The shell's process id inside."""
        return self._recorded.pid

    @property
    def memory_bytes(self) -> int:
        """About how much memory this handle uses for the session's commands."""
        return self._transcript.memory_bytes

    # Commands.

    async def run(
        self,
        command: str,
        *,
        wait: bool = True,
        open_input: bool | None = None,
        input_echo: bool = False,
        timeout: float | None = None,
    ) -> SessionCommand:
        """Run a command after those that are queued.

        With `wait`, its stdin is empty, and this call waits for its end; without, its stdin is open for `feed`, unless
        `open_input` says otherwise. With `input_echo`, its output includes what is fed. Neither a timeout nor
        cancelling ends the command.

        Raises:
            SessionEndedError: the shell has exited, also if it exits before it starts this command.
            InvalidCommandError: empty, or with a NUL.
            ExecError: too many commands are queued, or the session's record is full.
            TimeoutError: it is still running after `timeout`; `commands()` lists it.
            SandboxGoneError: the sandbox was deleted meanwhile.
        """
        if not isinstance(command, str) or not command.strip():
            raise InvalidCommandError("the command is empty or not a string", op="run", hint="pass a shell command")
        if "\0" in command:
            raise InvalidCommandError(f"the command has a NUL byte: {command[:40]!r}", op="run", hint="remove it")
        # Shielded: half a request would leave a command in the record that never runs.
        takes_input = not wait if open_input is None else open_input
        denied = self._box.watch_denials()
        submitting = asyncio.ensure_future(self._submit(command, takes_input=takes_input, input_echo=input_echo))
        command_id = await wait_for(submitting)
        if not wait:
            return await self.command(command_id)
        done = await self.wait(command_id, timeout=timeout)
        await self._box.primitives.settle_denials()
        return replace(done, denied=denied())

    async def commands(self) -> tuple[SessionCommand, ...]:
        """The commands with their current states, oldest first. About 4 MiB of commands and their texts are kept;
        beyond that, the oldest ended ones are forgotten."""
        await self._catch_up()
        with self._lock:
            return tuple(_describe(told) for told in self._transcript.commands.values())

    async def command(self, command_id: str) -> SessionCommand:
        """One command, with its current state. Raises: NotRecordedError."""
        await self._catch_up()
        return _describe(self._told(command_id))

    async def wait(self, command_id: str, *, timeout: float | None = None) -> SessionCommand:
        """Wait for a command's end.

        Raises:
            NotRecordedError: command not found.
            SessionEndedError: the shell exited before it ran the command.
            TimeoutError: it is still running after `timeout`.
            SandboxGoneError: the sandbox was deleted meanwhile.
        """
        async with in_time(timeout, still_running):
            await self._until(command_id, lambda told: told.ended)
        told = self._told(command_id)
        if not told.ended:
            raise SessionEndedError("the shell exited before it ran this command", op="wait")
        return _describe(told)

    async def ended(self) -> bool:
        """True if the shell has exited."""
        await self._catch_up()
        return self._transcript.end is not None

    # Output and input.

    async def logs(self, command_id: str, *, limit_bytes: int = DEFAULT_RECORD_BYTES) -> SessionLogs:
        """The output of a command so far. Can be read any number of times.

        Later output of a background child is added, until the next command starts.

        Raises:
            NotRecordedError: command not found.
        """
        capture, lost = await self._read_log(command_id, limit_bytes)
        return SessionLogs(
            stdout=capture.stream("stdout"),
            stderr=capture.stream("stderr"),
            output=capture.combined(),
            chunks=tuple(capture.chunks()),
            lost_bytes=lost,
            truncated=capture.truncated or lost > 0,
        )

    async def log_chunks(self, command_id: str, *, limit_bytes: int = DEFAULT_RECORD_BYTES) -> list[OutputChunk]:
        """The same in pieces, in order, without a copy of the whole. Raises: as `logs`."""
        capture, _ = await self._read_log(command_id, limit_bytes)
        return capture.chunks()

    async def _read_log(self, command_id: str, limit_bytes: int) -> tuple[Capture, int]:
        """The recorded output, and about how much was dropped."""
        await self._catch_up()
        capture = Capture(limit_bytes)
        lost = 0
        async for piece in self._pieces(command_id, follow=False):
            if piece.kind == "lost":
                lost += piece.number
            capture.add(piece.stream, _shown(piece))
        return capture, lost

    async def follow(self, command_id: str) -> AsyncIterator[OutputChunk]:
        """The output of a command, from its first byte until it or the shell ends.

        Raises:
            NotRecordedError: command not found.
            SandboxGoneError: the sandbox was deleted meanwhile.
        """
        await self._catch_up()
        await self._until(command_id, lambda told: told.begun or told.ended)
        async for piece in self._pieces(command_id, follow=True):
            yield OutputChunk(piece.stream, _shown(piece))

    async def feed(self, command_id: str, data: bytes | str) -> None:
        """Send input to a command that was started with `wait=False`. Waits while the program does not read.

        Its stdin stays open until the command ends: a program that reads until the end of its input needs `interrupt`,
        or the input in the command's text.

        Raises:
            NotRecordedError: command not found.
            ExecError: its stdin is not open, or it has ended.
        """
        content = as_bytes(data)
        await self._catch_up()
        if not self._told(command_id).takes_input:
            raise ExecError("the command's stdin is not open", op="feed", hint="run it with wait=False")
        await self._until(command_id, lambda told: told.begun or told.ended)
        if self._is_over(command_id):
            raise ExecError("the command has ended", op="feed")
        if self._told(command_id).input_echo:
            await self._note({"fed": {"id": command_id, "data": content.decode("latin-1")}})
        feeding = asyncio.ensure_future(
            self._helper(FEED, f"{self._folder}/{command_id}.in", stdin=content, timeout=None)
        )
        ending = asyncio.ensure_future(self._until(command_id, lambda told: told.ended))
        try:
            await asyncio.wait((feeding, ending), return_when=asyncio.FIRST_COMPLETED)
            if not feeding.done():
                ending.result()
                await asyncio.wait((feeding,), timeout=_FED_SECONDS)  # it may have read everything and ended
            if not feeding.done():
                raise ExecError("the command ended before it read all of its stdin", op="feed")
            feeding.result()
        finally:
            await cancel_all(feeding, ending)

    # Ending.

    async def interrupt(self, command_id: str) -> SessionCommand:
        """Stop a running command, first with SIGINT and then with SIGKILL; the shell keeps running.

        A queued command never runs: its exit code is 130 when its turn comes. A command that has ended is not
        changed.

        Raises:
            NotRecordedError: command not found.
            ExecError: the shell itself does not respond; `delete` kills it.
        """
        await self._catch_up()
        told = self._told(command_id)
        if not told.begun and not self._is_over(command_id):
            # Without its file, the driver skips it. It may also have started it at this very moment.
            await self._helper('rm -f -- "$1"', f"{self._folder}/{command_id}")
            await self._catch_up()
            if list(self._transcript.waiting)[:1] != [command_id]:  # it is queued, or has ended meanwhile
                return _describe(self._told(command_id))
            with contextlib.suppress(TimeoutError):  # a shell that does not respond is detected below
                async with asyncio.timeout(_INTERRUPT_SECONDS * _INTERRUPT_TRIES):
                    await self._until(command_id, lambda told: told.begun or told.ended)
        for attempt in range(_INTERRUPT_TRIES):
            if self._is_over(command_id):
                return await self.command(command_id)
            await self._recorded.signal(signal.SIGURG)  # the driver's trap: leave the command after the present step
            await self._signal_programs("KILL" if attempt else "INT", "running")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERRUPT_SECONDS):
                    await self._until(command_id, lambda told: told.ended)
        raise ExecError("the shell does not respond", op="interrupt", hint="delete the session, and open another")

    async def delete(self) -> None:
        """Kill the shell and its processes, SIGTERM first, and delete the session. Idempotent."""
        try:
            await self._catch_up()
            folder = self._folder
            whom = "all" if self._transcript.end is None else "left"
            await self._signal_programs("TERM", whom, grace=_TERMINATE_TENTHS)
            if whom == "left":
                await self._signal_programs("KILL", whom)
                # And processes that left the shell's session, if the backend tracks them.
                await self._recorded.end_rest()
        except CorralError:
            folder = ""  # deleted already, or nothing inside responds: then it is killed
        await self._recorded.forget()
        if folder:
            with contextlib.suppress(CorralError):
                await self._helper('rm -rf -- "$1"', folder)

    # Inside.

    @property
    def _folder(self) -> str:
        return str(self._transcript.about["folder"])

    async def _submit(self, command: str, *, takes_input: bool, input_echo: bool) -> str:
        await self._catch_up()
        if self._transcript.end is not None:
            raise _shell_ended()
        command_id = secrets.token_hex(8)
        with self._lock:
            waiting, sealed = tuple(self._transcript.waiting.values()), self._transcript.unsealed()
        if len(waiting) >= _MAX_WAITING or sum(told.memory_bytes for told in waiting) > KEPT_BYTES:
            raise ExecError(
                f"{len(waiting)} commands are queued in this session, which is the limit",
                op="run",
                hint="wait until some of them have ended, or open another session",
            )
        spent = [name for ended, _ in sealed for name in (ended, f"{ended}.in")]
        kind = "fifo" if takes_input else "null"
        await self._helper(PLACE, self._folder, RUN, command_id, kind, *spent[:1000], stdin=as_bytes(command + "\n"))
        asked = {"id": command_id, "text": command[:_NOTED_CHARACTERS], "input": takes_input, "echo": input_echo}
        try:
            await self._note({"command": asked, "ended": sealed})
        except ExecError as error:
            await self._catch_up()
            if self._transcript.end is None:
                hint = "open another session"
                raise ExecError("the session has run too many commands", op="run", hint=hint) from error
            raise _shell_ended() from error
        try:
            await self._recorded.write(f"{command_id} {kind}\n")
        except ExecError as error:
            raise _shell_ended() from error
        return command_id

    async def _helper(
        self, script: str, *args: str, stdin: bytes = b"", timeout: float | None = _HELPER_SECONDS
    ) -> None:
        """Run a small program beside the shell, as its user. Raises: ExecError if it fails."""
        user = self._transcript.about.get("user")
        result = await self._box.exec(
            ["/bin/sh", "-c", script, "sh", *args], cwd="/", stdin=stdin, user=user, timeout=timeout
        )
        if not result.ok:
            raise ExecError(f"can't use the session's folder: {result.stderr.strip()[-200:]}", op="session")

    async def _signal_programs(self, name: str, whom: str, *, grace: int = 0) -> None:
        with contextlib.suppress(ExecError):  # the process limit is reached: the caller continues
            await self._helper(SIGNAL, str(self._recorded.pid), name, whom, str(grace), f"{self._folder}/jobs")

    async def _note(self, note: dict[str, object]) -> None:
        await self._recorded.note(json.dumps(note).encode())

    def _told(self, command_id: str) -> CommandState:
        with self._lock:
            told = self._transcript.commands.get(command_id)
        if told is None:
            text = f"command {command_id!r:.200} not found in this session, or it is too old"
            raise NotRecordedError(text, op="session")
        return told

    def _is_over(self, command_id: str) -> bool:
        return self._told(command_id).ended or self._transcript.end is not None

    def _hear(self, entry: Entry) -> None:
        with self._lock:
            self._transcript.feed(entry)

    async def _catch_up(self) -> None:
        async for entry in self._recorded.entries(since=self._transcript.next_offset, follow=False):
            self._hear(entry)

    async def _until(self, command_id: str, condition: Callable[[CommandState], bool]) -> None:
        """Follow the record until the state of a command is known, or the shell has exited."""
        await self._catch_up()
        if condition(self._told(command_id)) or self._transcript.end is not None:
            return
        async with contextlib.aclosing(self._recorded.entries(since=self._transcript.next_offset)) as entries:
            async for entry in entries:
                self._hear(entry)
                if condition(self._told(command_id)):
                    return
        if self._transcript.end is None:
            raise SandboxGoneError("the sandbox ended while a session was running", op="session", hint="make a new one")

    async def _pieces(self, command_id: str, *, follow: bool) -> AsyncIterator[Piece]:
        """The output of one command; with `follow`, up to its end, else up to the next command."""
        told = self._told(command_id)
        if told.start is None:
            return
        (offset, before), ends, left = told.start, set[StreamName](), set[StreamName]()
        demux, lossy = before.copy(), False
        async with contextlib.aclosing(self._recorded.entries(since=offset, follow=follow)) as entries:
            async for entry in entries:
                gap, offset = entry.offset - offset, entry.next_offset
                lossy = lossy or gap > 0
                for piece in _read(entry, gap, demux, told):
                    if piece.kind == "begin" and piece.command != command_id:
                        left.add(piece.stream)
                    elif piece.command != command_id:
                        continue
                    elif piece.kind == "end":
                        ends.update(ended_streams(piece, lossy=lossy))
                    elif piece.kind != "begin":
                        yield piece
                if len(left) == 2 or (follow and len(ends) == 2):
                    return


def _read(entry: Entry, gap: int, demux: Demux, told: CommandState) -> list[Piece]:
    pieces = demux.lose(gap, told.id) if gap > 0 else []  # a gap at the beginning includes the first mark
    if entry.kind == "note":
        fed = entry.content.get("fed")
        if fed is not None:
            pieces.append(Piece("output", fed["id"], "stdout", fed["data"].encode("latin-1")))
    elif entry.kind == "end":
        pieces += demux.flush()
    else:
        pieces += demux.feed(entry.kind, entry.data)
    return pieces


def _shell_ended() -> SessionEndedError:
    return SessionEndedError("the session's shell has exited", op="run", hint="open another session")


def _shown(piece: Piece) -> bytes:
    if piece.kind == "lost":
        return f"\n[corral: about {piece.number} bytes of output left out]\n".encode()
    return piece.data


def _describe(told: CommandState) -> SessionCommand:
    code = told.exit_code if told.ended else None
    return SessionCommand(told.id, told.text, code, told.at, told.begun)
