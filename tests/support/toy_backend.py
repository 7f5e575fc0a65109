"""A whole backend in one short file: the least that a new backend for Corral needs.

Programs are plain children of this process, and files are handled by shell scripts. Nothing is isolated.
"""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from dataclasses import replace
from typing import Any

from corral.base.process import AsyncProcess, Ending
from corral.base.shellfiles.files import ShellFiles
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.tokens import TokenBook
from corral.errors import InvalidCommandError, SandboxGoneError, WorkdirError
from corral.protocol import Backend, OnEvent, SandboxPrimitives, SpawnRequest, lacking
from corral.results import Capabilities, EndReason, SandboxInfo, SandboxUsage, StreamName, Usage
from corral.spec import USER, Spec

NAME = "toy"


class ToyProcess(AsyncProcess):
    """A child of this process, in a process group of its own. A thread reads its output and waits for its end."""

    def __init__(self, request: SpawnRequest, *, sandbox_id: str) -> None:
        super().__init__(request, sandbox_id=sandbox_id)
        self._reason: EndReason | None = None
        self._room = threading.Event()
        pipe, stdin = subprocess.PIPE, subprocess.PIPE if request.stdin else subprocess.DEVNULL
        options: dict[str, Any] = {"cwd": request.cwd, "env": dict(request.env), "start_new_session": True}
        argv = ["/usr/bin/env", "--", *request.argv]  # which knows about 126 and 127
        try:
            self._child = subprocess.Popen(argv, stdin=stdin, stdout=pipe, stderr=pipe, **options)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise WorkdirError(f"can't run in {request.cwd!r}", sandbox_id=sandbox_id, op="exec") from error
        except OSError as error:
            raise InvalidCommandError(f"can't be started: {error.strerror}", sandbox_id=sandbox_id) from error
        self._pid = self._child.pid
        self._timer = threading.Timer(request.timeout or 86400.0, self.end_tree, ("timeout",))
        for thread in (self._timer, threading.Thread(target=self._follow)):
            thread.daemon = True
            thread.start()

    def _follow(self) -> None:
        child, begun = self._child, time.monotonic()
        streams: dict[Any, StreamName] = {child.stdout: "stdout", child.stderr: "stderr"}
        while streams:
            ended, ready = child.poll() is not None, select.select([*streams], [], [], 0.01)[0]  # in this order
            if not ready and ended:
                break  # what a child in the background still holds open is not waited for
            for pipe in ready:
                if not (data := os.read(pipe.fileno(), self.room(streams[pipe]) or 65536)):
                    del streams[pipe]
                elif self.feed(streams[pipe], data):
                    self._room.wait(1.0)  # a reader lags behind
                    self._room.clear()
        code = child.wait()
        self._timer.cancel()
        usage = Usage(time.monotonic() - begun, cpu_seconds=None, peak_memory_bytes=None, notes=("not measured",))
        reason = self._reason or ("signalled" if code < 0 else "exited")
        self.finish(Ending(128 - code if code < 0 else code, reason, usage, signal=-code if code < 0 else None))
        for pipe in filter(None, (child.stdin, child.stdout, child.stderr)):
            while pipe in streams and os.read(pipe.fileno(), 65536):
                pass  # so that the child in the background can live on
            pipe.close()

    def resume_reading(self) -> None:
        self._room.set()

    async def _write(self, data: bytes) -> bool:
        try:
            assert self._child.stdin is not None
            await asyncio.to_thread(os.write, self._child.stdin.fileno(), data)
        except (OSError, ValueError, AssertionError):
            return False
        return True

    async def close_stdin(self) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()

    async def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def end_tree(self, reason: EndReason) -> None:
        if not self.ended:
            self._reason = self._reason or reason
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class ToySandbox(SandboxPrimitives):
    """A temporary folder, and the programs that were started in it."""

    def __init__(self, spec: Spec) -> None:
        self._folder = self.temporary = tempfile.mkdtemp(prefix="corral-toy-")
        super().__init__(sandbox_id=str(uuid.uuid4()), spec=replace(spec, workdir=self._folder), backend=NAME)
        self.gone = False
        self._created = time.time()
        self._processes: set[ToyProcess] = set()
        self._timer = threading.Timer(spec.lifetime.seconds or 86400.0, self.end)
        self._timer.daemon = True
        self._timer.start()

    def _check(self) -> None:
        if self.closed:
            self.refuse_closed()
        if self.gone:
            raise SandboxGoneError("the sandbox has ended", sandbox_id=self.id)

    async def spawn(self, request: SpawnRequest) -> ToyProcess:
        self._check()
        if request.pty or request.read_only or request.hidden or request.user != USER:
            self.lacks("terminals, views and users")
        process = ToyProcess(request, sandbox_id=self.id)
        self._processes = {one for one in self._processes if not one.ended} | {process}
        return process

    @property
    def files(self) -> ShellFiles:
        return ShellFiles(self.spawn, user=USER, workdir=self._folder, sandbox_id=self.id, guard=self._check)

    def base_env(self, user: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": self._folder, "USER": USER, "LANG": "C.UTF-8"}

    def end(self) -> None:
        self.gone = True
        self._timer.cancel()
        for process in self._processes:
            process.end_tree("cancelled")
            process.finish(SandboxGoneError("the sandbox has ended", sandbox_id=self.id))
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
        seconds = self.spec.lifetime.seconds
        left = None if seconds is None else self._created + seconds - time.time()
        return SandboxInfo(self.id, NAME, self.spec.name, "running", self._created, left, dict(self.spec.labels))


class ToyBackend(Backend):
    """Makes them, and ends what is left."""

    name = NAME
    isolated = False

    def __init__(self) -> None:
        self.made: list[ToySandbox] = []
        self._tokens: TokenBook[ToySandbox] = TokenBook()

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        if spec.image or spec.packages or spec.venv or spec.snapshot or spec.ephemeral or spec.network.mode == "allow":
            raise lacking(NAME, "such sandboxes")
        sandbox = await self._tokens.make_once(spec.client_token, lambda: self._make(spec))
        return AsyncSandbox.around(sandbox, on_event=on_event, event="created")

    async def _make(self, spec: Spec) -> ToySandbox:
        self.made.append(ToySandbox(spec))
        return self.made[-1]

    async def capabilities(self) -> Capabilities:
        notes = ("programs run as the caller, on the host, without limits",)
        return Capabilities("none", "none", "none", "none", "none", network=("open",), notes=notes)

    async def aclose(self) -> None:
        for sandbox in self.made:
            sandbox.end()
