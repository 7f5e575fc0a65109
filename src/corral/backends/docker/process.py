"""A program in a container: an exec of the daemon, its streams, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal as signals
import time
from typing import TYPE_CHECKING, NoReturn

import aiohttp
from aiodocker.exceptions import DockerError

from corral.backends.docker.engine_api import Duplex
from corral.backends.docker.enter import ROOT, ask_who, enter, explain, parse_who
from corral.backends.docker.insidescripts import CALL_VARIABLE, launch, part_env
from corral.backends.docker.seam import is_gone, mapped, says_no_user
from corral.base.process import AsyncProcess, Ending
from corral.concurrency.waiting import cancel_all
from corral.errors import BackendUnavailableError, CorralError, ExecError, InvalidCommandError, gone
from corral.protocol import SpawnRequest
from corral.results import EndReason, StreamName, Usage

if TYPE_CHECKING:
    from corral.backends.docker.sandbox import DockerSandbox

_STREAMS: dict[int, StreamName] = {1: "stdout", 2: "stderr"}
_NOTES = ("Docker counts CPU time and memory of a container, not of one program in it",)
_FIRST_LOOK_SECONDS = 0.05
_LAST_LOOK_SECONDS = 1.0
_LAST_WORDS_SECONDS = 0.1
_MAX_EARLY_BYTES = 1024 * 1024
_KILLED = 128 + signals.SIGKILL
_BROKEN = (aiohttp.ClientError, ConnectionError, RuntimeError, OSError)


class DockerProcess(AsyncProcess):
    """A program of a container. It runs in the loop of the I/O thread; callers may be in any loop."""

    def __init__(self, sandbox: DockerSandbox, request: SpawnRequest) -> None:
        super().__init__(request, sandbox_id=sandbox.id)
        self._sandbox = sandbox
        self._io = sandbox.io
        self._exec_id = ""
        self._opened: Duplex | None = None
        self._abandoned = False
        self.token = secrets.token_hex(12)
        self._head = b""
        self._begun = time.monotonic()
        self._takes_input = request.stdin or request.pty
        self._go = asyncio.Event()
        self._taken = 0
        self._lags = False
        self._reason: EndReason | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()

    @property
    def user(self) -> str:
        """The user it runs as; empty for the image's."""
        return self._request.user

    @property
    def _stream(self) -> Duplex:
        assert self._opened is not None, "it was started"
        return self._opened

    # Starting, in the I/O thread.

    async def begin(self) -> None:
        """Start it. Cancelled in the middle, it is ended as soon as it has started.

        Raises:
            WorkdirError, InvalidCommandError, SandboxGoneError, SandboxPausedError, ExecError
        """
        beginning = asyncio.ensure_future(self._begin())
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            self._abandoned = True
            self._io.spawn(self._abandon(beginning))
            raise

    async def _abandon(self, beginning: asyncio.Future[None]) -> None:
        with contextlib.suppress(CorralError, DockerError, asyncio.CancelledError):
            await beginning
            self._end_tree("cancelled")

    async def _begin(self) -> None:
        request = self._request
        view = bool(request.read_only or request.hidden)
        with mapped(op="exec", sandbox_id=self._sandbox.id):
            argv, env = await self._enter() if view else self._launch()
            self._exec_id = await self._sandbox.api.create_exec(
                self._sandbox.container, argv, env={**env, CALL_VARIABLE: self.token},
                user=ROOT if view else request.user, stdin=request.stdin, tty=request.pty, privileged=view,
            )  # fmt: skip
            if self._abandoned:
                raise asyncio.CancelledError
            self._opened = self._sandbox.api.start_exec(self._exec_id, tty=request.pty)
            try:
                await self._read_head()
            except BaseException:
                with contextlib.suppress(*_BROKEN):
                    await self._stream.close()
                raise
        if request.timeout is not None:
            left = request.timeout - (time.monotonic() - self._begun)
            self._timer = self._io.loop.call_later(max(0.0, left), self.end_tree, "timeout")
        self._sandbox.processes.add(self)
        self._io.spawn(self._follow())

    def _launch(self) -> tuple[tuple[str, ...], dict[str, str]]:
        request = self._request
        odd, env = part_env(request)
        argv = ("env", *odd, *request.argv) if odd else request.argv
        size = (request.rows, request.columns) if request.pty else None
        return launch(argv, token=self.token, cwd=request.cwd, stdin=request.stdin, size=size), env

    async def _enter(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """With a view: `enter` runs as root, and is told which user to become."""
        request = self._request
        known = self._sandbox.users
        if request.user not in known:
            api, argv = self._sandbox.api, ask_who(self.token)
            _, said = await api.collect(self._sandbox.container, argv, user=request.user)
            who = parse_who(said, self.token)
            if who is None:
                await self._explain(said)
            known[request.user] = who
        key = self._sandbox.view_key
        assert key is not None, "it was checked before the call"
        return enter(request, known[request.user], token=self.token, key=key)

    async def _read_head(self) -> None:
        """Read its pid from the first line."""
        said = bytearray()
        while b"\n" not in self._head:
            message = await self._stream.read_out()
            if message is None:
                await self._explain(bytes(self._head + said))
            if message.stream == 1:
                self._head += message.data
            elif len(said) < _MAX_EARLY_BYTES:
                said += message.data  # the daemon may pass on later output of the other stream first
            if len(self._head) > 4096 and not self._head.startswith(self.token.encode()):
                await self._explain(self._head)
        line, _, rest = self._head.partition(b"\n")
        words = line.decode("ascii", "replace").split()
        if len(words) == 4 and words[0] == self.token:
            raise explain(words[1:], self._request, sandbox_id=self._sandbox.id)
        if len(words) != 2 or words[0] != self.token:
            await self._explain(self._head)
        self._pid = int(words[1])
        if rest:
            self.feed("stdout", rest)
        if said:
            self.feed("stderr", bytes(said))

    async def _explain(self, said: bytes) -> NoReturn:
        """Raises the reason why the program could not be started."""
        text = said.decode("utf-8", "replace").strip()[:300]
        where = self._sandbox.id
        if says_no_user(text):
            raise InvalidCommandError(f"unknown user {self._request.user!r}", sandbox_id=where, op="exec")
        if not await self._sandbox.runs():
            raise gone(where, op="exec")
        if "/bin/sh" in text and "no such file" in text:
            raise BackendUnavailableError(
                "the image has no /bin/sh", sandbox_id=where, op="exec", hint="use an image with a shell and coreutils"
            )
        if "argument list too long" in text.lower():
            raise InvalidCommandError("arguments and environment are too long", sandbox_id=where, op="exec")
        raise ExecError(
            f"the program could not be started: {text or 'no reason was told'}", sandbox_id=where, op="exec"
        )

    # Following, in the I/O thread.

    async def _follow(self) -> None:
        try:
            code = await self._read()
            if code is None:
                code = await self._wait_for_code()
            ending: Ending | CorralError = await self._judge(code)
        except DockerError as error:
            ending = gone(self._sandbox.id, op="exec") if is_gone(error) else ExecError(str(error))
        except CorralError as error:
            ending = error
        except _BROKEN as error:
            alive = await self._sandbox.runs()
            text = f"the connection to the Docker daemon was lost: {type(error).__name__}"
            ending = ExecError(text, sandbox_id=self._sandbox.id) if alive else gone(self._sandbox.id, op="exec")
        finally:
            if self._timer is not None:
                self._timer.cancel()
            with contextlib.suppress(*_BROKEN):
                await self._stream.close()
        self.finish(ending)
        self._sandbox.processes.discard(self)

    async def ends_within(self, seconds: float) -> bool:
        """True if it has ended by then."""
        waiting = asyncio.wrap_future(self._end)
        done, _ = await asyncio.wait({waiting}, timeout=seconds)
        return bool(done)

    async def _read(self) -> int | None:
        """Pass on its output. Gives its exit code, if it ends while another process still holds its output open."""
        pause = _FIRST_LOOK_SECONDS
        reading = asyncio.ensure_future(self._read_all())
        try:
            while True:
                taken = self._taken
                done, _ = await asyncio.wait({reading}, timeout=pause)
                if not done and self._is_silent_since(taken):
                    code = await self._sandbox.api.find_exit_code(self._exec_id)
                    if code is not None:
                        done, _ = await asyncio.wait({reading}, timeout=_LAST_WORDS_SECONDS)
                        if not done and self._is_silent_since(taken):
                            return code
                    pause = min(pause * 2, _LAST_LOOK_SECONDS)
                if done:
                    reading.result()
                    return None
        finally:
            await cancel_all(reading)

    async def _read_all(self) -> None:
        """Read to the end of its output, in one task: one per write of a program would cost more than the write."""
        while (message := await self._stream.read_out()) is not None:
            self._taken += 1
            self._lags = True
            self._go.clear()
            if self.feed(_STREAMS.get(message.stream, "stdout"), message.data) and self._reason is None:
                await self._go.wait()
            self._lags = False

    def _is_silent_since(self, taken: int) -> bool:
        return taken == self._taken and not self._lags

    def resume_reading(self) -> None:
        with contextlib.suppress(RuntimeError):  # the I/O thread has ended, and the program with it
            self._io.loop.call_soon_threadsafe(self._go.set)

    async def _wait_for_code(self) -> int:
        """Wait for its exit code. Its streams are closed: it has ended, or prints no more."""
        pause = 0.002
        while (code := await self._sandbox.api.find_exit_code(self._exec_id)) is None:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.5)
        return code

    async def _judge(self, code: int) -> Ending | CorralError:
        usage = Usage(wall_seconds=time.monotonic() - self._begun, notes=_NOTES)
        if self._reason is not None and not (self._reason == "cancelled" and code != _KILLED):
            return Ending(_KILLED, self._reason, usage, signal=int(signals.SIGKILL))
        if code == _KILLED:
            if not await self._sandbox.outlived_a_kill():
                return gone(self._sandbox.id, op="exec")
            if await self._sandbox.counts_new_oom():
                return Ending(code, "oom", usage, signal=int(signals.SIGKILL))
        if 128 < code < 128 + signals.NSIG:  # how the daemon reports a signal; an exit code looks the same
            return Ending(code, "signalled", usage, signal=code - 128)
        return Ending(code, "exited", usage)

    # For callers in any loop.

    async def _write(self, data: bytes) -> bool:
        return self._takes_input and not self.ended and await self._io.arun(self._write_all(data))

    async def _write_all(self, data: bytes) -> bool:
        async with self._writing:
            if not self._takes_input or self.ended:
                return False
            try:
                for offset in range(0, len(data), 65536):
                    await self._stream.write_in(data[offset : offset + 65536])
            except (*_BROKEN, AssertionError):
                return False
        return True

    async def close_stdin(self) -> None:
        if self.ended or not self._takes_input:
            return
        if self._request.pty:
            await self.write(b"\x04")
            return
        await self._io.arun(self._close_stdin())

    async def _close_stdin(self) -> None:
        async with self._writing:
            self._takes_input = False
            with contextlib.suppress(*_BROKEN):
                await self._stream.end_input()

    async def _signal(self, number: int) -> None:
        await self._io.arun(self._sandbox.send_signal(self, number))

    async def _resize(self, *, rows: int, columns: int) -> None:
        await self._io.arun(self._sandbox.api.resize_exec(self._exec_id, rows=rows, columns=columns))

    def end_tree(self, reason: EndReason) -> None:
        if self.ended:
            return
        try:
            self._io.loop.call_soon_threadsafe(self._end_tree, reason)
        except RuntimeError:  # the I/O thread has ended
            self.finish(gone(self._sandbox.id, op="exec"))

    def _end_tree(self, reason: EndReason) -> None:
        if self._reason is None and not self.ended:
            self._reason = reason
            self._go.set()
            self._io.spawn(self._sandbox.end_call(self))

    def end_gone(self, text: str = "the sandbox has ended") -> None:
        self._go.set()
        super().end_gone(text)

    async def end_rest(self) -> None:
        await self._io.arun(self._sandbox.end_call(self, final=False))
