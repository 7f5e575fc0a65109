"""A whole backend in one short file: what somebody writes who brings sandboxes of their own to Corral.

It implements the primitives and nothing else. Programs are plain children of this process in a temporary folder, which
isolates nothing; files are handled by shell scripts. `tests/conformance/test_toy.py` runs the shipped suite against it.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from corral.base.process import AsyncProcess, Ending, as_bytes
from corral.base.shellfiles.files import ShellFiles
from corral.base.shellfiles.processes import ProcessShell
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.tokens import TokenBook
from corral.errors import CorralError, ExecError, SandboxGoneError, WorkdirError
from corral.protocol import Backend, OnEvent, SandboxPrimitives, SpawnRequest, lacking
from corral.results import Capabilities, EndReason, SandboxInfo, SandboxUsage, StreamName, Usage
from corral.spec import USER, Spec

NAME = "toy"


class ToyProcess(AsyncProcess):
    """A child of this process, in a process group of its own. One thread reads each stream, another waits."""

    def __init__(self, request: SpawnRequest, *, sandbox_id: str) -> None:
        super().__init__(output_limit_bytes=request.output_limit_bytes, listened=request.listened)
        self._sandbox_id = sandbox_id
        self._reason: EndReason | None = None
        self._room = threading.Event()
        self._room.set()
        self._begun = time.monotonic()
        self._timer: threading.Timer | None = None
        options: dict[str, Any] = {"cwd": request.cwd, "env": dict(request.env), "start_new_session": True}
        stdin = subprocess.PIPE if request.stdin else subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(request.argv, stdin=stdin, stdout=-1, stderr=-1, bufsize=0, **options)
        except OSError as error:
            text, code = f"{request.argv[0]}: {error.strerror}\n", 127 if error.errno == 2 else 126
            script = ["/bin/sh", "-c", 'printf %s "$1" >&2; exit $2', "sh", text, str(code)]
            self._child = subprocess.Popen(script, stdin=stdin, stdout=-1, stderr=-1, bufsize=0, **options)
        if request.timeout is not None:
            self._timer = threading.Timer(request.timeout, self.end_tree, ("timeout",))
            self._timer.daemon = True
            self._timer.start()
        streams: tuple[tuple[StreamName, Any], ...] = (("stdout", self._child.stdout), ("stderr", self._child.stderr))
        self._readers = [threading.Thread(target=self._read, args=stream, daemon=True) for stream in streams]
        for thread in (*self._readers, threading.Thread(target=self._follow, daemon=True)):
            thread.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def _read(self, stream: StreamName, pipe: Any) -> None:
        with pipe, contextlib.suppress(OSError):
            while data := os.read(pipe.fileno(), self.room(stream) or 65536):
                if not self.ended and self.feed(stream, data):
                    self._room.wait(1.0)  # a reader lags behind
                    self._room.clear()

    def resume_reading(self) -> None:
        self._room.set()

    def _follow(self) -> None:
        code = self._child.wait()
        if self._timer is not None:
            self._timer.cancel()
        for thread in self._readers:
            thread.join(0.2)  # what a child in the background holds open is not waited for
        reason = self._reason or ("signalled" if code < 0 else "exited")
        usage = Usage(wall_seconds=time.monotonic() - self._begun, cpu_seconds=None, peak_memory_bytes=None)
        self.finish(Ending(128 - code if code < 0 else code, reason, usage, signal=-code if code < 0 else None))

    async def write(self, data: bytes | str) -> None:
        pipe = self._child.stdin
        if pipe is None or pipe.closed:
            raise ExecError("the program takes no more input", sandbox_id=self._sandbox_id, op="write")
        try:
            await asyncio.to_thread(_write_all, pipe.fileno(), as_bytes(data))
        except OSError as error:
            raise ExecError("the program has closed its input", sandbox_id=self._sandbox_id, op="write") from error

    async def close_stdin(self) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()

    async def signal(self, number: int) -> None:
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def resize(self, *, rows: int, columns: int) -> None:
        raise ExecError("the program has no terminal", sandbox_id=self._sandbox_id, op="resize")

    def end_tree(self, reason: EndReason) -> None:
        if not self.ended:
            self._reason = self._reason or reason
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class ToySandbox(SandboxPrimitives):
    """A temporary folder, and the programs that were started in it."""

    def __init__(self, spec: Spec) -> None:
        self._folder = tempfile.mkdtemp(prefix="corral-toy-")
        super().__init__(sandbox_id=str(uuid.uuid4()), spec=replace(spec, workdir=self._folder), backend=NAME)
        self.temporary = self._folder
        self._created = time.time()
        self._gone = False
        self._processes: set[ToyProcess] = set()
        self._files = ShellFiles(
            ProcessShell(self.spawn, user=USER), workdir=self._folder, sandbox_id=self.id, guard=self._check
        )
        self._deadline = threading.Timer(spec.lifetime.seconds or 86400.0, self.end)
        self._deadline.daemon = True
        self._deadline.start()

    def _check(self) -> None:
        if self.closed:
            self.refuse_closed()
        if self._gone:
            raise SandboxGoneError("the sandbox has ended", sandbox_id=self.id)

    async def spawn(self, request: SpawnRequest) -> ToyProcess:
        self._check()
        lacks = {"pty": request.pty, "views": request.read_only or request.hidden, "users": request.user != USER}
        for power in filter(lacks.get, lacks):
            self.lacks(power)
        if not Path(request.cwd).is_dir():
            raise WorkdirError(f"can't run in {request.cwd!r}", sandbox_id=self.id, op="exec")
        process = ToyProcess(request, sandbox_id=self.id)
        self._processes = {one for one in self._processes if not one.ended} | {process}
        return process

    @property
    def files(self) -> ShellFiles:
        self._check()
        return self._files

    def base_env(self, user: str) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": self._folder, "USER": USER, "LANG": "C.UTF-8"}

    def end(self) -> None:
        """From any thread, and again."""
        self._gone = True
        self._deadline.cancel()
        for process in self._processes:
            process.end_tree("cancelled")
            process.finish(SandboxGoneError("the sandbox ended while a program was running", sandbox_id=self.id))
        shutil.rmtree(self._folder, ignore_errors=True)

    def release(self) -> Any:
        self.end()
        return asyncio.sleep(0)

    async def kill(self) -> None:
        self.end()

    async def usage(self) -> SandboxUsage:
        self._check()
        return SandboxUsage(processes=sum(not process.ended for process in self._processes))

    async def info(self) -> SandboxInfo:
        self._check()
        return SandboxInfo(self.id, NAME, self.spec.name, "running", self._created, None, dict(self.spec.labels))


class ToyBackend(Backend):
    """Makes them, and ends what is left."""

    name = NAME
    isolated = False

    def __init__(self) -> None:
        self._made: list[ToySandbox] = []
        self._tokens: TokenBook[ToySandbox] = TokenBook()

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        wishes = {"images": spec.image, "packages": spec.packages, "venv": spec.venv, "snapshot": spec.snapshot}
        refused = {**wishes, "ephemeral": spec.ephemeral, "network": spec.network.mode == "allow"}
        for power in filter(refused.get, refused):
            raise lacking(NAME, power)
        await asyncio.sleep(0)
        sandbox = await self._tokens.make_once(spec.client_token, lambda: self._make(spec))
        return AsyncSandbox.around(sandbox, on_event=on_event, event="created")

    async def _make(self, spec: Spec) -> ToySandbox:
        self._made.append(ToySandbox(spec))
        return self._made[-1]

    async def capabilities(self) -> Capabilities:
        none: Any = "none"
        return Capabilities(isolation="none", memory=none, processes=none, cpu=none, disk=none, network=("open",))

    async def aclose(self) -> None:
        for sandbox in self._made:
            with contextlib.suppress(CorralError):
                sandbox.end()

    def count_living(self) -> int:
        """For the suite, which counts what is left."""
        return sum(not sandbox._gone for sandbox in self._made)
