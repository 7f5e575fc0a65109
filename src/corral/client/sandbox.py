"""`AsyncSandbox`: the user's handle. Everything that is derived from a backend's primitives is here, once."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import posixpath
import secrets
import shlex
import socket
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from corral.base.command import in_file
from corral.base.files import AsyncFiles, check_string
from corral.base.needs import describe_needs
from corral.base.process import AsyncProcess, Clear, as_bytes, check_input, wait_for
from corral.client.forwarding import Forward, Forwards, check_port
from corral.client.registry import get_backend
from corral.errors import (
    CorralError,
    ExecTimeoutError,
    ExitError,
    InvalidCommandError,
    SandboxClosedError,
    SandboxFileError,
    SandboxGoneError,
)
from corral.languages import Language, Runtime, choose_runtime, find_language
from corral.paths import SandboxPath, inside
from corral.protocol import (
    Backend,
    CallOptions,
    CodeOptions,
    Command,
    ExecOptions,
    OnEvent,
    OnOutput,
    PathLike,
    RecordedOptions,
    SandboxPrimitives,
    SessionOptions,
    SpawnRequest,
    StartOptions,
    Stdin,
    TerminalOptions,
    lacking,
)
from corral.results import (
    NOT_FOUND_EXIT_CODE,
    ApplyResult,
    CodeResult,
    Denial,
    Event,
    ExecResult,
    FolderChange,
    SandboxInfo,
    SandboxUsage,
)
from corral.secret import Secret, check_known, check_secrets
from corral.sessions.record import DEFAULT_RECORD_BYTES, Recorded, RecordInfo
from corral.sessions.records import BACKLOG_BYTES, MemoryRecorded, RecordBook, check_name, name_taken
from corral.sessions.session import ShellSession
from corral.sessions.session import prefix as session_prefix
from corral.sessions.terminal import Terminal
from corral.sessions.terminal import prefix as terminal_prefix
from corral.spec import (
    USER,
    LimitOptions,
    NetworkPolicy,
    Spec,
    SpecOptions,
    check_argv,
    check_count,
    check_env,
    check_keywords,
    check_size,
    check_timeout,
    choose_spec,
)

if TYPE_CHECKING:
    from corral.base.changes import Origin
    from corral.sessions.interpreter.contexts import Interpreter

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R", bound=ExecResult)

_KILL_SECONDS = 10.0
_DEFAULTS: dict[str, object] = {"pty": False, "rows": 24, "columns": 80, "read_only": (), "hidden": (), "check": False}
"""What `help()` shows for keywords that are not None by default."""

log = logging.getLogger("corral.sandbox")


def _takes(kind: type, **defaults: object) -> Callable[[F], F]:
    """Let `help()` show the keywords that a method has through `**options: Unpack[kind]`."""

    def spell_out(method: F) -> F:
        signature = inspect.signature(method)
        own = list(signature.parameters.values())[:-1]
        keywords = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, _DEFAULTS.get(name)),
                annotation=getattr(hint, "__forward_arg__", hint),
            )
            for name, hint in kind.__annotations__.items()
        ]
        method.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return method

    return spell_out


class AsyncSandbox:
    """A sandbox: `async with AsyncSandbox() as box:` or `box = await AsyncSandbox.create()`.

    Keywords are those of `make_spec`, or a whole `spec=`; `backend=` is a name or a `Backend`; `on_event=` is called
    with its events. It is created when it is entered or awaited.

    Every method raises `SandboxGoneError` once the sandbox has ended and `SandboxClosedError` after `aclose`.
    Unsupported operations raise `CapabilityError`; `Backend.capabilities()` lists the supported ones.
    """

    def __init__(
        self,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        on_event: OnEvent | None = None,
        **spec_options: Unpack[SpecOptions],
    ) -> None:
        self._requested = choose_spec(spec, spec_options)
        self._maker = get_backend(backend)
        self._on_event = on_event
        self._primitives: SandboxPrimitives | None = None

    @classmethod
    async def create(
        cls,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        on_event: OnEvent | None = None,
        **spec_options: Unpack[SpecOptions],
    ) -> AsyncSandbox:
        """Create a sandbox; the caller closes it with `aclose`. Raises: as `Backend.create`."""
        return await cls(backend=backend, spec=spec, on_event=on_event, **spec_options)

    @classmethod
    async def connect(cls, sandbox_id: str, *, backend: str | Backend = "embedded") -> AsyncSandbox:
        """A handle to a detached sandbox. Raises: SandboxGoneError."""
        return await get_backend(backend).connect(check_string(sandbox_id, what="sandbox_id"))

    @classmethod
    async def list(cls, *, backend: str | Backend = "embedded") -> Sequence[SandboxInfo]:
        """The detached sandboxes, running and stopped."""
        return await get_backend(backend).list()

    @classmethod
    def around(
        cls, primitives: SandboxPrimitives, *, on_event: OnEvent | None = None, event: str | None = None
    ) -> AsyncSandbox:
        """The handle around a backend's primitives: always the same object. The first time, it emits `event`."""
        if primitives.handle is not None:
            return primitives.handle
        self = primitives.handle = cls.__new__(cls)
        self._hold(primitives, on_event)
        if event is not None:
            self.tell(event)
        return self

    def _hold(self, primitives: SandboxPrimitives, on_event: OnEvent | None) -> None:
        self._on_event = on_event
        self._primitives = primitives
        self._runtimes: dict[str, tuple[str, ...]] = {}
        self._records = RecordBook()
        self._forwards = Forwards()
        self._interpreter: Interpreter | None = None
        self._ended: SandboxGoneError | None = None
        self.withheld: frozenset[str] = frozenset()
        """Variables for later programs, beyond the spec's and the backend's."""

    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self._primitives is None:
            made = await self._make()
            # Both are handles to one sandbox, and share what they know of it: records, runtimes, its end.
            self.__dict__ = made.__dict__
        return self

    async def _make(self) -> AsyncSandbox:
        making = asyncio.ensure_future(self._maker.create(self._requested, on_event=self._on_event))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # In any state of the creation, nothing may be left behind.
            making.cancel()
            (outcome,) = await asyncio.gather(making, return_exceptions=True)
            if isinstance(outcome, AsyncSandbox):
                await outcome.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self.spec.lifetime.keep_on_failure and not self.closed:
            try:
                kept = await self.detach()
            except CorralError:
                log.warning("sandbox %s could not be kept after a failure", self.id)
            else:
                log.warning("sandbox %s was kept after a failure: `corral shell %s`", self.id, kept)
                self.tell("kept", error=type(error).__name__)
        await self.aclose()

    def __repr__(self) -> str:
        primitives = self._primitives
        if primitives is None:
            return f"<{type(self).__name__} on {self._maker.name}, not open>"
        standing = primitives.standing
        gone = self._ended is not None and standing != "stopped"
        return f"<{type(self).__name__} {self.id} {'closed' if self.closed else 'gone' if gone else standing}>"

    # What it is.

    @property
    def primitives(self) -> SandboxPrimitives:
        """The backend's implementation. For code that depends on a backend."""
        if self._primitives is None:
            raise SandboxClosedError("the sandbox is not open yet", hint="enter it with `async with`, or await it")
        return self._primitives

    @property
    def _open(self) -> SandboxPrimitives:
        primitives = self.primitives
        if primitives.closed:
            primitives.refuse_closed()
        return primitives

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self.primitives.id

    @property
    def spec(self) -> Spec:
        """The spec it was created with."""
        return self.primitives.spec

    @property
    def backend(self) -> str:
        """The name of its backend."""
        return self.primitives.backend

    @property
    def files(self) -> AsyncFiles:
        """Its files."""
        return self._open.files

    @property
    def interpreter(self) -> Interpreter:
        """The stateful interpreter, with its contexts, including the shared default one."""
        if self._interpreter is None:
            # Imported on demand: most programs never need it.
            from corral.sessions.interpreter.contexts import Interpreter

            self._interpreter = Interpreter(self)
        return self._interpreter

    @property
    def temporary(self) -> str:
        """The folder inside for short-lived files of Corral."""
        return self.primitives.temporary

    @property
    def closed(self) -> bool:
        """True after `aclose`."""
        return self.primitives.closed

    @property
    def ended(self) -> SandboxGoneError | None:
        """The last `SandboxGoneError` of a program."""
        return self._ended

    async def is_alive(self) -> bool:
        """True if the sandbox exists and responds."""
        return await self.primitives.is_alive()

    async def usage(self) -> SandboxUsage:
        """Its current and total resource use."""
        return await self._open.usage()

    async def info(self) -> SandboxInfo:
        """Its entry in a list."""
        return await self._open.info()

    # Running programs.

    @_takes(ExecOptions)
    async def exec(self, command: Command, **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a program to its end. `read_only` and `hidden` restrict what this one call sees.

        Raises:
            InvalidCommandError: an invalid command, env, stdin or timeout.
            WorkdirError: `cwd` does not exist or is not a folder.
            CapabilityError: an unsupported user or view.
            ExitError, ExecTimeoutError: with `check`.
        """
        check_keywords(options, ExecOptions, "exec")
        stdin = options.get("stdin")
        check_input(stdin)
        async with in_file(command, self._private_folder(), write=self.files.write, drop=self._drop) as argv:
            request = self._resolve(argv, options, stdin=stdin is not None)
            result = await self._run(request, stdin, options.get("on_output"))
        return self._checked(result, "exec") if options.get("check") else result

    @_takes(CodeOptions)
    async def run_code(
        self,
        code: str | bytes,
        language: str = "python",
        *,
        args: Sequence[str] = (),
        file: PathLike | None = None,
        charts: bool = False,
        **options: Unpack[CodeOptions],
    ) -> CodeResult:
        """Run a snippet in a new process.

        With `charts`, figures that Python code shows with matplotlib are in the result: `result.png`. Not with `file`.

        `file` is the path of a file inside with the same code: it is run in its place, so that its name, folder,
        imports and tracebacks are those of the file. The code itself is then only used to choose the runtime.

        Raises:
            UnknownLanguageError: unknown language.
            BackendUnavailableError: its runtime is missing inside; the hint says what to install.
            InvalidCommandError, WorkdirError, ExitError, ExecTimeoutError: as `exec`.
        """
        check_keywords(options, CodeOptions, "run_code")
        found = find_language(language)
        if not isinstance(code, str | bytes | bytearray | memoryview):
            raise InvalidCommandError(f"code must be a string or bytes, not {type(code).__name__}")
        source = as_bytes(code)
        if found.strip is not None and (stripped := found.strip(source)) != source:
            source, file = stripped, None  # the file itself can't be run
        stdin, check = options.get("stdin"), options.get("check", False)
        check_timeout(options.get("timeout"), what="timeout", error=InvalidCommandError)
        check_input(stdin)
        if charts and file is not None:
            raise InvalidCommandError("charts= and file= can't be combined", hint="leave one of them out")
        if charts and found.name == "python":
            from corral.sessions.interpreter.oneshot import run_with_charts

            plotted = await run_with_charts(self, source, args=args, **options)
            return self._checked(plotted, "run_code") if check else plotted
        runtime = await self.find_runtime(found, source)
        workdir, cwd = self.spec.workdir, options.get("cwd")
        folder = inside(cwd if cwd is not None else ".", workdir=workdir)
        private = self._private_folder()
        beside = f"{folder.rstrip('/')}/.corral-{secrets.token_hex(8)}.{runtime.extension}"
        there = None if file is None else inside(file, workdir=workdir)
        path: str | None = None
        try:
            path = there or await self._place(source, runtime, private=private, beside=beside)
            argv = [word.replace("{file}", path) for word in (there and runtime.in_place) or runtime.argv]
            request = self._resolve([*argv, *args], options, stdin=stdin is not None)
            result = await self._run(request, stdin, options.get("on_output"))
        finally:
            # Both, where it is not known: a write that was cancelled may have been carried out all the same.
            if there is None and runtime.beside:
                await self._drop(beside)
            if there is None and path != beside:
                await self._drop(private)
        if result.exit_code == NOT_FOUND_EXIT_CODE and not found.probe:
            # It may be the snippet's own exit code.
            installed = await self.exec(f"command -v {shlex.quote(runtime.program)}", timeout=30)
            if not installed.ok:
                self.primitives.lacks_runtime(found)
        coded = CodeResult(**{field.name: getattr(result, field.name) for field in fields(result)}, language=found.name)
        return self._checked(coded, "run_code") if check else coded

    @_takes(StartOptions, stdin=True)
    async def start(self, command: Command, **options: Unpack[StartOptions]) -> AsyncProcess:
        """Start a program in the background. Raises: as `exec`."""
        check_keywords(options, StartOptions, "start")
        async with self._starting(command, options) as (request, clear):
            denied = self.watch_denials()
            process = await self.primitives.spawn(request)
            process.clear_at_end(clear)
            process.tell_denied(denied, self.primitives.settle_denials)
            return process

    # Recorded programs: their output is kept, and can be read from the beginning, any number of times.

    @_takes(RecordedOptions)
    async def start_recorded(
        self,
        command: Command,
        *,
        name: str,
        limit_bytes: int = DEFAULT_RECORD_BYTES,
        note: bytes | None = None,
        **options: Unpack[RecordedOptions],
    ) -> Recorded:
        """Start a recorded program; `limit_bytes` of its output are kept. A `note` is its record's first entry, written
        with the record.

        Raises: as `exec`; NameTakenError if the name is taken.
        """
        check_keywords(options, RecordedOptions, "start_recorded")
        check_count(limit_bytes, what="limit_bytes", error=InvalidCommandError)
        check_name(name)
        if self.primitives.keeps_records:
            if name in self._records:
                raise name_taken(name)
            async with self._starting(command, options) as (request, clear):
                return await self.primitives.start_recorded(
                    request, name=name, limit_bytes=limit_bytes, note=note, clear=clear
                )
        self._records.claim(name)
        try:
            process = await self.start(command, output_limit_bytes=BACKLOG_BYTES, **options)
        except BaseException:
            self._records.drop(name)
            raise
        pty = options.get("pty", False)
        recorded = MemoryRecorded(process, name=name, pty=pty, limit_bytes=limit_bytes, note=note, book=self._records)
        self._records.fill(name, recorded)
        return recorded

    async def find_recorded(self, name: str) -> Recorded:
        """A handle to a recorded program, running or ended. Raises: NotRecordedError."""
        if name in self._records or not self.primitives.keeps_records:
            return self._records.find(name)  # also one that was started before the sandbox was detached
        return await self.primitives.find_recorded(name)

    async def list_recorded(self) -> Sequence[RecordInfo]:
        """All recorded programs that were not deleted."""
        ours = self._records.list()
        return [*ours, *await self.primitives.list_recorded()] if self.primitives.keeps_records else ours

    @_takes(SessionOptions)
    async def open_session(
        self, name: str, *, limit_bytes: int = DEFAULT_RECORD_BYTES, **options: Unpack[SessionOptions]
    ) -> ShellSession:
        """Start a shell that runs command after command and keeps its state; `limit_bytes` of its output are kept.

        Raises: as `exec`; NameTakenError if the name is taken.
        """
        check_keywords(options, SessionOptions, "open_session")
        return await ShellSession.open(self, check_string(name, what="name"), limit_bytes=limit_bytes, **options)

    async def find_session(self, name: str) -> ShellSession:
        """An open session; in a detached sandbox also one of another process. Raises: NotRecordedError."""
        return await ShellSession.attach(self, name)

    async def list_sessions(self) -> Sequence[RecordInfo]:
        """All sessions that were not deleted."""
        return await self._list_with(session_prefix)

    @_takes(TerminalOptions)
    async def open_pty(
        self,
        name: str,
        command: Command | None = None,
        *,
        limit_bytes: int = DEFAULT_RECORD_BYTES,
        **options: Unpack[TerminalOptions],
    ) -> Terminal:
        """Start a login shell, or a command, on a new named terminal, for any number of readers.

        Raises: as `exec`; NameTakenError if the name is taken.
        """
        check_keywords(options, TerminalOptions, "open_pty")
        return await Terminal.open(self, check_string(name, what="name"), command, limit_bytes=limit_bytes, **options)

    async def find_pty(self, name: str) -> Terminal:
        """An open terminal, as `find_session` finds sessions. Raises: NotRecordedError."""
        return await Terminal.attach(self, name)

    async def list_ptys(self) -> Sequence[RecordInfo]:
        """All terminals that were not deleted."""
        return await self._list_with(terminal_prefix)

    async def _list_with(self, prefix: str) -> tuple[RecordInfo, ...]:
        return tuple(
            replace(info, name=info.name.removeprefix(prefix))
            for info in await self.list_recorded()
            if info.name.startswith(prefix)
        )

    # Its life.

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        """Detach it from this process; returns the id for `connect`. Raises: CapabilityError."""
        owned = self._open.owned
        sandbox_id = await self._open.detach(name=name, lifetime_seconds=lifetime_seconds)
        if owned:
            self.tell("detached")
        return sandbox_id

    async def snapshot(self, name: str | None = None) -> str:
        """Take a snapshot; returns its id, for `Spec.snapshot`. Programs keep running; writes wait meanwhile.

        Raises: SpecError for an invalid or taken name; CapabilityError if it is unsupported (`ephemeral`).
        """
        return await self._open.snapshot(name)

    async def fork(self, spec: Spec | None = None) -> AsyncSandbox:
        """A second, owned sandbox with the files of this one. Without a `spec` it has the same spec without the name.
        Raises: as `snapshot`.
        """
        return await self._open.fork(spec)

    async def stop(self) -> None:
        """Stop it: end the processes, keep the files. It is then detached, until `start` or `delete` of its backend.
        Idempotent."""
        await self._open.stop()

    async def pause(self) -> None:
        """Freeze every process; exec and files raise `SandboxPausedError`. Deadlines continue. Idempotent."""
        await self._open.pause()

    async def resume(self) -> None:
        """Unfreeze every process. Idempotent."""
        await self._open.resume()

    @_takes(LimitOptions)
    async def resize(self, **limits: Unpack[LimitOptions]) -> None:
        """Change limits; those not given stay. Raises: SpecError; CapabilityError if one can't be changed."""
        check_keywords(limits, LimitOptions, "resize")
        await self._open.resize(**limits)

    # Folders of the host that are mounted with mode="copy" or "overlay".

    async def diff(self, path: PathLike | None = None) -> tuple[FolderChange, ...]:
        """What was changed in a mounted folder of the host; `path` is where it is inside, if there is more than one.

        The whole tree is read and compared. Special files are left out; so are owners, and times.

        Raises:
            MountError: no folder is mounted there as a copy or beneath an overlay.
            SpecError: there is more than one, and no path was given.
        """
        from corral.base.applying import find_changes

        return await find_changes(self.files, await self._find_origin(path))

    async def apply(
        self, path: PathLike | None = None, *, overwrite: bool = False, git_settings: bool = False
    ) -> ApplyResult:
        """Make the same changes in the host's folder, and nowhere else. The sandbox stays as it is.

        Left out, and listed in the result, are links that lead out of the folder, and files that make git run programs
        (as `files.download` explains) unless `git_settings`. As root, files belong to the folder's owner.

        Raises:
            ApplyConflictError: files of the host have changed since the sandbox was created, and nothing was applied.
                With `overwrite` they are replaced, but never deleted.
            MountError, SpecError: as `diff`.
        """
        from corral.base.applying import apply_changes

        origin = await self._find_origin(path)
        return await apply_changes(self.files, origin, overwrite=overwrite, git_settings=git_settings)

    async def _find_origin(self, path: PathLike | None) -> Origin:
        where = None if path is None else str(inside(path, workdir=self.spec.workdir))
        return await self._open.find_origin(where)

    async def set_network(self, network: NetworkPolicy | str | Sequence[str]) -> None:
        """Change what may be reached, as `network=` of a new sandbox. Connections that are no longer permitted end.

        Raises: SpecError; CapabilityError if this backend can't.
        """
        await self._open.set_network(NetworkPolicy.parse(network))

    async def set_secrets(self, secrets: Sequence[Secret]) -> None:
        """Replace the secrets, or give a sandbox that was stopped its values again: nothing keeps them for it.

        Programs that start later see new variables. A secret of the same name keeps its placeholder.

        Raises: SpecError; CapabilityError if this backend can't.
        """
        wanted = check_secrets(secrets, self.primitives.spec.env)
        check_known(wanted)
        await self._open.set_secrets(wanted)

    async def denials(self) -> tuple[Denial, ...]:
        """What its network has refused so far, oldest first; the oldest may be forgotten."""
        return tuple(self._open.denials_since(0))

    def watch_denials(self) -> Callable[[], tuple[Denial, ...]]:
        """A function that returns what its network has refused since this call."""
        primitives = self._open
        count = primitives.count_denials()

        def find() -> tuple[Denial, ...]:
            if primitives.closed or primitives.count_denials() == count:
                return ()
            return tuple(primitives.denials_since(count))

        return find

    async def expose(self, port: int, *, local_port: int | None = None, address: str | None = None) -> str:
        """Forward to a port of the sandbox's own loopback; returns a URL, for HTTP or any other TCP protocol.

        It listens on a loopback address of its own, for programs of this user only, and at `local_port`: the same port
        as inside, by default. With `address` it listens there, for all who reach that address. The server inside may be
        started later. It ends with the sandbox, and with this handle.

        Raises:
            SpecError: an invalid port or address, or one that can't be listened on.
            CapabilityError: not supported by this backend.
        """
        primitives = self._open
        check_port(port)
        if primitives.exposes != "dial":
            if primitives.exposes == "url" and (local_port is not None or address is not None):
                text = "its URLs are the service's: leave out local_port and address"
                raise lacking(self.backend, "local_port= and address=", sandbox_id=self.id, op="expose", hint=text)
            return await primitives.expose(port)
        forward = Forward(
            port, primitives.dial, local_port=local_port, address=address, sandbox_id=self.id,
            wait_until_gone=primitives.wait_until_gone,
        )  # fmt: skip
        await primitives.info()  # a lost sandbox raises now, not at the first connection
        url = await self._forwards.open(forward)
        self.tell("exposed", port=port, url=url)
        return url

    async def dial(self, port: int) -> socket.socket:
        """A connected, non-blocking socket to a port of the sandbox's own loopback, closed by the caller.

        Raises:
            PortClosedError: nothing listens there.
            SpecError: an invalid port.
            CapabilityError: not supported by this backend.
        """
        return await self._open.dial(check_port(port))

    async def wait_until_gone(self) -> None:
        """Return when the sandbox has ended, for any reason. Cancel it before this handle is closed.

        Raises:
            CapabilityError: not supported by this backend: use `is_alive`.
        """
        await self._open.wait_until_gone()

    async def kill(self) -> None:
        """Delete it, owned or detached. Idempotent."""
        if not self.closed:
            await self.primitives.kill()
            await self.aclose()

    async def aclose(self) -> None:
        """Delete it, if it is owned; disconnect, if it is detached. Idempotent, and safe to cancel."""
        if self._primitives is not None and not self._primitives.closed:
            forwards = self._forwards.close_soon()
            await self._primitives.aclose()
            if forwards is not None:
                await forwards
            self.tell("closed")

    def tell(self, kind: str, **details: str | int | float | bool | None) -> None:
        """Log an event, and pass it to `on_event`. A listener's failure is logged only."""
        log.debug("%s sandbox=%s %s", kind, self.id, details)
        if self._on_event is not None:
            try:
                self._on_event(Event(kind, self.id, self.backend, details))
            except Exception:
                log.warning("on_event failed for %s", kind, exc_info=True)

    # How a program is run.

    def resolve(self, command: Command, **options: Unpack[StartOptions]) -> SpawnRequest:
        """Check and resolve what a caller gave for a program in the background. Raises: as `exec`."""
        for name, value in (("rows", options.get("rows", 24)), ("columns", options.get("columns", 80))):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
                raise InvalidCommandError(f"{name}={value!r} is not a terminal size", hint="use 1 to 65535")
        return self._resolve(command, options, stdin=options.get("stdin", True), background=True)

    def _resolve(
        self, command: Command, options: CallOptions, *, stdin: bool, background: bool = False
    ) -> SpawnRequest:
        primitives = self._open
        given = cast("StartOptions", options)  # which has every keyword of a request
        timeout, limit, user = given.get("timeout"), given.get("output_limit_bytes"), given.get("user")
        check_timeout(timeout, what="timeout", error=InvalidCommandError)
        if limit is not None:
            check_count(limit, what="output_limit_bytes", error=InvalidCommandError)
        if user is not None and not isinstance(user, str):
            raise InvalidCommandError(f"user must be a string, not {type(user).__name__}")
        spec = primitives.spec
        workdir, cwd = spec.workdir, given.get("cwd")
        extra = check_env(given.get("env") or {}, error=InvalidCommandError)
        for name, value in extra.items():
            check_size(f"{name}={value}", f"the environment variable {name!r}")
        usual = {**primitives.base_env(user or USER), **spec.env}
        return SpawnRequest(
            argv=check_argv(command),
            env={**{name: value for name, value in usual.items() if name not in self.withheld}, **extra},
            cwd=inside(cwd, workdir=workdir) if cwd is not None else workdir,
            user=user if user is not None else primitives.default_user,
            timeout=timeout if timeout is not None or background else spec.exec_timeout,
            stdin=stdin,
            output_limit_bytes=limit or spec.output_limit_bytes,
            pty=given.get("pty", False),
            rows=given.get("rows", 24),
            columns=given.get("columns", 80),
            read_only=_find_all(given.get("read_only", ()), workdir=workdir, what="read_only"),
            hidden=_find_all(given.get("hidden", ()), workdir=workdir, what="hidden"),
        )

    @contextlib.asynccontextmanager
    async def _starting(
        self, command: Command, options: StartOptions | RecordedOptions
    ) -> AsyncIterator[tuple[SpawnRequest, Clear | None]]:
        """A request for a program in the background, which is to be started within; and what its end calls for."""
        folder = self._private_folder()
        async with in_file(command, folder, write=self.files.write, drop=self._drop, background=True) as argv:
            yield self.resolve(argv, **options), None if argv is command else lambda: self._drop(folder)

    async def _run(self, request: SpawnRequest, stdin: Stdin, on_output: OnOutput | None) -> ExecResult:
        listened = on_output is not None
        denied = self.watch_denials()
        try:
            process = await self.primitives.spawn(replace(request, listened=listened, quiet=not listened))
            process.tell_denied(denied, self.primitives.settle_denials)
            try:
                result = await wait_for(process, stdin=stdin, on_output=on_output)
            except BaseException:
                # Cancelled, or a callback or the input raised: nothing of the program may stay behind, not for a
                # moment.
                process.end_tree("cancelled")
                process.stop_waiting()
                with contextlib.suppress(CorralError, TimeoutError):
                    await asyncio.shield(process.wait(timeout=_KILL_SECONDS))
                raise
        except SandboxGoneError as error:
            if error.sandbox_id == self.id:
                self._ended = error
            raise
        for denial in result.denied:
            self.tell("denied", host=denial.host, port=denial.port, rule=denial.rule, count=denial.count)
        self.tell(
            "exec",
            program=posixpath.basename(request.argv[0]),
            exit_code=result.exit_code,
            reason=result.reason,
            wall_seconds=result.usage.wall_seconds,
        )
        return result

    def _checked(self, result: R, operation: str) -> R:
        if result.ok:
            return result
        hint = describe_needs(result, self.spec.network)
        if result.timed_out:
            text = f"timed out after {result.usage.wall_seconds:.1f} s"
            raise ExecTimeoutError(text, result=result, sandbox_id=self.id, op=operation, hint=hint)
        tail = result.stderr.strip().splitlines()[-1:] or [""]
        text = f"exit code {result.exit_code} ({result.reason}) {tail[0][:200]}".rstrip()
        raise ExitError(text, result=result, sandbox_id=self.id, op=operation, hint=hint)

    # Snippets and long scripts are never passed in argv.

    def _private_folder(self) -> str:
        return f"{self.primitives.temporary}/.corral-{secrets.token_hex(8)}"

    async def _place(self, source: bytes, runtime: Runtime, *, private: str, beside: str) -> str:
        """Write a snippet to the path that its runtime needs; returns the path."""
        if runtime.beside:
            try:
                await self.files.write(beside, source, parents=False)
            except SandboxFileError:
                log.debug("the working folder takes no file: the snippet goes to a private one")
            else:
                return beside
        path = f"{private}/snippet.{runtime.extension}"
        await self.files.write(path, source)
        return path

    async def _drop(self, path: str) -> None:
        try:
            await asyncio.shield(asyncio.ensure_future(self.files.remove(path, recursive=True, missing_ok=True)))
        except (SandboxFileError, SandboxGoneError, SandboxClosedError):
            log.debug("a snippet's file could not be removed in sandbox %s", self.id)

    async def find_runtime(self, language: Language, source: bytes) -> Runtime:
        """The runtime of this source. Raises: BackendUnavailableError."""
        if (own_runtime := self.primitives.own_runtime) is not None:
            return own_runtime(language, source)
        probed: tuple[str, ...] | None = None
        if language.probe:
            if language.name not in self._runtimes:
                result = await self.exec(language.probe, timeout=30)
                self._runtimes[language.name] = tuple(result.stdout.split())
            probed = self._runtimes[language.name]
        runtime = choose_runtime(language, source, probed)
        if runtime is None:
            self._runtimes.pop(language.name, None)  # it may be installed later
            self.primitives.lacks_runtime(language)
        return runtime


def _find_all(paths: Sequence[PathLike], *, workdir: str, what: str) -> tuple[SandboxPath, ...]:
    if isinstance(paths, str | bytes) or not isinstance(paths, Iterable):
        raise InvalidCommandError(f"{what} must be a list of paths, not {type(paths).__name__}", hint="use ['/folder']")
    return tuple(inside(path, workdir=workdir) for path in paths)
