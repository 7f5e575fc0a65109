"""A sandbox on the service: the SDK's object for it, one per process, and the calls to it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from corral.backends.daytona import life
from corral.backends.daytona.client import Client
from corral.backends.daytona.loop import get_loop
from corral.backends.daytona.seam import ServiceError, mapped, repeat, state_error
from corral.backends.daytona.terminal import TerminalTransport, lost_inside
from corral.base.agent.channel import Channel, Channels
from corral.errors import BackendError, CorralError, SandboxGoneError, gone

if TYPE_CHECKING:
    from daytona import AsyncSandbox as SdkSandbox

T = TypeVar("T")


class Remote:
    """A sandbox on the service. Any thread and event loop may use it, also after a fork; `channels` only on ours."""

    def __init__(self, client: Client, sandbox_id: str, box: SdkSandbox | None = None) -> None:
        self.client = client
        self.id = sandbox_id
        self.gone = False
        """The sandbox is known to have ended."""
        self.deleted = False
        """The service has confirmed that it is deleted."""
        self.oom_kills: int | None = None
        self._endings: dict[int, concurrent.futures.Future[None]] = {}
        self._boxes: dict[int, SdkSandbox] = {} if box is None else {os.getpid(): box}
        self.channels = Channels(self._open)
        """For use on our loop only."""

    def check(self, op: str) -> None:
        """Raises: SandboxGoneError if it is known to have ended."""
        if self.gone:
            raise gone(self.id, op=op)

    async def call(
        self, work: Callable[[SdkSandbox], Awaitable[T]], *, op: str, safe: bool = False, finish: bool = False
    ) -> T:
        """Call the SDK for it. With `finish`, to its end even if the caller is cancelled. Raises: as `seam.mapped`."""
        self.check(op)

        async def ask() -> T:
            box = await self.box()
            return await repeat(lambda: work(box), safe=safe)

        thread = get_loop()
        try:
            with mapped(sandbox_id=self.id, op=op):
                return await (thread.finish(ask()) if finish else thread.arun(ask()))
        except SandboxGoneError:
            self.gone = True
            raise

    async def box(self) -> SdkSandbox:
        """The SDK's object, which may be out of date. On our own loop. Raises: ServiceError."""
        box = self._boxes.get(os.getpid())
        if box is None:
            box = await self._fetch()
            self._boxes = {os.getpid(): box}
        return box

    async def _fetch(self) -> SdkSandbox:
        sdk = await self.client.sdk()
        return await repeat(lambda: sdk.get(self.id), safe=True)

    async def look(self, op: str) -> SdkSandbox:
        """The SDK's object, as the service knows it now. Raises: SandboxGoneError."""
        self.check(op)
        box = await self.client.call(lambda sdk: sdk.get(self.id), op=op, sandbox_id=self.id, safe=True)
        if life.state_of(box) in life.GONE:
            self.gone = True
        self.check(op)
        return box

    async def explain(self, op: str) -> CorralError:
        """The error that says why it does not answer."""
        try:
            state = life.state_of(await self._fetch())
            error = state_error(state, sandbox_id=self.id, op=op) or lost_inside()
        except ServiceError as refusal:
            if refusal.status != 404:
                return BackendError(f"lost the connection to the service: {refusal.message}", sandbox_id=self.id, op=op)
            error = gone(self.id, op=op)
        if type(error) is SandboxGoneError:
            self.gone = True
        return error

    async def _is_resting(self) -> bool:
        """True if nothing inside can answer now, so that its silence means nothing."""
        try:
            return life.state_of(await self._fetch()) in life.RESTING
        except ServiceError:
            return False

    async def measure(self, op: str) -> Any:
        """The SDK's metrics of it."""
        return await self.call(lambda box: box._system_api.get_system_metrics(), op=op, safe=True)  # noqa: SLF001 - the public call drops unknown fields

    async def was_out_of_memory(self) -> bool:
        """True if a program ran out of memory since the last call of this. On `corral serve` only."""
        with contextlib.suppress(CorralError):
            count = (await self.measure("exec")).additional_properties.get("oomKills")
            if isinstance(count, int):
                before, self.oom_kills = self.oom_kills, count
                return before is not None and count > before
        return False

    # The channel.

    async def _open(self) -> Channel:
        channel = Channel(TerminalTransport(await self.box()), self.explain, self._is_resting)
        try:
            await channel.open()
        except TimeoutError as late:
            raise ServiceError(503, "the sandbox's terminal does not respond") from late
        except ServiceError as refusal:
            # If the sandbox itself is the reason, its state says more than the terminal's refusal.
            error = await self.explain("exec")
            if isinstance(error, BackendError) or type(error) is type(lost_inside()):
                raise
            raise error from refusal
        return channel

    # Its end.

    def end(self) -> concurrent.futures.Future[None]:
        """Start to delete it, even if the caller is cancelled; the future is done when it is deleted."""
        ending = self._endings.get(os.getpid())
        if ending is None or (ending.done() and ending.exception() is not None):
            ending = self.client.finish_before_close(get_loop().begin(self._end()))
            self._endings = {os.getpid(): ending}
        return ending

    async def _end(self) -> None:
        if self.deleted:
            return

        async def delete() -> None:
            await (await self.box()).delete()

        try:
            await repeat(delete, safe=True)
        except ServiceError as error:
            if error.status != 404:
                raise
        self.gone = self.deleted = True
