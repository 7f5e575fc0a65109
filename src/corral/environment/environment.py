"""`Environment`: creates sandboxes by spec, caches them, and deletes them."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Self, cast

from corral.client.registry import backend_names, get_backend, make_backend
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import Sandbox
from corral.concurrency.closing import AsyncClosing, SyncClosing
from corral.concurrency.portal import get_portal
from corral.concurrency.waiting import wait_for
from corral.environment.cache import Cache, CachedSandbox
from corral.environment.key import Same, make_key
from corral.environment.lending import Lent
from corral.environment.variable import Conversation, Resolver, Variable, conversation_of, has_variable
from corral.errors import LeftBehindError, SandboxClosedError, SandboxGoneError, SpecError
from corral.protocol import Backend
from corral.results import Capabilities, Event
from corral.spec import HOME, Spec, SpecOptions, check_timeout, make_spec

DEFAULT_MAX_SANDBOXES = 100

Prepare = Callable[[AsyncSandbox], Awaitable[object]]
BackendChoice = str | Backend | Callable[..., Backend] | Variable


class Environment(AsyncClosing, SyncClosing):
    """Creates and caches sandboxes: equal specs share a sandbox, until the environment is closed.

    Every keyword of `Sandbox` may be a `Variable`, and so may values in `env`, `labels` and `secrets` and items of
    `packages`; they are looked up in the context of each `open`. `backend` is a name, a `Backend`, or a function that
    returns one; `options` are passed to that function, or to the constructor of the named backend.

    - `max_sandboxes`: how many are kept. At this limit, the least recently used sandbox that is not open is deleted for
      the next.
    - `idle_seconds`: a sandbox that was not open for so long is deleted.
    - `per_conversation`: a sandbox for each conversation. True finds its id in the context; a function returns it.
    - `prepare`: awaited once with each new sandbox, before `open` returns it.

    Use it with `async with` or `with`, or call `aclose` or `close`. Garbage collection deletes its sandboxes as well.
    """

    def __init__(
        self,
        *,
        backend: BackendChoice = "embedded",
        options: Mapping[str, Any] | Variable | None = None,
        max_sandboxes: int | None = DEFAULT_MAX_SANDBOXES,
        idle_seconds: float | None = None,
        per_conversation: bool | Conversation = False,
        prepare: Prepare | None = None,
        on_event: Callable[[Event], None] | None = None,
        **spec_options: Any,
    ) -> None:
        if max_sandboxes is not None and (type(max_sandboxes) is not int or max_sandboxes < 1):
            raise SpecError(
                f"max_sandboxes={max_sandboxes!r} is not a valid number of sandboxes", hint="give 1 or more, or None"
            )
        check_timeout(idle_seconds, what="idle_seconds", error=SpecError)
        self._spec_options = dict(spec_options)
        self._backend = backend
        self._options = options
        self._per_conversation = per_conversation
        self._prepare = prepare
        self._on_event = on_event
        self._check_spec_options()
        self._cache = Cache(max_sandboxes=max_sandboxes, idle_seconds=idle_seconds)
        self._finalizer = weakref.finalize(self, Cache.abandon, self._cache)
        self._finalizer.atexit = False  # at exit there may be no event loop: then the backends delete their sandboxes

    def _check_spec_options(self) -> None:
        """Raise errors that are known before there is a context."""
        later = {name for name, value in self._spec_options.items() if has_variable(value)}
        unknown = later - set(SpecOptions.__annotations__)
        make_spec(
            **cast("Any", {name: value for name, value in self._spec_options.items() if name not in later - unknown})
        )
        if self._options is not None and not has_variable(self._backend) and _is_backend(self._backend):
            raise SpecError("options= can't be combined with a Backend object", hint="pass the backend's name or class")
        if isinstance(self._backend, str) and self._backend not in backend_names():
            get_backend(self._backend)  # raises, and lists the known ones

    # About it.

    @property
    def workdir(self) -> str | None:
        """The working folder; None if it depends on the context."""
        found = self._spec_options.get("workdir", HOME)
        return None if isinstance(found, Variable) else str(found)

    @property
    def backend_name(self) -> str:
        """The backend's name; empty if it depends on the context."""
        if isinstance(self._backend, Variable):
            return ""
        return self._backend if isinstance(self._backend, str) else str(getattr(self._backend, "name", ""))

    @property
    def sandbox_ids(self) -> tuple[str, ...]:
        """The ids of its current sandboxes."""
        return tuple(box.id for box in self._cache.boxes)

    def resolve(self, context: Any = None) -> Spec:
        """The spec, with variables replaced by the context's values.

        Raises:
            VariableError: one error, for all variables without a value.
            SpecError: an invalid value.
        """
        spec, lent, _ = self._resolve(context)
        self._cache.give_back(lent)
        return spec

    async def capabilities(self, context: Any = None) -> Capabilities:
        """What its backend supports. Raises: as `resolve`."""
        _, lent, _ = self._resolve(context)
        try:
            return await lent.backend.capabilities()
        finally:
            self._cache.give_back(lent)

    def _resolve(self, context: Any) -> tuple[Spec, Lent, tuple[object, ...]]:
        """The spec, the borrowed backend (to be returned), and what tells it from other backends."""
        resolver = Resolver(context)
        spec_options = {name: resolver.resolve(value, name=name) for name, value in self._spec_options.items()}
        wanted = resolver.resolve(self._backend, name="backend")
        options = resolver.resolve(self._options, name="options")
        resolver.check()
        spec = make_spec(**cast("Any", spec_options))
        if options is not None and not isinstance(options, Mapping):
            raise SpecError(f"options must be a mapping, not {type(options).__name__}", hint="pass names and values")
        if _is_backend(wanted):
            return spec, Lent(wanted), (Same(wanted), None)
        if isinstance(wanted, str) and options is None:
            return spec, Lent(get_backend(wanted)), (wanted, None)
        if not isinstance(wanted, str) and not callable(wanted):
            # Not the value: it may be a misplaced secret.
            raise SpecError(f"backend must be a name, a Backend or a factory, not {type(wanted).__name__}")
        given = dict(options or {})
        key, _ = make_key(wanted, given)
        make = (lambda: make_backend(wanted, **given)) if isinstance(wanted, str) else (lambda: wanted(**given))
        return spec, self._cache.lend(key, make), (wanted, given)

    # Opening.

    @contextlib.asynccontextmanager
    async def open(self, context: Any = None, *, key: str | None = None) -> AsyncIterator[AsyncSandbox]:
        """The sandbox for a context, created on first use. Leaving the block does not delete it.

        Each `key` has its own sandbox. If it no longer exists, the block raises `SandboxGoneError`, and the next
        `open` creates a new one and logs a warning.

        Raises:
            VariableError, SpecError: as `resolve`.
            EnvironmentFullError: at `max_sandboxes`, and all are in use.
            CapabilityError, BackendUnavailableError: as `Backend.create`.
        """
        entry = self._take(context, key)
        try:
            # If this is cancelled, the creation continues: others may wait for it, and the environment owns it anyway.
            box = await wait_for(entry.making)
            with self._noticing(entry, box):
                yield box
        finally:
            self._cache.release(entry)

    @contextlib.contextmanager
    def open_sync(self, context: Any = None, *, key: str | None = None) -> Iterator[Sandbox]:
        """The same for sync code: returns a `Sandbox`. Raises: as `open`."""
        entry = self._take(context, key)
        try:
            box = get_portal().run(wait_for(entry.making))
            with self._noticing(entry, box):
                yield Sandbox.over(box)
        finally:
            self._cache.release(entry)

    def _take(self, context: Any, key: str | None) -> CachedSandbox:
        spec, lent, identity = self._resolve(context)
        try:
            name, held = self._name(spec, identity, context, key)
            return self._cache.take(name, lambda: self._make(lent.backend, spec), lent=lent, held=held)
        finally:
            self._cache.give_back(lent)

    def _name(
        self, spec: Spec, identity: tuple[object, ...], context: Any, key: str | None
    ) -> tuple[str, tuple[object, ...]]:
        conversation = None
        if self._per_conversation is not False:
            conversation = conversation_of(context, key=key, ask=self._per_conversation)
        return make_key(spec, identity, conversation, key)

    async def _make(self, backend: Backend, spec: Spec) -> AsyncSandbox:
        box = await backend.create(spec, on_event=self._on_event)
        if self._prepare is not None:
            try:
                await self._prepare(box)
            except BaseException:
                await box.aclose()
                raise
        return box

    @contextlib.contextmanager
    def _noticing(self, entry: CachedSandbox, box: AsyncSandbox) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            found = _find_loss(error, box.id)
            if found is not None:
                self._cache.notice_gone(entry, found)
            raise
        finally:
            # Also if the caller caught the error that the sandbox no longer exists.
            if box.ended is not None:
                self._cache.notice_gone(entry, box.ended)

    # Deleting.

    async def discard(self, context: Any = None, *, key: str | None = None) -> bool:
        """Delete the sandbox of a context now, for example when its conversation ends. True if it had one.

        Raises:
            LeftBehindError: it could not be deleted; `aclose` tries again.
            VariableError, SpecError: as `resolve`.
        """
        spec, lent, identity = self._resolve(context)
        self._cache.give_back(lent)
        found = self._cache.discard(self._name(spec, identity, context, key)[0])
        if found is None:
            return False
        entry, ending = found
        await wait_for(ending)
        if entry.box is not None and (failure := self._cache.failure_of(entry.box.id)) is not None:
            raise _left_behind({entry.box.id: failure})
        return True

    async def aclose(self) -> None:
        """Delete all sandboxes concurrently. May be called again, also from another event loop; a later `open` creates
        new sandboxes. A cancelled close continues.

        Raises:
            LeftBehindError: some could not be deleted: `failures` has the error for each id. Closing again retries.
        """
        failures = await wait_for(get_portal().submit(self._cache.end_all()))
        if failures:
            raise _left_behind(failures)

    def close(self) -> None:
        """The same for sync code."""
        get_portal().run(self.aclose())

    # Frameworks copy their arguments: a copy would have the same sandboxes, and delete them too.

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        # Only the backend's name: other parameters may be secret.
        return f"Environment(backend={self.backend_name!r}, sandboxes={len(self.sandbox_ids)})"


def _is_backend(value: Any) -> bool:
    return not isinstance(value, str | type) and hasattr(value, "create") and hasattr(value, "capabilities")


def _find_loss(error: BaseException, sandbox_id: str) -> SandboxGoneError | SandboxClosedError | None:
    """The error that says that this sandbox no longer exists: itself, in a group, or as a cause."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, SandboxGoneError | SandboxClosedError) and found.sandbox_id in (None, sandbox_id):
            return found
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
        waiting += [above for above in (found.__cause__, found.__context__) if above is not None]
    return None


def _left_behind(failures: dict[str, Exception]) -> LeftBehindError:
    listed = ", ".join(f"{sandbox_id} ({type(failure).__name__})" for sandbox_id, failure in sorted(failures.items()))
    many = "sandbox" if len(failures) == 1 else f"{len(failures)} sandboxes"
    error = LeftBehindError(
        f"could not delete {many}: {listed}", failures=failures, op="aclose", hint="call close again to retry"
    )
    error.__cause__ = next(iter(failures.values()))
    return error
