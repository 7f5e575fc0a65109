"""Handles of started sandboxes: one for each, lent to calls, watched for its end, and let go of with all who use it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from corral.client.sandbox import AsyncSandbox
from corral.concurrency.waiting import wait_for
from corral.errors import CapabilityError, CorralError, SandboxGoneError
from corral.protocol import Backend
from corral.server import log
from corral.server.faults import Fault
from corral.server.orphans import end_runs
from corral.server.roster import Roster
from corral.server.services import Held
from corral.server.store.rows import Sandbox
from corral.server.wishes import home_of, language_of
from corral.spec import HOME


class Handles:
    """What is held of sandboxes that run. Everything here goes with its sandbox."""

    def __init__(
        self, *, backend: Backend, roster: Roster, look_after: Callable[[Sandbox, Held | None], Awaitable[None]]
    ) -> None:
        """`look_after` is called when a sandbox seems to be gone: with its handle, or without if it has none."""
        self._backend = backend
        self._roster = roster
        self._look_after = look_after
        self._live: dict[str, Held] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._connecting: dict[str, asyncio.Task[Held]] = {}
        self._users: dict[str, set[asyncio.Task[Any]]] = {}
        self._moments: dict[str, asyncio.Event] = {}
        self.orphaned: set[str] = set()
        """In these an earlier server may have begun something that nobody listens to any more."""

    # Lending.

    async def find(self, row: Sandbox) -> Held:
        """The handle of a started sandbox. Raises: SandboxGoneError."""
        return self._live.get(row.id) or await self._connect(row)

    def is_current(self, row: Sandbox, held: Held) -> bool:
        """Whether this is the handle that calls get now."""
        return self._live.get(row.id) is held

    @contextlib.contextmanager
    def lent(self, row: Sandbox, held: Held) -> Iterator[None]:
        """For as long as a call works inside. If the sandbox goes under it, the call is cancelled, and gets a 404."""
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        users = self._users.setdefault(row.id, set())
        users.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # Ours, and nobody else's beside it? Then it is an answer. The rule is that of asyncio.timeout.
            if held.gone.is_set() and task.uncancel() <= cancelled_before:
                raise Fault(404, f"sandbox {row.id} not found: it is gone") from None
            raise
        finally:
            users.discard(task)
            if not users and self._users.get(row.id) is users:
                del self._users[row.id]

    def is_busy(self, row: Sandbox) -> bool:
        """Whether a call works inside."""
        return row.id in self._users

    @contextlib.contextmanager
    def calls_wait(self, row: Sandbox) -> Iterator[None]:
        """For a moment, calls that come to work inside wait. Those that are there go on."""
        moment = self._moments[row.id] = asyncio.Event()
        try:
            yield
        finally:
            del self._moments[row.id]
            moment.set()

    async def wait_for_moment(self, row: Sandbox) -> None:
        """Until no `calls_wait` is in the way."""
        while (moment := self._moments.get(row.id)) is not None:
            await moment.wait()

    # Holding.

    async def _connect(self, row: Sandbox) -> Held:
        """A handle, made once for all that wait for it."""
        task = self._connecting.get(row.id)
        if task is None:
            task = self._connecting[row.id] = asyncio.create_task(self.connect_now(row))
            task.add_done_callback(lambda _: self._connecting.pop(row.id, None))
        try:
            return await wait_for(task)
        except SandboxGoneError:
            with contextlib.suppress(Fault):  # deleted meanwhile: what the caller is told is true all the same
                await self._look_after(row, None)
            raise

    async def connect_now(self, row: Sandbox) -> Held:
        """A new handle. Whoever calls sees to it that there is no other."""
        assert row.engine_id is not None, "only one that was made is started"
        box = await self._backend.connect(row.engine_id)
        try:
            if row.state != "paused":
                await self.end_orphans(row, box)
            if row.id not in self._roster or row.state in ("destroying", "stopping", "stopped"):  # meanwhile
                raise SandboxGoneError("the sandbox is gone", sandbox_id=row.id, op="connect")
        except BaseException:
            await box.aclose()
            raise
        return self.hold(row, box)

    async def find_or_connect(self, row: Sandbox) -> Held:
        """As `find`, for whoever has the sandbox's lock and so would wait for itself when the sandbox is gone."""
        return self._live.get(row.id) or await self.connect_now(row)

    async def end_orphans(self, row: Sandbox, box: AsyncSandbox) -> None:
        """Before anybody else works inside: what only an earlier server listened to."""
        if row.id in self.orphaned:
            await end_runs(box, sandbox_id=row.id)
            self.orphaned.discard(row.id)

    def hold(self, row: Sandbox, box: AsyncSandbox) -> Held:
        """Calls get this handle from now on."""
        held = Held(
            id=row.id,
            organisation_id=row.organisation_id,
            box=box,
            user=row.user,
            home=home_of(row.user),
            workdir=HOME,
            language=language_of(row.labels),
            env=dict(row.set_env),
            git_hosts=list(row.git_hosts),
        )
        self.forget(row)
        self._live[row.id] = held
        self._watching[row.id] = asyncio.create_task(self._watch(row, held, box))
        return held

    async def _watch(self, row: Sandbox, held: Held, box: AsyncSandbox) -> None:
        """Sandboxes can be ended by others than us: by `corral sandbox rm`, by a signal, by the kernel."""
        try:
            try:
                await box.wait_until_gone()
            except CapabilityError:
                return  # its end is found out by the calls that meet it
            if self.is_current(row, held):
                await self._look_after(row, held)
        except (CorralError, Fault) as error:  # deleted meanwhile; or the sweeper will find out
            log.event("sandbox not looked after", error=error, sandbox=row.id)

    def refresh(self, row: Sandbox) -> None:
        """Labels have changed: calls to come see it."""
        held = self._live.get(row.id)
        if held is not None:
            held.language = language_of(row.labels)

    def forget(self, row: Sandbox) -> Held | None:
        """Let go of its handle, which somebody else closes. Those who work inside go on."""
        watching = self._watching.pop(row.id, None)
        if watching is not None and watching is not asyncio.current_task():  # it is the one that has noticed the end
            watching.cancel()
        return self._live.pop(row.id, None)

    def let_go(self, row: Sandbox) -> AsyncSandbox | None:
        """Nobody works inside any more; gives the handle, which is still open."""
        held = self.forget(row)
        if held is None:
            return None
        held.gone.set()
        for task in self._users.pop(row.id, set()):
            task.cancel()
        return held.box

    async def close(self) -> None:
        """Let go of all sandboxes, which live on."""
        for watching in self._watching.values():
            watching.cancel()
        await asyncio.gather(*self._watching.values(), return_exceptions=True)
        self._watching.clear()
        for held in list(self._live.values()):
            with contextlib.suppress(CorralError):
                await held.box.aclose()
        self._live.clear()
