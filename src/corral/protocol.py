"""THE CONTRACT. Read this first.

A `Backend` creates sandboxes. It implements one `SandboxPrimitives`: a small class that starts a program, has files and
can end the sandbox. Users hold `corral.client.sandbox.AsyncSandbox`, the one class around the primitives, as an
HTTP client holds a transport: everything that can be derived (exec, run_code, sessions, terminals, the interpreter) is
written there once. Files and programs have abstract classes as well: `corral.base.files.AsyncFiles` and
`corral.base.process.AsyncProcess`.

What a backend does not support raises `CapabilityError`, by `lacking` below; what this machine, daemon or service does
not allow raises it with the reason. `Backend.capabilities()` lists what is supported.

These rules hold for every backend; `corral.testing` has a check for each.

1.  A command's failure is a result; the sandbox's failure is an error. They are never confused.
2.  A timeout ends the whole process tree at once, and the result carries the partial output. So does cancellation.
    Exit codes are POSIX: 124 timeout, 126 not executable, 127 not found, 128+n signal. A timeout is a result, and so is
    output beyond the limit (`truncated`, with byte counts). `check=True` turns a failure into `ExitError` or
    `ExecTimeoutError` with the result attached.
3.  The result arrives when the direct child ends, not when the last pipe closes.
4.  Corral's memory is bounded whatever the program prints, reads or writes; results say how many bytes were cut.
5.  No payload travels in argv. A 5 MB snippet and an 8 GB file both work.
6.  Float timeouts, per-call `env`, `cwd` and `stdin` are honoured. The spec's workdir exists and is the cwd.
7.  A sandbox that is gone raises `SandboxGoneError`; it is never replaced silently.
8.  Create is cancel-safe and idempotent by client token: nothing is leaked or created twice.
9.  Usable from several event loops and threads, inside a running loop, and after `os.fork`.
10. Every sandbox has an owner and a deadline. What the owner forgets, the sweeper removes, also after a crash.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, NoReturn, TypedDict, Unpack

from corral.errors import BackendUnavailableError, CapabilityError, SandboxClosedError, SandboxGoneError
from corral.languages import Language, Runtime
from corral.paths import TEMPORARY
from corral.results import (
    Capabilities,
    Denial,
    Event,
    OutputChunk,
    SandboxInfo,
    SandboxState,
    SandboxUsage,
    SnapshotInfo,
    VolumeInfo,
)
from corral.secret import Secret
from corral.spec import USER, LimitOptions, NetworkPolicy, Spec

if TYPE_CHECKING:
    from corral.base.changes import Origin
    from corral.base.files import AsyncFiles
    from corral.base.process import AsyncProcess, Clear
    from corral.client.sandbox import AsyncSandbox
    from corral.sessions.detached import DetachedProgram
    from corral.sessions.record import Recorded, RecordInfo

PathLike = str | PurePosixPath
"""A path inside; relative ones are under the sandbox's workdir."""

Command = str | Sequence[str]
"""A list is an argv. A string is run by `/bin/sh`."""

OnOutput = Callable[[OutputChunk], Awaitable[None] | None]
OnEvent = Callable[[Event], None]
Stdin = bytes | str | AsyncIterable[bytes] | None


class CallOptions(TypedDict, total=False):
    """Keywords of everything that runs a program."""

    cwd: PathLike | None
    """The working folder; the spec's workdir by default."""
    env: Mapping[str, str] | None
    """Additional variables."""


class SessionOptions(CallOptions, total=False):
    """Keywords of `open_session`."""

    user: str | None
    """The user inside, by name or number; not every backend supports others than its own."""


class TerminalOptions(SessionOptions, total=False):
    """Keywords of `open_pty`."""

    rows: int
    """The terminal's height: 24 by default."""
    columns: int
    """The terminal's width: 80 by default."""


class DetachedOptions(SessionOptions, total=False):
    """Keywords of `start_detached`."""

    timeout: float | None
    """The program is killed after so many seconds; by default never."""


class RecordedOptions(TerminalOptions, DetachedOptions, total=False):
    """Keywords of `start_recorded`."""

    pty: bool
    """True: the program gets a terminal."""


class ViewOptions(TypedDict, total=False):
    """Keywords that restrict what one call sees of the sandbox."""

    read_only: Sequence[PathLike]
    """Paths that this call can't change."""
    hidden: Sequence[PathLike]
    """Paths that are empty or inaccessible for this call."""


class StartOptions(RecordedOptions, ViewOptions, total=False):
    """Keywords of `start`."""

    stdin: bool
    """True (the default): it has a stdin that can be written to."""
    output_limit_bytes: int | None
    """How many bytes of output are kept; the spec's limit by default."""


class CodeOptions(CallOptions, total=False):
    """Keywords of `run_code`, besides its own."""

    stdin: Stdin
    """Its standard input: bytes, a string, or an async iterable of bytes. None by default."""
    timeout: float | None
    """The whole process tree is killed after so many seconds; the spec's exec_timeout by default."""
    on_output: OnOutput | None
    """Called with each piece of output."""
    check: bool
    """Raise `ExitError` or `ExecTimeoutError` for a failure."""
    output_limit_bytes: int | None
    """How many bytes of output are kept; the spec's limit by default."""


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


def lacking(
    backend: str, power: str, *, sandbox_id: str | None = None, op: str | None = None, hint: str | None = None
) -> CapabilityError:
    """The error for an unsupported operation or option."""
    text = f"the {backend} backend does not support {power}"
    hint = hint or "backend.capabilities() lists what it has"
    return CapabilityError(text, sandbox_id=sandbox_id, op=op or power, hint=hint)


def refuse_given(backend: str, unsupported: Mapping[str, tuple[bool, str]]) -> None:
    """Raises: CapabilityError for the first option that was given for a new sandbox; each has a hint."""
    for option, (given, hint) in unsupported.items():
        if given:
            raise lacking(backend, option, op="create", hint=hint)


class SandboxPrimitives(ABC):
    """One sandbox, as its backend implements it. `AsyncSandbox.around(primitives)` is what users get.

    Methods raise `SandboxGoneError` once the sandbox has ended. Methods that are not abstract have a default: an
    unsupported operation raises `CapabilityError`. After `aclose`, `AsyncSandbox` calls none of them; files that a
    caller still holds must refuse by themselves, by `refuse_closed`.
    """

    temporary = TEMPORARY
    """The folder inside for snippets and long scripts while they run."""
    default_user = USER
    """The user of a request without a user."""
    own_runtime: Callable[[Language, bytes], Runtime] | None = None
    """The runtime of a source, if the backend chooses it, not the language table. Raises: BackendUnavailableError."""

    def __init__(self, *, sandbox_id: str, spec: Spec, backend: str) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.backend = backend
        self.closed = False
        """Set by `aclose`."""
        self.handle: AsyncSandbox | None = None
        """The user's handle. Set by `AsyncSandbox.around`."""

    # What every backend implements.

    @abstractmethod
    async def spawn(self, request: SpawnRequest) -> AsyncProcess:
        """Start a program.

        Raises:
            WorkdirError: the folder does not exist, or is not a folder.
            CapabilityError: a user, view or terminal that this backend does not support.
            InvalidCommandError: invalid arguments.
        """

    @property
    @abstractmethod
    def files(self) -> AsyncFiles:
        """Its files."""

    @abstractmethod
    def release(self) -> Awaitable[None]:
        """Delete the sandbox if it is owned, else disconnect. Called once, by `aclose`.

        Work that must be done even if the event loop ends at once is done in the call itself; the rest may be awaited.
        """

    @abstractmethod
    async def kill(self) -> None:
        """Delete the sandbox, owned or detached. `aclose` follows."""

    @abstractmethod
    async def usage(self) -> SandboxUsage:
        """Its current and total resource use."""

    @abstractmethod
    async def info(self) -> SandboxInfo:
        """Its entry in a list."""

    # What a backend may override.

    @property
    def owned(self) -> bool:
        """True if it is deleted when this process ends."""
        return True

    is_paused = False
    is_stopped = False

    @property
    def standing(self) -> SandboxState:
        """Its state as known to this handle, for `repr`."""
        return "stopped" if self.is_stopped else "paused" if self.is_paused else "running"

    async def is_alive(self) -> bool:
        """True if it exists and responds."""
        try:
            await self.info()
        except SandboxGoneError:
            return False
        return True

    def base_env(self, user: str) -> Mapping[str, str]:
        """The default environment of that user's programs."""
        return {}

    def hint_for(self, language: Language) -> str:
        """What to do if a language has no runtime inside."""
        return language.hint

    # Powers. A backend that lists one in `capabilities()` implements it.

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        """Detach it from this process; returns the id for `connect`. Idempotent."""
        await self.info()  # a lost sandbox raises first
        self.lacks("detach")

    async def snapshot(self, name: str | None = None) -> str:
        """Take a snapshot of the files; returns its id."""
        self.lacks("snapshot")

    async def fork(self, spec: Spec | None = None) -> AsyncSandbox:
        """A second sandbox with the files of this one, created by the same backend."""
        self.lacks("fork")

    async def stop(self) -> None:
        """End the processes, keep the files. Idempotent."""
        self.lacks("stop")

    async def pause(self) -> None:
        """Freeze every process. Idempotent."""
        self.lacks("pause")

    async def resume(self) -> None:
        """Unfreeze every process. Idempotent."""
        self.lacks("resume")

    async def resize(self, **limits: Unpack[LimitOptions]) -> None:
        """Change limits; those not given stay."""
        self.lacks("resize")

    exposes: Literal["dial", "url"] | None = None
    """How a port inside is reached: by `dial`, or by the URL of a service, which `expose` returns."""

    async def expose(self, port: int) -> str:
        """A URL that leads to a port inside, of a backend that has one of its own."""
        self.lacks("expose")

    async def dial(self, port: int) -> socket.socket:
        """A connected, non-blocking socket to a port of the sandbox's own loopback, closed by the caller.

        Raises:
            PortClosedError: nothing listens there.
        """
        self.lacks("expose")

    async def find_origin(self, path: str | None) -> Origin:
        """The folder of the host that is mounted at a path with mode "copy" or "overlay"; None: the only one.

        Raises:
            MountError: there is none.
            SpecError: there is more than one, and no path was given.
        """
        self.lacks("diff")

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Change what may be reached; connections that are no longer permitted end."""
        self.lacks("set_network")

    async def set_secrets(self, secrets: Sequence[Secret]) -> None:
        """Replace the secrets. Programs that start later see new variables; a placeholder that is there stays."""
        self.lacks("secrets")

    def count_denials(self) -> int:
        """How many attempts to reach the network were refused so far. Called around each program: it must be cheap."""
        return 0

    async def settle_denials(self) -> None:
        """Return when the connections that programs have made so far are judged, as far as that is soon."""
        return

    def denials_since(self, count: int) -> Sequence[Denial]:
        """What was refused after the first `count`; the oldest may be forgotten."""
        return ()

    async def wait_until_gone(self) -> None:
        """Return when the sandbox has ended, for any reason. Cancel it before this handle is closed."""
        self.lacks("wait_until_gone")

    # Recorded programs. Where `keeps_records` is False, `AsyncSandbox` keeps them in the memory of this process.

    @property
    def keeps_records(self) -> bool:
        """True if this sandbox now keeps the records of its programs itself, so that they outlive this process."""
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
        """All recorded programs that were not deleted."""
        self.lacks("list_recorded")

    # What is the same for all.

    def lacks(self, power: str) -> NoReturn:
        """Raises: CapabilityError, for an unsupported operation."""
        raise lacking(self.backend, power, sandbox_id=self.id)

    def lacks_runtime(self, language: Language, *, op: str = "run_code") -> NoReturn:
        """Raises: BackendUnavailableError, for a language that nothing inside runs."""
        text = f"nothing in this sandbox runs {language.name}"
        raise BackendUnavailableError(text, sandbox_id=self.id, op=op, hint=self.hint_for(language))

    def refuse_closed(self) -> NoReturn:
        """Raises: SandboxClosedError."""
        raise SandboxClosedError("the sandbox is closed", sandbox_id=self.id, hint="make a new one")

    async def aclose(self) -> None:
        """Delete it if it is owned; disconnect if it is detached. Idempotent, and safe to cancel."""
        if self.closed:
            return
        self.closed = True
        # A cancelled close must not leave half a sandbox: the work continues, only the waiting ends.
        await asyncio.shield(asyncio.ensure_future(self.release()))


class Backend(ABC):
    """Creates, finds, lists and deletes sandboxes. Its methods may be called from any thread and event loop.

    Sandboxes are identified by id or name. Methods that are not abstract have a default: an unsupported operation
    raises `CapabilityError`.
    """

    name: str
    """The name in the registry."""
    isolated = True
    """True if programs are isolated from the host. The server, and others that run untrusted programs, reject a backend
    where it is False."""
    end_now: Callable[[str], object] | None = None
    """A method, if sandboxes would outlive the program: it is called at the end of the program, without an event loop,
    for each sandbox that an environment still holds, and deletes it if it is owned."""
    _powers: frozenset[str] | None = None

    @abstractmethod
    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        """Create a sandbox. `on_event` is called with its events.

        Raises:
            SpecError: an invalid request.
            CapabilityError: a request that this backend does not support.
            BackendUnavailableError: not possible on this machine; the hint says how to make it possible.
        """

    @abstractmethod
    async def capabilities(self) -> Capabilities:
        """The limits and optional operations that are supported here."""

    @abstractmethod
    async def aclose(self) -> None:
        """Delete every owned sandbox. Idempotent."""

    # Detached sandboxes.

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        """A handle to a detached sandbox. Raises: SandboxGoneError, CapabilityError."""
        self.lacks("connect")

    async def list(self) -> Sequence[SandboxInfo]:
        """The detached sandboxes, running and stopped."""
        return []

    async def delete(self, sandbox_id: str) -> None:
        """Delete a detached sandbox, running or stopped. Raises: SandboxGoneError."""
        self.lacks("delete")

    async def registries(self) -> tuple[str, ...]:
        """What `network="packages"` permits here, as rules; empty if it is not known."""
        return ()

    async def glance(self) -> frozenset[str]:
        """The ids of all sandboxes that exist in any state. Cheap enough for every second."""
        self.lacks("glance")

    # Stopped sandboxes and snapshots. `SandboxGoneError` and `SnapshotNotFoundError`: not found.

    async def start(self, sandbox_id: str) -> AsyncSandbox:
        """Start a stopped sandbox, detached: same files, id, name, environment. If it is running: as `connect`."""
        self.lacks("start")

    async def stop(self, sandbox_id: str) -> None:
        """Stop a sandbox: end its processes, keep its files. Does nothing if it is stopped."""
        self.lacks("stop")

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> str:
        """Take a snapshot of a sandbox, running or stopped; returns its id."""
        self.lacks("snapshot")

    async def fork(self, sandbox_id: str, spec: Spec | None = None) -> AsyncSandbox:
        """A second sandbox, owned, with the files of a running or stopped one."""
        self.lacks("fork")

    async def rollback(self, sandbox_id: str, snapshot_id: str) -> None:
        """Restore the files of the snapshot. Its processes are killed: `start` it afterwards."""
        self.lacks("rollback")

    async def resize(self, sandbox_id: str, **limits: Unpack[LimitOptions]) -> None:
        """Change the limits of a sandbox; for a stopped one, from its next start on."""
        self.lacks("resize")

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        """All snapshots, oldest first."""
        self.lacks("list_snapshots")

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot. Sandboxes created from it, and their snapshots, are not affected."""
        self.lacks("delete_snapshot")

    # Volumes. They have an `owner`, among whose volumes names are unique: a server has one for each organisation.

    async def create_volume(self, name: str, *, size_bytes: int | str | None = None, owner: str = "") -> VolumeInfo:
        """Create an empty volume. Raises: VolumeExistsError; CapabilityError for a size that can't be enforced."""
        self.lacks("volumes")

    async def list_volumes(self, *, owner: str = "") -> Sequence[VolumeInfo]:
        """The owner's volumes, oldest first."""
        self.lacks("volumes")

    async def delete_volume(self, volume: str, *, owner: str = "") -> None:
        """Delete a volume, by name or id, and its files. Raises: VolumeNotFoundError, VolumeInUseError."""
        self.lacks("volumes")

    # Detached programs: recorded programs that outlive the process that started them, by number.

    async def start_detached(self, sandbox_id: str, command: Command, **options: Unpack[DetachedOptions]) -> int:
        """Start a program in a detached sandbox; returns its number. It has no stdin."""
        self.lacks("detached programs")

    async def list_detached(self, sandbox_id: str) -> Sequence[DetachedProgram]:
        """Running and ended programs, oldest first. Raises: SandboxGoneError."""
        self.lacks("detached programs")

    def follow_detached(self, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        """The output of a program (None: the latest one); with `follow`, until it ends. Raises: SandboxGoneError."""
        self.lacks("detached programs")

    async def need(self, power: str) -> None:
        """Raises: CapabilityError, unless `capabilities()` lists the power."""
        if self._powers is None:
            self._powers = (await self.capabilities()).powers
        if power not in self._powers:
            self.lacks(power)

    def lacks(self, power: str) -> NoReturn:
        """Raises: CapabilityError, for an unsupported operation."""
        raise lacking(self.name, power)
