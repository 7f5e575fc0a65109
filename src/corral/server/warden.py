"""The warden: makes, finds, stops and ends sandboxes on a backend, and hands them to calls.

Whatever it does to a sandbox stands in the database before it is done (`intent`), and is done by a task of its own: a
client that goes away in the middle leaves no half of anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from corral.client.sandbox import AsyncSandbox
from corral.errors import CapabilityError, CorralError, SandboxGoneError
from corral.protocol import Backend
from corral.server import log, steps
from corral.server.faults import Fault, conflict
from corral.server.handles import Handles
from corral.server.inventory import Inventory
from corral.server.roster import Roster
from corral.server.services import Held
from corral.server.settings import GIB
from corral.server.shelf import Shelf
from corral.server.store.rows import Sandbox
from corral.server.wishes import ResizeWish

T = TypeVar("T")
_ENDED = "it was ended outside the server: by `corral sandbox rm`, by a signal, or out of memory as a whole"


class SandboxWarden:
    """See `corral.server.services.Warden`; and everything that changes a sandbox's state."""

    def __init__(self, *, backend: Backend, roster: Roster, shelf: Shelf) -> None:
        self.backend = backend
        self.roster = roster
        self.shelf = shelf
        self.handles = Handles(backend=backend, roster=roster, look_after=self._look_after)
        self.inventory = Inventory(backend)
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._recalled: set[str] = set()

    # Handing out.

    @contextlib.asynccontextmanager
    async def use(self, sandbox_id: str, *, organisation_id: str | None, activity: bool = True) -> AsyncIterator[Held]:
        """See `Warden`. Whoever works inside when it is deleted or stopped is cancelled, and gets a 404 for it."""
        row = self.roster.find(sandbox_id, organisation_id=organisation_id)
        await self.handles.wait_for_moment(row)
        if row.state != "started" and not (row.state == "resizing" and row.desired_state == "started"):
            raise Fault(400, f"the sandbox is not started: its state is {row.state!r}")
        held = await self.handles.find(row)
        if activity:
            self.roster.touch(row)
        try:
            with self.handles.lent(row, held):
                yield held
        except SandboxGoneError:
            self.spawn(self._look_after(row, held))
            raise
        finally:
            if activity:
                self.roster.touch(row)
            if (held.env, held.git_hosts) != (row.set_env, row.git_hosts):
                row.set_env, row.git_hosts = dict(held.env), list(held.git_hosts)
                self.roster.save(row)

    async def _look_after(self, row: Sandbox, held: Held | None) -> None:
        """It seems that the sandbox is gone. Is it?"""
        if held is not None and not self.handles.is_current(row, held):
            return
        async with self.lock(row):
            if row.state in ("started", "paused"):
                await self.settle(row, await self.find_at_backend(row))

    async def find_at_backend(self, row: Sandbox) -> str | None:
        """What the backend says of it: running, paused, stopped, or nothing."""
        for info in await self.inventory.ask():
            if info.sandbox_id == row.engine_id:
                return info.state
        return None

    async def settle(self, row: Sandbox, found: str | None) -> None:
        """Bring what we say of a sandbox in line with what there is."""
        state = {"running": "started", "paused": "paused", "stopped": "stopped"}.get(found or "")
        if state == "stopped" and row.state == "archived":
            state = "archived"
        if state == row.state == row.desired_state and row.intent is None:
            return
        if state != "started" and (box := self.handles.let_go(row)) is not None:
            await box.aclose()
        if state is None:
            self.roster.turn(row, "error", reason=row.error_reason or _ENDED)
        else:
            self.roster.turn(row, state, desired=state)

    # Tasks that outlive the request that began them.

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """In the background; awaited at the end of the server."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Fault):
            log.event("task failed", level=30, error=error)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """To its end, whatever becomes of the caller."""
        return await asyncio.shield(self.spawn(work))

    def is_being_changed(self, row: Sandbox) -> bool:
        """Whether somebody has its lock."""
        lock = self._locks.get(row.id)
        return lock is not None and lock.locked()

    @contextlib.asynccontextmanager
    async def lock(self, row: Sandbox) -> AsyncIterator[None]:
        """One at a time changes a sandbox. Raises: Fault 404 if it was deleted while we waited."""
        lock = self._locks.setdefault(row.id, asyncio.Lock())
        try:
            async with lock:
                if row.id not in self.roster:
                    raise Fault(404, f"sandbox {row.id!r} not found")
                yield
        finally:
            if row.id not in self.roster:  # also when it could not be made, and when somebody came too late
                self._locks.pop(row.id, None)
                self._recalled.discard(row.id)
                self.handles.orphaned.discard(row.id)

    # Making and ending.

    async def make(self, row: Sandbox, maker: Callable[[], Awaitable[AsyncSandbox]]) -> Sandbox:
        """Make what a row describes. A caller that goes away before it is told of the sandbox leaves none behind."""
        self.roster.add(row)
        steps.reached("create:intent-written")
        making = self.spawn(self._make(row, maker))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self.spawn(self._unmake(making))
            raise

    async def recall(self, token: str, *, organisation_id: str) -> Sandbox | None:
        """What was made for a token, if it is still there; waits while it is being made."""
        row = self.roster.made_by(token, organisation_id=organisation_id)
        while row is not None and row.id in self.roster and row.state in ("creating", "destroying"):
            self._recalled.add(row.id)
            with contextlib.suppress(Fault):  # it failed while we waited
                async with self.lock(row):
                    pass
            await asyncio.sleep(0)  # whoever makes it may not have begun
        return row if row is not None and row.id in self.roster else None

    async def _make(self, row: Sandbox, maker: Callable[[], Awaitable[AsyncSandbox]]) -> Sandbox:
        box: AsyncSandbox | None = None
        async with self.lock(row):
            try:
                box = await maker()
                steps.reached("create:made")
                row.engine_id = box.id
                self.roster.save(row)  # before it can outlive us
                steps.reached("create:noted")
                with contextlib.suppress(CapabilityError):
                    await box.detach()
                steps.reached("create:detached")
                self.handles.hold(row, box)
                self.roster.turn(row, "started")
                steps.reached("create:acknowledged")
            except BaseException:
                if box is not None:
                    with contextlib.suppress(CorralError):
                        await box.kill()
                self.handles.forget(row)
                self.roster.bury(row)
                raise
        return row

    async def _unmake(self, making: asyncio.Task[Sandbox]) -> None:
        await asyncio.wait((making,))
        if making.cancelled() or making.exception() is not None:
            return  # it has undone itself, and its failure is in the log
        if making.result().id in self._recalled:
            return  # its client has asked again, and is told of it
        with contextlib.suppress(Fault):  # somebody else has deleted it; any other failure is logged with this task
            await self.delete(making.result())

    async def delete(self, row: Sandbox) -> None:
        """End it, with its files. Raises: Fault 404 if somebody else did."""
        await self.finish(self._delete(row))

    async def _delete(self, row: Sandbox) -> None:
        # Before the lock: whatever runs inside on somebody's behalf ends now, and lets go of the lock.
        box = self.handles.let_go(row)
        async with self.lock(row):
            self.roster.turn(row, "destroying", desired="destroyed", intent="delete", reason=row.error_reason)
            steps.reached("delete:intent-written")
            box = box or self.handles.let_go(row)
            await self.end_at_backend(row, box)
            steps.reached("delete:ended")
            self.roster.bury(row)
            steps.reached("delete:forgotten")

    async def end_at_backend(self, row: Sandbox, box: AsyncSandbox | None = None) -> None:
        """Nothing of it is left."""
        with contextlib.suppress(SandboxGoneError):
            if box is not None:
                await box.kill()
            elif row.engine_id is not None:
                await self.backend.delete(row.engine_id)

    # Stopping and starting.

    async def stop(self, row: Sandbox) -> None:
        """End its processes, keep its files. One whose auto-delete interval is 0 is deleted by it."""
        await self.finish(self._stop(row))

    async def _stop(self, row: Sandbox) -> None:
        async with self.lock(row):
            if row.state in ("stopped", "archived"):
                return
            self._demand(row, "started", "paused", "error")
            if row.auto_delete != 0:
                await self.backend.need("stop")
                assert row.engine_id is not None
                self.roster.turn(row, "stopping", desired="stopped", intent="stop")
                steps.reached("stop:intent-written")
                box = self.handles.let_go(row)
                async with self._settling(row):
                    await self.backend.stop(row.engine_id)
                    if box is not None:
                        await box.aclose()
                steps.reached("stop:done")
                self.roster.turn(row, "stopped")
                steps.reached("stop:acknowledged")
                return
        await self._delete(row)

    async def start(self, row: Sandbox, *, permit: Callable[[], None]) -> None:
        """Let it run: from stopped, archived or paused. `permit` raises if it may not, asked in the last moment."""
        await self.finish(self._start(row, permit))

    async def _start(self, row: Sandbox, permit: Callable[[], None]) -> None:
        async with self.lock(row):
            if row.state == "started":
                return
            self._demand(row, "stopped", "archived", "paused")
            permit()
            if row.state == "paused":
                await self._resume(row)
            else:
                await self._start_again(row)
            self.roster.touch(row)

    async def _start_again(self, row: Sandbox) -> None:
        await self.backend.need("stop")
        assert row.engine_id is not None
        state = "restoring" if row.state == "archived" else "starting"
        self.roster.turn(row, state, desired="started", intent="start")
        steps.reached("start:intent-written")
        async with self._settling(row):
            box = await self.backend.start(row.engine_id)
        steps.reached("start:done")
        self.handles.orphaned.discard(row.id)  # whatever runs in it now is ours
        self.handles.hold(row, box)
        self.roster.turn(row, "started")
        steps.reached("start:acknowledged")

    async def _resume(self, row: Sandbox) -> None:
        held = await self.handles.find_or_connect(row)
        self.roster.turn(row, "resuming", desired="started", intent="resume")
        steps.reached("resume:intent-written")
        async with self._settling(row):
            await held.box.resume()
            await self.handles.end_orphans(row, held.box)
        steps.reached("resume:done")
        self.roster.turn(row, "started")
        steps.reached("resume:acknowledged")

    async def pause(self, row: Sandbox) -> None:
        """Freeze every process."""
        await self.finish(self._pause(row))

    async def _pause(self, row: Sandbox) -> None:
        async with self.lock(row):
            if row.state == "paused":
                return
            self._demand(row, "started")
            await self.backend.need("pause")
            held = await self.handles.find_or_connect(row)
            self.roster.turn(row, "pausing", desired="paused", intent="pause")
            steps.reached("pause:intent-written")
            async with self._settling(row):
                await held.box.pause()
            steps.reached("pause:done")
            self.roster.turn(row, "paused")
            steps.reached("pause:acknowledged")

    async def archive(self, row: Sandbox) -> None:
        """A stopped one: it keeps its files, and so its share of the disk."""
        async with self.lock(row):
            if row.state == "archived":
                return
            self._demand(row, "stopped")
            steps.reached("archive:begun")
            self.roster.turn(row, "archived", desired="archived")
            steps.reached("archive:acknowledged")

    async def recover(self, row: Sandbox, *, skip_start: bool, permit: Callable[[], None]) -> None:
        """Out of the state of error, if there is still something of it; `permit` is for starting it."""
        await self.finish(self._recover(row, skip_start=skip_start, permit=permit))

    async def _recover(self, row: Sandbox, *, skip_start: bool, permit: Callable[[], None]) -> None:
        async with self.lock(row):
            if row.state == "error":
                found = await self.find_at_backend(row)
                if found is None:
                    raise conflict("it can't be recovered: nothing of it is left. Delete it")
                await self.settle(row, found)
        if row.state == "stopped" and not skip_start:
            await self._start(row, permit)

    async def resize(self, row: Sandbox, wish: ResizeWish, *, permit: Callable[[], None]) -> None:
        """New limits; of a stopped one, from its next start on. `permit` raises if it may not have them."""
        await self.finish(self._resize(row, wish, permit))

    async def _resize(self, row: Sandbox, wish: ResizeWish, permit: Callable[[], None]) -> None:
        async with self.lock(row):
            self._demand(row, "started", "stopped")
            if wish.disk is not None and wish.disk < row.disk:
                raise Fault(400, "a disk can't be made smaller")
            before = row.state
            await self.backend.need("resize")
            permit()
            self.roster.turn(row, "resizing", intent=wish.to_intent())
            steps.reached("resize:intent-written")
            async with self._settling(row):
                await self.resize_at_backend(row, wish)
            self.roster.turn(row, before)
            steps.reached("resize:acknowledged")

    async def resize_at_backend(self, row: Sandbox, wish: ResizeWish) -> None:
        """Doing it a second time changes nothing, so one that was interrupted is done again."""
        assert row.engine_id is not None
        await self.backend.resize(
            row.engine_id,
            cpus=wish.cpu,
            memory_bytes=wish.memory * GIB if wish.memory is not None else None,
            disk_bytes=wish.disk * GIB if wish.disk is not None else None,
        )
        steps.reached("resize:done")
        row.cpu, row.memory, row.disk = wish.cpu or row.cpu, wish.memory or row.memory, wish.disk or row.disk

    def _demand(self, row: Sandbox, *states: str) -> None:
        if row.state not in states:
            raise Fault(400, f"the sandbox is {row.state}; it must be {' or '.join(states)} for this")

    @contextlib.asynccontextmanager
    async def _settling(self, row: Sandbox) -> AsyncIterator[None]:
        """If the backend fails in the middle, what we say of the sandbox is what it then is."""
        try:
            yield
        except CorralError:
            row.intent = None
            await self.settle(row, await self.find_at_backend(row))
            raise

    # The end.

    async def close(self) -> None:
        """Let go of all sandboxes, which live on; what was begun is finished first."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.handles.close()
        self.roster.flush()

    async def end_all(self) -> int:
        """Delete every sandbox; gives how many."""
        rows = list(self.roster)
        await asyncio.gather(*(self.delete(row) for row in rows), return_exceptions=True)
        return len(rows)
