"""The sandboxes of one environment, by key: each is created once, also for concurrent callers, and deleted once.

It is separate from the environment so that the sandboxes of a garbage-collected environment can still be deleted. They
are created and deleted on the portal, whose event loop outlives those of the callers: a caller that is cancelled, or
whose loop ends, does not affect others. The lock is never held while waiting.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from corral.client.sandbox import AsyncSandbox
from corral.concurrency.portal import Portal, get_portal
from corral.environment.lending import Lending, Lent
from corral.errors import EnvironmentFullError, SandboxError, SandboxGoneError, SandboxStoppedError
from corral.protocol import Backend

_REMEMBERED_LOSSES = 1000
_MAKING_SECONDS = 10.0
"""How long the end of the program waits for a sandbox that is being created."""
_LONGEST_REST_SECONDS = 30.0
_SHORTEST_REST_SECONDS = 0.02

T = TypeVar("T")

log = logging.getLogger("corral.environment")


@dataclass(slots=True, eq=False)
class CachedSandbox:
    """One sandbox: being created, or created."""

    key: str
    lent: Lent
    held: tuple[object, ...] = ()
    making: concurrent.futures.Future[AsyncSandbox] = field(default_factory=concurrent.futures.Future)
    users: int = 0
    used: float = 0.0

    @property
    def box(self) -> AsyncSandbox | None:
        """The sandbox, once it is created."""
        made = self.making.done() and not self.making.cancelled() and self.making.exception() is None
        return self.making.result() if made else None


class Cache:
    """The sandboxes of one environment."""

    def __init__(self, *, max_sandboxes: int | None, idle_seconds: float | None) -> None:
        self._max = max_sandboxes
        self._idle_seconds = idle_seconds
        self._begin()
        _caches.add(self)
        _register()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, CachedSandbox] = {}
        self._ending: dict[CachedSandbox, concurrent.futures.Future[None]] = {}
        self._condemned: list[CachedSandbox] = []
        self._undeleted: dict[str, tuple[CachedSandbox, Exception]] = {}
        self._losses: OrderedDict[str, str] = OrderedDict()
        self._lending = Lending()
        self._retired: list[Backend] = []
        self._resting = False
        self._portal: Portal | None = None
        self.pid = os.getpid()

    # Acquiring and releasing.

    def take(
        self,
        key: str,
        make: Callable[[], Coroutine[Any, Any, AsyncSandbox]],
        *,
        lent: Lent,
        held: tuple[object, ...] = (),
    ) -> CachedSandbox:
        """The entry of a key, marked as in use; a missing one is created by the borrowed backend.

        Raises:
            EnvironmentFullError: at the limit, and all are in use.
        """
        try:
            with self._lock:
                known = self._entries.get(key)
                if known is not None and known.box is not None and known.box.closed:
                    self._condemn(known)  # closed by its user
                elif known is not None:
                    known.users += 1
                    return known
                self._make_room()
                entry = CachedSandbox(key, self._lending.share(lent), held, users=1, used=time.monotonic())
                # From here on no caller can cancel it.
                entry.making.set_running_or_notify_cancel()
                self._entries[key] = entry
                lost = self._losses.pop(key, None)
        finally:
            self._carry_out()
        if lost is not None:
            log.warning("a new sandbox takes the place of one that %s", lost)
        self._submit(entry, make)
        self._watch_idle()
        return entry

    def _make_room(self) -> None:
        """With the lock held. If the cache is full, remove the least recently used free entry."""
        if self._max is None or len(self._entries) < self._max:
            return
        free = [entry for entry in self._entries.values() if not entry.users and entry.box is not None]
        if not free:
            raise EnvironmentFullError(
                f"the environment has {self._max} sandboxes, and all are in use",
                op="open",
                hint="leave an `open` block, or raise max_sandboxes",
            )
        self._lose(min(free, key=lambda entry: entry.used), "made room for another")

    def _lose(self, entry: CachedSandbox, why: str) -> None:
        """With the lock held. Delete it; the next `take` of its key logs that the sandbox is a new one."""
        self._condemn(entry)
        self._losses[entry.key] = f"{why} ({entry.box.id if entry.box else 'never created'})"
        while len(self._losses) > _REMEMBERED_LOSSES:
            self._losses.popitem(last=False)

    def _submit(self, entry: CachedSandbox, make: Callable[[], Coroutine[Any, Any, AsyncSandbox]]) -> None:
        try:
            self._portal = get_portal()
            self._portal.submit(self._fulfil(entry, make))
        except RuntimeError as error:  # the program is exiting: the thread has ended
            self._drop(entry)
            entry.making.set_exception(error)

    async def _fulfil(self, entry: CachedSandbox, make: Callable[[], Coroutine[Any, Any, AsyncSandbox]]) -> None:
        try:
            box = await make()
        except BaseException as error:  # noqa: BLE001 - passed on to the callers that wait
            # First out of the cache, then raised: a retry must not find it.
            self._drop(entry)
            self.give_back(entry.lent)
            told = error if isinstance(error, Exception) else SandboxError("the sandbox could not be created")
            entry.making.set_exception(told)
        else:
            entry.making.set_result(box)

    def release(self, entry: CachedSandbox) -> None:
        """Release it for one user."""
        with self._lock:
            entry.users -= 1
            entry.used = time.monotonic()

    def _drop(self, entry: CachedSandbox) -> bool:
        with self._lock:
            if self._entries.get(entry.key) is not entry:
                return False
            del self._entries[entry.key]
            return True

    def notice_gone(self, entry: CachedSandbox, error: Exception) -> None:
        """A user found that it no longer exists: don't return it again."""
        with self._lock:
            if self._entries.get(entry.key) is not entry:
                return
            if isinstance(error, SandboxStoppedError):
                del self._entries[entry.key]
                log.warning("sandbox %s was stopped, and is left as it is", error.sandbox_id)
                return
            self._lose(entry, "is gone" if isinstance(error, SandboxGoneError) else "was closed")
        self._carry_out()

    def failure_of(self, sandbox_id: str) -> Exception | None:
        """Why a sandbox could not be deleted, if so."""
        with self._lock:
            return self._undeleted[sandbox_id][1] if sandbox_id in self._undeleted else None

    @property
    def boxes(self) -> list[AsyncSandbox]:
        """The sandboxes that are created and not closed."""
        with self._lock:
            entries = list(self._entries.values())
        return [box for entry in entries if (box := entry.box) is not None and not box.closed]

    # Backends that only this environment uses.

    def lend(self, key: str, make: Callable[[], Backend]) -> Lent:
        """A backend created from options, one for each set of options; to be returned."""
        lent, surplus = self._lending.lend(key, make)
        self._close_soon(surplus)
        return lent

    def give_back(self, lent: Lent) -> None:
        """Return a borrowed backend."""
        self._close_soon(self._lending.give_back(lent))

    def _close_soon(self, backends: list[Backend]) -> None:
        for backend in backends:
            get_portal().run_soon(_close(backend))

    # Deleting.

    def _condemn(self, entry: CachedSandbox) -> concurrent.futures.Future[None]:
        """With the lock held. Move it from the cache to those being deleted, in one step: the program may exit at any
        moment, and must find all living sandboxes. `_carry_out` follows, without the lock."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        known = self._ending.get(entry)
        if known is not None:
            return known
        ending: concurrent.futures.Future[None] = concurrent.futures.Future()
        ending.set_running_or_notify_cancel()
        self._ending[entry] = ending
        self._condemned.append(entry)
        return ending

    def _carry_out(self) -> None:
        """Start deleting condemned entries on the portal. Failures are recorded for `end_all`."""
        with self._lock:
            condemned, self._condemned = self._condemned, []
            endings = [(entry, self._ending[entry]) for entry in condemned]
        for entry, ending in endings:
            try:
                get_portal().submit(self._end(entry, ending))
            except RuntimeError:  # the program is exiting: the backends delete their sandboxes
                ending.set_result(None)

    def discard(self, key: str) -> tuple[CachedSandbox, concurrent.futures.Future[None]] | None:
        """Delete the entry of a key; returns it and its deletion, if it exists."""
        with self._lock:
            entry = self._entries.get(key)
            ending = self._condemn(entry) if entry is not None else None
        self._carry_out()
        return (entry, ending) if entry is not None and ending is not None else None

    async def _end(self, entry: CachedSandbox, ending: concurrent.futures.Future[None]) -> None:
        box: AsyncSandbox | None = None
        failure: Exception | None = None
        try:
            box = await asyncio.wrap_future(entry.making)
            # A failed first close has closed the handle anyway: after that the backend must delete it.
            await (entry.lent.backend.delete(box.id) if self.failure_of(box.id) is not None else box.aclose())
        except SandboxGoneError:
            log.debug("a sandbox was gone before it was deleted")
        except Exception as error:  # noqa: BLE001 - reported by `end_all`, with the sandbox's id
            failure = error
        finally:
            with self._lock:
                if box is not None:
                    self._undeleted.pop(box.id, None)
                    if failure is not None:
                        self._undeleted[box.id] = (entry, failure)
                self._ending.pop(entry, None)
            if box is not None and failure is None:
                self.give_back(entry.lent)
            if box is not None and failure is not None:
                log.warning("sandbox %s could not be deleted: %s", box.id, type(failure).__name__)
            ending.set_result(None)

    async def end_all(self) -> dict[str, Exception]:
        """Delete all sandboxes concurrently, including those being created and earlier failures.

        Returns the failures, by id of the sandbox.
        """
        with self._lock:
            for entry in [*self._entries.values(), *(entry for entry, _ in self._undeleted.values())]:
                self._condemn(entry)
            self._losses.clear()
            # Later callers get new backends: these are closed with their last sandbox.
            self._retired += self._lending.retire()
            waited = list(self._ending.values())
        self._carry_out()
        await asyncio.gather(*(asyncio.wrap_future(ending) for ending in waited))
        with self._lock:
            failures = {sandbox_id: error for sandbox_id, (_, error) in self._undeleted.items()}
            retired, self._retired = ([], self._retired) if failures else (self._retired, [])
        outcomes = await asyncio.gather(*(backend.aclose() for backend in retired), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome  # after all were closed, or tried
        return failures

    def abandon(self) -> None:
        """Delete everything without waiting. The garbage collector may call this anywhere: so it takes no lock."""
        if self._portal is not None and self.pid == os.getpid():
            self._portal.run_soon(self.end_all())

    def list_living(self) -> list[CachedSandbox]:
        """All sandboxes that may still live, without those that a user has closed."""
        with self._lock:
            kept = [entry for entry in self._entries.values() if entry.box is None or not entry.box.closed]
            return [*kept, *self._ending, *(entry for entry, _ in self._undeleted.values())]

    def end_now(self) -> None:
        """At the end of the program: for backends whose sandboxes would outlive it."""
        for entry in self.list_living():
            end_now = getattr(entry.lent.backend, "end_now", None)  # a backend of others may not derive from `Backend`
            if end_now is None:
                continue
            with contextlib.suppress(concurrent.futures.CancelledError, TimeoutError):
                entry.making.exception(timeout=_MAKING_SECONDS)
            if entry.box is None:
                continue
            try:
                end_now(entry.box.id)
            except Exception as error:  # noqa: BLE001 - the others must be ended, and the id must be logged
                log.warning("sandbox %s could not be deleted at exit: %s", entry.box.id, type(error).__name__)

    def forget(self) -> None:
        """In a forked child: everything belongs to the parent. Kept in memory, so that nothing is finalised here."""
        if self.pid == os.getpid():
            return
        self._parents = (self._entries, self._ending, self._undeleted, self._lending, self._retired)
        self._begin()

    # Idleness.

    def _watch_idle(self) -> None:
        if self._idle_seconds is None:
            return
        with self._lock:
            if self._resting:
                return
            self._resting = True
        rest = min(max(self._idle_seconds / 2, _SHORTEST_REST_SECONDS), _LONGEST_REST_SECONDS)
        get_portal().call_later(rest, _look_idle, weakref.ref(self))

    def end_idle(self) -> None:
        """Delete sandboxes that were not used for `idle_seconds`."""
        with self._lock:
            self._resting = False
            before = time.monotonic() - (self._idle_seconds or 0)
            idle = [e for e in self._entries.values() if not e.users and e.box is not None and e.used < before]
            for entry in idle:
                self._lose(entry, "was idle for too long")
            left = bool(self._entries)
        self._carry_out()
        if left:
            self._watch_idle()


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


@functools.cache
def _register() -> None:
    """Let forked children forget the sandboxes, and end them with the program; once per process."""
    atexit.register(end_all_now)
    os.register_at_fork(after_in_child=_forget_all)


def end_all_now() -> None:
    """At exit, without an event loop. A forked child's caches are empty."""
    for cache in list(_caches):
        cache.end_now()


def _forget_all() -> None:
    for cache in list(_caches):
        cache.forget()


def _look_idle(cache: weakref.ref[Cache]) -> None:
    found = cache()
    if found is not None and found.pid == os.getpid():
        found.end_idle()


async def _close(backend: Backend) -> None:
    try:
        await backend.aclose()
    except Exception as error:  # noqa: BLE001 - no caller waits for it, and its sandboxes were deleted before
        log.warning("an unused backend could not be closed: %s", type(error).__name__)
