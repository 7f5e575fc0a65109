"""SandboxBase: all that can be derived from a backend's few primitives, written once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
import secrets
import shlex
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar, Unpack, cast

from corral.base.command import RequestOptions, SpawnRequest, check_argv, check_size, in_file
from corral.base.feed import check_input, notes_end, wait_for
from corral.base.files import FilesBase
from corral.base.powers import POWERS
from corral.base.process import Clear, ProcessBase, as_bytes
from corral.client.sessions import SessionsBase
from corral.errors import (
    BackendUnavailableError,
    CapabilityError,
    CorralError,
    ExecTimeoutError,
    ExitError,
    InvalidCommandError,
    SandboxClosedError,
    SandboxFileError,
    SandboxGoneError,
)
from corral.languages import Language, Runtime, choose_runtime, find_language
from corral.paths import TEMPORARY, inside
from corral.protocol import AsyncSandbox, Command, OnOutput, PathLike, Stdin
from corral.results import NOT_FOUND_EXIT_CODE, CodeResult, Event, ExecResult, SandboxInfo, SandboxState, SandboxUsage
from corral.sessions.records import RecordBook
from corral.spec import USER, Spec, check_env, check_timeout

if TYPE_CHECKING:
    from corral.sessions.interpreter.contexts import Interpreter
    from corral.sessions.interpreter.process import Box

R = TypeVar("R", bound=ExecResult)

_KILL_SECONDS = 10.0

log = logging.getLogger("corral.sandbox")


class SandboxBase(SessionsBase, ABC, promises=(AsyncSandbox, *POWERS)):
    """A sandbox. `corral.protocol.AsyncSandbox` has the promises; a backend implements what is abstract here."""

    temporary = TEMPORARY  # the folder inside in which snippets and long scripts lie while they run
    ended: SandboxGoneError | None = None  # what the last program was told that found the sandbox gone

    def __init__(
        self, *, sandbox_id: str, spec: Spec, backend: str, on_event: Callable[[Event], None] | None = None
    ) -> None:
        self._id = sandbox_id
        self._spec = spec
        self._backend = backend
        self._on_event = on_event
        self._closed = False
        self._runtimes: dict[str, tuple[str, ...]] = {}
        self._records = RecordBook()
        self._interpreter: Interpreter | None = None
        self.withheld: frozenset[str] = frozenset()
        """Variables that programs to come find in neither the spec's environment nor the backend's."""

    def __repr__(self) -> str:
        standing = self._standing()
        gone = self.ended is not None and standing != "stopped"
        return f"<{type(self).__name__} {self._id} {'closed' if self._closed else 'gone' if gone else standing}>"

    def _standing(self) -> SandboxState:
        return "running"  # for `repr`, as this handle knows it; backends that stop and pause know more

    # The primitives.

    @abstractmethod
    async def _spawn(self, request: SpawnRequest) -> ProcessBase:
        """Start a program."""

    @abstractmethod
    def _release(self) -> Awaitable[None]:
        """End the sandbox if it is owned, let go of it if not. Called once.

        What must happen even if the event loop ends at once happens in the call itself; the rest may be awaited.
        """

    @property
    @abstractmethod
    def files(self) -> FilesBase:
        """Its files."""

    @abstractmethod
    async def usage(self) -> SandboxUsage:
        """What it holds and has used."""

    @abstractmethod
    async def info(self) -> SandboxInfo:
        """What a list says of it."""

    @abstractmethod
    async def kill(self) -> None:
        """End it, owned or detached. Idempotent."""

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        """Let it live on without this process; gives the id for `connect`. Raises: CapabilityError."""
        self._lacks("detach")

    # Powers that come with a backend of their own.

    async def snapshot(self, name: str | None = None) -> str:
        """Gives the snapshot's id, for `Spec.snapshot`. Programs run on, and wait while they would write."""
        self._lacks("snapshot")

    async def fork(self, spec: Spec | None = None) -> SandboxBase:
        """Gives the new one, owned. Without a `spec` it is as this one, without its name. Raises: as `snapshot`."""
        self._lacks("fork")

    async def stop(self) -> None:
        """From now on it is detached, and lies there until `start` or `delete` of its backend. Idempotent."""
        self._lacks("stop")

    async def pause(self) -> None:
        """Stand still. Idempotent."""
        self._lacks("pause")

    async def resume(self) -> None:
        """Go on. Idempotent."""
        self._lacks("resume")

    async def resize(
        self,
        *,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        disk_bytes: int | None = None,
        processes: int | None = None,
    ) -> None:
        """Set new limits; what is not given stays. Raises: SpecError; CapabilityError where one can't be changed."""
        self._lacks("resize")

    async def expose(self, port: int) -> str:
        """Gives a URL on this machine."""
        self._lacks("expose")

    def _lacks(self, power: str) -> NoReturn:
        raise CapabilityError(
            f"the {self._backend} backend has no {power}",
            sandbox_id=self._id,
            op=power,
            hint="backend.capabilities() lists what it has",
        )

    # What is derived.

    @property
    def id(self) -> str:
        """Its name on every list."""
        return self._id

    @property
    def spec(self) -> Spec:
        """The wish it was made from."""
        return self._spec

    @property
    def interpreter(self) -> Interpreter:
        """Its contexts, the shared default one among them."""
        if self._interpreter is None:
            from corral.sessions.interpreter.contexts import (
                Interpreter,  # most programs never need it, and it takes its time
            )

            self._interpreter = Interpreter(cast("Box", self))
        return self._interpreter

    @property
    def backend(self) -> str:
        """The name of its maker."""
        return self._backend

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    async def exec(
        self,
        command: Command,
        *,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        user: str | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        check: bool = False,
        read_only: Sequence[PathLike] = (),
        hidden: Sequence[PathLike] = (),
        output_limit_bytes: int | None = None,
    ) -> ExecResult:
        """Run a program to its end. `read_only` and `hidden` restrict what this one call sees."""
        check_input(stdin)
        async with in_file(command, self._private_folder(), write=self.files.write, drop=self._drop) as argv:
            request = self._request(
                argv,
                cwd=cwd,
                env=env,
                stdin=stdin is not None,
                user=user,
                timeout=timeout,
                read_only=read_only,
                hidden=hidden,
                output_limit_bytes=output_limit_bytes,
            )
            result = await self._run(request, stdin, on_output)
        return self._checked(result, "exec") if check else result

    async def run_code(
        self,
        code: str | bytes,
        language: str = "python",
        *,
        args: Sequence[str] = (),
        file: PathLike | None = None,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        check: bool = False,
        charts: bool = False,
        output_limit_bytes: int | None = None,
    ) -> CodeResult:
        """Run a snippet in a fresh process."""
        found = find_language(language)
        source = as_bytes(code)
        if found.strip is not None and (stripped := found.strip(source)) != source:
            source, file = stripped, None  # the file itself could not be run
        check_timeout(timeout, what="timeout", error=InvalidCommandError)
        check_input(stdin)
        if charts and file is not None:
            raise InvalidCommandError("charts= and file= can't be combined", hint="leave one of them out")
        if charts and found.name == "python":
            from corral.sessions.interpreter.oneshot import run_with_charts

            plotted = await run_with_charts(
                self, source, args=args, cwd=cwd, env=env, stdin=stdin, timeout=timeout, on_output=on_output,
                output_limit_bytes=output_limit_bytes,
            )  # fmt: skip
            return self._checked(plotted, "run_code") if check else plotted
        runtime = await self.find_runtime(found, source)
        folder = inside(cwd if cwd is not None else ".", workdir=self._spec.workdir)
        private = self._private_folder()
        beside = f"{folder.rstrip('/')}/.corral-{secrets.token_hex(8)}.{runtime.extension}"
        there = None if file is None else inside(file, workdir=self._spec.workdir)
        path: str | None = None
        try:
            path = there or await self._place(source, runtime, private=private, beside=beside)
            argv = [word.replace("{file}", path) for word in (there and runtime.in_place) or runtime.argv]
            request = self._request(
                [*argv, *args], cwd=folder, env=env, stdin=stdin is not None, timeout=timeout,
                output_limit_bytes=output_limit_bytes,
            )  # fmt: skip
            result = await self._run(request, stdin, on_output)
        finally:
            # Both, where it is not known: a write that was cancelled may have been carried out all the same.
            if there is None and runtime.beside:
                await self._drop(beside)
            if there is None and path != beside:
                await self._drop(private)
        if result.exit_code == NOT_FOUND_EXIT_CODE and not found.probe:
            await self._ensure_program(found, runtime)
        coded = CodeResult(**{field.name: getattr(result, field.name) for field in fields(result)}, language=found.name)
        return self._checked(coded, "run_code") if check else coded

    async def start(
        self,
        command: Command,
        *,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = True,
        user: str | None = None,
        timeout: float | None = None,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        read_only: Sequence[PathLike] = (),
        hidden: Sequence[PathLike] = (),
        output_limit_bytes: int | None = None,
    ) -> ProcessBase:
        """Start a program in the background. Raises: as `exec`."""
        async with self._start_request(
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            user=user,
            timeout=timeout,
            pty=pty,
            rows=rows,
            columns=columns,
            read_only=read_only,
            hidden=hidden,
            output_limit_bytes=output_limit_bytes,
        ) as (request, clear):
            process = await self._spawn(request)
            process.clear_at_end(clear)
            return process

    @contextlib.asynccontextmanager
    async def _start_request(
        self, command: Command, *, rows: int = 24, columns: int = 80, **options: Unpack[RequestOptions]
    ) -> AsyncIterator[tuple[SpawnRequest, Clear | None]]:
        """A request for a program in the background, which is to be started within; and what its end calls for."""
        for name, value in (("rows", rows), ("columns", columns)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
                raise InvalidCommandError(f"{name}={value!r} is not a terminal size", hint="use 1 to 65535")
        folder = self._private_folder()
        async with in_file(command, folder, write=self.files.write, drop=self._drop, background=True) as argv:
            request = self._request(argv, rows=rows, columns=columns, default_timeout=False, **options)
            yield request, None if argv is command else lambda: self._drop(folder)

    async def aclose(self) -> None:
        """End it, if it is owned; let go of it, if it is detached. Idempotent, and safe to cancel."""
        if self._closed:
            return
        self._closed = True
        # A cancelled close must not leave half a sandbox: the work goes on, only the waiting ends.
        await asyncio.shield(asyncio.ensure_future(self._release()))
        self._say("closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._spec.lifetime.keep_on_failure and not self._closed:
            try:
                kept = await self.detach()
            except CorralError:
                log.warning("sandbox %s could not be kept after a failure", self._id)
            else:
                log.warning("sandbox %s was kept after a failure: `corral shell %s`", self._id, kept)
                self._say("kept", error=type(error).__name__)
        await self.aclose()

    def _say(self, kind: str, **details: str | int | float | bool | None) -> None:
        """Log, and tell whoever wanted to know. A listener's own failure must not become ours."""
        log.debug("%s sandbox=%s %s", kind, self._id, details)
        if self._on_event is not None:
            try:
                self._on_event(Event(kind, self._id, self._backend, details))
            except Exception:
                log.warning("on_event failed for %s", kind, exc_info=True)

    def _ensure_open(self) -> None:
        if self._closed:
            raise SandboxClosedError("the sandbox is closed", sandbox_id=self._id, hint="make a new one")

    # Running.

    @notes_end
    async def _run(self, request: SpawnRequest, stdin: Stdin, on_output: OnOutput | None) -> ExecResult:
        process = await self._spawn(replace(request, listened=on_output is not None, quiet=on_output is None))
        try:
            result = await wait_for(process, stdin=stdin, on_output=on_output)
        except BaseException:
            # Cancelled, or a callback or the input raised: nothing of the program may stay behind, not for a moment.
            process.end_tree("cancelled")
            process.stop_waiting()
            with contextlib.suppress(CorralError, TimeoutError):
                await asyncio.shield(process.wait(timeout=_KILL_SECONDS))
            raise
        self._say(
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
        if result.timed_out:
            text = f"timed out after {result.usage.wall_seconds:.1f} s"
            raise ExecTimeoutError(text, result=result, sandbox_id=self._id, op=operation)
        tail = result.stderr.strip().splitlines()[-1:] or [""]
        text = f"exit code {result.exit_code} ({result.reason}) {tail[0][:200]}".rstrip()
        raise ExitError(text, result=result, sandbox_id=self._id, op=operation)

    def _request(
        self,
        command: Command,
        *,
        cwd: PathLike | None,
        env: Mapping[str, str] | None,
        stdin: bool,
        timeout: float | None,
        user: str | None = None,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        read_only: Sequence[PathLike] = (),
        hidden: Sequence[PathLike] = (),
        output_limit_bytes: int | None = None,
        default_timeout: bool = True,
    ) -> SpawnRequest:
        """Check and resolve everything a caller gave."""
        self._ensure_open()
        check_timeout(timeout, what="timeout", error=InvalidCommandError)
        if output_limit_bytes is not None and output_limit_bytes < 1:
            raise InvalidCommandError(
                f"output_limit_bytes={output_limit_bytes!r} is not a limit", hint="give 1 or more"
            )
        workdir = self._spec.workdir
        extra = check_env(env or {}, error=InvalidCommandError)
        for name, value in extra.items():
            check_size(f"{name}={value}", f"the environment variable {name!r}")
        usual = {**self._base_env(user or USER), **self._spec.env}
        return SpawnRequest(
            argv=check_argv(command),
            env={**{name: value for name, value in usual.items() if name not in self.withheld}, **extra},
            cwd=inside(cwd, workdir=workdir) if cwd is not None else workdir,
            user=user if user is not None else USER,
            timeout=timeout if timeout is not None or not default_timeout else self._spec.exec_timeout,
            stdin=stdin,
            output_limit_bytes=output_limit_bytes or self._spec.output_limit_bytes,
            pty=pty,
            rows=rows,
            columns=columns,
            read_only=tuple(inside(path, workdir=workdir) for path in read_only),
            hidden=tuple(inside(path, workdir=workdir) for path in hidden),
        )

    def _base_env(self, user: str) -> Mapping[str, str]:
        """What every program of that user finds in its environment; a backend knows."""
        return {}

    # Snippets and long scripts: payloads never travel in argv.

    def _private_folder(self) -> str:
        return f"{self.temporary}/.corral-{secrets.token_hex(8)}"

    async def _place(self, source: bytes, runtime: Runtime, *, private: str, beside: str) -> str:
        """Put a snippet where its runtime wants it; gives its path."""
        self._ensure_open()
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
            log.debug("a snippet's file could not be removed in sandbox %s", self._id)

    async def find_runtime(self, language: Language, source: bytes) -> Runtime:
        """What runs this source here. Raises: BackendUnavailableError."""
        probed: tuple[str, ...] | None = None
        if language.probe:
            if language.name not in self._runtimes:
                result = await self.exec(language.probe, timeout=30)
                self._runtimes[language.name] = tuple(result.stdout.split())
            probed = self._runtimes[language.name]
        runtime = choose_runtime(language, source, probed)
        if runtime is None:
            self._runtimes.pop(language.name, None)  # it may be installed meanwhile
            self._lacks_runtime(language)
        return runtime

    async def _ensure_program(self, language: Language, runtime: Runtime) -> None:
        """127 may be the snippet's own word; only if its interpreter is really missing is it the sandbox's lack."""
        found = await self.exec(f"command -v {shlex.quote(runtime.program)}", timeout=30)
        if not found.ok:
            self._lacks_runtime(language)

    def _lacks_runtime(self, language: Language) -> NoReturn:
        hint = self._hint_for(language)
        raise BackendUnavailableError(
            f"nothing in this sandbox runs {language.name}", sandbox_id=self._id, op="run_code", hint=hint
        )

    def _hint_for(self, language: Language) -> str:
        """What to do where nothing runs a language. A backend may have ways of its own."""
        return language.hint
