"""Checking text in a separate process (`worker.py`), which is killed after a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from corral.concurrency.waiting import in_time
from corral.errors import JudgeError

_WORKER = Path(__file__).with_name("worker.py")
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
"""Without these some interpreters do not start. The worker gets no other variables."""
_MEMORY_BYTES = 2 * 1024**3
"""Of address space: a text of a few MiB may take a few hundred MiB in Python."""
_START_SECONDS = 60.0
_START_CPU_SECONDS = 5.0
"""Extra time to start an interpreter on a busy machine."""


class OutOfBoundsError(Exception):
    """The check took more time or memory than it may. The caller decides whose fault that is."""


async def look_apart(task: dict[str, Any], data: bytes, *, timeout: float) -> dict[str, Any]:
    """The worker's answer.

    Raises:
        OutOfBoundsError: no answer in time, or too much memory.
        JudgeError: the worker itself failed.
    """
    limits = {"memory_bytes": _MEMORY_BYTES, "cpu_seconds": math.ceil(timeout + _START_CPU_SECONDS)}
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(_WORKER),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        answer = await _talk(process.stdin, process.stdout, json.dumps(task | limits).encode() + b"\n" + data, timeout)
        said = (await process.stderr.read()).decode("utf-8", "replace")
        code = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if code == 0:
        found: dict[str, Any] = json.loads(answer)
        return found
    end = said.strip().rpartition("\n")[2]
    if code < 0 or "MemoryError" in end:
        raise OutOfBoundsError("it took too much memory" if "MemoryError" in end else "it took too much time")
    raise JudgeError(f"the process that checks artifacts failed: {end[:500]}")


async def _talk(stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader, said: bytes, timeout: float) -> bytes:
    async with in_time(
        _START_SECONDS,
        lambda seconds: JudgeError(f"the process that checks artifacts did not start within {seconds:g} s"),
    ):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its stderr says why
            stdin.write(said)
            await stdin.drain()
            stdin.close()
        await stdout.readline()
    async with in_time(timeout, lambda seconds: OutOfBoundsError(f"it took more than {seconds:g} s")):
        return await stdout.read()
