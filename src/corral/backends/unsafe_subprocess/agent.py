"""The agent of a sandbox: a child process that runs its programs, and ends them with this process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref

from corral.backends.unsafe_subprocess.folders import HostFolder
from corral.base.agent.channel import Channel, Take, agent_text
from corral.concurrency.portal import PerProcess, Portal
from corral.errors import BackendUnavailableError, CorralError, ExecError, SandboxGoneError, gone
from corral.inside.nolinks import on_error

_EXIT_SECONDS = 30.0
_END_SECONDS = 60.0
_READ_BYTES = 256 * 1024

_children: weakref.WeakSet[Child] = weakref.WeakSet()
_processes: set[subprocess.Popen[bytes]] = set()
"""Agents that were not waited for yet: a sandbox may be forgotten, or lose its event loop, before they end."""
_lock = threading.Lock()
get_portal = PerProcess(lambda: Portal("corral-unsafe", workers=2)).get
"""The event loop on which this process talks to its agents."""


class Child:
    """An agent's process: a `corral.base.agent.channel.Transport` over a socket."""

    slow = False

    def __init__(self, *, lock: int | None = None) -> None:
        """With `lock`, the child holds this descriptor open as long as it lives."""
        code = f'import sys;exec(compile(sys.stdin.buffer.read({len(agent_text())}),"corral","exec"))'
        self._made_by = os.getpid()
        self._socket, theirs = socket.socketpair()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Future[None] | None = None
        with theirs, on_error(self._socket.close):
            self.process = subprocess.Popen(
                [find_python(), "-I", "-S", "-X", "utf8", "-c", code],
                pass_fds=() if lock is None else (lock,),
                env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        with _lock:  # sandboxes are created in several threads at once
            _processes.difference_update([process for process in _processes if process.poll() is not None])
            _processes.add(self.process)
            _children.add(self)
            _register()

    async def open(self, take: Take) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._reading = asyncio.ensure_future(self._read(reader, take))
        await self.send(agent_text())

    async def _read(self, reader: asyncio.StreamReader, take: Take) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                take(data)

    async def send(self, data: bytes) -> None:
        assert self._writer is not None, "it was opened"
        self._writer.write(data)
        await self._writer.drain()

    async def wait(self) -> None:
        assert self._reading is not None, "it was opened"
        await self._reading

    async def wake(self, agent: int) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        self.close()
        if self._writer is not None:
            self._writer.close()
        await asyncio.to_thread(self.finish)

    disconnect = end

    def close(self) -> None:
        """Ask the agent to end, with everything it runs. Does not wait. Idempotent; any thread may call."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Wait for its end. If it does not end, it is killed, and a later sweep removes its files."""
        try:
            self.process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with _lock:
            _processes.discard(self.process)

    @property
    def is_ours(self) -> bool:
        """True if this process started it, and not one that it was forked from."""
        return self._made_by == os.getpid()

    def forget(self) -> None:
        """In a forked child: the agent belongs to the parent, and must end with it."""
        self._socket.close()


class Agents:
    """The agents of one sandbox: its owner's, and one for each forked process that runs something."""

    def __init__(self, place: HostFolder, *, seconds: float | None) -> None:
        self.sandbox_id = place.sandbox_id
        self._folder = place.root
        self._seconds = seconds
        self.owner = Child(lock=place.lock)
        self._channels: dict[int, asyncio.Task[Channel]] = {}

    async def start(self) -> None:
        """Start the owner's agent. Raises: BackendUnavailableError."""
        try:
            await get_portal().finish(self.channel())
        except (SandboxGoneError, TimeoutError) as error:
            raise BackendUnavailableError(
                "the agent of the sandbox did not start", op="create", hint="check the limit on processes (ulimit -u)"
            ) from error

    async def channel(self) -> Channel:
        """The channel of this process. On the portal only. Raises: SandboxGoneError."""
        opening = self._channels.get(os.getpid())
        if opening is None:
            opening = asyncio.ensure_future(self._open())
            self._channels = {os.getpid(): opening}
        channel = await asyncio.shield(opening)
        if channel.lost:
            raise gone(self.sandbox_id, op="exec")
        return channel

    async def _open(self) -> Channel:
        child = self.owner if self.owner.is_ours else Child()
        channel = Channel(child, self.explain)
        await channel.open()
        owned = {"folder": str(self._folder), "seconds": self._seconds, "removes": child is self.owner}
        channel.say(b"O", 0, json.dumps(owned).encode())
        return channel

    def is_alive(self) -> bool:
        """True while its programs can run."""
        if not self.owner.is_ours:
            return self._folder.is_dir()
        opening = self._channels.get(os.getpid())
        if opening is None or not opening.done():
            return True
        return not opening.cancelled() and opening.exception() is None and not opening.result().lost

    async def explain(self, op: str) -> CorralError:
        """The error for an agent that does not answer. If the agent has ended, so has the sandbox."""
        if not self.is_alive():
            return gone(self.sandbox_id, op=op)
        return ExecError("the agent of the sandbox does not respond", sandbox_id=self.sandbox_id, op=op)

    async def wait_end(self) -> None:
        """Wait for the end of the owner's agent."""
        if self.owner.is_ours:
            # At the end of the program no thread can be started any more; `end_all` waits then.
            with contextlib.suppress(RuntimeError):
                await asyncio.to_thread(self.owner.finish)


def find_python() -> str:
    """The Python that runs the agent. Raises: BackendUnavailableError."""
    found = sys.executable or shutil.which("python3")
    if not found:
        raise BackendUnavailableError("no Python found to run the agent", op="create", hint="put python3 on PATH")
    return found


@functools.cache  # once per process: at_fork can't be undone
def _register() -> None:
    atexit.register(end_all)
    os.register_at_fork(after_in_child=_forget_all)


def end_all() -> None:
    """At exit: end the agents of this process, without an event loop."""
    with _lock:
        children, processes = list(_children), list(_processes)
    for child in children:
        if child.is_ours:
            child.close()
    deadline = time.monotonic() + _EXIT_SECONDS
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, deadline - time.monotonic()))


def _forget_all() -> None:
    global _children, _lock  # noqa: PLW0603 - the parent's lock may have been held by another of its threads
    _lock = threading.Lock()
    inherited, _children = list(_children), weakref.WeakSet()
    for child in inherited:
        child.forget()
    for process in _processes:
        process.returncode = 0  # not our child: it can't be waited for here
    _processes.clear()
