"""One sandbox of the service."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace

from corral.backends.daytona import life
from corral.backends.daytona.files import DaytonaFiles
from corral.backends.daytona.loop import get_loop
from corral.backends.daytona.powers import SandboxPowers
from corral.backends.daytona.remote import Remote
from corral.backends.daytona.seam import ServiceError, mapped
from corral.backends.daytona.shell import AgentShell
from corral.base.agent.process import AgentProcess
from corral.base.command import SpawnRequest
from corral.base.process import ProcessBase
from corral.client.sandbox import SandboxBase
from corral.errors import CapabilityError, CorralError, SandboxGoneError, SandboxPausedError, SpecError
from corral.languages import Language
from corral.results import Event, SandboxInfo, SandboxUsage
from corral.spec import USER, Resources, Spec, check_name, check_timeout

NAME = "daytona"

log = logging.getLogger("corral.daytona")


class DaytonaSandbox(SandboxPowers, SandboxBase):
    """See `corral.protocol.AsyncSandbox`."""

    def __init__(
        self,
        remote: Remote,
        spec: Spec,
        *,
        owned: bool,
        deadline: float | None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(sandbox_id=remote.id, spec=spec, backend=NAME, on_event=on_event)
        self._remote = remote
        self._owned = owned
        self._deadline = deadline
        self._made_by = os.getpid()
        self._processes: weakref.WeakSet[AgentProcess] = weakref.WeakSet()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._last_use = time.monotonic()
        self._files = DaytonaFiles(
            remote,
            AgentShell(self._spawn_inner),
            workdir=spec.workdir,
            guard=self._check_files,
        )
        get_loop().loop.call_soon_threadsafe(self._arm)

    # Guards.

    def _check(self, op: str) -> None:
        self._ensure_open()
        self._last_use = time.monotonic()
        self._remote.check(op)
        if self.is_paused:
            raise SandboxPausedError("the sandbox is paused", sandbox_id=self._id, op=op, hint="resume() it")

    def _check_files(self) -> None:
        self._check("files")

    @property
    def files(self) -> DaytonaFiles:
        """See `AsyncSandbox`."""
        self._ensure_open()
        return self._files

    @property
    def owned(self) -> bool:
        """Whether it ends with us."""
        return self._owned

    @property
    def is_left(self) -> bool:
        """Whether it is ours to end, and is not deleted yet."""
        return self._owned and not self._remote.is_deleted

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was made here, and not by one that this was forked from."""
        return self._made_by == os.getpid()

    def tell(self, kind: str) -> None:
        """An event, from the backend."""
        self._say(kind)

    # Time. On our own loop.

    def _arm(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._closed or self._remote.gone:
            return
        loop = get_loop().loop
        if self._deadline is not None:
            left = min(max(0.0, self._deadline - time.time()), 86400.0)
            self._timers["deadline"] = loop.call_later(left, self._look_at_deadline)
        if self._owned:
            self._timers["alive"] = loop.call_later(life.KEEPALIVE_SECONDS, self._say_alive)
            if (idle := self._spec.lifetime.idle_seconds) is not None:
                self._timers["idle"] = loop.call_later(min(idle, 86400.0), self._look_idle)

    def _look_at_deadline(self) -> None:
        if self._deadline is not None and self._deadline <= time.time():
            self._expire()
        else:
            self._arm()

    def _look_idle(self) -> None:
        idle = self._spec.lifetime.idle_seconds
        if idle is None or self._closed:
            return
        if any(not process.ended for process in self._processes):
            self._last_use = time.monotonic()
        left = self._last_use + idle - time.monotonic()
        if left <= 0:
            self._expire()
        else:
            self._timers["idle"] = get_loop().loop.call_later(min(left, 86400.0), self._look_idle)

    def _say_alive(self) -> None:
        async def say() -> None:
            with contextlib.suppress(CorralError):
                await self._remote.call(lambda box: box.refresh_activity(), op="keepalive", safe=True)

        if not self._closed and not self._remote.gone:
            get_loop().submit(say())
            self._timers["alive"] = get_loop().loop.call_later(life.KEEPALIVE_SECONDS, self._say_alive)

    def _expire(self) -> None:
        self._remote.gone = True
        self._end_processes()
        self._remote.end()

    def _end_stopped(self) -> None:
        """Its processes are gone, and whoever waits for one is told."""
        for process in list(self._processes):
            process.end_gone("the sandbox was stopped while a program was running")

    def _end_processes(self) -> None:
        for process in list(self._processes):
            process.end_gone()

    # Running.

    def _hint_for(self, language: Language) -> str:
        """See `SandboxBase`."""
        if language.name != "typescript":
            return language.hint
        return (
            "on `corral serve`, run `corral --data-dir DIR setup typescript` where it runs, with its own data folder; "
            "elsewhere take a snapshot or an image that has Bun, Deno or Node.js 22.18 or newer"
        )

    async def _spawn(self, request: SpawnRequest) -> ProcessBase:
        self._refuse(request)
        return await self._spawn_inner(request)

    def _refuse(self, request: SpawnRequest) -> None:
        self._ensure_open()
        if request.user not in (USER, "1000"):
            raise CapabilityError(
                f"user={request.user!r}: the service runs every program as the same user",
                sandbox_id=self._id,
                op="exec",
                hint="DaytonaBackend(os_user=…) creates sandboxes with another user",
            )
        if request.read_only or request.hidden:
            raise CapabilityError(
                "the service does not support read_only= and hidden= (views)",
                sandbox_id=self._id,
                op="exec",
                hint="the embedded and docker backends support them",
            )

    async def _spawn_inner(self, request: SpawnRequest) -> ProcessBase:
        self._check("exec")
        resources, usual = self._spec.resources, Resources()
        limits = {}
        if resources.processes != usual.processes:
            limits["RLIMIT_NPROC"] = resources.processes
        if resources.open_files != usual.open_files:
            limits["RLIMIT_NOFILE"] = resources.open_files
        process = AgentProcess(
            request,
            sandbox_id=self._id,
            portal=get_loop(),
            rlimits=limits,
            was_out_of_memory=self._remote.was_out_of_memory,
        )
        self._processes.add(process)
        try:
            with mapped(sandbox_id=self._id, op="exec"):
                await get_loop().finish(self._begin(process))
        except asyncio.CancelledError:
            # Whether it was started or only will be: nobody waits for it any more.
            process.end_tree("cancelled")
            raise
        return process

    async def _begin(self, process: AgentProcess) -> None:
        await process.start(await self._remote.channel_here(), self._remote.explain)

    # The life of it.

    def _release(self) -> Awaitable[None]:
        mine = self._made_by == os.getpid()
        with contextlib.suppress(RuntimeError):
            get_loop().loop.call_soon_threadsafe(self._arm)  # it is closed: that cancels the timers
        if not mine:
            return asyncio.sleep(0)  # in a forked child it is its parent's
        if not self._owned:
            return self._remote.let_go()
        ending = self._remote.end()
        self._end_processes()
        return self._await_end(ending)

    async def _await_end(self, ending: concurrent.futures.Future[None]) -> None:
        try:
            await asyncio.wrap_future(ending)
        except ServiceError as error:
            log.warning("sandbox %s could not be deleted: %s", self._id, error.message)

    async def kill(self) -> None:
        """See `AsyncSandbox`."""
        if self._closed:
            return
        ending = self._remote.end()
        self._end_processes()
        with mapped(sandbox_id=self._id, op="kill"):
            await asyncio.wrap_future(ending)
        await self.aclose()

    def end_now(self) -> concurrent.futures.Future[None]:
        """Begin to delete it, without waiting; from any thread. Gives the future of it."""
        ending = self._remote.end()
        self._remote.gone = True
        self._end_processes()
        return ending

    async def is_alive(self) -> bool:
        """Whether it is there and runs."""
        try:
            return life.state_of(await self._remote.look("ping")) == "started"
        except SandboxGoneError:
            return False

    async def usage(self) -> SandboxUsage:
        """See `AsyncSandbox`."""
        self._ensure_open()
        self._remote.check("usage")
        metrics = await self._remote.measure("usage")
        kills = metrics.additional_properties.get("oomKills")
        return SandboxUsage(
            memory_bytes=metrics.mem_used,
            disk_bytes=metrics.disk_used,
            oom_kills=kills if isinstance(kills, int) else 0,
        )

    async def info(self) -> SandboxInfo:
        """See `AsyncSandbox`."""
        self._ensure_open()
        return life.describe(await self._remote.look("info"), backend=NAME)

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        """See `AsyncSandbox`."""
        self._ensure_open()
        self._remote.check("detach")
        check_name(name)
        check_timeout(lifetime_seconds, what="lifetime_seconds", error=SpecError)
        if not self._owned and name is None and lifetime_seconds is None:
            return self._id
        name = name or self._spec.name
        if name is not None:
            assert self.keeper is not None  # given by the backend that made this handle
            await self.keeper.ensure_free(name, self._id)
        if lifetime_seconds is not None:
            self._deadline = time.time() + lifetime_seconds
        self._spec = replace(self._spec, name=name)
        labels = life.labels_of(self._spec, self._deadline, name=name)
        left = self._deadline - time.time() if self._deadline is not None else None
        idle = self._spec.lifetime.idle_seconds

        async def keep(box: object) -> None:
            # The label comes last: as long as it says that it is owned, it ends with its owner.
            await box.set_auto_delete_interval(-1)  # type: ignore[attr-defined]
            await box.set_autostop_interval(0 if idle is None else life.minutes(idle))  # type: ignore[attr-defined]
            if left is not None:
                await box.set_ttl(life.minutes(max(0.0, left)))  # type: ignore[attr-defined]
            others = {key: value for key, value in (box.labels or {}).items() if key not in life.OF_AN_OWNER}  # type: ignore[attr-defined]
            await box.set_labels({**others, **labels})  # type: ignore[attr-defined]

        await self._remote.call(keep, op="detach", safe=True, finish=True)
        self._owned = False
        get_loop().loop.call_soon_threadsafe(self._arm)
        return self._id
