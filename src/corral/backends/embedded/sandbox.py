"""One embedded sandbox, owned or detached."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import socket
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from corral.backends.embedded import exchange, recorded, settings
from corral.backends.embedded.files import EmbeddedFiles
from corral.backends.embedded.powers import SandboxPowers
from corral.backends.embedded.process import EmbeddedProcess, describe, spawn
from corral.backends.embedded.pump import get_pump
from corral.backends.embedded.seam import mapped
from corral.base.command import SpawnRequest
from corral.client.sandbox import SandboxBase
from corral.engine import wire
from corral.engine.client import LauncherClient, check
from corral.engine.errors import EngineError, GoneError
from corral.engine.recipe import CODE_GID, CODE_UID
from corral.engine.state import DataFolder
from corral.errors import CapabilityError, InvalidCommandError, SandboxGoneError
from corral.languages import Language
from corral.protocol import Command, PathLike
from corral.results import Event, SandboxInfo, SandboxState, SandboxUsage
from corral.sessions.record import DEFAULT_RECORD_BYTES, Recorded, RecordInfo
from corral.sessions.records import check_limit, check_name, name_taken
from corral.spec import HOME, Spec

_AGENT_SECONDS = 10.0


class Grip(Protocol):
    """What holds a sandbox from the host's side: our launcher, or a keeper."""

    owned: bool

    def request(self, message: wire.Message, *, wait: bool) -> socket.socket:
        """Ask the holder something about the sandbox. A holder that is too busy to take it is waited for in the kernel,
        or without `wait` a BlockingIOError."""

    async def ask(self, message: wire.Message) -> socket.socket:
        """The same, in an event loop."""

    def close(self) -> None:
        """Let go."""


@runtime_checkable
class HasSocket(Protocol):
    """A grip with a socket to the holder of this one sandbox."""

    def fileno(self) -> int:
        """Of the socket."""


class OwnedGrip:
    """Our own launcher holds it."""

    owned = True

    def __init__(self, launcher: LauncherClient, sandbox_id: str) -> None:
        self._launcher = launcher
        self._sandbox_id = sandbox_id

    def request(self, message: wire.Message, *, wait: bool) -> socket.socket:
        """See `Grip`."""
        return self._launcher.request({**message, "id": self._sandbox_id}, wait=wait)

    async def ask(self, message: wire.Message) -> socket.socket:
        """See `Grip`."""
        return await exchange.ask(self._launcher.peer, {**message, "id": self._sandbox_id})

    def close(self) -> None:
        """See `Grip`."""


class EmbeddedSandbox(SandboxPowers, SandboxBase):
    """See `corral.protocol.AsyncSandbox`."""

    def __init__(
        self,
        *,
        sandbox_id: str,
        spec: Spec,
        control: socket.socket,
        env: Mapping[str, str],
        grip: Grip,
        data_folder: Path,
        root: bool,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(sandbox_id=sandbox_id, spec=spec, backend="embedded", on_event=on_event)
        self._control = control
        self._env = dict(env)
        self._grip = grip
        self._data_folder = data_folder
        self._root = root
        self._made_by = os.getpid()
        self._created = time.time()
        self._deadline: float | None = None
        self._last_use = time.monotonic()
        self._idle_key = object()
        self._processes: weakref.WeakSet[EmbeddedProcess] = weakref.WeakSet()
        self._control_lock = threading.Lock()
        self._files = EmbeddedFiles(
            workdir=spec.workdir,
            sandbox_id=sandbox_id,
            open_agent=self._open_agent,
            ping=self._ping,
            ensure_open=self._ensure_open,
            disk_bytes=lambda: self._spec.resources.disk,
        )

    @property
    def files(self) -> EmbeddedFiles:
        """See `AsyncSandbox`."""
        self._ensure_open()
        self._last_use = time.monotonic()
        return self._files

    def tell(self, kind: str, **details: str | int | float | bool | None) -> None:
        """An event, from the backend."""
        self._say(kind, **details)

    def arm_deadline(self) -> None:
        """An owned sandbox ends at its deadline, or when nothing is done with it, even if its owner forgets it."""
        lifetime = self._spec.lifetime
        if lifetime.seconds is not None:
            self._deadline = time.monotonic() + lifetime.seconds
            get_pump().call_at(self, self._deadline, self._give_up)
        if lifetime.idle_seconds is not None:
            get_pump().call_at(self._idle_key, time.monotonic() + lifetime.idle_seconds, self._look_idle)

    def _look_idle(self) -> None:
        idle_seconds = self._spec.lifetime.idle_seconds
        if idle_seconds is None or self._closed:
            return
        now = time.monotonic()
        if any(not process.ended for process in self._processes):
            self._last_use = now
        if now - self._last_use >= idle_seconds:
            self._give_up()
        else:
            get_pump().call_at(self._idle_key, self._last_use + idle_seconds, self._look_idle)

    # Primitives.

    async def _spawn(self, request: SpawnRequest) -> EmbeddedProcess:
        uid, gid = self._ids(request.user)
        self._last_use = time.monotonic()
        with mapped(sandbox_id=self._id, op="exec"), self._noticing_stop("exec"):
            process = await spawn(self._control, request, sandbox_id=self._id, uid=uid, gid=gid, give_up=self._give_up)
        self._processes.add(process)
        return process

    def _ids(self, user: str) -> tuple[int, int]:
        if user == "daytona" or user == str(CODE_UID):
            return CODE_UID, CODE_GID
        if not self._root:
            raise CapabilityError(
                f"user={user!r}: without root there is only the user 'daytona'",
                sandbox_id=self._id,
                op="exec",
                hint="run Corral as root to use other users",
            )
        if user == "root" or user == "0":
            return 0, 0
        if user == "nobody":
            return 65534, 65534
        if user.isdigit() and int(user) < 65536:
            return int(user), int(user)
        raise InvalidCommandError(f"unknown user {user!r}", hint="use daytona, root, nobody, or a user id")

    def _base_env(self, user: str) -> Mapping[str, str]:
        uid, _ = self._ids(user)
        name, home = {0: ("root", "/root"), CODE_UID: ("daytona", HOME)}.get(uid, (user, "/tmp"))
        return {
            "PATH": settings.PATH,
            "HOME": home,
            "USER": name,
            "LOGNAME": name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PYTHONUNBUFFERED": "1",
            "PIP_BREAK_SYSTEM_PACKAGES": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **self._env,
        }

    def _hint_for(self, language: Language) -> str:
        """See `SandboxBase`. Sandboxes have the programs of this machine, and what was set up in the data folder."""
        if language.name != "typescript":
            return language.hint.replace(" inside", " on this machine")
        command = ["corral", "setup", "typescript"]
        if self._data_folder != settings.default_data_folder(configured=False):
            command[1:1] = ["--data-dir", str(self._data_folder)]
        return f"run `{shlex.join(command)}`, or {language.hint.replace(' inside', ' on this machine')}"

    async def _ping(self) -> None:
        """Raises: GoneError when there is no init any more."""
        with self._noticing_stop("ping"):
            check(await exchange.answer(await exchange.ask(self._control, {"op": "ping"})))

    async def _open_agent(self) -> socket.socket:
        """A new file agent inside, behind a socket of its own."""
        ours, theirs = wire.make_pair()
        try:
            with await exchange.ask(self._control, {"op": "files"}, (theirs.fileno(),)) as answer:
                message, descriptors = await exchange.receive_within(answer, _AGENT_SECONDS)
            wire.close_all(descriptors)
            check(message)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _give_up(self) -> None:
        """End it from the host's side, without asking anything inside. From any thread; does not wait."""
        try:
            self._order_end(wait=False)
        except BlockingIOError:  # a thread waits, and not the pump, which reads for everybody
            threading.Thread(target=self._order_end, kwargs={"wait": True}, name="corral-end", daemon=True).start()

    def _order_end(self, *, wait: bool) -> None:
        """Raises: BlockingIOError without `wait`, if its holder is busy."""
        try:
            self._grip.request({"op": "destroy"}, wait=wait).close()
        except BlockingIOError:
            raise
        except (EngineError, OSError):
            return  # its holder is gone, and it is, too

    def _release(self) -> Awaitable[None]:
        get_pump().cancel(self)
        get_pump().cancel(self._idle_key)
        self._files.close()
        answer: socket.socket | None = None
        busy = False
        # In a forked child the sandbox is its parent's: only let go. The request is sent now, not when awaited, unless
        # the launcher is so busy that this event loop would have to stand still for it.
        if self._made_by == os.getpid() and self._grip.owned:
            try:
                answer = self._grip.request({"op": "destroy"}, wait=False)
            except BlockingIOError:
                busy = True
            except EngineError:
                pass  # it is gone already
        self._control.close()
        self._grip.close()
        return self._await_end(answer, busy=busy)

    async def _await_end(self, answer: socket.socket | None, *, busy: bool) -> None:
        with contextlib.suppress(EngineError):
            if busy:
                answer = await self._grip.ask({"op": "destroy"})
            if answer is not None:
                await exchange.answer(answer)

    async def is_alive(self) -> bool:
        """Whether its init still answers."""
        try:
            await self._ping()
        except (GoneError, SandboxGoneError):
            return False
        return True

    async def wait_until_gone(self) -> None:
        """Wait until the sandbox has ended. Of a detached one its keeper tells, the last to go; else its init."""
        self._ensure_open()
        # A descriptor of our own: another may close the handle before we hear that we are cancelled.
        descriptor = os.dup(self._grip.fileno() if isinstance(self._grip, HasSocket) else self._control.fileno())
        try:
            await exchange.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    async def kill(self) -> None:
        """See `AsyncSandbox`."""
        if self._closed:
            return
        with contextlib.suppress(GoneError):
            await exchange.answer(await self._grip.ask({"op": "destroy"}))
        await self.aclose()

    async def usage(self) -> SandboxUsage:
        """See `AsyncSandbox`."""
        self._ensure_open()
        with mapped(sandbox_id=self._id, op="usage"), self._noticing_stop("usage"):
            usage = check(await exchange.answer(await self._grip.ask({"op": "usage"})))["usage"]
            inside = check(await exchange.answer(await exchange.ask(self._control, {"op": "usage"})))
        # The host's counters where there are any; else what init could add up.
        counted = {**inside, **{name: value for name, value in usage.items() if value is not None}}
        return SandboxUsage(
            cpu_seconds=counted.get("cpu_seconds"),
            memory_bytes=counted.get("memory_bytes"),
            peak_memory_bytes=counted.get("peak_memory_bytes"),
            processes=inside.get("processes"),
            disk_bytes=counted.get("disk_bytes"),
            oom_kills=counted.get("oom_kills", 0),
        )

    async def info(self) -> SandboxInfo:
        """See `AsyncSandbox`."""
        self._ensure_open()
        labels = dict(self._spec.labels)
        if self._grip.owned:
            with mapped(sandbox_id=self._id, op="info"):
                await self._ping()
            left = self._deadline - time.monotonic() if self._deadline is not None else None
            state: SandboxState = "paused" if self.is_paused else "running"
            return SandboxInfo(self._id, self._backend, self._spec.name, state, self._created, left, labels)
        with mapped(sandbox_id=self._id, op="info"), self._noticing_stop("info"):
            answer = check(await exchange.answer(await self._grip.ask({"op": "info"})))
        info = answer["info"]
        state = "paused" if answer.get("paused") else "running"
        return SandboxInfo(
            self._id, self._backend, info["name"], state, info["created"], answer["seconds_left"], labels
        )

    async def start_recorded(
        self,
        command: Command,
        *,
        name: str,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        limit_bytes: int = DEFAULT_RECORD_BYTES,
        note: bytes | None = None,
    ) -> Recorded:
        """See `CanRecord`: in a detached sandbox its keeper does it, and the record outlives us."""
        if self._grip.owned:
            return await super().start_recorded(
                command, name=name, cwd=cwd, env=env, user=user, timeout=timeout, pty=pty, rows=rows, columns=columns,
                limit_bytes=limit_bytes, note=note,
            )  # fmt: skip
        check_limit(limit_bytes)
        check_name(name)
        if name in self._records:
            raise name_taken(name)
        async with self._start_request(
            command, cwd=cwd, env=env, stdin=True, user=user, timeout=timeout, pty=pty, rows=rows, columns=columns
        ) as (request, clear):
            uid, gid = self._ids(request.user)
            return await recorded.start(
                self._ask_keeper, self._folder, describe(request, uid, gid), name=name, limit_bytes=limit_bytes,
                note=note, sandbox_id=self._id, clear=clear,
            )  # fmt: skip

    async def find_recorded(self, name: str) -> Recorded:
        """See `CanRecord`."""
        if self._grip.owned or name in self._records:
            return await super().find_recorded(name)  # started before it was detached: then it is ours alone
        return await recorded.find(self._ask_keeper, self._folder, name, sandbox_id=self._id)

    async def list_recorded(self) -> Sequence[RecordInfo]:
        """See `CanRecord`."""
        ours = await super().list_recorded()
        if self._grip.owned:
            return ours
        return [*ours, *await recorded.list_all(self._ask_keeper, sandbox_id=self._id)]

    @property
    def _folder(self) -> Path:
        return DataFolder(self._data_folder).folder(self._id)

    async def _ask_keeper(self, message: wire.Message) -> tuple[wire.Message, list[int]]:
        self._ensure_open()
        reply = await self._grip.ask(message)
        try:
            return await exchange.receive(reply)
        finally:
            reply.close()

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        """See `AsyncSandbox`."""
        from corral.backends.embedded import keepers  # the room beside: it makes sandboxes of this class

        self._ensure_open()
        if not self._grip.owned:
            return self._id
        info = keepers.describe(self._spec, name=name, lifetime_seconds=lifetime_seconds, env=self._env)
        with mapped(sandbox_id=self._id, op="detach"):
            async with keepers.claiming_name(self._data_folder, info["name"]):
                check(await exchange.answer(await self._grip.ask({"op": "detach", "info": info})))
            get_pump().cancel(self)
            get_pump().cancel(self._idle_key)  # its keeper looks at the clock from now on
            self._grip = await asyncio.to_thread(keepers.KeeperGrip, self._data_folder, self._id)
        self._say("detached")
        return self._id


__all__ = ["EmbeddedSandbox", "Grip", "OwnedGrip", "SandboxGoneError"]
