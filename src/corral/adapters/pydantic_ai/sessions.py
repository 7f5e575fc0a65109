"""SessionManager: a sandbox for each session, under the known name; created once, and stopped when idle.

Everything runs on the portal's loop, so that several event loops may share a manager, and a caller that is
cancelled does not leak a sandbox.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import logging
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from corral.adapters.pydantic_ai.opening import make_name
from corral.adapters.pydantic_ai.runtime import RuntimeConfig, get_runtime
from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.adapters.pydantic_ai.sync import CorralSandbox
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.portal import get_portal
from corral.concurrency.waiting import wait_for
from corral.errors import EnvironmentFullError, ExitError, SandboxClosedError, SandboxGoneError
from corral.protocol import Backend
from corral.spec import Spec

log = logging.getLogger("corral.adapters.pydantic_ai")

SandboxFactory = Callable[[str], Any]
"""Returns the sandbox for a session's id. Both the function and the sandbox may be sync or async."""
OnRelease = Callable[[str, Any], Awaitable[object] | object]
T = TypeVar("T")
_MAX_BYTES = 4 * 1024**3
"""The most that is copied to the host: a hostile sandbox must not fill its disk."""


class SessionManager:
    """Sandboxes by session id: `await manager.get_or_create("alice")`.

    Without a `sandbox_factory` each session has a `CorralSandbox` on `backend` with `default_runtime`. With a
    `workspace_root` the files of each session are kept there: copied in when its sandbox is created, and back when it
    ends.

    - `max_sessions`: at this limit, the least recently used session that is not `in_use(session_id)` is released.
    - `on_release(session_id, sandbox)`: called, and awaited if async, before a sandbox is stopped.
    - `executor`: runs sync factories and sandboxes; the default is the loop's.
    """

    def __init__(
        self,
        sandbox_factory: SandboxFactory | None = None,
        default_runtime: RuntimeConfig | Spec | str | None = None,
        default_idle_timeout: float = 3600,
        workspace_root: str | os.PathLike[str] | None = None,
        *,
        max_sessions: int | None = None,
        on_release: OnRelease | None = None,
        executor: concurrent.futures.Executor | None = None,
        in_use: Callable[[str], bool] | None = None,
        backend: str | Backend = "embedded",
    ) -> None:
        if max_sessions is not None and max_sessions < 1:
            raise ValueError(f"max_sessions={max_sessions!r} must be at least 1")
        self._factory = sandbox_factory
        self._runtime = default_runtime
        self._idle_seconds = default_idle_timeout
        self._root = Path(workspace_root) if workspace_root is not None else None
        self._max_sessions = max_sessions
        self._on_release = on_release
        self._executor = executor
        self._in_use = in_use
        self._backend = backend
        self._sessions: dict[str, Any] = {}
        """Session id → sandbox, the least recently used first."""
        self._given_out: dict[str, float] = {}
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """A session's lock exists while a caller holds it or waits for it."""
        self._making: set[str] = set()
        self._cleaning: concurrent.futures.Future[None] | None = None

    @property
    def sessions(self) -> dict[str, Any]:
        """A copy of the current sandboxes, by session id."""
        return dict(self._sessions)

    @property
    def session_count(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    async def get_or_create(self, session_id: str, runtime: RuntimeConfig | Spec | str | None = None) -> Any:
        """The session's sandbox if it is alive, otherwise a new one. The loss of a sandbox is logged.

        Raises:
            EnvironmentFullError: the limit is reached, and all sessions are in use.
            KeyError: unknown runtime.
            BackendError, SandboxError: what creating a sandbox raises.
        """
        return await _on_portal(self._get_or_create(session_id, runtime))

    async def release(self, session_id: str) -> bool:
        """Stop a session's sandbox; True if it had one. After a failure the session stays: call this again."""
        return await _on_portal(self._release(session_id))

    async def cleanup_idle(self, max_idle: float | None = None) -> int:
        """Stop the sandboxes that were idle for `max_idle` seconds; returns their number. Failures are logged."""
        return await _on_portal(self._clean(self._idle_seconds if max_idle is None else max_idle))

    def start_cleanup_loop(self, interval: float = 300) -> None:
        """Call `cleanup_idle` regularly, until `stop_cleanup_loop` or until the manager is garbage collected."""
        if self._cleaning is None or self._cleaning.done():
            self._cleaning = get_portal().submit(_clean_for_ever(weakref.ref(self), interval))

    def stop_cleanup_loop(self) -> None:
        """Stop the cleanup loop."""
        cleaning, self._cleaning = self._cleaning, None
        if cleaning is not None:
            cleaning.cancel()

    async def shutdown(self) -> int:
        """Stop all sandboxes concurrently; returns their number. Failures are logged, and those sessions stay."""
        self.stop_cleanup_loop()
        # Including sessions whose sandbox is being created or checked.
        return await _on_portal(self._end_all(list(dict.fromkeys([*self._sessions, *self._locks]))))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()

    # On the portal's loop.

    async def _get_or_create(self, session_id: str, runtime: RuntimeConfig | Spec | str | None) -> Any:
        if not isinstance(session_id, str) or not session_id:
            raise ValueError(f"session_id={session_id!r} is not a non-empty string")
        async with self._lock(session_id):
            sandbox = self._sessions.get(session_id)
            if sandbox is not None and not await self._is_alive(sandbox):
                log.warning("the sandbox of session %r has ended; creating a new one", session_id)
                del self._sessions[session_id]
                sandbox = None
            if sandbox is None:
                sandbox = await self._make(session_id, runtime)
            self._sessions.pop(session_id, None)
            self._sessions[session_id] = sandbox  # at the end: the most recently used
            self._given_out[session_id] = time.time()
            return sandbox

    async def _is_alive(self, sandbox: Any) -> bool:
        alive = bool(await self._call(sandbox, "is_alive"))
        if not alive and isinstance(inner := _inner(sandbox), AsyncCorralSandbox):
            # Not `stop`: a sandbox with an id may only be unreachable for the moment.
            with contextlib.suppress(Exception):
                await inner.aclose()
        return alive

    async def _make(self, session_id: str, runtime: RuntimeConfig | Spec | str | None) -> Any:
        chosen = runtime if runtime is not None else self._runtime
        if isinstance(chosen, str):
            chosen = get_runtime(chosen)
        await self._make_room(session_id)
        self._making.add(session_id)
        try:
            if self._factory is not None:
                sandbox = await self._run(self._factory, session_id)
                await self._call(sandbox, "start")
                return sandbox
            return await self._make_own(session_id, chosen)
        finally:
            self._making.discard(session_id)

    async def _make_own(self, session_id: str, runtime: RuntimeConfig | Spec | None) -> CorralSandbox:
        spec = runtime.make_spec() if isinstance(runtime, RuntimeConfig) else runtime or Spec()
        # In a thread: its constructor waits for this loop.
        sandbox: CorralSandbox = await self._run(lambda: CorralSandbox(backend=self._backend, spec=spec))
        try:
            box = await sandbox.async_sandbox.get_box()
            if self._root is not None:
                await _copy_in(box, self._root, session_id)
            for command in runtime.late_commands if isinstance(runtime, RuntimeConfig) else ():
                await box.exec(command, check=True)
        except BaseException as error:
            await sandbox.async_sandbox.aclose()
            if isinstance(error, ExitError):
                error.add_note(f"in a setup command of the runtime of session {session_id!r}")
            raise
        return sandbox

    async def _make_room(self, session_id: str) -> None:
        while self._max_sessions is not None and len(self._sessions) + len(self._making) >= self._max_sessions:
            oldest = self._find_oldest()
            if oldest is None:
                raise EnvironmentFullError(
                    f"all {self._max_sessions} sessions are in use", hint="release one, or raise max_sessions"
                )
            # A caller may get it meanwhile: then another one is the oldest.
            await self._release(oldest, unless=lambda each: each != self._find_oldest())

    def _find_oldest(self) -> str | None:
        return next((each for each in self._sessions if not self._is_used(each)), None)

    def _is_used(self, session_id: str) -> bool:
        return self._in_use is not None and self._in_use(session_id)

    async def _release(self, session_id: str, *, unless: Callable[[str], bool] | None = None) -> bool:
        async with self._lock(session_id):
            sandbox = self._sessions.get(session_id)
            if sandbox is None or (unless is not None and unless(session_id)):
                return False
            if self._on_release is not None:
                try:
                    await self._run(self._on_release, session_id, sandbox)
                except Exception:
                    log.exception("on_release failed for session %r", session_id)
            if self._root is not None and self._factory is None and (box := _inner(sandbox).box) is not None:
                try:
                    await _copy_back(box, self._root, session_id)
                except (SandboxGoneError, SandboxClosedError):
                    log.warning(
                        "the sandbox of session %r has ended; its files were not copied to the host", session_id
                    )
            await self._stop(sandbox)
            self._sessions.pop(session_id, None)
            self._given_out.pop(session_id, None)
            return True

    async def _stop(self, sandbox: Any) -> None:
        await self._call(sandbox, "stop")
        inner = _inner(sandbox)
        if isinstance(inner, AsyncCorralSandbox) and not inner.ended and inner.last_error is not None:
            raise inner.last_error  # classes with the known names do not raise it

    async def _clean(self, max_idle: float) -> int:
        def is_active(session_id: str) -> bool:
            return time.time() - self._last_use(session_id) <= max_idle or self._is_used(session_id)

        return await self._end_all([each for each in self._sessions if not is_active(each)], unless=is_active)

    async def _end_all(self, session_ids: list[str], *, unless: Callable[[str], bool] | None = None) -> int:
        ended = await asyncio.gather(
            *(self._release(each, unless=unless) for each in session_ids), return_exceptions=True
        )
        for session_id, result in zip(session_ids, ended, strict=True):
            if isinstance(result, BaseException):
                log.warning("the sandbox of session %r could not be stopped: %s", session_id, result)
        return sum(result is True for result in ended)

    def _last_use(self, session_id: str) -> float:
        sandbox = self._sessions.get(session_id)
        noted = [getattr(sandbox, name, None) for name in ("last_activity", "_last_activity")]
        return max([self._given_out.get(session_id, 0.0), *(time for time in noted if isinstance(time, int | float))])

    def _lock(self, session_id: str) -> asyncio.Lock:
        return self._locks.setdefault(session_id, asyncio.Lock())

    async def _call(self, sandbox: Any, method: str) -> Any:
        return await self._run(getattr(_inner(sandbox), method))

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that may be async, or may block."""
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._executor, function, *arguments)
        return await result if inspect.isawaitable(result) else result


def _inner(sandbox: Any) -> Any:
    """Our sync class as its async one, which needs no thread."""
    return sandbox.async_sandbox if isinstance(sandbox, CorralSandbox) else sandbox


async def _on_portal(work: Coroutine[Any, Any, T]) -> T:
    return await wait_for(get_portal().submit(work))


async def _clean_for_ever(manager: weakref.ref[SessionManager], interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        living = manager()
        if living is None:
            return
        try:
            await living.cleanup_idle()
        except Exception:
            log.exception("looking for idle sessions failed")
        del living


# The files of a session on the host, between one sandbox and the next.


async def _copy_in(box: AsyncSandbox, root: Path, session_id: str) -> None:
    """Copy the session's files into the sandbox's working folder."""
    folder = _folder(root, session_id)
    for part in (folder, _settings_of(folder)):
        if await asyncio.to_thread(part.is_dir):
            await box.files.upload(str(part), box.spec.workdir)


async def _copy_back(box: AsyncSandbox, root: Path, session_id: str) -> None:
    """Copy the working folder to the host, replacing the earlier copy as a whole: if this fails, that one stays.

    Git's settings are kept beside it, where git does not find them.
    """
    folder = _folder(root, session_id)
    await asyncio.to_thread(folder.parent.mkdir, parents=True, exist_ok=True)
    fresh = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=".new-", dir=folder.parent))
    try:
        settings = _settings_of(fresh)
        await box.files.download(box.spec.workdir, str(fresh), max_bytes=_MAX_BYTES, git_settings_to=settings)
        await asyncio.to_thread(shutil.rmtree, _settings_of(folder), ignore_errors=True)
        if await asyncio.to_thread(settings.is_dir):
            await asyncio.to_thread(settings.rename, _settings_of(folder))
        await asyncio.to_thread(_exchange, fresh, folder)
    finally:
        for left in (fresh, _settings_of(fresh)):
            await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)


def _folder(root: Path, session_id: str) -> Path:
    # An id may be any text, even `..`; its name is safe.
    return root / make_name(session_id) / "workspace"


def _settings_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.git-settings")


def _exchange(fresh: Path, folder: Path) -> None:
    """Swap two folders: `folder` becomes the new one, `fresh` the old one."""
    old = fresh.with_name(f"{fresh.name}.old")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    if old.exists():
        old.rename(fresh)
