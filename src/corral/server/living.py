"""The sandboxes of a server: one object for each, with its row, its lock, its handle and the calls that use it.

A sandbox's row is written to the database before anything is done to the sandbox. Everything else that this process
holds of a sandbox is a field of its `LivingSandbox`, so it goes when the sandbox goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from corral.client.sandbox import AsyncSandbox
from corral.concurrency.waiting import wait_for
from corral.errors import CapabilityError, CorralError, SandboxFileError, SandboxGoneError
from corral.paths import SandboxPath, inside
from corral.protocol import Backend
from corral.server import log
from corral.server.creating import home_of
from corral.server.faults import Fault, bad_request, conflict, not_found
from corral.server.orphans import end_runs
from corral.server.store.database import Database
from corral.server.store.rows import Sandbox, load_all
from corral.sessions.session import ShellSession
from corral.spec import HOME, USER

READABLE_AFTER_SECONDS = 10.0
"""How long a deleted sandbox can still be read by its id: older clients do so right after deleting it."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Listener = Callable[[Sandbox, str | None], None]
"""Called after each change of state, with the state before; None for a new sandbox."""


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class Handle:
    """An open handle of a started sandbox, as calls use it."""

    workdir: ClassVar[str] = HOME
    sandbox: LivingSandbox
    box: AsyncSandbox
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the sandbox is deleted or stopped while calls use it; they are answered with 404."""
    sessions: dict[str, ShellSession] = field(default_factory=dict)
    """Handles of shell sessions, by name. Each has read its session's record, and goes on where it stopped. A cache,
    bounded by `SessionMemory`: without it, the record is read again."""
    watched_terminals: set[str] = field(default_factory=set)
    """Terminals that had a watcher. The first sees all output, later ones only what is new."""
    denials: int = 0
    """How many of its network's refusals are in the log."""
    watchers: dict[str, set[asyncio.Event]] = field(default_factory=dict)
    """By terminal: an event for each watcher, set when it has got the end of the output."""

    def __post_init__(self) -> None:
        self.withhold()

    @property
    def row(self) -> Sandbox:
        """The sandbox's row in the database."""
        return self.sandbox.row

    @property
    def home(self) -> str:
        """The home directory of the user that programs run as."""
        return home_of(self.row.user)

    def withhold(self) -> None:
        """Make the sandbox leave out the variables that `POST /env` has unset."""
        self.box.withheld = frozenset(name for name, value in self.row.set_env.items() if value is None)

    def resolve(self, path: str) -> SandboxPath:
        """An absolute path inside; relative ones start at the working folder. Raises: Fault, 400, for no valid path."""
        try:
            return inside(path, workdir=self.workdir)
        except (SandboxFileError, UnicodeEncodeError) as error:
            raise bad_request(f"{error}", code="INVALID_FILE_PATH") from error

    def environment(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of a program: those set for the sandbox, overridden by those of the call.

        Raises:
            Fault: 400, as `check_variables`.
        """
        check_variables(variables or {})
        return {**{name: value for name, value in self.row.set_env.items() if value is not None}, **(variables or {})}

    @property
    def program_user(self) -> str | None:
        """The user that programs run as, as the contract wants it: None for the default user."""
        return None if self.row.user in ("", USER) else self.row.user


def check_variables(variables: Mapping[str, str]) -> None:
    """Raises: Fault, 400, for a name that is not valid in a shell, or a value with a NUL character."""
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise bad_request(f"{name[:100]!r} is not a valid name for an environment variable")
        if "\0" in value:
            raise bad_request(f"the value of environment variable {name!r} contains a NUL character")


class LivingSandbox:
    """One sandbox: its row in the database, and what this process holds of it."""

    def __init__(self, row: Sandbox, sandboxes: Sandboxes) -> None:
        self.row = row
        self._sandboxes = sandboxes
        self._lock = asyncio.Lock()
        self._users: set[asyncio.Task[Any]] = set()
        """The tasks of calls that use its handle."""
        self._watch: asyncio.Task[None] | None = None
        self._break: asyncio.Event | None = None
        """While it is set, new calls wait for it."""
        self.handle: Handle | None = None
        self.connecting: asyncio.Task[Handle] | None = None
        self.may_have_orphans = False
        """Whether an earlier server may have left a run of the interpreter in it."""
        self.was_recalled = False
        """Whether a client has repeated the request that creates it."""
        self.is_touched = False
        """Whether its time of last use is newer than the one in the database."""
        self.is_being_swept = False
        """Whether a deadline of it is being carried out."""
        self.not_before: dict[str, float] = {}
        """By action: when a deadline that could not be carried out is due again."""

    @property
    def id(self) -> str:
        """The id that clients use."""
        return self.row.id

    @property
    def engine_id(self) -> str:
        """Its id at the backend, which every sandbox has but one that is being created."""
        assert self.row.engine_id is not None
        return self.row.engine_id

    @property
    def is_deleted(self) -> bool:
        """Whether it is gone from the list of sandboxes."""
        return self.id not in self._sandboxes

    # Its row.

    def save(self) -> None:
        """Write its row; for changes other than of the state."""
        self.row.updated_at = time.time()
        self.is_touched = False
        if not self.is_deleted:
            self.row.save(self._sandboxes.database)

    def turn(
        self, state: str, *, desired: str | None = None, intent: str | None = None, reason: str | None = None
    ) -> None:
        """Change its state. If that can't be written, the state stays as it was. Raises: as `Database.run`."""
        row, before = self.row, self.row.state
        whole = (row.state, row.desired_state, row.intent, row.error_reason, row.state_at)
        row.state = state
        row.desired_state = desired or row.desired_state
        row.intent = intent
        row.error_reason = reason
        if before != state:
            row.state_at = time.time()
        try:
            self.save()
        except BaseException:
            row.state, row.desired_state, row.intent, row.error_reason, row.state_at = whole
            raise
        if before != state:
            self._sandboxes.notify(row, before)

    def touch(self) -> None:
        """Note that it is in use. `Sandboxes.flush` writes it later, so that no call waits for the database."""
        self.row.active_at = time.time()
        self.is_touched = True

    # Its lock.

    @property
    def is_locked(self) -> bool:
        """Whether its state is being changed."""
        return self._lock.locked()

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """One task at a time changes a sandbox. Raises: Fault 404 if it was deleted in the meantime."""
        async with self._lock:
            if self.is_deleted:
                raise not_found(f"sandbox {self.id!r} not found")
            yield

    # Its users.

    @property
    def is_busy(self) -> bool:
        """Whether a call works in it."""
        return bool(self._users)

    @contextlib.contextmanager
    def lent(self, handle: Handle) -> Iterator[None]:
        """Note that the current task works inside. If the sandbox goes away, it is cancelled and answered with 404."""
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        self._users.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # Only if nothing else has cancelled the task as well: the rule of asyncio.timeout.
            if handle.gone.is_set() and task.uncancel() <= cancelled_before:
                raise not_found(f"sandbox {self.id} not found: it is gone") from None
            raise
        finally:
            self._users.discard(task)

    @contextlib.contextmanager
    def calls_wait(self) -> Iterator[None]:
        """Make new calls wait. Those that are under way go on."""
        self._break = ended = asyncio.Event()
        try:
            yield
        finally:
            self._break = None
            ended.set()

    async def wait_for_break(self) -> None:
        """Wait while new calls have to (`calls_wait`)."""
        while self._break is not None:
            await self._break.wait()

    # Its handle.

    def hold(self, box: AsyncSandbox) -> Handle:
        """Make a new handle, for all calls from now on."""
        self.forget_handle()
        self.handle = handle = Handle(sandbox=self, box=box, denials=box.primitives.count_denials())
        self._watch = asyncio.create_task(self._wait_until_gone(handle, box))
        return handle

    async def _wait_until_gone(self, handle: Handle, box: AsyncSandbox) -> None:
        """Sandboxes can be ended from outside: by `corral sandbox rm`, by a signal, by the kernel."""
        try:
            await box.wait_until_gone()
        except CapabilityError:
            return  # the calls that use it notice its end
        except CorralError as error:  # the sweeper will notice the end
            log.event("sandbox is not watched", level=logging.WARNING, error=error, sandbox=self.id)
            return
        if self.handle is handle:
            self._sandboxes.look_after(self, handle)

    def end_connecting(self, _: asyncio.Task[Handle]) -> None:
        """The task that connects is done; the next call that finds no handle starts another."""
        self.connecting = None

    def forget_handle(self) -> Handle | None:
        """Drop its handle, which the caller closes. Calls that use it go on."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        handle, self.handle = self.handle, None
        if handle is not None:
            self._sandboxes.look_for_denials(handle)
        return handle

    def release(self) -> AsyncSandbox | None:
        """Cancel all calls that work inside; returns the handle's sandbox, which is still open."""
        handle = self.forget_handle()
        if handle is None:
            return None
        handle.gone.set()
        users, self._users = self._users, set()
        for task in users:
            task.cancel()
        return handle.box

    @contextlib.asynccontextmanager
    async def released(self) -> AsyncIterator[AsyncSandbox | None]:
        """As `release`; at the end, the handle's sandbox is closed."""
        box = self.release()
        try:
            yield box
        finally:
            if box is not None:
                await box.aclose()

    async def close(self) -> None:
        """Close its handle. The sandbox lives on."""
        watch = self._watch
        handle = self.forget_handle()
        if watch is not None:
            await asyncio.gather(watch, return_exceptions=True)
        if handle is not None:
            with contextlib.suppress(CorralError):
                await handle.box.aclose()


class Sandboxes:
    """All sandboxes of a server, by id, by name, and by the token of the request that created them."""

    def __init__(self, database: Database, backend: Backend) -> None:
        self.database = database
        self._backend = backend
        self._by_id: dict[str, LivingSandbox] = {}
        self._by_name: dict[tuple[str, str], LivingSandbox] = {}
        self._by_token: dict[tuple[str, str], LivingSandbox] = {}
        self._deleted: dict[str, tuple[LivingSandbox, float]] = {}
        self.listeners: list[Listener] = []
        self.look_after: Callable[[LivingSandbox, Handle | None], asyncio.Task[None]]
        """Finds out what has become of a sandbox that seems to be gone, in a task. Set by `Lifecycle`."""
        self.adapt: Callable[[LivingSandbox, AsyncSandbox], Awaitable[None]]
        """Makes a sandbox of an earlier server obey the settings of this one. Set by `Lifecycle`."""
        self.note_denials: Callable[[Handle], None]
        """Called when the network of a sandbox has refused something. Set by `Lifecycle`."""
        for row in load_all(Sandbox, database):
            self._index(LivingSandbox(row, self))

    def __iter__(self) -> Iterator[LivingSandbox]:
        return iter(list(self._by_id.values()))

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def _index(self, sandbox: LivingSandbox) -> None:
        row = sandbox.row
        self._by_id[row.id] = self._by_name[row.organisation_id, row.name] = sandbox
        if row.request_token is not None:
            self._by_token[row.organisation_id, row.request_token] = sandbox

    def rows_of(self, organisation_id: str) -> list[Sandbox]:
        """The rows of one organisation's sandboxes."""
        return [each.row for each in self._by_id.values() if each.row.organisation_id == organisation_id]

    def states(self) -> Counter[str]:
        """How many sandboxes are in each state."""
        return Counter(sandbox.row.state for sandbox in self._by_id.values())

    def find(self, wanted: str, *, organisation_id: str | None, deleted: bool = False) -> LivingSandbox:
        """By id or name; with `deleted` also one that was deleted a moment ago, by its id only, since its name is free.

        Raises:
            Fault: 404, also for another organisation's sandbox.
        """
        sandbox = self._by_id.get(wanted)
        if sandbox is not None and organisation_id not in (None, sandbox.row.organisation_id):
            sandbox = None  # another organisation's id must not hide a name
        if sandbox is None and organisation_id is not None:
            sandbox = self._by_name.get((organisation_id, wanted))
        if sandbox is None and deleted:
            self.forget_deleted()
            sandbox = self._deleted.get(wanted, (None, 0.0))[0]
        if sandbox is None or organisation_id not in (None, sandbox.row.organisation_id):
            raise not_found(f"sandbox {wanted[:200]!r} not found")
        return sandbox

    def created_by(self, token: str, *, organisation_id: str) -> LivingSandbox | None:
        """The sandbox that a request with this token has created, or is creating."""
        return self._by_token.get((organisation_id, token))

    def add(self, row: Sandbox) -> LivingSandbox:
        """A new sandbox; its intent is on disk when this returns. Raises: Fault 409 if the name is taken."""
        if (row.organisation_id, row.name) in self._by_name:
            raise conflict(f"a sandbox named {row.name!r} already exists")
        row.save(self.database)
        sandbox = LivingSandbox(row, self)
        self._index(sandbox)
        self.notify(row, None)
        return sandbox

    def remove(self, sandbox: LivingSandbox) -> None:
        """Remove one that was deleted; for a while it can still be read."""
        row = sandbox.row
        row.erase(self.database)
        self._by_id.pop(row.id, None)
        for index, key in ((self._by_token, row.request_token or ""), (self._by_name, row.name)):
            if index.get((row.organisation_id, key)) is sandbox:
                del index[row.organisation_id, key]
        before, row.state, row.desired_state, row.intent = row.state, "destroyed", "destroyed", None
        row.state_at = row.updated_at = time.time()
        self.forget_deleted()
        self._deleted[row.id] = (sandbox, time.monotonic())
        self.notify(row, before)

    def forget_deleted(self) -> None:
        """Forget those that were deleted long enough ago."""
        now = time.monotonic()
        self._deleted = {key: old for key, old in self._deleted.items() if now - old[1] < READABLE_AFTER_SECONDS}

    def flush(self) -> None:
        """Write the times of last use. Raises: as `Database.run`."""
        touched = [sandbox for sandbox in self._by_id.values() if sandbox.is_touched]
        if touched:
            with self.database.transaction():
                for sandbox in touched:
                    sandbox.row.save(self.database)
        for sandbox in touched:
            sandbox.is_touched = False
        self.database.try_again()

    def notify(self, row: Sandbox, before: str | None) -> None:
        """Call the listeners."""
        for listener in self.listeners:
            listener(row, before)

    # Using them.

    @contextlib.asynccontextmanager
    async def use(
        self, sandbox_id: str, *, organisation_id: str | None, activity: bool = True
    ) -> AsyncIterator[Handle]:
        """The handle of a started sandbox, for one call; counts as activity.

        A call that works inside when the sandbox is deleted or stopped is cancelled, and answered with 404.

        Raises:
            Fault: 404 if the organisation has no such sandbox, 400 if it is not started.
        """
        sandbox = self.find(sandbox_id, organisation_id=organisation_id)
        row = sandbox.row
        await sandbox.wait_for_break()
        if row.state != "started" and not (row.state == "resizing" and row.desired_state == "started"):
            raise Fault(400, f"the sandbox is not started: its state is {row.state!r}")
        handle = await self.connect(sandbox)
        if activity:
            sandbox.touch()
        try:
            with sandbox.lent(handle):
                yield handle
        except SandboxGoneError:
            self.look_after(sandbox, handle)
            raise
        finally:
            if activity:
                sandbox.touch()
            self.look_for_denials(handle)

    def look_for_denials(self, handle: Handle) -> None:
        """After each call that used a handle, and now and then. Cheap if the network has refused nothing."""
        if not handle.box.closed and handle.box.primitives.count_denials() > handle.denials:
            self.note_denials(handle)

    async def connect(self, sandbox: LivingSandbox) -> Handle:
        """Its handle, which is opened if necessary, once for all calls that wait. Raises: SandboxGoneError."""
        if sandbox.handle is not None:
            return sandbox.handle
        if sandbox.connecting is None:
            sandbox.connecting = asyncio.create_task(self.connect_now(sandbox))
            sandbox.connecting.add_done_callback(sandbox.end_connecting)
        try:
            return await wait_for(sandbox.connecting)
        except SandboxGoneError:
            with contextlib.suppress(Fault):  # deleted in the meantime: the caller gets the same answer
                await self.look_after(sandbox, None)
            raise

    async def connect_now(self, sandbox: LivingSandbox) -> Handle:
        """As `connect`, for a caller that holds the lock, and so must not wait for `look_after`, which needs it."""
        if sandbox.handle is not None:
            return sandbox.handle
        row = sandbox.row
        box = await self._backend.connect(sandbox.engine_id)
        try:
            await self.adapt(sandbox, box)
            if row.state != "paused":
                await self.end_orphans(sandbox, box)
            if sandbox.is_deleted or row.state in ("destroying", "stopping", "stopped"):  # in the meantime
                raise SandboxGoneError("the sandbox is gone", sandbox_id=row.id, op="connect")
        except BaseException:
            await box.aclose()
            raise
        if sandbox.handle is not None:  # also in the meantime: by a start, or by a caller with the lock
            await box.aclose()
            return sandbox.handle
        return sandbox.hold(box)

    async def end_orphans(self, sandbox: LivingSandbox, box: AsyncSandbox) -> None:
        """Interrupt what only an earlier server listened to, before any call works inside."""
        if sandbox.may_have_orphans:
            await end_runs(box, sandbox_id=sandbox.id)
            sandbox.may_have_orphans = False

    async def close(self) -> None:
        """Close all handles. The sandboxes live on."""
        for sandbox in self:
            await sandbox.close()
        self.flush()
