"""The run itself: a program inside with the contest's contract, or a function of yours with a sandbox at hand."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, cast

from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import Sandbox
from corral.errors import (
    BackendError,
    CapabilityError,
    SandboxClosedError,
    SandboxError,
    SandboxPausedError,
    SnapshotNotFoundError,
    UnknownBackendError,
)
from corral.forge.calling import call_in_thread
from corral.forge.output import AttemptLog
from corral.forge.sources import Agent, Seat, Source, SyncSeat, fill_in
from corral.results import EndReason, Usage

_LEAVE_SECONDS = 5.0
"""How long a function that was told to end may take to clean up."""
_OWN_ERRORS = (CapabilityError, UnknownBackendError, SandboxClosedError, SandboxPausedError, SnapshotNotFoundError)
"""What a sandbox says to a function that uses it wrongly: not the sandbox's failure."""


_RUN_ENV = {"PYTHONUNBUFFERED": "1"}
"""What a candidate prints shall be seen while it runs, on every backend."""


_BACKLOG_BYTES = 1024 * 1024
"""A fast program prints before anybody listens: so much of that is kept for the listener."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a run ended."""

    exit_code: int
    reason: EndReason
    usage: Usage
    signal: int | None = None
    limit: str | None = None
    said: str = ""
    """Why it failed, where that is known better than from its log."""


async def run_source(
    source: Source, box: AsyncSandbox, *, objective: str, output: str, folder: str, processor: int | None,
    timeout: float, log: AttemptLog,
) -> Ran:  # fmt: skip
    """Run to the end, or to the end of its time.

    Raises:
        CorralError: the sandbox failed, not the program.
    """
    if isinstance(source, Agent):
        return await _run_agent(source, box, objective=objective, output=output, timeout=timeout, log=log)
    argv = fill_in(source.command(folder), objective=objective, output=output)
    if processor is not None:
        argv = ["taskset", "-c", str(processor), *argv]
    process = await box.start(
        argv,
        cwd=folder,
        env=_RUN_ENV | {"CORRAL_OUTPUT": output},
        stdin=False,
        timeout=timeout,
        output_limit_bytes=_BACKLOG_BYTES,
    )
    try:
        async for chunk in process.output():
            log.take(chunk)
        result = await process.wait()
        log.count(result.stdout_total_bytes + result.stderr_total_bytes)
        if isinstance(process, AsyncProcess):
            await process.end_rest()  # whoever runs on in the background has no more time to work on the artifact
    finally:
        await process.aclose()
    return Ran(
        exit_code=result.exit_code, reason=result.reason, usage=result.usage, signal=result.signal, limit=result.limit
    )


async def _run_agent(
    source: Agent, box: AsyncSandbox, *, objective: str, output: str, timeout: float, log: AttemptLog
) -> Ran:
    loop = asyncio.get_running_loop()

    def say(text: str) -> None:
        with contextlib.suppress(RuntimeError):  # the contest is over, and its loop closed
            loop.call_soon_threadsafe(log.say, str(text))

    async def work() -> None:
        if source.is_async:
            await cast("Any", source.function)(Seat(objective=objective, sandbox=box, output=output, log=say))
        else:
            seat = SyncSeat(objective=objective, sandbox=Sandbox.over(box), output=output, log=say)
            await call_in_thread(source.function, seat, name="corral-candidate")

    before = await box.usage()
    begun = time.perf_counter()
    reason: EndReason = "exited"
    exit_code, said = 0, ""
    try:
        if not await _work_for(work(), timeout):
            exit_code, reason = 124, "timeout"
    except _AgentError as error:
        exit_code, said = 1, str(error)
    wall = time.perf_counter() - begun
    if box.closed:
        return Ran(exit_code=exit_code or 1, reason=reason, usage=Usage(wall), said=said or "it closed its sandbox")
    after = await box.usage()
    cpu = (
        after.cpu_seconds - before.cpu_seconds
        if after.cpu_seconds is not None and before.cpu_seconds is not None
        else None
    )
    usage = Usage(wall, cpu, after.peak_memory_bytes, ("counted for the whole sandbox, without the function itself",))
    return Ran(exit_code=exit_code, reason=reason, usage=usage, said=said)


class _AgentError(Exception):
    """The function failed; the text says how."""


async def _work_for(work: Coroutine[Any, Any, object], seconds: float) -> bool:
    """Whether it came to its end in time. It works in a task of its own, so that whatever it does stays there.

    Nobody can end a function that does not want to: one that takes no notice of being cancelled, or a plain one in its
    thread, is left alone. Without its sandbox, closed next, it can do nothing.

    Raises:
        BackendError, SandboxError: the sandbox failed under it.
        _AgentError: the function failed.
    """
    ended = asyncio.ensure_future(_catch(work))
    try:
        done, _ = await asyncio.wait([ended], timeout=seconds)
    finally:
        if not ended.done():
            ended.cancel()
            await asyncio.wait([ended], timeout=_LEAVE_SECONDS)
    if not done:
        return False
    error = ended.result()
    if isinstance(error, BackendError | SandboxError) and not isinstance(error, _OWN_ERRORS):
        raise error
    if error is not None:
        raise _AgentError(_describe(error)) from error
    return True


async def _catch(work: Coroutine[Any, Any, object]) -> BaseException | None:
    """What it raises, as a value: SystemExit and the like are the candidate's way to fail, not ours to go."""
    try:
        await work
    except KeyboardInterrupt as error:
        if threading.current_thread() is threading.main_thread():
            raise  # there it is somebody at the keyboard
        return error
    except BaseException as error:  # noqa: BLE001 - handed over
        return error
    return None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
