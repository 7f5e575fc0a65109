"""One attempt: a fresh sandbox, the candidate's files in it, the run, its artifacts, and the end of the sandbox.

Whose failure is it? What the program does is the candidate's: a crash, no time left, no memory left, no artifact. That
a sandbox could not be made, or ended under the program, is nobody's: the attempt is begun again, and if that fails too
the candidate is not ranked, but has not lost either.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError, SandboxClosedError, SandboxFileError
from corral.forge.artifacts import take_out
from corral.forge.base import Base
from corral.forge.candidate import Candidate
from corral.forge.logkeeper import LogKeeper, Tell
from corral.forge.outcome import Attempt, Outcome
from corral.forge.plan import Turn
from corral.forge.runs import Ran, run_source
from corral.forge.settings import Phase, Settings
from corral.forge.sources import FOLDER
from corral.protocol import Backend
from corral.spec import Lifetime, Spec

OUT = "out"
"""Below the workdir: everything in it is an artifact."""
_SPARE_SECONDS = 600.0
"""How much longer than all its phases a sandbox may live, if nobody is left to end it."""


class Slots(Protocol):
    """Who may run now. What it gives is the processor to run on, None where none was asked for."""

    def take(self) -> contextlib.AbstractAsyncContextManager[int | None]:
        """Wait for one's turn."""


class _InfrastructureError(Exception):
    """Nobody's loss."""


@dataclass(slots=True)
class _Progress:
    """What is known of an attempt while it goes on."""

    tell: Tell
    log: LogKeeper
    phases: dict[str, float] = field(default_factory=dict)
    sandbox_id: str = ""
    retries: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Makes attempts for one contest."""

    backend: Backend
    settings: Settings
    objective: str
    base_of: Callable[[Candidate], Base]
    folder_of: Callable[[Turn], Path]
    tell: Callable[..., None]
    """tell(kind, candidate, round, **data)."""

    on_end: Callable[[Attempt], None]
    """Told once of every attempt that was begun, before its sandbox is closed."""

    async def make(self, candidate: Candidate, turn: Turn, slots: Slots) -> None:
        """One attempt, with its retries. Cancelled, it ends its sandbox and tells so, then goes on being cancelled."""
        retries = 0
        while True:
            progress = self._begin(turn, retries)
            try:
                await self._once(candidate, turn, slots, progress)
            except _InfrastructureError as error:
                if retries >= self.settings.retries:
                    self._give_up(turn, progress, "infrastructure", str(error))
                    return
                retries += 1
                progress.tell("retry", reason=str(error))
            except asyncio.CancelledError:
                if not progress.ended:  # else only its sandbox was still to be closed
                    self._give_up(turn, progress, "cancelled", "the contest was ended")
                raise
            else:
                return

    def _begin(self, turn: Turn, retries: int) -> _Progress:
        def tell(kind: str, **data: object) -> None:
            self.tell(kind, turn.candidate, turn.round, **data)

        return _Progress(tell, LogKeeper(tell, limit_bytes=int(self.settings.take.log_bytes)), retries=retries)

    async def _once(self, candidate: Candidate, turn: Turn, slots: Slots, progress: _Progress) -> None:
        base = self.base_of(candidate)
        async with self._sandbox(candidate, base, progress) as box:
            folder, out = (f"{box.spec.workdir.rstrip('/')}/{name}" for name in (FOLDER, OUT))
            async with self._phase("place", progress):
                if not base.ready_made:
                    await base.set_up(box)
                await _place(candidate, box, folder)
                await box.files.mkdir(out)
            async with slots.take() as processor:
                ran = await self._run(candidate, box, folder, f"{out}/{self.settings.output}", processor, progress)
            attempt = self._describe(turn, progress, ran)
            self._end(await self._collect(box, out, turn, attempt, progress), progress)

    async def _run(
        self, candidate: Candidate, box: AsyncSandbox, folder: str, output: str, processor: int | None,
        progress: _Progress,
    ) -> Ran:  # fmt: skip
        """Only this is timed for the candidate, and by whoever started the program."""
        begun = time.monotonic()
        progress.tell("phase", phase="run")
        metering = asyncio.ensure_future(_meter(box, self.settings.meter_seconds, progress.tell))
        try:
            return await run_source(
                candidate.source, box, objective=self.objective, output=output, folder=folder, processor=processor,
                timeout=self.settings.timeouts.run, log=progress.log,
            )  # fmt: skip
        except CorralError as error:
            raise _InfrastructureError(f"the sandbox failed under the run: {error}") from error
        finally:
            metering.cancel()
            progress.log.finish()
            progress.phases["run"] = time.monotonic() - begun

    async def _collect(self, box: AsyncSandbox, out: str, turn: Turn, attempt: Attempt, progress: _Progress) -> Attempt:
        """Artifacts are taken out whatever the exit code was; whether they are there decides only after a good one."""
        try:
            async with self._phase("collect", progress, own=True):
                files, refused = await take_out(
                    box, out, self.folder_of(turn), self.settings.take, self.settings.output
                )
        except TimeoutError:
            return _lost(attempt, f"its artifacts took longer than {self.settings.timeouts.collect:g} seconds to read")
        except (SandboxFileError, SandboxClosedError) as error:  # closed: by its own function
            return _lost(attempt, f"its artifacts can't be read: {error.message}")
        attempt = replace(attempt, artifacts=files, refused=refused)
        if not attempt.ok or any(file.path == self.settings.output for file in files):
            return attempt
        for item in refused:
            if item.path == self.settings.output:
                return _lost(attempt, f"its artifact was not taken: {item.reason}")
        return replace(attempt, outcome="no-artifact", reason=f"it wrote no {self.settings.output}")

    @contextlib.asynccontextmanager
    async def _sandbox(self, candidate: Candidate, base: Base, progress: _Progress) -> AsyncIterator[AsyncSandbox]:
        async with self._phase("create", progress):
            box = await self.backend.create(self.spec_for(candidate, base))
        progress.sandbox_id = box.id
        try:
            yield box
        finally:
            # It may be gone already, and a failure to end it is the sweeper's; the candidate has nothing to do with it.
            with contextlib.suppress(CorralError):
                await box.aclose()

    def spec_for(self, candidate: Candidate, base: Base) -> Spec:
        """What a candidate's sandbox shall be."""
        times = self.settings.timeouts
        whole = times.create + times.place + times.run + times.collect + _SPARE_SECONDS
        return Spec(
            image=candidate.image,
            resources=candidate.resources or self.settings.resources,
            network=candidate.network_policy,
            env=candidate.env,
            packages=candidate.packages,
            lifetime=Lifetime(seconds=whole),
            labels={"corral.forge": candidate.id},
            snapshot=base.snapshot,
        )

    @contextlib.asynccontextmanager
    async def _phase(self, phase: Phase, progress: _Progress, *, own: bool = False) -> AsyncIterator[None]:
        """A phase with its time. What goes wrong in it is nobody's loss, unless it is the candidate's `own`."""
        limit = getattr(self.settings.timeouts, phase)
        begun = time.monotonic()
        progress.tell("phase", phase=phase)
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError as error:
            if own:
                raise
            raise _InfrastructureError(f"{phase} took longer than {limit:g} seconds") from error
        except CorralError as error:
            if own and isinstance(error, SandboxFileError | SandboxClosedError):
                raise
            raise _InfrastructureError(f"{phase}: {error}") from error
        finally:
            progress.phases[phase] = time.monotonic() - begun

    def _describe(self, turn: Turn, progress: _Progress, ran: Ran) -> Attempt:
        outcome, reason = _judge_end(ran, progress.log.text, self.settings)
        return Attempt(
            candidate=turn.candidate,
            round=turn.round,
            outcome=outcome,
            reason=reason,
            exit_code=ran.exit_code,
            seconds=ran.usage.wall_seconds,
            cpu_seconds=ran.usage.cpu_seconds,
            peak_memory_bytes=ran.usage.peak_memory_bytes,
            notes=ran.usage.notes,
        )

    def _give_up(self, turn: Turn, progress: _Progress, outcome: Outcome, reason: str) -> None:
        self._end(Attempt(candidate=turn.candidate, round=turn.round, outcome=outcome, reason=reason), progress)

    def _end(self, attempt: Attempt, progress: _Progress) -> None:
        progress.ended = True
        whole = replace(
            attempt,
            phases=dict(progress.phases),
            log=progress.log.text,
            log_bytes=progress.log.total_bytes,
            retries=progress.retries,
            sandbox_id=progress.sandbox_id,
        )
        progress.tell("attempt-ended", **whole.to_json())
        self.on_end(whole)


async def _place(candidate: Candidate, box: AsyncSandbox, folder: str) -> None:
    try:
        await candidate.source.place(box, folder)
    except OSError as error:
        if isinstance(error, CorralError):
            raise
        # Gone or unreadable since the contest was made: the others go on without it.
        raise _InfrastructureError(f"its files can't be read here: {error}") from error


def _lost(attempt: Attempt, reason: str) -> Attempt:
    """The artifact is not to be had. A run that failed before keeps its own reason."""
    return replace(attempt, outcome="refused-artifact", reason=reason) if attempt.ok else attempt


def _judge_end(ran: Ran, log: str, settings: Settings) -> tuple[Outcome, str]:
    if ran.reason == "timeout":
        return "timeout", f"still running after {settings.timeouts.run:g} seconds"
    if ran.reason == "oom":
        return "oom", "out of memory"
    if ran.limit:
        return "crashed", f"out of {ran.limit}"
    if ran.exit_code == 0:
        return "ok", ""
    if ran.signal is not None:
        how = f"ended by {_signal_name(ran.signal)}"
    else:
        how = f"exit code {ran.exit_code}"
    last = ran.said or next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    return "crashed", f"{how}: {last[:200]}" if last else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _meter(box: AsyncSandbox, every: float, tell: Tell) -> None:
    """Tell what a running candidate uses, as long as nobody stops this."""
    if every <= 0:
        return
    begun = time.monotonic()
    with contextlib.suppress(CorralError, OSError):
        while True:
            await asyncio.sleep(every)
            usage = await box.usage()
            tell(
                "meter", seconds=round(time.monotonic() - begun, 3), cpu_seconds=usage.cpu_seconds,
                memory_bytes=usage.memory_bytes, processes=usage.processes,
            )  # fmt: skip
