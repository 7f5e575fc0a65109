"""The channel to one agent inside, shared by all programs that it runs for us."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from corral.concurrency.waiting import wait_for
from corral.errors import CorralError
from corral.inside.bundle import bundle
from corral.inside.frames import PIECE_BYTES, Parser, pack

AGENT_PARTS = (
    "processes", "trees", "starting", "ready", "frames", "agent.job", "agent.warden", "agent.loop"
)  # fmt: skip

_MAX_HEARD_BYTES = 256 * 1024
"""An agent's frames are pieces of output and small messages. A longer one is forged, and would cost memory and time."""
_HEARD_KINDS = frozenset((b"H", b"s", b"f", b"o", b"e", b"O", b"E", b"k", b"w", b"c", b"x", b"z", b"P"))
_BOOT_SECONDS = 45.0
_END_SECONDS = 10.0
_ASK_SECONDS = 2.0
_ASK_TIMES = 10
"""While calls wait and nothing is received, the agent is asked so often whether it is alive; then it is ended. A busy
sandbox is slow to answer."""
_WAKE_EVERY = 3
_MOST_WAKES = 6
_WAKE_SECONDS = 5.0

log = logging.getLogger("corral.agent")

Take = Callable[[bytes], None]
Explain = Callable[[str], Awaitable[CorralError]]
"""Gives the reason why a sandbox does not answer."""
IsResting = Callable[[], Awaitable[bool]]
"""Gives True if a sandbox can't answer because it is paused, or being copied."""


def agent_text() -> bytes:
    """The agent as text, for a Python without Corral."""
    return bundle(*AGENT_PARTS)


class Transport(Protocol):
    """A stream of bytes to an agent, from one event loop."""

    slow: bool
    """True if compressing is worth while."""

    async def open(self, take: Take) -> None:
        """Have a Python inside run `agent_text()`. From then on, `take` is called with what the agent sends."""

    async def send(self, data: bytes) -> None:
        """Send, in order."""

    async def wait(self) -> None:
        """Wait until the connection ends. Raises: CorralError if the agent can't run here at all."""

    async def wake(self, agent: int) -> None:
        """Continue the agent, whose pid this is, if it was stopped."""

    async def end(self) -> None:
        """End the agent and everything that it runs, without its help. Idempotent."""

    async def disconnect(self) -> None:
        """Close the connection, and leave the agent running."""


class Listener(Protocol):
    """A program, as the channel sees it. Called on the channel's loop."""

    def hear(self, kind: bytes, data: bytes) -> None:
        """A frame for it has come."""

    def lose(self, error: CorralError) -> None:
        """The channel is lost."""


async def never() -> bool:
    """False: for an agent that never rests."""
    return False


class Channel:
    """A connected agent. Everything here runs in one event loop, that of the transport."""

    def __init__(self, transport: Transport, explain: Explain, is_resting: IsResting = never) -> None:
        self._transport = transport
        self._explain = explain
        self._is_resting = is_resting
        self._listeners: dict[int, Listener] = {}
        self._numbers = 0
        self._parser = Parser(_MAX_HEARD_BYTES)
        self._booted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._sending: asyncio.Future[Any] | None = None
        self._heard = False
        self._loaded: set[bytes] = set()
        self._agent = 0
        self.packs = False
        """True if input and output are compressed."""
        self.lost = False

    async def open(self) -> None:
        """Start the agent. Raises: TimeoutError, or what the transport raises."""
        try:
            async with asyncio.timeout(_BOOT_SECONDS):
                await self._transport.open(self._take)
                self._keep(self._watch())
                await self._booted
        except BaseException:
            self.lost = True
            self._keep(self._end())
            raise
        self._sending = self._keep(self._send_all())
        self._keep(self._watch_silence())

    # Programs.

    def enter(self, listener: Listener) -> int:
        """A number for a program, whose frames the listener gets."""
        self._numbers += 1
        self._listeners[self._numbers] = listener
        return self._numbers

    def listen(self, number: int, listener: Listener) -> None:
        """Listen again to a program after `leave`."""
        self._listeners[number] = listener

    def leave(self, number: int) -> None:
        """Stop listening to a program."""
        self._listeners.pop(number, None)

    def say(self, kind: bytes, number: int, data: bytes = b"") -> None:
        """Send a frame, in order, without waiting: senders of much data are bounded by their credit."""
        if not self.lost:
            self._outbox.put_nowait(pack(kind, number, data))

    def load(self, text: bytes) -> None:
        """Define functions in the agent, which it can then run as tasks. Each text is sent once."""
        if text not in self._loaded:
            self._loaded.add(text)
            self.say(b"L", 0, text)

    async def _send_all(self) -> None:
        with contextlib.suppress(Exception):  # a broken connection is noticed by the reader
            while (data := await self._outbox.get()) is not None:
                while not self._outbox.empty() and len(data) < PIECE_BYTES:
                    more = self._outbox.get_nowait()
                    if more is None:
                        self._outbox.put_nowait(None)
                        break
                    data += more
                for offset in range(0, len(data), PIECE_BYTES):
                    await self._transport.send(data[offset : offset + PIECE_BYTES])

    # Received frames.

    def _take(self, data: bytes) -> None:
        """Raises: ValueError for a frame that no agent of ours sends; then the channel is lost."""
        self._heard = True
        for kind, number, content in self._parser.feed(data):
            if kind not in _HEARD_KINDS:
                raise ValueError(f"a frame of the kind {kind!r}")
            if kind == b"H":
                if not self._booted.done():
                    self._agent, self.packs = number, self._transport.slow and content == b"z"
                    self._booted.set_result(None)
            elif (listener := self._listeners.get(number)) is not None:
                try:
                    listener.hear(kind, content)
                except Exception:
                    # Anything may come from inside; one program's nonsense must not silence the others.
                    log.debug("malformed frame for program %d", number, exc_info=True)

    # Ends.

    async def _watch(self) -> None:
        try:
            await self._transport.wait()
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # Not this task: the transport's reader was cancelled, because the connection was given up.
        except CorralError as error:
            if not self._booted.done():
                self._booted.set_exception(error)
        except Exception as error:  # noqa: BLE001 - nothing more comes, for any reason
            log.debug("the connection to the agent broke: %s", error)
        await self._lose()

    async def _watch_silence(self) -> None:
        """End an agent that does not answer: a program may stop it, or take its terminal."""
        asked, resting, wakes = 0, False, 0
        while not self.lost:
            self._heard = False
            await asyncio.sleep(_ASK_SECONDS)
            if self._heard or not self._listeners:
                asked, resting = 0, False
            elif (asked or resting) and await self._is_resting():
                asked, resting = 0, True  # and is not asked again before that is over: it could not read the question
            elif asked < _ASK_TIMES:
                asked += 1
                self.say(b"P", 0)
                if asked % _WAKE_EVERY == 2 and wakes < _MOST_WAKES:
                    wakes += 1  # bounded: a program may stop it again and again
                    self._keep(self._wake())
            else:
                log.debug("the agent does not answer: ending it")
                await self._lose()

    async def _wake(self) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_WAKE_SECONDS):
                await self._transport.wake(self._agent)

    async def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._outbox.put_nowait(None)
        listeners, self._listeners = list(self._listeners.values()), {}
        error = await self._explain("exec")
        if not self._booted.done():
            self._booted.set_exception(error)
        await self._end()  # first: listeners that are told of the end must find it ended
        for listener in listeners:
            listener.lose(error)

    def give_up(self) -> None:
        """Start to end everything that runs on it, without the agent's help."""
        self._keep(self._lose())

    async def _end(self) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_END_SECONDS):
                await self._transport.end()

    async def let_go(self) -> None:
        """Disconnect and leave programs running; the agent ends with the last of them."""
        if self.lost:
            return
        self.say(b"D", 0)
        self._outbox.put_nowait(None)
        self.lost = True
        if self._sending is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._sending), _END_SECONDS)
        with contextlib.suppress(Exception):
            await self._transport.disconnect()

    def _keep(self, work: Coroutine[Any, Any, object]) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Channels:
    """The channel to the agent of one sandbox: opened when it is first needed, and again after it was lost."""

    def __init__(self, open_channel: Callable[[], Coroutine[Any, Any, Channel]]) -> None:
        self._open = open_channel
        # At most one: a forked process has another event loop, and needs a channel of its own.
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[Channel]] = {}

    async def here(self) -> Channel:
        """The channel of the running event loop. Raises: what opening it raises."""
        loop = asyncio.get_running_loop()
        while True:
            opening = self._opening.get(loop)
            if opening is None or (opening.done() and _find_open(opening) is None):
                opening = loop.create_task(self._open())
                self._opening = {loop: opening}
            channel = await wait_for(opening)
            if not channel.lost:
                return channel

    async def let_go(self) -> None:
        """Disconnect from the agent; see `Channel.let_go`. An agent that is just starting is ended."""
        opening = self._opening.pop(asyncio.get_running_loop(), None)
        if opening is None:
            return
        if not opening.done():
            opening.cancel()
        elif (channel := _find_open(opening)) is not None:
            await channel.let_go()


def _find_open(opening: asyncio.Task[Channel]) -> Channel | None:
    if opening.cancelled() or opening.exception() is not None or opening.result().lost:
        return None
    return opening.result()


def told(data: bytes) -> dict[str, Any]:
    """Parse a message from inside. Raises: ValueError."""
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError("not an object")  # noqa: TRY004 - a message from inside, not an argument
    return message
