"""What this process has asked a service to make, and must see through: no sandbox is lost on the way to its owner.

Whoever waits for one may be cancelled at any moment, its event loop may stop for ever, and the program may end. So each
is written down before it is asked for, with a mark that the service keeps as a label. What nobody takes over is
deleted, whether its answer has come, comes later, or was lost. At the end of the program this is done for all that is
left, on our own thread, and nothing more is asked for.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from corral.backends.daytona import life
from corral.backends.daytona.client import Client, close_all
from corral.backends.daytona.loop import find_loop, get_loop
from corral.backends.daytona.remote import Remote
from corral.backends.daytona.seam import ServiceError, reading
from corral.concurrency.portal import PerProcess
from corral.errors import BackendUnavailableError, CorralError

_EXIT_SECONDS = 30.0
"""So long the end of a program waits for the service in all; what is then left ends by the service's own clock."""
_OTHER_SECONDS = 10.0
"""So long for everything else that was begun."""
_LOOK_SECONDS = 1.0
"""So often an answer that does not come is looked for."""

log = logging.getLogger("corral.daytona")


class Owned(Protocol):
    """A sandbox that ends with this process."""

    @property
    def id(self) -> str:
        """Its name at the service."""

    @property
    def is_left(self) -> bool:
        """Whether it is still ours to end."""

    def end_now(self) -> concurrent.futures.Future[None]:
        """Begin to delete it."""


class Making:
    """One sandbox, from before it is asked for until somebody has it."""

    def __init__(self, client: Client, *, forked: bool = False) -> None:
        self.client = client
        self.mark = secrets.token_hex(16)
        self.forked = forked
        """A fork can be given no label, only a name."""
        self.asked = False
        """Whether the service may have made it: the request was sent, and not refused."""
        self.is_others = False
        """Whether the one that was found was made by another, with the same token."""
        self.undoing: concurrent.futures.Future[None] | None = None
        self.answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._asking: asyncio.Task[Any] | None = None

    def note_refusal(self, error: ServiceError) -> None:
        """A clear no, or nobody who was asked: there is none."""
        if error.unsent:
            self.asked = False
        if error.status is not None and 400 <= error.status < 500 and error.status != 408:
            self.asked = False

    # On our own loop.

    async def make(self, ask: Callable[[Making], Awaitable[Any]]) -> Any:
        """Ask for it. Raises: ServiceError, CorralError."""
        self._asking = asyncio.current_task()
        try:
            return await ask(self)
        except asyncio.CancelledError:
            raise closed_meanwhile() from None

    async def undo(self) -> None:
        """Delete it, whatever becomes of the request. Raises: ServiceError, CorralError."""
        answer = asyncio.wrap_future(self.answer)
        while not answer.done():
            if not self.asked or await self._delete_what_is_there():
                # Nothing was sent, or the answer that is not here is of no more use.
                assert self._asking is not None  # it began before this
                self._asking.cancel()
            await asyncio.wait([answer], timeout=_LOOK_SECONDS)
        if answer.exception() is None:
            if not self.is_others:
                box = answer.result()
                await asyncio.wrap_future(Remote(self.client, box.id, box).end())
        elif self.asked:
            await self._delete_marked()  # its answer was lost, or it was made and could not be used

    async def _delete_what_is_there(self) -> bool:
        """Whether it was there."""
        try:
            return await self._delete_marked()
        except ServiceError as error:
            log.debug("a sandbox that is being made can't be deleted yet: %s", error)
            return False

    async def _delete_marked(self) -> bool:
        from daytona import ListSandboxesQuery

        sdk = await self.client.sdk()
        with reading():
            if self.forked:
                found = [await sdk.get(life.token_name(self.mark))]
            else:
                found = [box async for box in sdk.list(ListSandboxesQuery(labels={life.MARK: self.mark}))]
        for box in found:
            if life.state_of(box) not in life.GONE:
                await asyncio.wrap_future(Remote(self.client, box.id).end())
        return bool(found)


def closed_meanwhile() -> BackendUnavailableError:
    """For whoever still waits for one that was given up."""
    return BackendUnavailableError("the backend was closed while the sandbox was being created", op="create")


class Book:
    """What is written down. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collector that ends a forgotten waiter may come here in the midst
        self._makings: set[Making] = set()
        self._owned: weakref.WeakSet[Owned] = weakref.WeakSet()
        self._is_over = False
        self._pid = os.getpid()
        atexit.register(self.end_all)

    def begin(self, making: Making, ask: Callable[[Making], Awaitable[Any]]) -> None:
        """Ask for one, to the end. Raises: BackendUnavailableError once the program is at its end."""

        with self._lock:
            if self._is_over:
                raise BackendUnavailableError(
                    "this process is exiting: a sandbox created now would never be deleted", op="create"
                )
            making.answer = making.client.see_through(get_loop().begin(making.make(ask)))
            self._makings.add(making)

    def own(self, sandbox: Owned) -> None:
        """It ends with this process, at the latest."""
        self._owned.add(sandbox)

    def strike(self, making: Making) -> None:
        """It has an owner, or there is none."""
        with self._lock:
            self._makings.discard(making)

    def give_up(self, making: Making) -> concurrent.futures.Future[None]:
        """Nobody wants it any more: begin to delete it. Gives the future of that, which never fails."""
        with self._lock:
            if making.undoing is None:
                making.undoing = making.client.see_through(get_loop().begin(self._undo(making)))
            return making.undoing

    def give_up_all(self, client: Client) -> Sequence[concurrent.futures.Future[None]]:
        """The same for all that are asked for by a client."""
        with self._lock:
            makings = list(self._makings)
        return [self.give_up(making) for making in makings if making.client is client]

    async def _undo(self, making: Making) -> None:
        try:
            await making.undo()
        except (ServiceError, CorralError) as error:
            if not (isinstance(error, ServiceError) and error.status == 404):
                log.warning("a sandbox may have been left running on the server: %s", error)
        finally:
            self.strike(making)

    def end_all(self) -> None:
        """At the end of the program: end what is left. Needs no event loop of the caller's: ours is a thread that goes
        last."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._is_over = True
            makings = list(self._makings)
        thread = find_loop()
        if thread is None:
            return
        deadline = time.monotonic() + _EXIT_SECONDS
        endings = {f"a new one ({making.mark})": self.give_up(making) for making in makings}
        # One that its owner has just closed too: the request may not have been sent.
        endings.update({sandbox.id: sandbox.end_now() for sandbox in list(self._owned) if sandbox.is_left})
        concurrent.futures.wait(endings.values(), timeout=_EXIT_SECONDS)
        close_all()
        thread.wait_for_work(min(_OTHER_SECONDS, deadline - time.monotonic()))
        for name, ending in endings.items():
            if not ending.done() or ending.exception() is not None:
                log.warning("sandbox %s could not be deleted at exit", name)


_book = PerProcess(Book)


def get_book() -> Book:
    """The book of this process."""
    return _book.get()
