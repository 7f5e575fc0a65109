"""The channel: one terminal of a sandbox, made raw, with our agent on its other end.

The service's own calls can't give what is promised here: `exec` merges the streams and waits for background children,
a session's command takes no end of input and no bytes that are not text. A terminal's websocket is the one thing that
carries bytes both ways. So one is opened per sandbox and process, and all programs share it. If the agent inside is
ended by a program, or stopped so that it does not answer, the terminal is deleted, which ends everything that ran on
it; the next call opens another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from corral.backends.daytona.frames import PIECE_BYTES, Parser, agent_text, pack
from corral.backends.daytona.seam import ServiceError, reading
from corral.errors import BackendUnavailableError, CorralError, ExecError

if TYPE_CHECKING:
    from daytona import AsyncSandbox as SdkSandbox

_BOOT_SECONDS = 45.0
_DELETE_SECONDS = 10.0
_ASK_SECONDS = 2.0
_ASK_TIMES = 10
"""While calls wait and nothing is heard, the agent is asked so often whether it is there; then it is taken for stopped.
A busy sandbox is slow to answer."""
_WAKE_EVERY = 3
_MOST_WAKES = 6
_WAKE_SECONDS = 5.0
_NOISE_BYTES = 256 * 1024

_USUAL_PATH = "/opt/corral/bin:/opt/corral/python/bin:/usr/local/bin:/usr/bin:/bin"

log = logging.getLogger("corral.daytona")

Explain = Callable[[str], Awaitable[CorralError]]
"""Why a sandbox does not answer: from its state, as the service tells it."""
IsResting = Callable[[], Awaitable[bool]]
"""Whether it does not answer because it can't: it is paused, or being copied."""


class Listener(Protocol):
    """A call, as the channel sees it. On the channel's own loop."""

    def hear(self, kind: bytes, data: bytes) -> None:
        """A frame for it."""

    def lose(self, error: CorralError) -> None:
        """The channel is gone."""


def _boot_line(token: str, size: int) -> str:
    # The marks are put together inside, so that the echo of this line is not taken for them. One line, well below what
    # a terminal takes; the agent itself follows when the terminal is raw.
    code = (
        f'import sys,tty;tty.setraw(0);sys.stdout.write("<"+"{token}>");sys.stdout.flush();'
        f'exec(compile(sys.stdin.buffer.read({size}),"corral","exec"),{{"__name__":"__main__"}})'
    )
    lacking = f'printf "<%s-no-python>" {token}; exit 9'
    # The terminal's is a login shell, whose profile may have set another PATH than the service's own calls have. What
    # it was started with is still to be read; without a /proc it is the profile's. Our own Python may be on either, or
    # in a usual place, where whoever made the sandbox gave a PATH without it.
    given = '{ tr "\\n\\0" " \\n" </proc/$$/environ | sed -n "/^PATH=/{s///p;q;}"; } 2>/dev/null'
    find = f"$(command -v python3 || {{ PATH=$q:{_USUAL_PATH}; command -v python3; }})"
    words = (
        "unset HISTFILE",
        f"q=$PATH p=$({given})",
        f"PATH=${{p:-$q}} x={find}",
        f'[ -n "$x" ] || {{ {lacking}; }}',
        f"exec \"$x\" -I -S -c '{code}'",
    )
    return f" {'; '.join(words)}\n"


class Channel:
    """See above. Everything here runs on our own loop."""

    def __init__(self, box: SdkSandbox, explain: Explain, is_resting: IsResting) -> None:
        self._box = box
        self._explain = explain
        self._is_resting = is_resting
        self._name = f"corral-{secrets.token_hex(8)}"
        self._token = secrets.token_hex(8)
        self._calls: dict[int, Listener] = {}
        self._numbers = 0
        self._parser: Parser | None = None
        self._noise = bytearray()
        self._booted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handle: Any = None
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._sending: asyncio.Future[Any] | None = None
        self._heard = False
        self._agent = 0
        self.takes_packed = False
        """Whether input may be compressed."""
        self.lost = False

    async def open(self) -> None:
        """Raises: BackendUnavailableError without a Python inside; ServiceError."""
        from daytona.common.pty import PtySize

        try:
            async with asyncio.timeout(_BOOT_SECONDS):
                with reading():
                    self._handle = await self._box.process.create_pty_session(
                        id=self._name, on_data=self._take, pty_size=PtySize(rows=24, cols=80)
                    )
                    self._keep(self._watch())
                    await self._handle.send_input(_boot_line(self._token, len(agent_text())))
                await self._booted
        except BaseException as error:
            self.lost = True
            self._keep(self._destroy())
            if isinstance(error, TimeoutError):
                raise ServiceError(503, "the sandbox's terminal does not respond") from error
            raise
        self._sending = self._keep(self._send_all())
        self._keep(self._watch_silence())

    # Calls.

    def enter(self, listener: Listener) -> int:
        """A number for a call, whose frames it will hear."""
        self._numbers += 1
        self._calls[self._numbers] = listener
        return self._numbers

    def leave(self, number: int) -> None:
        """Hear no more."""
        self._calls.pop(number, None)

    def say(self, kind: bytes, number: int, data: bytes = b"") -> None:
        """Send a frame, in order. Nothing is waited for: who sends much has credit for it."""
        if not self.lost:
            self._outbox.put_nowait(pack(kind, number, data))

    async def _send_all(self) -> None:
        with contextlib.suppress(Exception):  # a broken connection is noticed by whoever reads
            while (data := await self._outbox.get()) is not None:
                while not self._outbox.empty() and len(data) < PIECE_BYTES:
                    more = self._outbox.get_nowait()
                    if more is None:
                        self._outbox.put_nowait(None)
                        break
                    data += more
                for offset in range(0, len(data), PIECE_BYTES):
                    await self._handle.send_input(data[offset : offset + PIECE_BYTES])

    # What comes.

    async def _take(self, data: bytes) -> None:
        self._heard = True
        if self._parser is None:
            await self._boot(data)
            return
        for kind, number, content in self._parser.feed(data):
            if kind == b"H":
                if not self._booted.done():
                    self._agent, self.takes_packed = number, content == b"z"
                    self._booted.set_result(None)
            elif (listener := self._calls.get(number)) is not None:
                try:
                    listener.hear(kind, content)
                except Exception:
                    # What comes from inside may be anything; one call's nonsense must not silence the others.
                    log.debug("a frame of call %d was nonsense", number, exc_info=True)

    async def _boot(self, data: bytes) -> None:
        self._noise += data
        before, mark, after = bytes(self._noise).partition(f"<{self._token}>".encode())
        if mark:
            self._noise.clear()
            self._parser = Parser()
            text = agent_text()
            for offset in range(0, len(text), PIECE_BYTES):
                await self._handle.send_input(text[offset : offset + PIECE_BYTES])
            if after:
                await self._take(after)
        elif f"<{self._token}-no-python>".encode() in before and not self._booted.done():
            self._booted.set_exception(
                BackendUnavailableError(
                    "the sandbox has no python3, which is needed to run programs",
                    hint="use an image or a snapshot that has it",
                )
            )
        elif len(self._noise) > _NOISE_BYTES:
            del self._noise[: len(self._noise) - 1024]

    # Ends.

    async def _watch(self) -> None:
        try:
            await self._handle.wait()
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # Not we: the reader was cancelled, because the connection was given up.
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing more comes
            log.debug("a terminal broke: %s", error)
        await self._lose()

    async def _watch_silence(self) -> None:
        """A program may stop the agent, or take its terminal: nobody on this side must wait for ever for that."""
        asked, resting, wakes = 0, False, 0
        while not self.lost:
            self._heard = False
            await asyncio.sleep(_ASK_SECONDS)
            if self._heard or not self._calls:
                asked, resting = 0, False
            elif (asked or resting) and await self._is_resting():
                asked, resting = 0, True  # and is not asked again before that is over: nobody would read it
            elif asked < _ASK_TIMES:
                asked += 1
                self.say(b"P", 0)
                if asked % _WAKE_EVERY == 2 and wakes < _MOST_WAKES:
                    wakes += 1  # who stops it again and again does not keep us busy for ever
                    self._keep(self._wake())
            else:
                log.debug("nothing inside answers any more: the terminal is ended")
                await self._lose()

    async def _wake(self) -> None:
        """If it was only stopped, it goes on."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_WAKE_SECONDS):
                await self._box.process.exec(f"kill -CONT {self._agent}", timeout=int(_WAKE_SECONDS))

    async def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._outbox.put_nowait(None)
        calls, self._calls = list(self._calls.values()), {}
        error = await self._explain("exec")
        if not self._booted.done():
            self._booted.set_exception(error)
        await self._destroy()  # first: who is told that a program was ended must find it ended
        for call in calls:
            call.lose(error)

    def give_up(self) -> None:
        """Begin to end everything that runs on it, from the service's side, without asking anything inside."""
        self._keep(self._lose())

    async def _destroy(self) -> None:
        handle = self._handle
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_DELETE_SECONDS):
                await self._box.process.kill_pty_session(self._name)
        if handle is not None:
            with contextlib.suppress(Exception):
                await handle.disconnect()

    async def let_go(self) -> None:
        """Leave programs to themselves; the agent ends with the last of them."""
        if self.lost:
            return
        self.say(b"D", 0)
        self._outbox.put_nowait(None)
        self.lost = True
        if self._sending is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._sending), _DELETE_SECONDS)
        if self._handle is not None:
            with contextlib.suppress(Exception):
                await self._handle.disconnect()

    def _keep(self, work: Coroutine[Any, Any, object]) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def lost_inside() -> ExecError:
    """The sandbox runs, but what watched over its programs does not."""
    return ExecError(
        "the process supervisor inside the sandbox was killed, and its programs with it",
        op="exec",
        hint="a program in the sandbox may have killed it; the next call restarts it",
    )


def told(data: bytes) -> dict[str, Any]:
    """A message from inside. Raises: ValueError."""
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError("not an object")  # noqa: TRY004 - what comes from inside is a value, not an argument
    return message
