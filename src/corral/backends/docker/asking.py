"""Short programs of ours inside, run to their end for what they print."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from corral.backends.docker.engine_api import EngineApi

_MAX_BYTES = 65536


async def run_script(api: EngineApi, container: str, script: str, *args: str, user: str) -> tuple[int, bytes]:
    """The exit code of a shell text, and the first of its output."""
    argv = ["/bin/sh", "-c", script, "sh", *args]
    exec_id, output = await collect(api, container, argv, user=user)
    for _ in range(200):
        told = await api.inspect_exec(exec_id)
        if not told["Running"] and told["ExitCode"] is not None:
            return int(told["ExitCode"]), output
        await asyncio.sleep(0.01)
    return 1, output


async def collect(api: EngineApi, container: str, argv: Sequence[str], *, user: str) -> tuple[str, bytes]:
    """The id of a program that was run, and the first of its output."""
    exec_id = await api.create_exec(container, argv, env={}, user=user, stdin=False, tty=False)
    output = bytearray()
    async with api.start_exec(exec_id, tty=False) as stream:
        while (message := await stream.read_out()) is not None:
            if message.stream == 1 and len(output) < _MAX_BYTES:
                output += message.data
    return exec_id, bytes(output)
