"""The sync API: `Sandbox`, `Files` and `Process`, derived from the async classes here.

Each method is the async one, run on the portal; signatures and types are taken from there.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast

from corral.base.files import AsyncFiles
from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.closing import SyncClosing
from corral.concurrency.portal import get_portal
from corral.protocol import Backend
from corral.results import Event, SandboxInfo
from corral.sessions.interpreter.contexts import Interpreter as AsyncInterpreter
from corral.sessions.record import Recorded as AsyncRecorded
from corral.sessions.session import ShellSession as AsyncShellSession
from corral.sessions.terminal import Terminal as AsyncTerminal
from corral.spec import Spec, SpecOptions

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
W = TypeVar("W")


_wraps = functools.partial(functools.wraps, updated=())
"""Without the marks that the method has as an attribute: of an abstract one, what is derived is not abstract."""


class Derived(Generic[A]):
    """A sync object around an async one."""

    def __init__(self, target: A) -> None:
        self._target = target


def derive(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Derived[Any], P], R]:
    """The sync form of an async method."""

    @_wraps(method)
    def call(self: Derived[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        bound = getattr(self._target, method.__name__)
        result: R = get_portal().run(bound(*map(_to_async, args), **{k: _to_async(v) for k, v in kwargs.items()}))
        return result

    return cast("Callable[Concatenate[Derived[Any], P], R]", call)


def derive_as(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], wrap: Callable[[R], W]
) -> Callable[Concatenate[Derived[Any], P], W]:
    """The sync form of an async method whose result needs a sync form too."""
    plain = derive(method)

    @_wraps(method)
    def call(self: Derived[Any], *args: P.args, **kwargs: P.kwargs) -> W:
        return wrap(plain(self, *args, **kwargs))

    return cast("Callable[Concatenate[Derived[Any], P], W]", call)


def derive_iterator(
    method: Callable[Concatenate[A, P], AsyncIterator[R]],
) -> Callable[Concatenate[Derived[Any], P], Iterator[R]]:
    """The sync form of an async iterator."""

    @_wraps(method)
    def call(self: Derived[Any], *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return get_portal().iterate(getattr(self._target, method.__name__)(*args, **kwargs))

    return cast("Callable[Concatenate[Derived[Any], P], Iterator[R]]", call)


class Property(Protocol[R_co]):
    """A read-only property, as type checkers see it."""

    def __get__(self, instance: Derived[Any] | None, owner: type | None = None) -> R_co: ...


def derive_property(found: Callable[[A], R]) -> Property[R]:
    """The same property of the async object."""
    name = cast("Any", found).fget.__name__
    return cast("Property[R]", property(lambda self: getattr(self._target, name), doc=found.__doc__))


def derive_init(kind: Callable[P, R]) -> Callable[[Callable[[W, R], None]], Callable[Concatenate[W, P], None]]:
    """A constructor with the parameters of another class, which gets an object of that class."""

    def decorate(constructor: Callable[[W, R], None]) -> Callable[Concatenate[W, P], None]:
        @functools.wraps(cast("Any", kind).__init__)
        def init(self: W, *args: P.args, **kwargs: P.kwargs) -> None:
            constructor(self, kind(*args, **kwargs))

        return cast("Callable[Concatenate[W, P], None]", init)

    return decorate


def _to_async(value: Any) -> Any:
    """A sync iterator of bytes as an async one (content, stdin, archives)."""
    if isinstance(value, Iterator) and not isinstance(value, AsyncIterable):
        return _async_iterator(value)
    return value


async def _async_iterator(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    """In a thread: the caller's iterator may block, and may itself use the sync API."""
    end = object()
    while (piece := await asyncio.to_thread(next, source, end)) is not end:
        yield cast("bytes", piece)


class Files(Derived[AsyncFiles]):
    """The files of a sandbox. Errors are those of `corral.base.files.AsyncFiles`."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    @property
    def _target(self) -> AsyncFiles:  # type: ignore[override]  # looked up each time: a closed sandbox has no files
        return self._box.files

    read = derive(AsyncFiles.read)
    read_text = derive(AsyncFiles.read_text)
    read_stream = derive_iterator(AsyncFiles.read_stream)
    write = derive(AsyncFiles.write)
    edit = derive(AsyncFiles.edit)
    stat = derive(AsyncFiles.stat)
    exists = derive(AsyncFiles.exists)
    list = derive(AsyncFiles.list)
    glob = derive(AsyncFiles.glob)
    grep = derive(AsyncFiles.grep)
    replace = derive(AsyncFiles.replace)
    move = derive(AsyncFiles.move)
    remove = derive(AsyncFiles.remove)
    mkdir = derive(AsyncFiles.mkdir)
    symlink = derive(AsyncFiles.symlink)
    chmod = derive(AsyncFiles.chmod)
    watch = derive_iterator(AsyncFiles.watch)
    pack = derive_iterator(AsyncFiles.pack)
    unpack = derive(AsyncFiles.unpack)
    upload = derive(AsyncFiles.upload)
    download = derive(AsyncFiles.download)


class Process(Derived[AsyncProcess], SyncClosing):
    """A program in the background."""

    pid = derive_property(AsyncProcess.pid)
    output = derive_iterator(AsyncProcess.output)
    write = derive(AsyncProcess.write)
    close_stdin = derive(AsyncProcess.close_stdin)
    signal = derive(AsyncProcess.signal)
    resize = derive(AsyncProcess.resize)
    wait = derive(AsyncProcess.wait)
    kill = derive(AsyncProcess.kill)
    close = derive(AsyncProcess.aclose)


class Recorded(Derived[AsyncRecorded]):
    """A recorded program."""

    name = derive_property(AsyncRecorded.name)
    pid = derive_property(AsyncRecorded.pid)
    entries = derive_iterator(AsyncRecorded.entries)
    write = derive(AsyncRecorded.write)
    close_stdin = derive(AsyncRecorded.close_stdin)
    signal = derive(AsyncRecorded.signal)
    resize = derive(AsyncRecorded.resize)
    note = derive(AsyncRecorded.note)
    notes = derive(AsyncRecorded.notes)
    wait = derive(AsyncRecorded.wait)
    kill = derive(AsyncRecorded.kill)
    end_rest = derive(AsyncRecorded.end_rest)
    forget = derive(AsyncRecorded.forget)


class ShellSession(Derived[AsyncShellSession]):
    """A shell that keeps its state between commands."""

    name = derive_property(AsyncShellSession.name)
    run = derive(AsyncShellSession.run)
    commands = derive(AsyncShellSession.commands)
    command = derive(AsyncShellSession.command)
    wait = derive(AsyncShellSession.wait)
    logs = derive(AsyncShellSession.logs)
    follow = derive_iterator(AsyncShellSession.follow)
    feed = derive(AsyncShellSession.feed)
    interrupt = derive(AsyncShellSession.interrupt)
    ended = derive(AsyncShellSession.ended)
    delete = derive(AsyncShellSession.delete)


class Terminal(Derived[AsyncTerminal]):
    """A named terminal whose output is recorded."""

    name = derive_property(AsyncTerminal.name)
    output = derive_iterator(AsyncTerminal.output)
    write = derive(AsyncTerminal.write)
    resize = derive(AsyncTerminal.resize)
    info = derive(AsyncTerminal.info)
    wait = derive(AsyncTerminal.wait)
    kill = derive(AsyncTerminal.kill)
    delete = derive(AsyncTerminal.delete)


class Interpreter(Derived[AsyncInterpreter]):
    """The stateful interpreter of a sandbox."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    @property
    def _target(self) -> AsyncInterpreter:  # type: ignore[override]  # created when it is first used
        return self._box.interpreter

    open_context = derive(AsyncInterpreter.open_context)
    contexts = derive(AsyncInterpreter.contexts)
    run = derive_iterator(AsyncInterpreter.run)
    execute = derive(AsyncInterpreter.execute)
    follow = derive_iterator(AsyncInterpreter.follow)
    interrupt = derive(AsyncInterpreter.interrupt)
    restart = derive(AsyncInterpreter.restart)
    close_context = derive(AsyncInterpreter.close_context)


class Sandbox(Derived[AsyncSandbox]):
    """A sandbox for sync code: `with Sandbox() as box:`. Keywords as for `AsyncSandbox`.

    It is created by the call; `close()`, the end of the `with` block, or the end of the program deletes it.
    """

    @derive_init(AsyncSandbox)
    def __init__(self, box: AsyncSandbox) -> None:
        self._adopt(get_portal().run(box.__aenter__()))

    @classmethod
    def _of(cls, box: AsyncSandbox) -> Self:
        self = cls.__new__(cls)
        self._adopt(box)
        return self

    @classmethod
    def over(cls, box: AsyncSandbox) -> Self:
        """A sync handle to a sandbox with another owner: closing this handle does not delete it."""
        self = cls._of(box)
        self._finalizer.detach()
        return self

    def _adopt(self, box: AsyncSandbox) -> None:
        self._target = box
        self.files = Files(box)
        self.interpreter = Interpreter(box)
        # Deletes the sandbox with the last reference to it, before the end of the program.
        self._finalizer = weakref.finalize(self, _close_forgotten, box)
        self._finalizer.atexit = False  # at exit the backend deletes all of them at once, without an event loop

    @classmethod
    def create(
        cls,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        on_event: Callable[[Event], None] | None = None,
        **spec_options: Unpack[SpecOptions],
    ) -> Self:
        """The same as calling the class."""
        return cls(backend=backend, spec=spec, on_event=on_event, **spec_options)

    @classmethod
    def connect(cls, sandbox_id: str, *, backend: str | Backend = "embedded") -> Self:
        """A handle to a detached sandbox, by id or name. Raises: SandboxGoneError."""
        return cls._of(get_portal().run(AsyncSandbox.connect(sandbox_id, backend=backend)))

    @classmethod
    def list(cls, *, backend: str | Backend = "embedded") -> tuple[SandboxInfo, ...]:
        """The detached sandboxes, running and stopped."""
        return tuple(get_portal().run(AsyncSandbox.list(backend=backend)))

    id = derive_property(AsyncSandbox.id)
    spec = derive_property(AsyncSandbox.spec)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._target.closed

    @property
    def async_sandbox(self) -> AsyncSandbox:
        """The same sandbox for async callers. It belongs to this handle, and is closed with it."""
        return self._target

    exec = derive(AsyncSandbox.exec)
    run_code = derive(AsyncSandbox.run_code)
    is_alive = derive(AsyncSandbox.is_alive)
    wait_until_gone = derive(AsyncSandbox.wait_until_gone)
    usage = derive(AsyncSandbox.usage)
    info = derive(AsyncSandbox.info)
    detach = derive(AsyncSandbox.detach)
    kill = derive(AsyncSandbox.kill)
    close = derive(AsyncSandbox.aclose)
    snapshot = derive(AsyncSandbox.snapshot)
    stop = derive(AsyncSandbox.stop)
    pause = derive(AsyncSandbox.pause)
    resume = derive(AsyncSandbox.resume)
    resize = derive(AsyncSandbox.resize)
    expose = derive(AsyncSandbox.expose)
    diff = derive(AsyncSandbox.diff)
    apply = derive(AsyncSandbox.apply)
    set_network = derive(AsyncSandbox.set_network)
    set_secrets = derive(AsyncSandbox.set_secrets)
    denials = derive(AsyncSandbox.denials)
    start = derive_as(AsyncSandbox.start, Process)
    start_recorded = derive_as(AsyncSandbox.start_recorded, Recorded)
    find_recorded = derive_as(AsyncSandbox.find_recorded, Recorded)
    list_recorded = derive(AsyncSandbox.list_recorded)
    open_session = derive_as(AsyncSandbox.open_session, ShellSession)
    find_session = derive_as(AsyncSandbox.find_session, ShellSession)
    list_sessions = derive(AsyncSandbox.list_sessions)
    open_pty = derive_as(AsyncSandbox.open_pty, Terminal)
    find_pty = derive_as(AsyncSandbox.find_pty, Terminal)
    list_ptys = derive(AsyncSandbox.list_ptys)

    def fork(self, spec: Spec | None = None) -> Self:
        """A second sandbox with the files of this one. Raises: CapabilityError if unsupported."""
        return self._of(get_portal().run(self._target.fork(spec)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {repr(self._target).partition(' ')[2]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        get_portal().run(self._target.__aexit__(kind, error, traceback))


def _close_forgotten(box: AsyncSandbox) -> None:
    if not box.closed:
        # Not waited for: the garbage collector may run on any thread, the portal's own included.
        get_portal().run_soon(box.aclose())
