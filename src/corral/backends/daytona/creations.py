"""The sandboxes that this process has requested from a service: none is lost before it has an owner.

A caller may be cancelled at any moment, its event loop may stop forever, and the program may end. So each creation is
recorded before the request is sent, with a mark that the service keeps as a label. A sandbox without an owner is
deleted, whether the answer has come, comes later, or was lost. At the end of the program this is done for all that are
left, on our own thread, and new requests are refused.
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
from typing import TYPE_CHECKING, Any

from corral.backends.daytona import life
from corral.backends.daytona.client import Client, close_all
from corral.backends.daytona.loop import find_loop, get_loop
from corral.backends.daytona.remote import Remote
from corral.backends.daytona.seam import ServiceError, reading
from corral.concurrency.portal import PerProcess
from corral.errors import BackendUnavailableError, CorralError

if TYPE_CHECKING:
    from corral.backends.daytona.sandbox import DaytonaSandbox

_EXIT_SECONDS = 30.0
"""How long the end of a program waits for the service; sandboxes that are then left end by the service's own clock."""
_OTHER_SECONDS = 10.0
"""How long it waits for all other work."""
_LOOK_SECONDS = 1.0
"""How often a sandbox is looked for whose answer does not come."""

log = logging.getLogger("corral.daytona")


class Creation:
    """One sandbox, from before the request until it has an owner."""

    def __init__(self, client: Client, *, forked: bool = False) -> None:
        self.client = client
        self.mark = secrets.token_hex(16)
        self.forked = forked
        """A fork can't be given a label, only a name."""
        self.asked = False
        """True if the service may have created it: the request was sent, and not refused."""
        self.is_others = False
        """True if another caller created it with the same token."""
        self.undoing: concurrent.futures.Future[None] | None = None
        self.answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._asking: asyncio.Task[Any] | None = None

    def note_refusal(self, error: ServiceError) -> None:
        """The request was refused or not sent, so the service has created nothing."""
        refused = error.status is not None and 400 <= error.status < 500 and error.status != 408
        if error.unsent or refused:
            self.asked = False

    # On our own loop.

    async def make(self, ask: Callable[[Creation], Awaitable[Any]]) -> Any:
        """Send the request. Raises: ServiceError, CorralError."""
        self._asking = asyncio.current_task()
        try:
            return await ask(self)
        except asyncio.CancelledError:
            raise closed_meanwhile() from None

    async def undo(self) -> None:
        """Delete it, at whatever stage the request is. Raises: ServiceError, CorralError."""
        answer = asyncio.wrap_future(self.answer)
        while not answer.done():
            if not self.asked or await self._try_delete():
                # Nothing was sent, or the sandbox is deleted: the answer is no longer needed.
                assert self._asking is not None  # it began before this
                self._asking.cancel()
            await asyncio.wait([answer], timeout=_LOOK_SECONDS)
        if answer.exception() is None:
            if not self.is_others:
                box = answer.result()
                await asyncio.wrap_future(Remote(self.client, box.id, box).end())
        elif self.asked:
            await self._delete_marked()  # its answer was lost, or it was created and could not be used

    async def _try_delete(self) -> bool:
        try:
            return await self._delete_marked()
        except ServiceError as error:
            log.debug("a sandbox that is being created can't be deleted yet: %s", error)
            return False

    async def _delete_marked(self) -> bool:
        """Delete it by its mark; True if the service has it."""
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
    """The error for callers that still wait for a sandbox that was given up."""
    return BackendUnavailableError("the backend was closed while the sandbox was being created", op="create")


class CreationBook:
    """The creations and owned sandboxes of this process. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may call in the midst, for a caller that was forgotten
        self._creations: set[Creation] = set()
        self._owned: weakref.WeakSet[DaytonaSandbox] = weakref.WeakSet()
        self._is_over = False
        self._pid = os.getpid()
        atexit.register(self.end_all)

    def begin(self, creation: Creation, ask: Callable[[Creation], Awaitable[Any]]) -> None:
        """Send a request, to its end. Raises: BackendUnavailableError when the program is exiting."""
        with self._lock:
            if self._is_over:
                raise BackendUnavailableError(
                    "this process is exiting: a sandbox created now would never be deleted", op="create"
                )
            creation.answer = creation.client.finish_before_close(get_loop().begin(creation.make(ask)))
            self._creations.add(creation)

    def own(self, sandbox: DaytonaSandbox) -> None:
        """Delete the sandbox with this process at the latest."""
        self._owned.add(sandbox)

    def remove(self, creation: Creation) -> None:
        """The sandbox has an owner, or does not exist."""
        with self._lock:
            self._creations.discard(creation)

    def give_up(self, creation: Creation) -> concurrent.futures.Future[None]:
        """Start to delete a sandbox that has no owner any more. The returned future never fails."""
        with self._lock:
            if creation.undoing is None:
                creation.undoing = creation.client.finish_before_close(get_loop().begin(self._undo(creation)))
            return creation.undoing

    def give_up_all(self, client: Client) -> Sequence[concurrent.futures.Future[None]]:
        """The same for all that a client has requested."""
        with self._lock:
            creations = list(self._creations)
        return [self.give_up(creation) for creation in creations if creation.client is client]

    async def _undo(self, creation: Creation) -> None:
        try:
            await creation.undo()
        except (ServiceError, CorralError) as error:
            if not (isinstance(error, ServiceError) and error.status == 404):
                log.warning("a sandbox may have been left running on the server: %s", error)
        finally:
            self.remove(creation)

    def end_all(self) -> None:
        """At exit: delete what is left, on our own thread, which ends last."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._is_over = True
            creations = list(self._creations)
        thread = find_loop()
        if thread is None:
            return
        deadline = time.monotonic() + _EXIT_SECONDS
        endings = {f"a new one ({creation.mark})": self.give_up(creation) for creation in creations}
        # Also one that its owner has just closed: that request may not have been sent.
        endings.update({sandbox.id: sandbox.end_now() for sandbox in list(self._owned) if sandbox.is_left})
        concurrent.futures.wait(endings.values(), timeout=_EXIT_SECONDS)
        close_all()
        thread.wait_for_work(min(_OTHER_SECONDS, deadline - time.monotonic()))
        for name, ending in endings.items():
            if not ending.done() or ending.exception() is not None:
                log.warning("sandbox %s could not be deleted at exit", name)


get_book = PerProcess(CreationBook).get
"""The book of this process."""
