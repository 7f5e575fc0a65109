"""The run itself: a program inside a sandbox, or a user's function that drives an agent with a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, cast

from corral.base.process import Ending
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
from corral.forge.calling import call_in_thread, is_async
from corral.forge.output import AttemptLog
from corral.forge.sources import AgentSource, Seat, Source, SyncSeat, fill_in
from corral.results import EndReason, Usage

_LEAVE_SECONDS = 5.0
"""How long a cancelled function may take to clean up."""
_OWN_ERRORS = (CapabilityError, UnknownBackendError, SandboxClosedError, SandboxPausedError, SnapshotNotFoundError)
"""Errors of a function that uses its sandbox wrongly: not the sandbox's failure."""


_RUN_ENV = {"PYTHONUNBUFFERED": "1"}
"""So that output is seen while a candidate runs, on every backend."""


_BACKLOG_BYTES = 1024 * 1024
"""How much output is kept of a program that prints faster than we read."""


@dataclass(frozen=True, slots=True)
class RunEnd(Ending):
    """How a run ended."""

    said: str = ""
    """Why it failed, if that is known better than from its log."""


async def run_source(
    source: Source, box: AsyncSandbox, *, objective: str, output: str, folder: str, processor: int | None,
    timeout: float, log: AttemptLog,
) -> RunEnd:  # fmt: skip
    """Run to its end or its timeout.

    Raises:
        CorralError: the sandbox failed, not the program.
    """
    if isinstance(source, AgentSource):
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
        await process.end_rest()  # background processes must not go on changing the artifact
    finally:
        await process.aclose()
    return RunEnd(result.exit_code, result.reason, result.usage, signal=result.signal, limit=result.limit)


async def _run_agent(
    source: AgentSource, box: AsyncSandbox, *, objective: str, output: str, timeout: float, log: AttemptLog
) -> RunEnd:
    loop = asyncio.get_running_loop()

    def say(text: str) -> None:
        with contextlib.suppress(RuntimeError):  # the contest is over, and its event loop closed
            loop.call_soon_threadsafe(log.say, str(text))

    async def work() -> None:
        if is_async(source.function):
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
        return RunEnd(exit_code or 1, reason, Usage(wall), said=said or "it closed its sandbox")
    after = await box.usage()
    cpu = None
    if after.cpu_seconds is not None and before.cpu_seconds is not None:
        cpu = after.cpu_seconds - before.cpu_seconds
    usage = Usage(wall, cpu, after.peak_memory_bytes, ("counted for the whole sandbox, without the function itself",))
    return RunEnd(exit_code, reason, usage, said=said)


class _AgentError(Exception):
    """The function failed; the text says how."""


async def _work_for(work: Coroutine[Any, Any, object], seconds: float) -> bool:
    """Whether it ended in time. It has a task of its own, so that it can't cancel ours.

    A function that ignores its cancellation, or a plain one in its thread, can't be stopped. Its sandbox is closed
    next, so it can do nothing more with that.

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
        raise _AgentError(f"{type(error).__name__}: {error}") from error
    return True


async def _catch(work: Coroutine[Any, Any, object]) -> BaseException | None:
    """The exception, as a value: a SystemExit of the candidate must not end this program."""
    try:
        await work
    except KeyboardInterrupt as error:
        if threading.current_thread() is threading.main_thread():
            raise  # a real Ctrl-C
        return error
    except BaseException as error:  # noqa: BLE001 - handed over
        return error
    return None
