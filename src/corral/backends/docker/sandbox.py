"""One sandbox: a container, and the handles to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import signal as signals
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, Unpack

from aiodocker.exceptions import DockerError

from corral.backends.docker.agent import ExecTransport
from corral.backends.docker.container import ContainerName, make_limits, resized
from corral.backends.docker.control import Control
from corral.backends.docker.dialling import dial
from corral.backends.docker.engine_api import EngineApi
from corral.backends.docker.enter import Who
from corral.backends.docker.insidescripts import KILLER, SIGNALLER
from corral.backends.docker.keeping import Keeping
from corral.backends.docker.link import LinkHolder
from corral.backends.docker.process import DockerProcess
from corral.backends.docker.seam import is_gone, mapped
from corral.base.agent.channel import Channel, Channels
from corral.base.agent.process import AgentProcess
from corral.base.files import AsyncFiles, Message
from corral.base.shellfiles.files import ShellFiles
from corral.base.taskfiles import TaskFiles, file_task, task_request
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.portal import Portal
from corral.concurrency.waiting import wait_for
from corral.errors import CapabilityError, CorralError, ExecError, SandboxPausedError, SandboxStoppedError, gone
from corral.languages import Language
from corral.protocol import SandboxPrimitives, SpawnRequest
from corral.results import SandboxInfo, SandboxUsage
from corral.spec import Lifetime, LimitOptions, Spec, as_another, check_name

NAME = "docker"
_END_SECONDS = 6.0
_READ_OOM = "cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2>/dev/null; exit 0"

log = logging.getLogger("corral.docker")


class DockerSandbox(SandboxPrimitives):
    """A container, as `corral.protocol.SandboxPrimitives`."""

    default_user = ""  # the image's
    exposes = "dial"

    def __init__(
        self, ownership: ContainerName, spec: Spec, links: LinkHolder, keeping: Keeping, *, created: float,
        view_key: str | None, container: str = "", is_paused: bool = False, trash: str | None = None,
    ) -> None:  # fmt: skip
        """`view_key` is what `enter` needs for views; `trash` an image that is removed with the sandbox."""
        super().__init__(sandbox_id=ownership.sandbox_id, spec=spec, backend=NAME)
        self.ownership = ownership
        self.created = created
        self.view_key = view_key
        self.container = container
        self.is_paused = is_paused
        self._trash = trash
        self.is_gone = False
        self.user = ""
        """The name of the image's user."""
        self.has_agent = False
        """True if the image has a Python that can run the agent; else files go through the shell."""
        self.control: Control | None = None
        self.control_pid = 0
        """The process that holds the control; a forked child does not."""
        self.users: dict[str, Who] = {}
        """Users whose programs had views."""
        self.processes: set[DockerProcess] = set()
        self._oom_kills = 0
        self._links = links
        self._keeping = keeping
        self._owner_pid = os.getpid()
        self._ending: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._channels = Channels(self._open_agent)
        self._agent_files = TaskFiles(
            self._spawn_files, workdir=spec.workdir, sandbox_id=self.id, guard=self._check_files,
            disk_bytes=lambda: self.spec.resources.disk,
        )  # fmt: skip
        self._shell_files = ShellFiles(
            self.spawn, user="", workdir=spec.workdir, sandbox_id=self.id, guard=self._check_files
        )

    # For its parts.

    @property
    def io(self) -> Portal:
        """The thread of all connections to the daemon."""
        return self._links.get().io

    @property
    def api(self) -> EngineApi:
        """For use in that thread."""
        return self._links.get().api

    @property
    def owned(self) -> bool:
        return not self.ownership.kept

    def _check(self) -> None:
        if self.closed:
            self.refuse_closed()
        if self.is_stopped:
            raise SandboxStoppedError("the sandbox is stopped", sandbox_id=self.id, hint="backend.start() it")
        if self.is_gone:
            raise gone(self.id, op="sandbox")

    def _check_files(self) -> None:
        self._check()
        if self.is_paused:
            raise SandboxPausedError("the sandbox is paused", sandbox_id=self.id, hint="resume() it first")

    @property
    def files(self) -> AsyncFiles:
        return self._agent_files if self.has_agent else self._shell_files

    # The agent.

    async def _spawn_files(self, message: Message, stdin: bool) -> AgentProcess:  # noqa: FBT001 - see `Spawn`
        process = AgentProcess(
            task_request(stdin=stdin), sandbox_id=self.id, portal=self.io, inherit=False, task=file_task(message)
        )
        with self._naming_end():
            await process.launch(self._channels.here, self._explain)
        return process

    async def _open_agent(self) -> Channel:
        """In the I/O thread. If an agent can't be started, files go through the shell from then on.

        Raises: ExecError, SandboxGoneError, SandboxPausedError.
        """
        channel = Channel(ExecTransport(self.spawn), self._explain, self._is_resting)
        try:
            await channel.open()
        except (TimeoutError, ExecError) as error:
            self.has_agent = False
            raise ExecError(
                "the agent that handles files inside the sandbox could not be started", sandbox_id=self.id, op="files",
                hint="retry with `box.files`, which uses the shell from now on",
            ) from error  # fmt: skip
        return channel

    async def _explain(self, op: str) -> CorralError:
        """Why the agent does not answer. In the I/O thread."""
        try:
            with mapped(op=op, sandbox_id=self.id):
                if not await self.runs():
                    return gone(self.id, op=op)
        except CorralError as error:
            return error
        text = "the agent inside the sandbox was killed"
        return ExecError(text, sandbox_id=self.id, op=op, hint="check its effect, then retry")

    async def _is_resting(self) -> bool:
        """True while the container is paused: by a caller, or by the daemon that copies its files."""
        with contextlib.suppress(CorralError), mapped(op="exec", sandbox_id=self.id):
            return bool((await self.api.inspect(self.container))["State"]["Paused"])
        return False

    # Running.

    def hint_for(self, language: Language) -> str:
        return language.hint.replace(" inside", " in the image")

    async def spawn(self, request: SpawnRequest) -> DockerProcess:
        self._check()
        if request.read_only or request.hidden:
            await self.io.arun(self._check_views())
        process = DockerProcess(self, request)
        with self._naming_end():
            await self.io.arun(process.begin(), undo=lambda _: _end(process))
        return process

    @contextlib.contextmanager
    def _naming_end(self) -> Iterator[None]:
        """An error that comes of the sandbox's end or stop is replaced by one that says so."""
        try:
            yield
        except CorralError as error:
            if self.is_stopped or self.is_gone:
                self._check()
            error.sandbox_id = error.sandbox_id or self.id
            raise

    async def dial(self, port: int) -> socket.socket:
        self._check_files()
        work = dial(self.spawn, port, sandbox_id=self.id, python=self.has_agent, keep=self.io.spawn)
        with self._naming_end():
            return await self.io.arun(work, undo=_close)

    async def _check_views(self) -> None:
        lack: str | None = "the container was made without"
        if self.view_key is not None:
            with mapped(op="exec", sandbox_id=self.id):
                lack = await self._links.get().views.find_lack()
        if lack is not None:
            text = f"views are not supported here: {lack}"
            raise CapabilityError(text, sandbox_id=self.id, op="exec", hint="the embedded backend supports them")

    def base_env(self, user: str) -> Mapping[str, str]:
        name = user if user != self.user and not user.isdigit() else self.user
        return {"USER": name, "LOGNAME": name}

    async def run_inside(self, script: str, *args: str, user: str) -> tuple[int, bytes]:
        """Run a short script of ours; returns its exit code and the start of its output. In the I/O thread."""
        return await self.api.run_script(self.container, script, *args, user=user)

    async def send_signal(self, process: DockerProcess, number: int) -> None:
        """Signal a program's process group. In the I/O thread."""
        known = {int(one): one.name.removeprefix("SIG") for one in signals.Signals}
        name = known.get(number, str(number))
        with mapped(op="signal", sandbox_id=self.id):
            await self.run_inside(SIGNALLER, name, str(process.pid), user=process.user)

    async def end_call(self, process: DockerProcess, *, final: bool = True) -> None:
        """End a call's tree; if that fails, the whole sandbox. In the I/O thread."""
        if self.is_gone:
            return
        try:
            if self.is_paused:
                await self.api.unpause(self.container)
            if not await self._end_by_keeper(process):
                await self._end_by_killer(process)
            if self.is_paused:
                await self.api.pause(self.container)
        except DockerError as error:
            if not is_gone(error):
                log.warning("a call in sandbox %s could not be ended: %s", self.id, error)
        if final and not await process.ends_within(_END_SECONDS):
            log.warning("a program in sandbox %s does not end: the sandbox is ended", self.id)
            await self.end()

    async def _end_by_keeper(self, process: DockerProcess) -> bool:
        control = self.control
        if control is None or process.user or self.control_pid != os.getpid():
            return False
        return await control.ask(f"end {process.token} {process.pid}", answer=f"ended {process.token}")

    async def _end_by_killer(self, process: DockerProcess) -> None:
        """End it with a separate program. If the limit on processes prevents that, it is raised meanwhile."""
        for attempt in range(5):
            try:
                code, _ = await self.run_inside(KILLER, process.token, str(process.pid), user=process.user)
            except DockerError as error:
                if is_gone(error):
                    return
                code = 1
            if code == 0:
                break
            limit = self.spec.resources.processes + 64 * (attempt + 1)
            await self.api.update(self.container, {"PidsLimit": limit})
        else:
            return
        if attempt:
            await self.api.update(self.container, {"PidsLimit": self.spec.resources.processes})

    # Its state.

    async def runs(self) -> bool:
        """True if the container runs. In the I/O thread."""
        if self.is_gone:
            return False
        try:
            told = await self.api.inspect(self.container)
        except DockerError as error:
            return not is_gone(error)
        return bool(told["State"]["Running"])

    async def is_alive(self) -> bool:
        return await self.io.arun(self.runs())

    async def outlived_a_kill(self) -> bool:
        """True if it still runs a moment after one of its programs was killed: the end of a container kills all."""
        for pause in (0.05, 0.2):
            await asyncio.sleep(pause)
            if not await self.runs():
                return False
        return True

    async def counts_new_oom(self) -> bool:
        """True if the OOM killer has killed a process since the last call."""
        before = self._oom_kills
        try:
            _, said = await self.run_inside(_READ_OOM, user="")
        except DockerError:
            return False
        for line in said.decode("ascii", "replace").splitlines():
            word, _, number = line.partition(" ")
            if word == "oom_kill" and number.strip().isdigit():
                self._oom_kills = max(self._oom_kills, int(number))
        return self._oom_kills > before

    async def usage(self) -> SandboxUsage:
        self._check()
        return await self.io.arun(self._usage())

    async def _usage(self) -> SandboxUsage:
        with mapped(op="usage", sandbox_id=self.id):
            stats = await self.api.stats(self.container)
            if not self.is_paused:
                await self.counts_new_oom()
        memory = stats.get("memory_stats") or {}
        cpu = ((stats.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage")
        return SandboxUsage(
            cpu_seconds=cpu / 1e9 if cpu is not None else None,
            memory_bytes=memory.get("usage"),
            peak_memory_bytes=memory.get("max_usage"),
            processes=(stats.get("pids_stats") or {}).get("current"),
            oom_kills=self._oom_kills,
        )

    async def info(self) -> SandboxInfo:
        self._check()
        if not await self.io.arun(self.runs()):
            raise gone(self.id, op="info")
        standing = self.ownership
        return SandboxInfo(
            self.id, NAME, standing.name or self.spec.name, "paused" if self.is_paused else "running",
            self.created, standing.seconds_left, dict(self.spec.labels),
        )  # fmt: skip

    # Life.

    def watch_deadline(self) -> None:
        """End it at its deadline, also if programs inside have stopped the clock there. In the I/O thread."""
        if self._timer is not None:
            self._timer.cancel()
        left = self.ownership.seconds_left
        if left is not None:
            loop = self.io.loop
            self._timer = loop.call_later(max(0.0, left), lambda: self.io.spawn(self.end()))

    async def begin_life(self) -> None:
        """Start its lifetime, now that it is ready. In the I/O thread."""
        seconds = self.spec.lifetime.seconds
        if seconds is not None:
            self.ownership = replace(self.ownership, deadline=time.time() + seconds)
            if self.control is None or not await self.control.ask(f"live {seconds:.3f}", answer="lives"):
                raise gone(self.id, op="create")
            self.watch_deadline()

    def has_ended(self) -> None:
        """The container has ended, with all its programs. In the I/O thread."""
        self.is_gone = True
        for process in list(self.processes):
            process.end_gone()

    async def end(self) -> None:
        """Remove the container once. In the I/O thread."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._remove())
        await wait_for(self._ending)

    async def _remove(self) -> None:
        if not self.is_stopped:
            self.has_ended()
        if self._timer is not None:
            self._timer.cancel()
        with mapped(op="close", sandbox_id=self.id):
            await self.api.remove(self.container)
        await self.let_go()
        if self._trash is not None:
            await self.api.remove_image(self._trash)
        self._keeping.forget(self)

    async def let_go(self) -> None:
        """Close the control, and let the agent end. In the I/O thread."""
        await self._channels.let_go()
        control, self.control = self.control, None
        if control is not None and self.control_pid == os.getpid():
            await control.close()

    def release(self) -> Awaitable[None]:
        if os.getpid() != self._owner_pid or self.is_stopped:
            return asyncio.sleep(0)  # it belongs to the parent of a forked child
        if self.ownership.kept:
            self._keeping.forget(self)
        work = self.let_go() if self.ownership.kept else self.end()
        # Now, not when awaited: the event loop may end before.
        future: concurrent.futures.Future[None] = self.io.submit(work)
        return asyncio.wrap_future(future)

    async def kill(self) -> None:
        if not self.is_stopped:
            await self.io.arun(self.end())

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        self._check()
        check_name(name)
        if lifetime_seconds is not None:
            Lifetime(seconds=lifetime_seconds)  # raises for an invalid time
        if not self.ownership.kept:
            await self.io.arun(self.keep(name or self.spec.name, lifetime_seconds))
        return self.id

    async def keep(self, name: str | None, lifetime_seconds: float | None) -> None:
        """Detach it. In the I/O thread. Raises: SpecError if the name is taken."""
        left = lifetime_seconds if lifetime_seconds is not None else self.ownership.seconds_left
        deadline = None if left is None else time.time() + left
        standing = ContainerName(self.id, kept=True, deadline=deadline, name=name)
        with mapped(op="detach", sandbox_id=self.id):
            await self._keeping.claim_name(name, self.id)
            told = "-" if left is None else f"{max(left, 0.001):.3f}"
            control = self.control
            if control is None or not await control.ask(f"keep {told}", answer="kept"):
                raise gone(self.id, op="detach")
            await self.api.rename(self.container, str(standing))
        self.ownership = standing
        self.watch_deadline()

    # Powers.

    async def snapshot(self, name: str | None = None) -> str:
        self._check()
        check_name(name)
        return await self.io.arun(self._keeping.snapshot(self.container, self.id, name))

    async def fork(self, spec: Spec | None = None) -> AsyncSandbox:
        self._check()
        made = await self._keeping.fork(self.container, spec or as_another(self.spec))
        return AsyncSandbox.around(made, event="created")

    async def stop(self) -> None:
        if self.is_stopped:
            return
        self._check()
        await self.io.arun(self._stop())

    async def _stop(self) -> None:
        name = self.ownership.name or self.spec.name
        with mapped(op="stop", sandbox_id=self.id):
            await self._keeping.keep_files(self.container, self.id, self.spec, name, self.created)
        self.is_stopped = True
        self.has_ended()
        await self.end()

    async def pause(self) -> None:
        self._check()
        await self._ask(lambda api: api.pause(self.container), op="pause")
        self.is_paused = True

    async def resume(self) -> None:
        self._check()
        await self._ask(lambda api: api.unpause(self.container), op="resume")
        self.is_paused = False

    async def resize(self, **limits: Unpack[LimitOptions]) -> None:
        self._check()
        resources = resized(self.spec.resources, limits, sandbox_id=self.id)
        if resources != self.spec.resources:
            update = make_limits(resources, self._links.settings)
            await self._ask(lambda api: api.update(self.container, update), op="resize")
            self.spec = replace(self.spec, resources=resources)

    async def _ask(self, work: Callable[[EngineApi], Coroutine[Any, Any, None]], *, op: str) -> None:
        """Ask the daemon something, from any event loop."""

        async def ask() -> None:
            await work(self.api)

        with mapped(op=op, sandbox_id=self.id):
            await self.io.arun(ask())


async def _end(process: DockerProcess) -> None:
    process.end_tree("cancelled")


async def _close(connection: socket.socket) -> None:
    connection.close()
