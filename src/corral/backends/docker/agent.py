"""The agent of a container: a Python of the image, as an exec of the daemon, over its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Awaitable, Callable
from functools import cache

from corral.backends.docker.process import DockerProcess
from corral.base.agent.channel import Take, agent_text
from corral.base.taskfiles import file_text
from corral.errors import CorralError
from corral.protocol import SpawnRequest

_END_SECONDS = 10.0
_IMPORT = re.compile(rb"^(?:import|from) (\w+)", re.MULTILINE)


@cache
def python_check() -> str:
    """A Python text that fails where the agent and its file operations can't run: too old, or without a module."""
    modules = sorted(set(_IMPORT.findall(agent_text() + file_text())))
    return f"import sys; assert sys.version_info >= (3, 8); import {b', '.join(modules).decode()}"


class ExecTransport:
    """A `corral.base.agent.channel.Transport` to an agent in the container, which `spawn` starts."""

    slow = False

    def __init__(self, spawn: Callable[[SpawnRequest], Awaitable[DockerProcess]]) -> None:
        self._spawn = spawn
        self._process: DockerProcess | None = None
        self._reading: asyncio.Future[None] | None = None

    async def open(self, take: Take) -> None:
        """Raises: what `spawn` raises."""
        text = agent_text()
        code = f'import sys;exec(compile(sys.stdin.buffer.read({len(text)}),"corral","exec"))'
        self._process = await self._spawn(
            SpawnRequest(
                argv=("python3", "-I", "-S", "-X", "utf8", "-c", code), env={}, cwd="/", user="", timeout=None,
                stdin=True, output_limit_bytes=4096, listened=True,
            )
        )  # fmt: skip
        self._reading = asyncio.ensure_future(self._read(self._process, take))
        await self.send(text)

    async def _read(self, process: DockerProcess, take: Take) -> None:
        async for chunk in process.output():
            if chunk.stream == "stdout":
                take(chunk.data)

    async def send(self, data: bytes) -> None:
        assert self._process is not None, "it was opened"
        await self._process.write(data)

    async def wait(self) -> None:
        assert self._reading is not None, "it was opened"
        await self._reading

    async def wake(self, agent: int) -> None:
        if self._process is not None:
            await self._process.signal(signal.SIGCONT)

    async def end(self) -> None:
        if self._process is not None:
            self._process.end_tree("cancelled")
            with contextlib.suppress(CorralError):
                await self._process.wait(timeout=_END_SECONDS)

    async def disconnect(self) -> None:
        """The agent ends with its input."""
        if self._process is not None:
            await self._process.close_stdin()
