"""One sandbox of the service."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from corral.backends.daytona import life
from corral.backends.daytona.exposing import SignedLinks
from corral.backends.daytona.files import DaytonaFiles
from corral.backends.daytona.loop import get_loop
from corral.backends.daytona.powers import CHANGE_SECONDS, change_limits, take_snapshot
from corral.backends.daytona.remote import Remote
from corral.backends.daytona.seam import ServiceError, mapped
from corral.base.agent.process import AgentProcess, Task
from corral.base.files import Message
from corral.base.process import AsyncProcess
from corral.base.taskfiles import file_task, task_request
from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    CapabilityError,
    CorralError,
    SandboxGoneError,
    SandboxPausedError,
    SandboxStoppedError,
    SpecError,
)
from corral.languages import Language
from corral.protocol import SandboxPrimitives, SpawnRequest, lacking
from corral.results import SandboxInfo, SandboxUsage
from corral.spec import USER, LimitOptions, NetworkPolicy, Resources, Spec, check_name, check_timeout, given_limits

if TYPE_CHECKING:
    from corral.backends.daytona.backend import DaytonaBackend

NAME = "daytona"
_LONGEST_TIMER_SECONDS = 86400.0

log = logging.getLogger("corral.daytona")


class DaytonaSandbox(SandboxPrimitives):
    """A sandbox of the service, as `corral.protocol.SandboxPrimitives`."""

    exposes = "url"

    def __init__(
        self, remote: Remote, spec: Spec, *, owned: bool, deadline: float | None, maker: DaytonaBackend
    ) -> None:
        super().__init__(sandbox_id=remote.id, spec=spec, backend=NAME)
        self._remote = remote
        self._owned = owned
        self._deadline = deadline
        self._maker = maker
        self._made_by = os.getpid()
        self._processes: weakref.WeakSet[AgentProcess] = weakref.WeakSet()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._links = SignedLinks(remote)
        self._last_use = time.monotonic()
        self._files = DaytonaFiles(
            remote,
            self._spawn_files,
            workdir=spec.workdir,
            guard=lambda: self._check("files"),
            disk_bytes=lambda: self.spec.resources.disk,
        )
        get_loop().loop.call_soon_threadsafe(self._arm)

    # Guards.

    def _check(self, op: str) -> None:
        if self.closed:
            self.refuse_closed()
        self._last_use = time.monotonic()
        self._remote.check(op)
        if self.is_paused:
            raise SandboxPausedError("the sandbox is paused", sandbox_id=self.id, op=op, hint="resume() it")

    @property
    def files(self) -> DaytonaFiles:
        return self._files

    @property
    def owned(self) -> bool:
        """True if it ends with its owner."""
        return self._owned

    @property
    def is_left(self) -> bool:
        """True if it is owned and not deleted yet."""
        return self._owned and not self._remote.deleted

    @property
    def is_of_this_process(self) -> bool:
        """True if this process created it, and not one that it was forked from."""
        return self._made_by == os.getpid()

    # Timers, on our own loop.

    def _arm(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self.closed or self._remote.gone:
            return
        loop = get_loop().loop
        if self._deadline is not None:
            left = min(max(0.0, self._deadline - time.time()), _LONGEST_TIMER_SECONDS)
            self._timers["deadline"] = loop.call_later(left, self._check_deadline)
        if self._owned:
            self._timers["alive"] = loop.call_later(life.KEEPALIVE_SECONDS, self._keep_alive)
            if (idle := self.spec.lifetime.idle_seconds) is not None:
                self._timers["idle"] = loop.call_later(min(idle, _LONGEST_TIMER_SECONDS), self._check_idle)

    def _check_deadline(self) -> None:
        if self._deadline is not None and self._deadline <= time.time():
            self.end_now()
        else:
            self._arm()

    def _check_idle(self) -> None:
        idle = self.spec.lifetime.idle_seconds
        if idle is None or self.closed:
            return
        if any(not process.ended for process in self._processes):
            self._last_use = time.monotonic()
        left = self._last_use + idle - time.monotonic()
        if left <= 0:
            self.end_now()
        else:
            self._timers["idle"] = get_loop().loop.call_later(min(left, _LONGEST_TIMER_SECONDS), self._check_idle)

    def _keep_alive(self) -> None:
        async def refresh() -> None:
            with contextlib.suppress(CorralError):
                await self._remote.call(lambda box: box.refresh_activity(), op="keepalive", safe=True)

        if not self.closed and not self._remote.gone:
            get_loop().submit(refresh())
            self._timers["alive"] = get_loop().loop.call_later(life.KEEPALIVE_SECONDS, self._keep_alive)

    def _end_processes(self, *why: str) -> None:
        """Tell the callers that wait for a program that it is gone."""
        for process in list(self._processes):
            process.end_gone(*why)

    # Running.

    def hint_for(self, language: Language) -> str:
        if language.name != "typescript":
            return language.hint.replace(" inside", " where `corral serve` runs; elsewhere take an image that has it")
        return (
            "on `corral serve`, run `corral --data-dir DIR setup typescript` where it runs, with its own data folder; "
            "elsewhere take a snapshot or an image that has Bun, Deno or Node.js 22.18 or newer"
        )

    async def spawn(self, request: SpawnRequest) -> AsyncProcess:
        if request.user not in (USER, "1000"):
            raise CapabilityError(
                f"user={request.user!r}: the service runs every program as the same user",
                sandbox_id=self.id,
                op="exec",
                hint="DaytonaBackend(os_user=…) creates sandboxes with another user",
            )
        if request.read_only or request.hidden:
            hint = "the embedded and docker backends support read_only= and hidden="
            raise lacking(NAME, "views", sandbox_id=self.id, op="exec", hint=hint)
        return await self._spawn_inner(request)

    async def _spawn_files(self, message: Message, stdin: bool) -> AsyncProcess:  # noqa: FBT001 - see `Spawn`
        return await self._spawn_inner(task_request(stdin=stdin), file_task(message))

    async def _spawn_inner(self, request: SpawnRequest, task: Task | None = None) -> AsyncProcess:
        self._check("exec")
        resources, usual = self.spec.resources, Resources()
        limits = {}
        if resources.processes != usual.processes:
            limits["RLIMIT_NPROC"] = resources.processes
        if resources.open_files != usual.open_files:
            limits["RLIMIT_NOFILE"] = resources.open_files
        process = AgentProcess(
            request,
            sandbox_id=self.id,
            portal=get_loop(),
            rlimits=limits,
            task=task,
            was_out_of_memory=self._remote.was_out_of_memory,
        )
        self._processes.add(process)
        with mapped(sandbox_id=self.id, op="exec"):
            await process.launch(self._remote.channels.here, self._remote.explain)
        return process

    # Life.

    def release(self) -> Awaitable[None]:
        with contextlib.suppress(RuntimeError):
            get_loop().loop.call_soon_threadsafe(self._arm)  # it is closed: that cancels the timers
        if not self.is_of_this_process:
            return asyncio.sleep(0)  # in a forked child it belongs to the parent
        if not self._owned:
            return get_loop().finish(self._let_go())
        ending = self._remote.end()
        self._end_processes()
        return self._await_end(ending)

    async def _let_go(self) -> None:
        await self._links.end()
        await self._remote.channels.let_go()  # its programs keep running

    async def _await_end(self, ending: concurrent.futures.Future[None]) -> None:
        try:
            await asyncio.wrap_future(ending)
        except ServiceError as error:
            log.warning("sandbox %s could not be deleted: %s", self.id, error.message)

    async def kill(self) -> None:
        ending = self._remote.end()
        self._end_processes()
        with mapped(sandbox_id=self.id, op="kill"):
            await asyncio.wrap_future(ending)

    def end_now(self) -> concurrent.futures.Future[None]:
        """Start to delete it, from any thread; the future is done when it is deleted."""
        ending = self._remote.end()
        self._remote.gone = True
        self._end_processes()
        return ending

    async def is_alive(self) -> bool:
        """True if it is running."""
        try:
            return life.state_of(await self._remote.look("ping")) == "started"
        except SandboxGoneError:
            return False

    async def usage(self) -> SandboxUsage:
        self._remote.check("usage")
        metrics = await self._remote.measure("usage")
        kills = metrics.additional_properties.get("oomKills")
        return SandboxUsage(
            memory_bytes=metrics.mem_used,
            disk_bytes=metrics.disk_used,
            oom_kills=kills if isinstance(kills, int) else 0,
        )

    async def info(self) -> SandboxInfo:
        return life.describe(await self._remote.look("info"), backend=NAME)

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        self._remote.check("detach")
        check_name(name)
        check_timeout(lifetime_seconds, what="lifetime_seconds", error=SpecError)
        if not self._owned and name is None and lifetime_seconds is None:
            return self.id
        name = name or self.spec.name
        if name is not None:
            await self._maker.ensure_free(name, self.id)
        if lifetime_seconds is not None:
            self._deadline = time.time() + lifetime_seconds
        self.spec = replace(self.spec, name=name)
        labels = life.labels_of(self.spec, self._deadline, name=name)
        left = self._deadline - time.time() if self._deadline is not None else None
        idle = self.spec.lifetime.idle_seconds

        async def keep(box: Any) -> None:
            # The labels come last: while they say that it is owned, it ends with its owner.
            await box.set_auto_delete_interval(-1)
            await box.set_autostop_interval(0 if idle is None else life.minutes(idle))
            if left is not None:
                await box.set_ttl(life.minutes(max(0.0, left)))
            others = {key: value for key, value in (box.labels or {}).items() if key not in life.OF_AN_OWNER}
            await box.set_labels({**others, **labels})

        await self._remote.call(keep, op="detach", safe=True, finish=True)
        self._owned = False
        get_loop().loop.call_soon_threadsafe(self._arm)
        return self.id

    # Powers, by the service's own calls.

    async def snapshot(self, name: str | None = None) -> str:
        check_name(name)
        return await take_snapshot(self._remote, name)

    async def fork(self, spec: Spec | None = None) -> AsyncSandbox:
        return await self._maker.fork_remote(self._remote, self.spec, spec)

    async def stop(self) -> None:
        if self._owned:
            await self.detach()
        with contextlib.suppress(SandboxStoppedError):
            await self._remote.call(lambda box: box.stop(timeout=CHANGE_SECONDS), op="stop", finish=True)
        self.is_stopped = True
        self._end_processes("the sandbox was stopped while a program was running")

    async def pause(self) -> None:
        await self._remote.call(lambda box: box.pause(timeout=CHANGE_SECONDS), op="pause", finish=True)
        self.is_paused = True

    async def resume(self) -> None:
        await self._remote.call(lambda box: box.start(timeout=CHANGE_SECONDS), op="resume", finish=True)
        self.is_paused = False

    async def expose(self, port: int) -> str:
        """A signed link of the service: whoever has it may use it, for a day, or until this handle is closed."""
        self._check("expose")
        return await self._links.open(port)

    async def set_network(self, policy: NetworkPolicy) -> None:
        self._check("set_network")
        settings = await self._maker.network_settings(policy)
        await self._remote.call(lambda box: box.update_network_settings(**settings), op="set_network", safe=True)
        self.spec = replace(self.spec, network=policy)

    async def resize(self, **limits: Unpack[LimitOptions]) -> None:
        given = given_limits(limits)
        resources = replace(self.spec.resources, **given)
        if given.keys() - {"processes"}:
            await change_limits(self._remote, resources, given)
        self.spec = replace(self.spec, resources=resources)
