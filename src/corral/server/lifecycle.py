"""What changes a sandbox's state: creating, stopping, starting, pausing, resizing and deleting it.

Each change is written to the database before it is made (`intent`), and is made in a separate task: a client that
disconnects in the middle leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from corral.client.sandbox import AsyncSandbox
from corral.concurrency.waiting import wait_for
from corral.errors import CapabilityError, CorralError, SandboxGoneError
from corral.protocol import Backend
from corral.results import SandboxInfo
from corral.server import log, steps
from corral.server.creating import intent_of_resize
from corral.server.faults import Fault, conflict
from corral.server.living import Handle, LivingSandbox, Sandboxes
from corral.server.network import Networks
from corral.server.routing import Identity
from corral.server.secrets import Secrets
from corral.server.settings import GIB
from corral.server.snapshots import Snapshots
from corral.server.store.rows import Sandbox
from corral.server.wire.control import ResizeSandbox, UpdateSandboxNetworkSettings

P = ParamSpec("P")
T = TypeVar("T")
_ENDED = (
    "the sandbox was ended outside the server: by `corral sandbox rm`, by a signal, or because it ran out of memory"
)


def _to_its_end(
    change: Callable[Concatenate[Lifecycle, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Lifecycle, P], Coroutine[Any, Any, None]]:
    """A change that is finished even if its caller is cancelled."""

    @functools.wraps(change)
    async def begin(lifecycle: Lifecycle, /, *args: P.args, **options: P.kwargs) -> None:
        await lifecycle.finish(change(lifecycle, *args, **options))

    return begin


class Inventory:
    """What the backend has. A hundred sandboxes that end at once are a hundred questions, and one or two answers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[Sequence[SandboxInfo]] | None = None

    async def ask(self) -> Sequence[SandboxInfo]:
        """All sandboxes, as they are after this call began. Raises: as `Backend.list`."""
        if self._next is None:
            self._next = asyncio.create_task(self._look())
        return await wait_for(self._next)

    async def _look(self) -> Sequence[SandboxInfo]:
        async with self._turn:
            self._next = None  # later callers may ask about what happens from now on
            return await self._backend.list()


class Lifecycle:
    """Every change of a sandbox's state. One at a time for each sandbox, under its lock."""

    def __init__(
        self, *, backend: Backend, sandboxes: Sandboxes, snapshots: Snapshots, secrets: Secrets, networks: Networks
    ) -> None:
        self.backend = backend
        self.sandboxes = sandboxes
        self.snapshots = snapshots
        self.secrets = secrets
        self.networks = networks
        sandboxes.adapt, sandboxes.note_denials = networks.apply, networks.note_denials
        self.inventory = Inventory(backend)
        self._tasks: set[asyncio.Task[Any]] = set()
        sandboxes.look_after = lambda sandbox, handle: self.spawn(self._look_after(sandbox, handle))

    # What the backend says.

    async def _look_after(self, sandbox: LivingSandbox, handle: Handle | None) -> None:
        """Ask the backend about a sandbox that seems to be gone."""
        if handle is not None and sandbox.handle is not handle:
            return
        async with sandbox.locked():
            if sandbox.row.state in ("started", "paused"):
                await self.settle(sandbox, await self.find_at_backend(sandbox))

    async def find_at_backend(self, sandbox: LivingSandbox) -> str | None:
        """Its state at the backend: running, paused or stopped; None if the backend does not have it."""
        for info in await self.inventory.ask():
            if info.sandbox_id == sandbox.row.engine_id:
                return info.state
        return None

    async def settle(self, sandbox: LivingSandbox, found: str | None) -> None:
        """Make its state agree with what was found at the backend."""
        row = sandbox.row
        state = {"running": "started", "paused": "paused", "stopped": "stopped"}.get(found or "")
        if state == "stopped" and row.state == "archived":
            state = "archived"
        if state == row.state == row.desired_state and row.intent is None:
            return
        if state != "started" and (box := sandbox.release()) is not None:
            await box.aclose()
        if state is None:
            sandbox.turn("error", reason=row.error_reason or _ENDED)
        else:
            sandbox.turn(state, desired=state)

    # Tasks that outlive the request that began them.

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """In the background; awaited when the server stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Fault):
            log.event("background task failed", level=30, error=error)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to its end, even if the caller is cancelled."""
        return await asyncio.shield(self.spawn(work))

    # Creating and deleting.

    async def create(self, row: Sandbox, creator: Callable[[], Awaitable[AsyncSandbox]]) -> LivingSandbox:
        """Create what a row describes. If the caller is cancelled meanwhile, the sandbox is deleted."""
        sandbox = self.sandboxes.add(row)
        steps.reached("create:intent-written")
        creating = self.spawn(self._create(sandbox, creator))
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            self.spawn(self._undo_create(creating))
            raise

    async def recall(self, token: str, *, organisation_id: str) -> LivingSandbox | None:
        """The sandbox that was created for a token, if it still exists; waits while it is being created."""
        sandbox = self.sandboxes.created_by(token, organisation_id=organisation_id)
        while sandbox is not None and not sandbox.is_deleted and sandbox.row.state in ("creating", "destroying"):
            sandbox.was_recalled = True
            with contextlib.suppress(Fault):  # it failed while we waited
                async with sandbox.locked():
                    pass
            await asyncio.sleep(0)  # the task that creates it may not have begun
        return sandbox if sandbox is not None and not sandbox.is_deleted else None

    async def _create(self, sandbox: LivingSandbox, creator: Callable[[], Awaitable[AsyncSandbox]]) -> LivingSandbox:
        box: AsyncSandbox | None = None
        async with sandbox.locked():
            try:
                box = await creator()
                steps.reached("create:made")
                sandbox.row.engine_id = box.id
                sandbox.save()  # before it can outlive this process
                steps.reached("create:noted")
                with contextlib.suppress(CapabilityError):
                    await box.detach()
                steps.reached("create:detached")
                sandbox.hold(box)
                sandbox.turn("started")
                steps.reached("create:acknowledged")
            except BaseException:
                sandbox.forget_handle()
                if box is not None:
                    async with contextlib.aclosing(box):
                        await self.end_at_backend(sandbox, box)  # if this fails, the row stays, for the sweeper
                self.sandboxes.remove(sandbox)
                raise
        return sandbox

    async def _undo_create(self, creating: asyncio.Task[LivingSandbox]) -> None:
        await asyncio.wait((creating,))
        if creating.cancelled() or creating.exception() is not None:
            return  # it was undone already, and the failure is in the log
        if creating.result().was_recalled:
            return  # its client has repeated the request, and is told of it
        with contextlib.suppress(Fault):  # deleted already; any other failure is logged with this task
            await self.delete(creating.result())

    @_to_its_end
    async def delete(self, sandbox: LivingSandbox) -> None:
        """Delete it, with its files. Raises: Fault 404 if it was deleted in the meantime."""
        # Released before it is locked: the calls that work inside end now, and with them the lock.
        async with sandbox.released() as box, sandbox.locked():
            sandbox.turn("destroying", desired="destroyed", intent="delete", reason=sandbox.row.error_reason)
            steps.reached("delete:intent-written")
            async with sandbox.released() as later:  # a call may have connected again while we waited
                await self.end_at_backend(sandbox, later or box)
            steps.reached("delete:ended")
            self.sandboxes.remove(sandbox)
            steps.reached("delete:forgotten")

    async def end_at_backend(self, sandbox: LivingSandbox, box: AsyncSandbox | None = None) -> None:
        """Delete it at the backend."""
        with contextlib.suppress(SandboxGoneError):
            if box is not None:
                await box.kill()
            elif sandbox.row.engine_id is not None:
                await self.backend.delete(sandbox.row.engine_id)

    # Stopping and starting.

    @_to_its_end
    async def stop(self, sandbox: LivingSandbox) -> None:
        """End its processes, keep its files. A sandbox whose auto-delete interval is 0 is deleted instead."""
        async with sandbox.locked():
            if sandbox.row.state in ("stopped", "archived"):
                return
            self._require(sandbox, "started", "paused", "error")
            if sandbox.row.auto_delete != 0:
                await self.backend.need("stop")
                async with self._changing(sandbox, "stop", through="stopping", to="stopped"), sandbox.released():
                    await self.backend.stop(sandbox.engine_id)
                return
        await self.delete(sandbox)

    @_to_its_end
    async def start(self, sandbox: LivingSandbox, *, permit: Callable[[], None]) -> None:
        """Start a stopped, archived or paused sandbox. `permit` raises if it may not run; it is called just before."""
        async with sandbox.locked():
            before = sandbox.row.state
            if before == "started":
                return
            self._require(sandbox, "stopped", "archived", "paused")
            # No await between `permit` and the change of state: two that start at once must not both get the last.
            if before == "paused":
                await self.backend.need("pause")
                box = (await self.sandboxes.connect_now(sandbox)).box
                permit()
                async with self._changing(sandbox, "resume", through="resuming", to="started"):
                    await box.resume()
                    await self.networks.apply(sandbox, box)
                    await self.sandboxes.end_orphans(sandbox, box)
            else:
                await self.backend.need("stop")
                permit()
                through = "restoring" if before == "archived" else "starting"
                async with self._changing(sandbox, "start", through=through, to="started"):
                    box = sandbox.hold(await self.backend.start(sandbox.engine_id)).box
                    await self.networks.apply(sandbox, box)
                    await self._give_secrets(sandbox)
                    sandbox.may_have_orphans = False
            sandbox.touch()

    async def _give_secrets(self, sandbox: LivingSandbox) -> None:
        """A stopped sandbox has kept no values. One that can't take them starts without, which the log says."""
        if sandbox.row.secrets and sandbox.handle is not None:
            try:
                await sandbox.handle.box.set_secrets(self.secrets.for_sandbox(sandbox.row))
            except CorralError as error:
                log.event("secrets not given", level=30, sandbox=sandbox.id, error=error)

    @_to_its_end
    async def pause(self, sandbox: LivingSandbox) -> None:
        """Freeze every process."""
        async with sandbox.locked():
            if sandbox.row.state == "paused":
                return
            self._require(sandbox, "started")
            await self.backend.need("pause")
            box = (await self.sandboxes.connect_now(sandbox)).box
            async with self._changing(sandbox, "pause", through="pausing", to="paused"):
                await box.pause()

    async def archive(self, sandbox: LivingSandbox) -> None:
        """Mark a stopped sandbox as archived: it keeps its files, and so its share of the disk."""
        async with sandbox.locked():
            if sandbox.row.state == "archived":
                return
            self._require(sandbox, "stopped")
            steps.reached("archive:begun")
            sandbox.turn("archived", desired="archived")
            steps.reached("archive:acknowledged")

    @_to_its_end
    async def recover(self, sandbox: LivingSandbox, *, skip_start: bool, permit: Callable[[], None]) -> None:
        """Recover a sandbox in state `error`, and start it; `permit` as in `start`. Raises: Fault 409 if it is gone."""
        async with sandbox.locked():
            if sandbox.row.state == "error":
                found = await self.find_at_backend(sandbox)
                if found is None:
                    raise conflict("the sandbox can't be recovered: the backend no longer has it. Delete it")
                await self.settle(sandbox, found)
        if sandbox.row.state == "stopped" and not skip_start:
            await self.start(sandbox, permit=permit)

    @_to_its_end
    async def resize(self, sandbox: LivingSandbox, resize: ResizeSandbox, *, permit: Callable[[], None]) -> None:
        """Set new limits; for a stopped sandbox, from its next start on. `permit` raises if they are not allowed."""
        async with sandbox.locked():
            before = sandbox.row.state
            self._require(sandbox, "started", "stopped")
            if resize.disk is not None and resize.disk < sandbox.row.disk:
                raise Fault(400, "disk: a disk can't be made smaller")
            await self.backend.need("resize")
            permit()
            async with self._changing(
                sandbox, "resize", through="resizing", to=before, intent=intent_of_resize(resize)
            ):
                await self.resize_at_backend(sandbox, resize)

    async def resize_at_backend(self, sandbox: LivingSandbox, resize: ResizeSandbox) -> None:
        """Idempotent, so a resize that was interrupted is done again."""
        await self.backend.resize(
            sandbox.engine_id,
            cpus=resize.cpu,
            memory_bytes=resize.memory * GIB if resize.memory is not None else None,
            disk_bytes=resize.disk * GIB if resize.disk is not None else None,
        )
        row = sandbox.row
        row.cpu, row.memory, row.disk = resize.cpu or row.cpu, resize.memory or row.memory, resize.disk or row.disk

    @_to_its_end
    async def change_network(
        self, sandbox: LivingSandbox, wanted: UpdateSandboxNetworkSettings, *, caller: Identity
    ) -> None:
        """Change what it may reach; one that does not run, from its next start on. Raises: as `Networks.ask`."""
        async with sandbox.locked():
            self._require(sandbox, "started", "paused", "stopped", "archived")
            runs = sandbox.row.state in ("started", "paused")
            box = (await self.sandboxes.connect_now(sandbox)).box if runs else None
            await self.networks.change(sandbox, wanted, caller=caller, box=box)

    def _require(self, sandbox: LivingSandbox, *states: str) -> None:
        if sandbox.row.state not in states:
            raise Fault(400, f"the sandbox is {sandbox.row.state}; it must be {' or '.join(states)}")

    @contextlib.asynccontextmanager
    async def _changing(
        self, sandbox: LivingSandbox, change: str, *, through: str, to: str, intent: str | None = None
    ) -> AsyncIterator[None]:
        """A change that the backend makes: the intent is written before it, the new state after it.

        If the backend fails in the middle, the sandbox's state is taken from the backend.
        """
        sandbox.turn(through, desired=to, intent=intent or change)
        steps.reached(f"{change}:intent-written")
        try:
            yield
        except CorralError:
            sandbox.row.intent = None
            await self.settle(sandbox, await self.find_at_backend(sandbox))
            raise
        steps.reached(f"{change}:done")
        sandbox.turn(to)
        steps.reached(f"{change}:acknowledged")

    # The end.

    async def close(self) -> None:
        """Finish the changes that are under way, then close all handles. The sandboxes live on."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.sandboxes.close()

    async def end_all(self) -> int:
        """Delete every sandbox; returns how many there were."""
        sandboxes = list(self.sandboxes)
        await asyncio.gather(*(self.delete(sandbox) for sandbox in sandboxes), return_exceptions=True)
        return len(sandboxes)
