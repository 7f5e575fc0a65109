"""The sync door: `Sandbox`, `Files` and `Process`, derived from the async ones in this one place.

Each method is the async one, run on the portal; signatures and types are taken from there.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

from corral.base.files import AsyncFiles
from corral.base.process import AsyncProcess
from corral.client.registry import get_backend
from corral.client.sandbox import AsyncSandbox
from corral.client.wishes import Wishes
from corral.concurrency.portal import get_portal
from corral.protocol import Backend
from corral.results import Event, SandboxInfo
from corral.sessions.interpreter.contexts import Interpreter as AsyncInterpreter
from corral.sessions.record import Recorded as AsyncRecorded
from corral.sessions.session import ShellSession as AsyncShellSession
from corral.sessions.terminal import Terminal as AsyncTerminal
from corral.spec import Spec

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
W = TypeVar("W")


class _Derived:
    """Something sync that stands for something async."""

    _target: Any


def _run(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[_Derived, P], R]:
    """The sync form of an async method."""

    @functools.wraps(method)
    def call(self: _Derived, *args: P.args, **kwargs: P.kwargs) -> R:
        bound = getattr(self._target, method.__name__)
        result: R = get_portal().run(bound(*map(_to_async, args), **{k: _to_async(v) for k, v in kwargs.items()}))
        return result

    return cast("Callable[Concatenate[_Derived, P], R]", call)


def _run_as(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], wrap: Callable[[R], W]
) -> Callable[Concatenate[_Derived, P], W]:
    """The sync form of an async method whose result needs a sync form too."""
    plain = _run(method)

    @functools.wraps(method)
    def call(self: _Derived, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrap(plain(self, *args, **kwargs))

    return cast("Callable[Concatenate[_Derived, P], W]", call)


def _iterate(method: Callable[Concatenate[A, P], AsyncIterator[R]]) -> Callable[Concatenate[_Derived, P], Iterator[R]]:
    """The sync form of an async iterator."""

    @functools.wraps(method)
    def call(self: _Derived, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return get_portal().iterate(getattr(self._target, method.__name__)(*args, **kwargs))

    return cast("Callable[Concatenate[_Derived, P], Iterator[R]]", call)


def _to_async(value: Any) -> Any:
    """A plain iterator of bytes where an async one is wanted (content, stdin, archives)."""
    if isinstance(value, Iterator) and not isinstance(value, AsyncIterable):
        return _async_iterator(value)
    return value


async def _async_iterator(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    """In a thread: the caller's iterator may block, and may itself be one of ours."""
    end = object()
    while (piece := await asyncio.to_thread(next, source, end)) is not end:
        yield cast("bytes", piece)


class Files(_Derived):
    """The files of a sandbox. Errors are those of `corral.base.files.AsyncFiles`."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    @property
    def _target(self) -> AsyncFiles:
        return self._box.files

    read = _run(AsyncFiles.read)
    read_text = _run(AsyncFiles.read_text)
    read_stream = _iterate(AsyncFiles.read_stream)
    write = _run(AsyncFiles.write)
    edit = _run(AsyncFiles.edit)
    stat = _run(AsyncFiles.stat)
    exists = _run(AsyncFiles.exists)
    list = _run(AsyncFiles.list)
    glob = _run(AsyncFiles.glob)
    grep = _run(AsyncFiles.grep)
    replace = _run(AsyncFiles.replace)
    move = _run(AsyncFiles.move)
    remove = _run(AsyncFiles.remove)
    mkdir = _run(AsyncFiles.mkdir)
    symlink = _run(AsyncFiles.symlink)
    chmod = _run(AsyncFiles.chmod)
    watch = _iterate(AsyncFiles.watch)
    pack = _iterate(AsyncFiles.pack)
    unpack = _run(AsyncFiles.unpack)
    upload = _run(AsyncFiles.upload)
    download = _run(AsyncFiles.download)


class Process(_Derived):
    """A program in the background."""

    def __init__(self, process: AsyncProcess) -> None:
        self._target = process

    @property
    def pid(self) -> int:
        """Its number inside."""
        return cast("AsyncProcess", self._target).pid

    output = _iterate(AsyncProcess.output)
    write = _run(AsyncProcess.write)
    close_stdin = _run(AsyncProcess.close_stdin)
    signal = _run(AsyncProcess.signal)
    resize = _run(AsyncProcess.resize)
    wait = _run(AsyncProcess.wait)
    kill = _run(AsyncProcess.kill)
    close = _run(AsyncProcess.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Recorded(_Derived):
    """A recorded program."""

    def __init__(self, recorded: AsyncRecorded) -> None:
        self._target = recorded

    @property
    def name(self) -> str:
        """Its name in the sandbox."""
        return cast("AsyncRecorded", self._target).name

    @property
    def pid(self) -> int:
        """Its number inside."""
        return cast("AsyncRecorded", self._target).pid

    entries = _iterate(AsyncRecorded.entries)
    write = _run(AsyncRecorded.write)
    close_stdin = _run(AsyncRecorded.close_stdin)
    signal = _run(AsyncRecorded.signal)
    resize = _run(AsyncRecorded.resize)
    note = _run(AsyncRecorded.note)
    notes = _run(AsyncRecorded.notes)
    wait = _run(AsyncRecorded.wait)
    kill = _run(AsyncRecorded.kill)
    end_rest = _run(AsyncRecorded.end_rest)
    forget = _run(AsyncRecorded.forget)


class ShellSession(_Derived):
    """A shell that stays. See `corral.sessions.session.ShellSession`."""

    def __init__(self, session: AsyncShellSession) -> None:
        self._target = session

    @property
    def name(self) -> str:
        """Its name in the sandbox."""
        return cast("AsyncShellSession", self._target).name

    run = _run(AsyncShellSession.run)
    commands = _run(AsyncShellSession.commands)
    command = _run(AsyncShellSession.command)
    wait = _run(AsyncShellSession.wait)
    logs = _run(AsyncShellSession.logs)
    follow = _iterate(AsyncShellSession.follow)
    feed = _run(AsyncShellSession.feed)
    interrupt = _run(AsyncShellSession.interrupt)
    ended = _run(AsyncShellSession.ended)
    delete = _run(AsyncShellSession.delete)


class Terminal(_Derived):
    """A terminal that stays. See `corral.sessions.terminal.Terminal`."""

    def __init__(self, terminal: AsyncTerminal) -> None:
        self._target = terminal

    @property
    def name(self) -> str:
        """Its name in the sandbox."""
        return cast("AsyncTerminal", self._target).name

    output = _iterate(AsyncTerminal.output)
    write = _run(AsyncTerminal.write)
    resize = _run(AsyncTerminal.resize)
    info = _run(AsyncTerminal.info)
    wait = _run(AsyncTerminal.wait)
    kill = _run(AsyncTerminal.kill)
    delete = _run(AsyncTerminal.delete)


class Interpreter(_Derived):
    """Code that keeps its state. See `corral.sessions.interpreter.contexts.Interpreter`."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    @property
    def _target(self) -> AsyncInterpreter:
        return self._box.interpreter

    open_context = _run(AsyncInterpreter.open_context)
    contexts = _run(AsyncInterpreter.contexts)
    run = _iterate(AsyncInterpreter.run)
    execute = _run(AsyncInterpreter.execute)
    follow = _iterate(AsyncInterpreter.follow)
    interrupt = _run(AsyncInterpreter.interrupt)
    restart = _run(AsyncInterpreter.restart)
    close_context = _run(AsyncInterpreter.close_context)


class Sandbox(_Derived):
    """A sandbox for plain code: `with Sandbox() as box:`. Keywords as for `AsyncSandbox`.

    It exists from the call on; `close()`, the end of the `with` block, or the end of the program ends it.
    """

    def __init__(
        self,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        on_event: Callable[[Event], None] | None = None,
        **wishes: Unpack[Wishes],
    ) -> None:
        self._adopt(get_portal().run(AsyncSandbox.create(backend=backend, spec=spec, on_event=on_event, **wishes)))

    @classmethod
    def _of(cls, box: AsyncSandbox) -> Self:
        self = cls.__new__(cls)
        self._adopt(box)
        return self

    @classmethod
    def over(cls, box: AsyncSandbox) -> Self:
        """The sync door to a sandbox that belongs to somebody else: letting go of this handle does not end it."""
        self = cls._of(box)
        self._finalizer.detach()
        return self

    def _adopt(self, box: AsyncSandbox) -> None:
        self._target = box
        self.files = Files(box)
        self.interpreter = Interpreter(box)
        # A forgotten sandbox goes with the last reference to it, without waiting for the end of the program.
        self._finalizer = weakref.finalize(self, _close_forgotten, box)
        self._finalizer.atexit = False  # at exit the backend ends all of them at once, and needs no loop for it

    @classmethod
    def create(
        cls,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        on_event: Callable[[Event], None] | None = None,
        **wishes: Unpack[Wishes],
    ) -> Self:
        """The same as calling the class."""
        return cls(backend=backend, spec=spec, on_event=on_event, **wishes)

    @classmethod
    def connect(cls, sandbox_id: str, *, backend: str | Backend = "embedded") -> Self:
        """A handle to a detached sandbox, by id or name. Raises: SandboxGoneError."""
        return cls._of(get_portal().run(AsyncSandbox.connect(sandbox_id, backend=backend)))

    @classmethod
    def list(cls, *, backend: str | Backend = "embedded") -> tuple[SandboxInfo, ...]:
        """The detached sandboxes that live."""
        return tuple(get_portal().run(_list(get_backend(backend))))

    @property
    def id(self) -> str:
        """Its name on every list."""
        return self._box.id

    @property
    def spec(self) -> Spec:
        """The wish it was made from."""
        return self._box.spec

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._box.closed

    @property
    def async_sandbox(self) -> AsyncSandbox:
        """The same sandbox for async callers. It belongs to this handle, and ends with it."""
        return self._box

    @property
    def _box(self) -> AsyncSandbox:
        return cast("AsyncSandbox", self._target)

    exec = _run(AsyncSandbox.exec)
    run_code = _run(AsyncSandbox.run_code)
    is_alive = _run(AsyncSandbox.is_alive)
    wait_until_gone = _run(AsyncSandbox.wait_until_gone)
    usage = _run(AsyncSandbox.usage)
    info = _run(AsyncSandbox.info)
    detach = _run(AsyncSandbox.detach)
    kill = _run(AsyncSandbox.kill)
    close = _run(AsyncSandbox.aclose)
    snapshot = _run(AsyncSandbox.snapshot)
    stop = _run(AsyncSandbox.stop)
    pause = _run(AsyncSandbox.pause)
    resume = _run(AsyncSandbox.resume)
    resize = _run(AsyncSandbox.resize)
    expose = _run(AsyncSandbox.expose)
    start = _run_as(AsyncSandbox.start, Process)
    start_recorded = _run_as(AsyncSandbox.start_recorded, Recorded)
    find_recorded = _run_as(AsyncSandbox.find_recorded, Recorded)
    list_recorded = _run(AsyncSandbox.list_recorded)
    open_session = _run_as(AsyncSandbox.open_session, ShellSession)
    find_session = _run_as(AsyncSandbox.find_session, ShellSession)
    list_sessions = _run(AsyncSandbox.list_sessions)
    open_pty = _run_as(AsyncSandbox.open_pty, Terminal)
    find_pty = _run_as(AsyncSandbox.find_pty, Terminal)
    list_ptys = _run(AsyncSandbox.list_ptys)

    def fork(self, spec: Spec | None = None) -> Self:
        """A second sandbox that begins with the files of this one. Raises: CapabilityError where the backend can't."""
        return self._of(get_portal().run(self._box.fork(spec)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {repr(self._box).partition(' ')[2]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        get_portal().run(self._box.__aexit__(kind, error, traceback))


async def _list(backend: Backend) -> Iterable[SandboxInfo]:
    return await backend.list()


def _close_forgotten(box: AsyncSandbox) -> None:
    if not box.closed:
        # Not waited for: the garbage collector may run on any thread, the portal's own included.
        get_portal().run_soon(box.aclose())
