"""Talking to the file agent inside a sandbox: one request, one answer, or an answer in batches."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from corral.backends.embedded import exchange
from corral.backends.embedded.seam import file_error, mapped
from corral.concurrency.waiting import wait_for
from corral.engine import wire
from corral.engine.errors import GoneError
from corral.errors import SandboxFileInterruptedError

_SEARCH_SECONDS = 300
_ANSWER_SECONDS = 300
"""No single file takes that long; an agent that is silent for so long has been tampered with."""
_REPEATABLE = frozenset(("stat", "resolve", "open"))
_ATTEMPTS = 3
_PUBLIC_NAMES: dict[str, str] = {"open": "read", "write_stream": "write"}


class AgentClient:
    """The way to the agent of one sandbox, from any thread and event loop. It is started when it is first needed."""

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
        """Let go of the agent."""
        if self._agent is not None:
            self._forget(self._agent)

    async def _find_agent(self) -> socket.socket:
        """The agent; started by the first who needs it, in whatever thread and event loop, and the others wait."""
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
                mine.set_result(None)  # if it failed, another one tries

    async def _request(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> socket.socket:
        self._ensure_open()
        for _ in range(2):
            agent = await self._find_agent()
            try:
                return await exchange.ask(agent, message, descriptors)
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
        """The one answer to a request. Raises: as `talking`, and what the agent refuses."""
        answer, received = await self.ask_for_descriptors(message, descriptors, path=path)
        wire.close_all(received)
        return answer

    async def ask_for_descriptors(
        self, message: wire.Message, descriptors: tuple[int, ...] = (), *, path: str
    ) -> tuple[wire.Message, list[int]]:
        """The one answer to a request that may be repeated if the agent is killed before it comes."""
        for attempt in range(_ATTEMPTS if message["op"] in _REPEATABLE else 1, 0, -1):
            try:
                async with self.talking(message, descriptors, path=path) as sock:
                    answer, received = await exchange.receive_within(sock, _ANSWER_SECONDS)
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
        """A request, and the socket of its answer. An agent that goes away is not the end of the sandbox.

        Raises:
            SandboxGoneError: the sandbox is no more.
            SandboxFileInterruptedError: it lives, but whether the operation was done is not known.
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
        """An answer, unless it is a refusal, which is raised."""
        if "error" in answer:
            raise file_error(answer, path=path, sandbox_id=self._sandbox_id, op=operation)
        return answer

    async def collect(
        self, message: wire.Message, descriptors: tuple[int, ...] = (), *, path: str
    ) -> tuple[list[Any], wire.Message]:
        """An answer that comes in batches, as a whole."""
        items: list[Any] = []
        async for batch, last in self.batches(message, descriptors, path=path):
            items.extend(batch)
            if last is not None:
                return items, last
        raise GoneError("an unterminated reply")

    async def batches(
        self, message: wire.Message, descriptors: tuple[int, ...] = (), *, path: str
    ) -> AsyncGenerator[tuple[list[Any], wire.Message | None], None]:
        """An answer that comes in batches; with the last, which is empty, comes what is said at the end."""
        async with self.talking({"timeout": _SEARCH_SECONDS, **message}, descriptors, path=path) as sock:
            while True:
                part, received = await exchange.receive(sock)
                wire.close_all(received)
                if "items" not in part:
                    yield [], self.check(part, path, message["op"])
                    return
                yield part["items"], None
                await asyncio.sleep(0)  # an agent that is faster than we are must not keep others from their turn
