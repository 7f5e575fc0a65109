"""One sandbox in memory: the box itself, and the handles to it."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
import weakref
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from corral.backends.memory.call import Call
from corral.backends.memory.files import MemoryFiles
from corral.backends.memory.process import MemoryProcess
from corral.backends.memory.program import run_program
from corral.backends.memory.script import PastCall
from corral.backends.memory.tree import FileTree
from corral.base.command import show_command
from corral.errors import WorkdirError, gone
from corral.languages import Language, Runtime
from corral.protocol import SandboxPrimitives, SpawnRequest
from corral.results import Denial, SandboxInfo, SandboxUsage
from corral.secret import Secret, place_secrets, placeholders
from corral.spec import HOME, USER, Lifetime, NetworkPolicy, Spec

if TYPE_CHECKING:
    from corral.backends.memory.backend import MemoryBackend

CODE_PROGRAM = "corral-code"
"""The program that runs a snippet: `corral-code LANGUAGE FILE ARGS…`."""


class Box:
    """The sandbox itself, which any number of handles may use."""

    def __init__(self, spec: Spec, world: MemoryBackend) -> None:
        self.sandbox_id = str(uuid.uuid4())
        self.spec = replace(spec, secrets=place_secrets(spec.secrets))
        self.world = world
        self.tree = FileTree(workdir=spec.workdir, limit_bytes=spec.resources.disk)
        self.processes: weakref.WeakSet[MemoryProcess] = weakref.WeakSet()
        self.created = time.time()
        self.detached = False
        self.name: str | None = None
        self.gone = False
        self.denials: list[Denial] = []
        self._deadline: float | None = None
        self._timer: threading.Timer | None = None
        self.arm(spec.lifetime.seconds)

    def arm(self, seconds: float | None) -> None:
        """Set its deadline. With a thread: its owner's loop may be closed by then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._deadline = None
        if seconds is not None:
            self._deadline = time.monotonic() + seconds
            self._timer = threading.Timer(seconds, self.end)
            self._timer.daemon = True
            self._timer.start()

    @property
    def is_over(self) -> bool:
        """True if it has ended, or is about to."""
        return self.gone or (self._deadline is not None and time.monotonic() >= self._deadline)

    def check(self) -> None:
        """Raises: SandboxGoneError."""
        if self.is_over:
            self.end()
            raise gone(self.sandbox_id)

    def end(self) -> None:
        """End it with its programs. From any thread; idempotent."""
        if self.gone:
            return
        self.gone = True
        if self._timer is not None:
            self._timer.cancel()
        for process in list(self.processes):
            process.end_gone()  # first: this is the end that is reported, and the next line cancels its tasks
            process.end_tree("cancelled")
        self.world.ended(self)

    def describe(self) -> SandboxInfo:
        """Its entry in a list."""
        left = self._deadline - time.monotonic() if self._deadline is not None else None
        labels = dict(self.spec.labels)
        return SandboxInfo(
            self.sandbox_id, "memory", self.name or self.spec.name, "running", self.created, left, labels,
            str(self.spec.network),
        )  # fmt: skip


class MemorySandbox(SandboxPrimitives):
    """A handle to a box, as `corral.protocol.SandboxPrimitives`."""

    def __init__(self, box: Box) -> None:
        super().__init__(sandbox_id=box.sandbox_id, spec=box.spec, backend="memory")
        self._box = box
        self._world = box.world
        self.own_runtime = self._choose_runtime
        self._files = MemoryFiles(box.tree, workdir=box.spec.workdir, sandbox_id=box.sandbox_id, guard=self._check)

    def _check(self) -> None:
        if self.closed:
            self.refuse_closed()
        self._box.check()

    @property
    def files(self) -> MemoryFiles:
        return self._files

    # Running.

    async def spawn(self, request: SpawnRequest) -> MemoryProcess:
        self._check()
        self._refuse(request)
        try:
            folder = self._box.tree.existing(request.cwd)[1].kind
        except OSError:
            folder = "other"
        if folder != "folder":
            raise WorkdirError(f"can't run in {request.cwd!r}", sandbox_id=self.id, op="exec", hint="create the folder")
        process = MemoryProcess(sandbox_id=self.id, request=request)
        self._box.processes.add(process)
        call = Call(
            argv=request.argv,
            env=dict(request.env),
            cwd=request.cwd,
            stdin=process.input,
            files=self._files,
            tree=self._box.tree,
            feed=process.feed,
            run=self._perform,
            spawn=lambda inner: process.begin_child(self._perform(inner)),
            pid=process.pid,
            deny=self._box.denials.extend,
        )
        if request.argv[0] == CODE_PROGRAM:
            source = await self._files.read(request.argv[2])
            language, text = request.argv[1], source.decode("utf-8", "surrogateescape")
            call = replace(call, argv=(language, *request.argv[2:]), code=text, language=language)
        text = call.code if call.code is not None else show_command(request.argv)
        self._world.calls.append(PastCall(call.argv, text, call.cwd, call.env, process.input, call.language))
        process.begin(call, self._perform)
        return process

    async def _perform(self, call: Call) -> int:
        scripted = await self._world.script.play(call)
        if scripted is not None:
            return scripted
        if call.code is not None:
            return await self._world.programs[CODE_PROGRAM](call)
        return await run_program(call, self._world.programs)

    def _refuse(self, request: SpawnRequest) -> None:
        spec_options = {
            "pty": request.pty,
            "views": bool(request.read_only or request.hidden),
            "users": request.user not in (USER, "1000"),
        }
        for power, wanted in spec_options.items():
            if wanted:
                self.lacks(power)

    def _choose_runtime(self, language: Language, source: bytes) -> Runtime:
        """The scripted runtime. Raises: BackendUnavailableError if there is no reply for the language."""
        self._check()
        text = language.strip(source) if language.strip else source
        if not self._world.runs(language.name, text):
            self.lacks_runtime(language)
        return Runtime(CODE_PROGRAM, (CODE_PROGRAM, language.name, "{file}"), language.runtimes[0].extension)

    def hint_for(self, language: Language) -> str:
        return "script it: MemoryBackend(on_code=…), or backend.reply_code(…)"

    def base_env(self, user: str) -> Mapping[str, str]:
        return {"PATH": "/usr/bin:/bin", "HOME": HOME, "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8"} | placeholders(
            self._box.spec.secrets
        )

    async def set_secrets(self, secrets: Sequence[Secret]) -> None:
        self._box.check()
        placed = place_secrets(secrets, placeholders(self._box.spec.secrets))
        self.spec = self._box.spec = replace(self._box.spec, secrets=placed)

    # Network.

    async def set_network(self, policy: NetworkPolicy) -> None:
        self._check()
        self.spec = self._box.spec = replace(self._box.spec, network=policy)

    def count_denials(self) -> int:
        return len(self._box.denials)

    def denials_since(self, count: int) -> Sequence[Denial]:
        return self._box.denials[count:]

    # Life.

    @property
    def owned(self) -> bool:
        return not self._box.detached

    async def is_alive(self) -> bool:
        return not self._box.is_over

    def release(self) -> Awaitable[None]:
        if not self._box.detached:
            self._box.end()  # now, not when awaited: the event loop may end before
        return asyncio.sleep(0)

    async def kill(self) -> None:
        self._box.end()

    async def usage(self) -> SandboxUsage:
        self._check()
        running = sum(not process.ended for process in self._box.processes)
        return SandboxUsage(processes=running, disk_bytes=self._box.tree.used_bytes)

    async def info(self) -> SandboxInfo:
        self._check()
        return self._box.describe()

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        self._check()
        if lifetime_seconds is not None:
            Lifetime(seconds=lifetime_seconds)  # raises for an invalid value
        if not self._box.detached:
            self._world.name_it(self._box, name or self.spec.name)
            self._box.detached = True
            if lifetime_seconds is not None:
                self._box.arm(lifetime_seconds)
        return self.id
