"""One sandbox without isolation: a folder of the host, and programs that run as the caller's user."""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace

from corral.backends.unsafe_subprocess.agent import Agents, get_portal
from corral.backends.unsafe_subprocess.files import HostFiles
from corral.backends.unsafe_subprocess.folders import HostFolder, Names
from corral.base.agent.process import AgentProcess, Task
from corral.base.dialling import dial_loopback
from corral.base.files import Message
from corral.base.taskfiles import file_task, task_request
from corral.errors import WorkdirError, gone
from corral.protocol import SandboxPrimitives, SpawnRequest, lacking
from corral.results import SandboxInfo, SandboxUsage
from corral.spec import USER, Spec

NAME = "unsafe-subprocess"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HostSandbox(SandboxPrimitives):
    """A folder of the host, as `corral.protocol.SandboxPrimitives`. `spec.workdir` is the real folder."""

    exposes = "dial"

    def __init__(self, *, place: HostFolder, agents: Agents, spec: Spec) -> None:
        real = replace(spec, workdir=place.home)
        super().__init__(sandbox_id=place.sandbox_id, spec=real, backend=NAME)
        self._where = place
        self._agents = agents
        self._names = Names(place, workdir=spec.workdir)
        self._created = time.time()
        seconds = spec.lifetime.seconds
        self._deadline = time.monotonic() + seconds if seconds is not None else None
        self.temporary = place.temporary
        self._files = HostFiles(
            self._spawn_files, workdir=place.home, names=self._names, sandbox_id=place.sandbox_id, guard=self._check,
            disk_bytes=lambda: self.spec.resources.disk,
        )  # fmt: skip

    def _check(self) -> None:
        if self.closed:
            self.refuse_closed()
        if not self._agents.is_alive():
            raise gone(self.id)

    @property
    def files(self) -> HostFiles:
        return self._files

    async def is_alive(self) -> bool:
        """True while its programs can run."""
        return self._agents.is_alive()

    # Running.

    async def spawn(self, request: SpawnRequest) -> AgentProcess:
        self._check()
        self._refuse(request)
        return await self._start(replace(request, cwd=self._find_folder(request.cwd)))

    async def _spawn_files(self, message: Message, stdin: bool) -> AgentProcess:  # noqa: FBT001 - see `Spawn`
        return await self._start(task_request(stdin=stdin), file_task(message))

    async def _start(self, request: SpawnRequest, task: Task | None = None) -> AgentProcess:
        process = AgentProcess(request, sandbox_id=self.id, portal=get_portal(), inherit=False, task=task)
        await process.launch(self._agents.channel, self._agents.explain)
        return process

    def _refuse(self, request: SpawnRequest) -> None:
        if request.user != USER:
            power, hint = "users", "programs run as your user: leave out user="
        elif request.read_only or request.hidden:
            power, hint = "views", "the embedded backend supports them"
        else:
            return
        raise lacking(NAME, power, sandbox_id=self.id, op="exec", hint=hint)

    def _find_folder(self, cwd: str) -> str:
        """The folder on the host for a cwd. Any folder may be named, but not through a link in the sandbox."""
        folder = self._names.resolve(cwd)
        if self._names.is_ours(folder) and not self._names.is_ours(os.path.realpath(folder)):
            raise WorkdirError(
                f"can't run in {cwd!r}: it is outside the sandbox's folder",
                sandbox_id=self.id,
                op="exec",
                hint="pass the folder's real path, without the link",
            )
        return folder

    def base_env(self, user: str) -> Mapping[str, str]:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = str(os.getuid())
        return {
            "PATH": os.environ.get("PATH") or _PATH,
            "HOME": self._where.home,
            "TMPDIR": self._where.temporary,
            "USER": name,
            "LOGNAME": name,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PYTHONUNBUFFERED": "1",
        }

    async def dial(self, port: int) -> socket.socket:
        self._check()
        return await dial_loopback(port, sandbox_id=self.id)

    # Life.

    def release(self) -> Awaitable[None]:
        if self._agents.owner.is_ours:  # in a forked child it belongs to the parent, which goes on using it
            self._agents.owner.close()
        return self._agents.wait_end()

    async def kill(self) -> None:
        self._agents.owner.close()
        await self._agents.wait_end()

    async def usage(self) -> SandboxUsage:
        self._check()
        return SandboxUsage()

    async def info(self) -> SandboxInfo:
        self._check()
        left = self._deadline - time.monotonic() if self._deadline is not None else None
        labels = dict(self.spec.labels)
        return SandboxInfo(self.id, self.backend, self.spec.name, "running", self._created, left, labels)
