"""THE CONTRACT. Read this first.

A `Backend` makes sandboxes. For each it writes one `SandboxPrimitives`: a small class that starts a program, has files
and can end the sandbox. Users hold `corral.client.sandbox.AsyncSandbox`, the one class around the primitives, as an
HTTP client holds a transport: everything that can be derived (exec, run_code, sessions, terminals, the interpreter) is
written there once. Files and programs have abstract classes as well: `corral.base.files.AsyncFiles` and
`corral.base.process.AsyncProcess`.

What a backend may lack (`Backend.capabilities()` lists what it has) raises `CapabilityError`, from `lacking` below.

These rules hold for every backend; `corral.testing` has a check for each.

1.  A command's failure is a result; the sandbox's failure is an error. Neither is dressed as the other.
2.  A timeout ends the whole process tree at once, and the result carries the partial output. So does cancellation.
    Exit codes are POSIX: 124 timeout, 126 not executable, 127 not found, 128+n signal. A timeout is a result, and so is
    output beyond the limit (`truncated`, with byte counts). `check=True` turns a failure into `ExitError` or
    `ExecTimeoutError` with the result attached.
3.  The result arrives when the direct child ends, not when the last pipe closes.
4.  Memory is bounded on our side whatever the program prints, reads or writes; what was cut is said, with byte counts.
5.  No payload travels in argv. A 5 MB snippet and an 8 GB file both work.
6.  Float timeouts, per-call `env`, `cwd` and `stdin` are honoured. The spec's workdir exists and is the cwd.
7.  A sandbox that is gone raises `SandboxGoneError`; it is never replaced in silence.
8.  Create is cancel-safe and idempotent by client token: nothing is leaked, nothing is made twice.
9.  Usable from several event loops and threads, inside a running loop, and after `os.fork`.
10. Every sandbox has an owner and a deadline. What the owner forgets, the sweeper removes, also after a crash.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NoReturn, TypedDict

from corral.errors import CapabilityError, SandboxClosedError, SandboxGoneError
from corral.languages import Language, Runtime
from corral.paths import TEMPORARY
from corral.results import Capabilities, Event, OutputChunk, SandboxInfo, SandboxState, SandboxUsage, SnapshotInfo
from corral.spec import USER, Spec

if TYPE_CHECKING:
    from corral.base.files import AsyncFiles
    from corral.base.process import AsyncProcess, Clear
    from corral.client.sandbox import AsyncSandbox
    from corral.sessions.detached import DetachedProgram
    from corral.sessions.record import Recorded, RecordInfo

PathLike = str | PurePosixPath
"""A path inside; relative ones are under the sandbox's workdir."""

Command = str | Sequence[str]
"""A list is an argv. A text is for `/bin/sh`."""

OnOutput = Callable[[OutputChunk], Awaitable[None] | None]
OnEvent = Callable[[Event], None]
Stdin = bytes | str | AsyncIterable[bytes] | None


class CallOptions(TypedDict, total=False):
    """Keywords of everything that runs a program."""

    cwd: PathLike | None
    """The working folder; the spec's workdir by default."""
    env: Mapping[str, str] | None
    """Variables beyond the spec's and the sandbox's own."""


class SessionOptions(CallOptions, total=False):
    """Keywords of `open_session`."""

    user: str | None
    """The user inside, by name or number; not every backend has others than its own."""


class TerminalOptions(SessionOptions, total=False):
    """Keywords of `open_pty`."""

    rows: int
    """The terminal's height: 24 by default."""
    columns: int
    """The terminal's width: 80 by default."""


class RecordedOptions(TerminalOptions, total=False):
    """Keywords of `start_recorded`."""

    timeout: float | None
    """The program is ended after so many seconds; by default never."""
    pty: bool
    """Whether it gets a terminal."""


class ViewOptions(TypedDict, total=False):
    """What one call sees of the sandbox."""

    read_only: Sequence[PathLike]
    """Paths that this call can't change."""
    hidden: Sequence[PathLike]
    """Paths that this call finds empty."""


class StartOptions(RecordedOptions, ViewOptions, total=False):
    """Keywords of `start`."""

    stdin: bool
    """Whether it can be written to: True by default."""
    output_limit_bytes: int | None
    """How much output is kept; the spec's limit by default."""


class CodeOptions(CallOptions, total=False):
    """Keywords of `run_code`, beside its own."""

    stdin: Stdin
    """Its standard input: bytes, a text, or an async iterable of bytes. None by default."""
    timeout: float | None
    """The whole process tree is ended after so many seconds; the spec's exec_timeout by default."""
    on_output: OnOutput | None
    """Called with each piece of output as it comes."""
    check: bool
    """Raise `ExitError` or `ExecTimeoutError` for a failure."""
    output_limit_bytes: int | None
    """How much output is kept; the spec's limit by default."""


class ExecOptions(CodeOptions, SessionOptions, ViewOptions, total=False):
    """Keywords of `exec`."""


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A program to start, with everything resolved and checked: what a backend's `spawn` gets."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    user: str
    timeout: float | None
    stdin: bool
    output_limit_bytes: int
    pty: bool = False
    rows: int = 24
    columns: int = 80
    read_only: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    listened: bool = False
    """The output is read as it comes, in this event loop: nothing may be dropped before the reader begins."""
    quiet: bool = False
    """The output is read at the end only: what goes beyond the limit need not travel."""


def lacking(backend: str, power: str, *, sandbox_id: str | None = None) -> CapabilityError:
    """The error for what a backend does not have."""
    return CapabilityError(
        f"the {backend} backend does not support {power}",
        sandbox_id=sandbox_id,
        op=power,
        hint="backend.capabilities() lists what it has",
    )


class SandboxPrimitives(ABC):
    """One sandbox, as its backend implements it. `AsyncSandbox.around(primitives)` is what users get.

    Methods raise `SandboxGoneError` once the sandbox has ended. What is not abstract here has a default: a power that
    the backend does not have raises `CapabilityError`. After `aclose`, `AsyncSandbox` calls none of them; files that a
    caller still holds must refuse by themselves, by `refuse_closed`.
    """

    temporary = TEMPORARY
    """The folder inside in which snippets and long scripts lie while they run."""
    default_user = USER
    """The user of a request that names none."""
    own_runtime: Callable[[Language, bytes], Runtime] | None = None
    """What runs a source, where the backend decides it and not the language table. Raises: BackendUnavailableError."""

    def __init__(self, *, sandbox_id: str, spec: Spec, backend: str) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.backend = backend
        self.closed = False
        """Set by `aclose`."""
        self.handle: AsyncSandbox | None = None
        """What users hold of it. Set by `AsyncSandbox.around`."""

    # What every backend implements.

    @abstractmethod
    async def spawn(self, request: SpawnRequest) -> AsyncProcess:
        """Start a program.

        Raises:
            WorkdirError: the folder is missing, or no folder.
            CapabilityError: a user, view or terminal that this backend does not have.
            InvalidCommandError: arguments that can't be passed on.
        """

    @property
    @abstractmethod
    def files(self) -> AsyncFiles:
        """Its files."""

    @abstractmethod
    def release(self) -> Awaitable[None]:
        """End the sandbox if it is owned, let go of it if not. Called once, by `aclose`.

        What must happen even if the event loop ends at once happens in the call itself; the rest may be awaited.
        """

    @abstractmethod
    async def kill(self) -> None:
        """End the sandbox, owned or detached. `aclose` follows."""

    @abstractmethod
    async def usage(self) -> SandboxUsage:
        """What it holds and has used."""

    @abstractmethod
    async def info(self) -> SandboxInfo:
        """What a list says of it."""

    # What a backend may know better.

    @property
    def owned(self) -> bool:
        """Whether it ends with this process."""
        return True

    @property
    def standing(self) -> SandboxState:
        """What this handle knows of its state, for `repr`."""
        return "running"

    async def is_alive(self) -> bool:
        """Whether it is there and answers."""
        try:
            await self.info()
        except SandboxGoneError:
            return False
        return True

    def base_env(self, user: str) -> Mapping[str, str]:
        """What every program of that user finds in its environment."""
        return {}

    def hint_for(self, language: Language) -> str:
        """What to do where no program inside runs a language."""
        return language.hint

    # Powers. A backend that lists one in `capabilities()` implements it.

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        """Let it live on without this process; gives the id for `connect`. Idempotent."""
        await self.info()  # a sandbox that is gone says so first
        self.lacks("detach")

    async def snapshot(self, name: str | None = None) -> str:
        """Keep the files of this moment; gives the id of the snapshot."""
        self.lacks("snapshot")

    async def fork(self, spec: Spec | None = None) -> AsyncSandbox:
        """A second sandbox that begins with the files of this one, made by the same backend."""
        self.lacks("fork")

    async def stop(self) -> None:
        """End the processes, keep the files. Idempotent."""
        self.lacks("stop")

    async def pause(self) -> None:
        """Freeze every process. Idempotent."""
        self.lacks("pause")

    async def resume(self) -> None:
        """Let every process go on. Idempotent."""
        self.lacks("resume")

    async def resize(
        self,
        *,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        disk_bytes: int | None = None,
        processes: int | None = None,
    ) -> None:
        """Set new limits; what is not given stays."""
        self.lacks("resize")

    async def expose(self, port: int) -> str:
        """A URL on this machine that leads to a port inside."""
        self.lacks("expose")

    async def wait_until_gone(self) -> None:
        """Return when the sandbox has ended, whatever ended it. Cancel it before this handle is closed."""
        self.lacks("wait_until_gone")

    # Recorded programs. Where `keeps_records` is False, `AsyncSandbox` keeps them in the memory of this process.

    @property
    def keeps_records(self) -> bool:
        """Whether this sandbox now keeps the records of its programs itself, so that they outlive this process."""
        return False

    async def start_recorded(
        self, request: SpawnRequest, *, name: str, limit_bytes: int, note: bytes | None, clear: Clear | None
    ) -> Recorded:
        """Start a recorded program; `clear` is to be called after its end. Raises: NameTakenError."""
        self.lacks("start_recorded")

    async def find_recorded(self, name: str) -> Recorded:
        """A recorded program, running or ended. Raises: NotRecordedError."""
        self.lacks("find_recorded")

    async def list_recorded(self) -> Sequence[RecordInfo]:
        """All that were not forgotten."""
        self.lacks("list_recorded")

    # What is the same for all.

    def lacks(self, power: str) -> NoReturn:
        """Raises: CapabilityError, for what this backend does not have."""
        raise lacking(self.backend, power, sandbox_id=self.id)

    def refuse_closed(self) -> NoReturn:
        """Raises: SandboxClosedError."""
        raise SandboxClosedError("the sandbox is closed", sandbox_id=self.id, hint="make a new one")

    async def aclose(self) -> None:
        """End it if it is owned; let go of it if it is detached. Idempotent, and safe to cancel."""
        if self.closed:
            return
        self.closed = True
        # A cancelled close must not leave half a sandbox: the work goes on, only the waiting ends.
        await asyncio.shield(asyncio.ensure_future(self.release()))


class Backend(ABC):
    """Makes, finds, lists and deletes sandboxes. Its methods may be called from any thread and event loop.

    Sandboxes are named by id or name. What is not abstract here has a default: a power that the backend does not have
    raises `CapabilityError`.
    """

    name: str
    """The name in the registry."""
    isolated = True
    """Whether programs are kept apart from the host. Servers, and others that run strangers' programs, take no backend
    where it is False."""
    _powers: frozenset[str] | None = None

    @abstractmethod
    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        """Make a sandbox. `on_event` is told what happens to it.

        Raises:
            SpecError: a request that can't be met anywhere.
            CapabilityError: a request that this backend can't meet.
            BackendUnavailableError: this machine can't; the hint says how it could.
        """

    @abstractmethod
    async def capabilities(self) -> Capabilities:
        """What holds here, and which powers there are."""

    @abstractmethod
    async def aclose(self) -> None:
        """End every sandbox that is owned. Idempotent."""

    # Detached sandboxes.

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        """A handle to a detached sandbox. Raises: SandboxGoneError, CapabilityError."""
        self.lacks("connect")

    async def list(self) -> Sequence[SandboxInfo]:
        """The detached sandboxes: those that live, and those that are stopped."""
        return []

    async def delete(self, sandbox_id: str) -> None:
        """End a detached sandbox, or remove a stopped one. Raises: SandboxGoneError."""
        self.lacks("delete")

    async def glance(self) -> frozenset[str]:
        """The ids of all sandboxes of which anything is left, in whatever state. Cheap enough for every second."""
        self.lacks("glance")

    # Stopped sandboxes and snapshots. `SandboxGoneError` and `SnapshotNotFoundError` say that there is no such one.

    async def start(self, sandbox_id: str) -> AsyncSandbox:
        """Bring a stopped sandbox up, detached: same files, id, name, environment. Of one that runs: as `connect`."""
        self.lacks("start")

    async def stop(self, sandbox_id: str) -> None:
        """End the processes of a sandbox, keep its files. Of one that is stopped: nothing."""
        self.lacks("stop")

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> str:
        """Keep the files of a sandbox, running or stopped; gives the snapshot's id."""
        self.lacks("snapshot")

    async def fork(self, sandbox_id: str, spec: Spec | None = None) -> AsyncSandbox:
        """A second sandbox, owned, with the files of one that runs or is stopped."""
        self.lacks("fork")

    async def rollback(self, sandbox_id: str, snapshot_id: str) -> None:
        """The files become those of the snapshot. Its processes are ended: `start` it afterwards."""
        self.lacks("rollback")

    async def resize(
        self,
        sandbox_id: str,
        *,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        disk_bytes: int | None = None,
        processes: int | None = None,
    ) -> None:
        """Set new limits of a sandbox; a stopped one has them from its next start on."""
        self.lacks("resize")

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        """All snapshots, oldest first."""
        self.lacks("list_snapshots")

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot. Sandboxes that began from it, and snapshots of those, are not touched."""
        self.lacks("delete_snapshot")

    # Detached programs: recorded programs that outlive the process that started them, by number.

    async def start_detached(
        self,
        sandbox_id: str,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Start a program in a detached sandbox; gives its number. It has no input."""
        self.lacks("detached programs")

    async def list_detached(self, sandbox_id: str) -> Sequence[DetachedProgram]:
        """Those that run or have run, oldest first. Raises: SandboxGoneError."""
        self.lacks("detached programs")

    def follow_detached(self, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        """What the program of that number has printed (None: the one started last); with `follow`, until it ends.

        Raises:
            SandboxGoneError: there is no such program.
        """
        self.lacks("detached programs")

    async def need(self, power: str) -> None:
        """Raises: CapabilityError, unless `capabilities()` lists the power."""
        if self._powers is None:
            self._powers = (await self.capabilities()).powers
        if power not in self._powers:
            self.lacks(power)

    def lacks(self, power: str) -> NoReturn:
        """Raises: CapabilityError, for what this backend does not have."""
        raise lacking(self.name, power)
