"""The SDK's client, one per backend and process, created on our own event loop when first needed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from corral.backends.daytona.address import Address, check_address, fill_from_environment
from corral.backends.daytona.loop import get_loop
from corral.backends.daytona.seam import INSTALL, ServiceError, mapped, repeat
from corral.concurrency.waiting import wait_for
from corral.errors import BackendUnavailableError

if TYPE_CHECKING:
    from daytona import AsyncDaytona

T = TypeVar("T")

_READER = "DaytonaEnvReader"
_making = threading.Lock()
_living: weakref.WeakSet[Client] = weakref.WeakSet()
"""The clients that were ever connected."""


class _ProcessVariables:
    """Replaces the SDK's reader of variables, which also reads `.env` and `.env.local`."""

    def get(self, name: str) -> str | None:
        return os.environ.get(name)

    get_from_process_env = get

    def get_from_file(self, name: str) -> str | None:
        return None


@contextlib.contextmanager
def _without_files(kind: type[object]) -> Iterator[None]:
    """While the SDK creates its client, it reads no file of the working folder, which may be a stranger's.

    The SDK takes no address from there, but a key, a region, an organisation, and whether traces are sent; it has no
    option against that. Versions without that reader get key and address from us, too.
    """
    module: Any = sys.modules[kind.__module__]
    theirs = getattr(module, _READER, None)
    if theirs is None:
        yield
        return
    with _making:
        setattr(module, _READER, _ProcessVariables)
        try:
            yield
        finally:
            setattr(module, _READER, theirs)


class Client:
    """The SDK's client of one address. Any thread and event loop may use it, also after a fork."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._was_heard = False
        self._made: dict[int, AsyncDaytona] = {}
        self._unfinished: set[tuple[int, concurrent.futures.Future[Any]]] = set()

    async def sdk(self) -> AsyncDaytona:
        """The client of this process; on our own loop only.

        Raises:
            BackendUnavailableError: the SDK is not installed, or there is no key.
        """
        found = self._made.get(os.getpid())
        if found is None:
            self._made.clear()  # one of a parent: its sockets belong to the parent
            found = self._made[os.getpid()] = self._make()
            _living.add(self)
            weakref.finalize(self, _close_forgotten, found, os.getpid()).atexit = False
        return found

    def _make(self) -> AsyncDaytona:
        try:
            from daytona import AsyncDaytona, DaytonaConfig
        except ImportError as error:
            raise BackendUnavailableError(
                "the daytona backend needs the SDK", op="create", hint=f"install it: {INSTALL}"
            ) from error
        found = fill_from_environment(self.address)
        if not found.has_key:
            raise BackendUnavailableError(
                "no API key for the Daytona service",
                op="create",
                hint="set DAYTONA_API_KEY or pass api_key=; `corral key create` creates one for `corral serve`",
            )
        check_address(found)
        try:
            with _without_files(AsyncDaytona):
                return AsyncDaytona(
                    DaytonaConfig(
                        api_key=found.api_key,
                        api_url=found.url,
                        target=found.target,
                        organization_id=found.organization_id,
                        jwt_token=found.jwt_token,
                    )
                )
        except Exception as error:  # the SDK raises one class for everything
            raise BackendUnavailableError(
                f"the SDK rejected the settings: {error}",
                op="create",
                hint="check DAYTONA_API_KEY, DAYTONA_API_URL and the arguments",
            ) from error

    async def call(
        self,
        work: Callable[[AsyncDaytona], Awaitable[T]],
        *,
        op: str,
        sandbox_id: str | None = None,
        safe: bool = False,
        finish: bool = False,
    ) -> T:
        """Call the SDK. With `finish`, to its end even if the caller is cancelled. Raises: as `seam.mapped`."""

        async def ask() -> T:
            client = await self.sdk()
            return await self.repeat(lambda: work(client), safe=safe)

        thread = get_loop()
        with mapped(sandbox_id=sandbox_id, op=op):
            return await (thread.finish(ask()) if finish else thread.arun(ask()))

    async def repeat(self, call: Callable[[], Awaitable[T]], *, safe: bool) -> T:
        """As `seam.repeat`, but one that fails to connect in its first call ever is not repeated."""
        try:
            result = await repeat(call, safe=safe, first=not self._was_heard)
        except ServiceError as error:
            self._was_heard = self._was_heard or error.status is not None
            raise
        self._was_heard = True
        return result

    def finish_before_close(self, future: concurrent.futures.Future[T]) -> concurrent.futures.Future[T]:
        """Keep the connections open until the future is done: for creations and deletions."""
        entry = os.getpid(), future
        self._unfinished.add(entry)
        future.add_done_callback(lambda _: self._unfinished.discard(entry))
        return future

    async def aclose(self) -> None:
        """Close the connections after the work of `finish_before_close` is done. A later call opens new ones."""
        while left := [future for process, future in list(self._unfinished) if process == os.getpid()]:
            await asyncio.gather(*map(wait_for, left), return_exceptions=True)  # their callers get the errors
        made = self._made.pop(os.getpid(), None)
        if made is not None:
            with contextlib.suppress(Exception):
                await get_loop().finish(_close(made))


def close_all() -> Sequence[concurrent.futures.Future[None]]:
    """At the end of the program: start to close the clients of backends that were not closed."""
    made = [client._made.pop(os.getpid(), None) for client in list(_living)]  # noqa: SLF001 - its own module
    return [get_loop().begin(_close(each)) for each in made if each is not None]


def _close_forgotten(client: Any, process: int) -> None:
    """Close the client of a backend that was garbage collected."""
    if os.getpid() == process and not sys.is_finalizing():
        get_loop().begin(_close(client))


async def _close(client: Any) -> None:
    await client.close()
    await asyncio.sleep(0)  # the transports close in the next turn
