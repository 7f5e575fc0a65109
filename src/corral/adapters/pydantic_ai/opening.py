"""Opening a sandbox once, on the portal's loop: for several concurrent callers, even if some are cancelled."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import re
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

from corral.client.registry import get_backend
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.portal import get_portal
from corral.concurrency.waiting import in_time, wait_for
from corral.errors import CapabilityError, SandboxGoneError, SandboxStoppedError, SpecError
from corral.protocol import Backend
from corral.spec import Spec

LIFETIME_SECONDS = 24 * 60 * 60.0
"""The default lifetime of a sandbox that outlives its program, on a service that is paid for."""
_PAID = "daytona"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HASHED = re.compile(r"s-[0-9a-f]{32}")
"""The form of a hashed id. An id of this form is hashed too, so that it can't name another sandbox."""


class LazySandbox:
    """A sandbox that `make` creates at the first `get`. If that fails, callers get the error; a later `get` retries."""

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
    def of(cls, box: AsyncSandbox) -> LazySandbox:
        """A sandbox that is open already."""

        async def give() -> AsyncSandbox:
            return box

        lazy = cls(give)
        lazy._making = concurrent.futures.Future()
        lazy._making.set_result(box)
        return lazy

    @property
    def requested(self) -> bool:
        """True if the sandbox was requested."""
        return self._making is not None

    @property
    def box(self) -> AsyncSandbox | None:
        """The sandbox; None if it is not created."""
        making = self._making
        if making is None or not making.done() or making.cancelled() or making.exception() is not None:
            return None
        return making.result()

    async def get(self) -> AsyncSandbox:
        """The sandbox. If the caller is cancelled, creation goes on: other callers may wait for it."""
        with self._lock:
            if self._making is None or (self._making.done() and self.box is None):
                # On the portal's loop, because the caller's loop may end earlier.
                self._making = get_portal().submit(self._make())
            making = self._making
        return await wait_for(making)

    async def settle(self) -> AsyncSandbox | None:
        """Wait for a creation in progress; None if it was not requested, or failed."""
        if self._making is not None:
            ended = asyncio.gather(asyncio.wrap_future(self._making), return_exceptions=True)
            await asyncio.shield(ended)
        return self.box

    async def close(self) -> None:
        """Delete an owned sandbox, or release a detached one, and call `finish`. Idempotent."""
        box = await self.settle()
        try:
            if box is not None:
                await box.aclose()
        finally:
            if self._finish is not None:
                await self._finish()

    def close_with(self, owner: object) -> weakref.finalize[..., object]:
        """Close it when the owner is garbage collected; not at exit, when the backend ends what this process owns."""
        finalizer = weakref.finalize(owner, self._close_soon)
        finalizer.atexit = False
        return finalizer

    def _close_soon(self) -> None:
        if self.requested:
            get_portal().run_soon(self.close())  # not waited for: the garbage collector may run on any thread

    def forget(self) -> None:
        """Forget the sandbox: the next `get` calls `make` again."""
        with self._lock:
            self._making = None


async def find_sandbox(maker: Backend, wanted: str) -> AsyncSandbox:
    """A detached sandbox by id or name; a stopped one is started. Raises: SandboxGoneError."""
    try:
        return await maker.connect(wanted)
    except SandboxStoppedError as error:
        try:
            return await maker.start(wanted)
        except CapabilityError:
            raise error from None


async def detach(box: AsyncSandbox, *, name: str | None = None, lifetime_seconds: float | None) -> None:
    """Detach a new sandbox; if that fails, it is deleted."""
    try:
        await box.detach(name=name, lifetime_seconds=lifetime_seconds)
    except BaseException:
        await box.aclose()
        raise


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """How to create a sandbox. With a `sandbox_id`, an existing one is used, and a new one can be found again."""

    backend: str | Backend
    spec: Spec
    sandbox_id: str | None = None
    lifetime_seconds: float | EllipsisType | None = ...
    """The lifetime of a sandbox with a `sandbox_id` after it was last opened; see `choose_lifetime`."""
    startup_timeout: float | None = None
    too_late: Callable[[float], Exception] = lambda seconds: TimeoutError(
        f"the sandbox did not start within {seconds:g} seconds"
    )
    closes: Backend | None = None
    """A backend to close with the sandbox."""

    async def make(self) -> AsyncSandbox:
        """Find or create it. A creation that takes longer than `startup_timeout` is undone."""
        async with in_time(self.startup_timeout, self.too_late):
            return await self._make()

    async def finish(self) -> None:
        """Close the backend, if only this sandbox uses it. Idempotent."""
        if self.closes is not None:
            await self.closes.aclose()

    async def _make(self) -> AsyncSandbox:
        maker = get_backend(self.backend)
        if self.sandbox_id is None:
            return await self._create(maker, self.spec.labels)
        name = make_name(self.sandbox_id)
        seconds = choose_lifetime(self.lifetime_seconds, maker)
        try:
            found = await _find_named(maker, self.sandbox_id, name)
        except SandboxGoneError:
            pass  # it is the first with this id
        else:
            if seconds is not None and maker.name == _PAID:
                await found.detach(lifetime_seconds=seconds)  # its lifetime starts again
            return found
        box = await self._create(maker, {**self.spec.labels, "corral.session": self.sandbox_id})
        try:
            await detach(box, name=name, lifetime_seconds=seconds)
        except SpecError:  # another process was faster with the same name
            return await find_sandbox(maker, name)
        return box

    async def _create(self, maker: Backend, labels: Mapping[str, str]) -> AsyncSandbox:
        return await maker.create(replace(self.spec, labels=labels))


async def _find_named(maker: Backend, wanted: str, name: str) -> AsyncSandbox:
    try:
        return await find_sandbox(maker, name)
    except SandboxGoneError:
        if wanted == name:
            raise
        return await find_sandbox(maker, wanted)


def choose_lifetime(given: float | EllipsisType | None, maker: Backend) -> float | None:
    """The lifetime of a sandbox with a `sandbox_id`; None for no limit.

    The default is no limit on your own machine, and a day on a paid service.
    """
    if not isinstance(given, EllipsisType):
        return given
    return LIFETIME_SECONDS if maker.name == _PAID else None


def make_name(sandbox_id: str) -> str:
    """A name for an id that every backend accepts; different ids have different names."""
    if _NAME.fullmatch(sandbox_id) and not _HASHED.fullmatch(sandbox_id):
        return sandbox_id
    return f"s-{hashlib.sha256(sandbox_id.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"
