"""The run itself: a program inside with the contest's contract, or a function of yours with a sandbox at hand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from corral.errors import BackendError, SandboxError
from corral.forge.logkeeper import KEPT_BYTES, LogKeeper
from corral.forge.seat import Seat, SyncSeat
from corral.forge.sources import Agent, Source, fill_in
from corral.process import ProcessBase
from corral.results import EndReason, Usage
from corral.sandbox import SandboxBase
from corral.sync import Sandbox


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
    source: Source, box: SandboxBase, *, objective: str, output: str, folder: str, processor: int | None,
    timeout: float, log: LogKeeper,
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
        argv, cwd=folder, env={"CORRAL_OUTPUT": output}, stdin=False, timeout=timeout, output_limit_bytes=KEPT_BYTES
    )
    try:
        async for chunk in process.output():
            log.take(chunk)
        result = await process.wait()
        if isinstance(process, ProcessBase):
            await process.end_rest()  # whoever runs on in the background has no more time to work on the artifact
    finally:
        await process.aclose()
    return Ran(
        exit_code=result.exit_code, reason=result.reason, usage=result.usage, signal=result.signal, limit=result.limit
    )


async def _run_agent(
    source: Agent, box: SandboxBase, *, objective: str, output: str, timeout: float, log: LogKeeper
) -> Ran:
    loop = asyncio.get_running_loop()

    def say(text: str) -> None:
        loop.call_soon_threadsafe(log.say, str(text))

    before = await box.usage()
    begun = time.perf_counter()
    reason: EndReason = "exited"
    exit_code, said = 0, ""
    try:
        async with asyncio.timeout(timeout) as limit:
            if source.is_async:
                await cast("Any", source.function)(Seat(objective=objective, sandbox=box, output=output, log=say))
            else:
                seat = SyncSeat(objective=objective, sandbox=Sandbox.over(box), output=output, log=say)
                await _in_thread(cast("Callable[[SyncSeat], object]", source.function), seat)
    except TimeoutError as error:
        if not limit.expired():
            exit_code, said = 1, _describe(error)
        else:
            # A plain function in its thread can't be ended; without its sandbox, closed next, it can do nothing.
            exit_code, reason = 124, "timeout"
    except (BackendError, SandboxError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the candidate's
        exit_code, said = 1, _describe(error)
    wall = time.perf_counter() - begun
    after = await box.usage()
    cpu = (
        after.cpu_seconds - before.cpu_seconds
        if after.cpu_seconds is not None and before.cpu_seconds is not None
        else None
    )
    usage = Usage(wall, cpu, after.peak_memory_bytes, ("counted for the whole sandbox, without the function itself",))
    return Ran(exit_code=exit_code, reason=reason, usage=usage, said=said)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


async def _in_thread(function: Callable[[SyncSeat], object], seat: SyncSeat) -> None:
    """In a thread that nobody waits for at the end of the program: a function that hangs must not hold it up."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return  # nobody waits any more
        if error is None:
            done.set_result(None)
        elif isinstance(error, Exception):
            done.set_exception(error)
        else:  # SystemExit and the like: the candidate's way to fail, not ours to go
            done.set_exception(RuntimeError(_describe(error)))

    def work() -> None:
        error: BaseException | None = None
        try:
            function(seat)
        except BaseException as caught:  # noqa: BLE001 - handed over
            error = caught
        try:
            loop.call_soon_threadsafe(settle, error)
        except RuntimeError:
            pass  # the contest is over, and its loop closed

    threading.Thread(target=work, name="corral-candidate", daemon=True).start()
    await done
