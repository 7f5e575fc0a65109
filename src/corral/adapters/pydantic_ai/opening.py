"""Opening a sandbox once: on the portal's loop, however many ask at once, and whatever becomes of those who asked."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import re
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

from corral.client.registry import get_backend
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.portal import get_portal
from corral.concurrency.waiting import wait_for
from corral.errors import CapabilityError, SandboxGoneError, SandboxStoppedError, SpecError
from corral.protocol import Backend
from corral.spec import Spec

LIFETIME_SECONDS = 24 * 60 * 60.0
"""So long what outlives its program lives at the most, if nobody says otherwise and somebody pays."""
_PAID = "daytona"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_MADE = re.compile(r"s-[0-9a-f]{32}")
"""What is made of an id that is no name. Who gives such a text as an id must not get at somebody else's sandbox."""


class Opening:
    """What `make` gives, made at the first `get`. A failure is for those who waited; the next one tries again."""

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, AsyncSandbox]],
        finish: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._make = make
        self._finish = finish
        self._making: concurrent.futures.Future[AsyncSandbox] | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, box: AsyncSandbox) -> Opening:
        """One that is open already."""

        async def give() -> AsyncSandbox:
            return box

        opening = cls(give)
        opening._making = concurrent.futures.Future()
        opening._making.set_result(box)
        return opening

    @property
    def begun(self) -> bool:
        """Whether anybody has asked."""
        return self._making is not None

    @property
    def box(self) -> AsyncSandbox | None:
        """The sandbox, if it is there."""
        making = self._making
        if making is None or not making.done() or making.cancelled() or making.exception() is not None:
            return None
        return making.result()

    async def get(self) -> AsyncSandbox:
        """The sandbox. Whoever is cancelled while waiting leaves the making alone: others may wait for it."""
        with self._lock:
            if self._making is None or (self._making.done() and self.box is None):
                # On the portal's loop, because the loop of whoever asks may end before this does.
                self._making = get_portal().submit(self._make())
            making = self._making
        return await wait_for(making)

    async def settle(self) -> AsyncSandbox | None:
        """Wait for a making that is under way; None if nobody asked, or if it failed."""
        if self._making is not None:
            ended = asyncio.gather(asyncio.wrap_future(self._making), return_exceptions=True)
            await asyncio.shield(ended)
        return self.box

    async def close(self) -> None:
        """End an owned sandbox, or let go of a detached one, and of what belongs to it. Idempotent."""
        box = await self.settle()
        try:
            if box is not None:
                await box.aclose()
        finally:
            if self._finish is not None:
                await self._finish()

    def forget(self) -> concurrent.futures.Future[AsyncSandbox] | None:
        """Begin anew at the next `get`; gives what there was."""
        with self._lock:
            making, self._making = self._making, None
        return making


def let_go(opening: Opening) -> None:
    """Close what was forgotten. Not waited for: the garbage collector may run on any thread."""
    if opening.begun:
        get_portal().run_soon(opening.close())


class OwnBackend:
    """A backend of one sandbox's own: opened when it is needed, closed with the sandbox."""

    def __init__(self, opener: Callable[[], Backend]) -> None:
        self._opener = opener
        self._backend: Backend | None = None

    def open(self) -> Backend:
        """The backend."""
        if self._backend is None:
            self._backend = self._opener()
        return self._backend

    async def aclose(self) -> None:
        """Close it, if it was opened. Idempotent."""
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.aclose()


async def find_sandbox(maker: Backend, wanted: str) -> AsyncSandbox:
    """A detached sandbox by id or name; one that is stopped is started. Raises: SandboxGoneError."""
    try:
        return await maker.connect(wanted)
    except SandboxStoppedError as error:
        try:
            return await maker.start(wanted)
        except CapabilityError:
            raise error from None


@dataclass(frozen=True, slots=True)
class Birth:
    """How a sandbox comes to be. With a `sandbox_id` it is looked for first, and made so that it can be found again."""

    backend: str | Backend | OwnBackend
    spec: Spec
    sandbox_id: str | None = None
    lifetime_seconds: float | EllipsisType | None = ...
    """Of one with a `sandbox_id`, from when it was last opened; see `kept_seconds`."""
    startup_timeout: float | None = None
    second_wish: Spec | None = None
    """What to ask for where the backend can't give the first."""
    too_late: Callable[[float], Exception] = lambda seconds: TimeoutError(
        f"the sandbox failed to start within {seconds:g} seconds"
    )

    async def make(self) -> AsyncSandbox:
        """Find or make it, and see that it answers. What is late is undone, and so is what does not answer."""
        if self.startup_timeout is None:
            return await self._make()
        try:
            async with asyncio.timeout(self.startup_timeout) as clock:
                return await self._make()
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise self.too_late(self.startup_timeout) from error

    async def finish(self) -> None:
        """Close what belongs to the sandbox alone."""
        if isinstance(self.backend, OwnBackend):
            await self.backend.aclose()

    async def _make(self) -> AsyncSandbox:
        maker = self.backend.open() if isinstance(self.backend, OwnBackend) else get_backend(self.backend)
        if self.sandbox_id is None:
            return await self._create(maker, self.spec.labels)
        name = make_name(self.sandbox_id)
        seconds = kept_seconds(self.lifetime_seconds, maker)
        try:
            found = await _find_named(maker, self.sandbox_id, name)
        except SandboxGoneError:
            pass  # there is none yet
        else:
            if seconds is not None and maker.name == _PAID:
                await found.detach(lifetime_seconds=seconds)  # its time begins anew
            return found
        box = await self._create(maker, {**self.spec.labels, "corral.session": self.sandbox_id})
        try:
            await box.detach(name=name, lifetime_seconds=seconds)
        except BaseException as error:
            await box.aclose()
            if isinstance(error, SpecError):  # somebody else was faster with the same name
                return await find_sandbox(maker, name)
            raise
        return box

    async def _create(self, maker: Backend, labels: Mapping[str, str]) -> AsyncSandbox:
        try:
            return await maker.create(replace(self.spec, labels=labels))
        except CapabilityError:
            if self.second_wish is None:
                raise
        return await maker.create(replace(self.second_wish, labels=labels))


async def _find_named(maker: Backend, wanted: str, name: str) -> AsyncSandbox:
    try:
        return await find_sandbox(maker, name)
    except SandboxGoneError:
        if wanted == name:
            raise
        return await find_sandbox(maker, wanted)


def kept_seconds(given: float | EllipsisType | None, maker: Backend) -> float | None:
    """How long a sandbox lives that is found again by its id: as given, None for ever.

    If nothing is given, it is for ever on a machine of one's own, and a day on a service, which somebody pays for.
    """
    if not isinstance(given, EllipsisType):
        return given
    return LIFETIME_SECONDS if maker.name == _PAID else None


def make_name(sandbox_id: str) -> str:
    """A name that every backend takes, the same for the same id, and another for another."""
    if _NAME.fullmatch(sandbox_id) and not _MADE.fullmatch(sandbox_id):
        return sandbox_id
    return f"s-{hashlib.sha256(sandbox_id.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"
