"""One attempt: a fresh sandbox, the candidate's files in it, the run, its artifacts, and the end of the sandbox.

Whose failure is it? What the program does is the candidate's: a crash, a timeout, out of memory, no artifact. If the
sandbox could not be created, or failed during the run, the infrastructure failed: the attempt is retried, and if that
fails too, the candidate is neither ranked nor counted as a loser.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from corral.base.needs import describe_lack
from corral.client.sandbox import AsyncSandbox
from corral.errors import CapabilityError, CorralError, SandboxClosedError, SandboxFileError, SpecError
from corral.forge.artifacts import take_out
from corral.forge.base import Base
from corral.forge.candidate import Candidate
from corral.forge.execution import RunEnd, run_source
from corral.forge.outcome import Attempt, Outcome
from corral.forge.output import KEPT_BYTES, AttemptLog, Tell
from corral.forge.plan import Slots, Turn
from corral.forge.settings import Phase, Settings
from corral.forge.sources import FOLDER
from corral.protocol import Backend
from corral.spec import Lifetime, Spec

log = logging.getLogger(__name__)

OUT = "out"
"""Below the workdir: everything in it is an artifact."""
FAILED: Mapping[Phase, str] = {
    "create": "could not create sandbox",
    "place": "could not copy its files into the sandbox",
    "run": "the sandbox was lost",
    "collect": "could not read its artifacts",
}
"""What an attempt says when the infrastructure fails in a phase."""
_SPARE_SECONDS = 600.0
"""How much longer than all its phases a sandbox may live if its owner is gone."""
_LINE_CHARACTERS = 500
_SIGNALS = {each.value: each.name for each in signal.Signals}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things are inside a sandbox."""

    folder: str
    """The candidate's files; its program starts there."""
    out: str
    """The folder of the artifacts."""
    name: str
    """The file in it that the candidate has to write."""
    alone: bool = False
    """Take that file only; otherwise everything in the folder is an artifact."""

    @property
    def output(self) -> str:
        """The path that the candidate is told to write."""
        return f"{self.out}/{self.name}"


class _InfrastructureError(Exception):
    """The infrastructure failed, not the candidate."""

    def __init__(self, reason: str, *, retry: bool = True) -> None:
        super().__init__(reason)
        self.retry = retry


@dataclass(slots=True)
class _Progress:
    """The state of an attempt while it runs."""

    tell: Tell
    log: AttemptLog
    phases: dict[str, float] = field(default_factory=dict)
    sandbox_id: str = ""
    retries: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMaker:
    """Makes attempts for one contest."""

    backend: Backend
    settings: Settings
    objective: str
    base_of: Callable[[Candidate], Base]
    folder_of: Callable[[Turn], Path]
    tell: Callable[..., None]
    """tell(kind, candidate, round, **data)."""

    on_end: Callable[[Attempt], None]
    """Called once for every attempt that was started. Its sandbox may still be open."""
    layout_for: Callable[[Candidate], Layout] | None = None
    """None: two folders below the workdir, for its files and its artifacts."""
    kept_bytes: int = KEPT_BYTES
    """How much of its log an `Attempt` has."""
    failed: Mapping[Phase, str] = field(default_factory=lambda: FAILED)

    async def make(self, candidate: Candidate, turn: Turn, slots: Slots) -> None:
        """Make one attempt, with its retries. If it is cancelled, it first reports that and deletes its sandbox."""
        retries = 0
        while True:
            progress = self._begin(turn, retries)
            try:
                await self._once(candidate, turn, slots, progress)
            except _InfrastructureError as error:
                if retries >= self.settings.retries or not error.retry:
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

        limit = int(self.settings.take.log_bytes)
        return _Progress(tell, AttemptLog(tell, limit_bytes=limit, kept_bytes=self.kept_bytes), retries=retries)

    async def _once(self, candidate: Candidate, turn: Turn, slots: Slots, progress: _Progress) -> None:
        base = self.base_of(candidate)
        async with self._sandbox(candidate, base, progress) as box:
            layout = self._lay_out(candidate, box)
            async with self._phase("place", progress, sandbox_id=box.id):
                if base.snapshot is None:
                    await base.set_up(box)
                await _place(candidate, box, layout.folder)
                await box.files.mkdir(layout.out)
            async with slots.take() as processor:
                ran = await self._run(candidate, box, layout, processor, progress)
            attempt = self._describe(turn, progress, ran)
            self._end(await self._collect(box, layout, turn, attempt, progress), progress)

    def _lay_out(self, candidate: Candidate, box: AsyncSandbox) -> Layout:
        if self.layout_for is not None:
            return self.layout_for(candidate)
        folder, out = (f"{box.spec.workdir.rstrip('/')}/{name}" for name in (FOLDER, OUT))
        return Layout(folder=folder, out=out, name=self.settings.output)

    async def _run(
        self, candidate: Candidate, box: AsyncSandbox, layout: Layout, processor: int | None, progress: _Progress
    ) -> RunEnd:
        """Run the program. Only this counts as the candidate's time; the process that started it measures."""
        begun = time.monotonic()
        progress.tell("phase", phase="run")
        denied = box.watch_denials()
        metering = asyncio.ensure_future(_meter(box, self.settings.meter_seconds, progress.tell))
        try:
            ran = await run_source(
                candidate.source, box, objective=self.objective, output=layout.output, folder=layout.folder,
                processor=processor, timeout=self.settings.timeouts.run, log=progress.log,
            )  # fmt: skip
        except CorralError as error:
            raise _InfrastructureError(f"{self.failed['run']}: {error}") from error
        finally:
            metering.cancel()
            progress.log.finish()
            progress.phases["run"] = time.monotonic() - begun
        # Nothing of a sandbox that the candidate's own function has closed.
        refused = () if box.closed else denied()
        printed = progress.log.text if ran.exit_code else ""
        if lacked := describe_lack(refused, printed, candidate.network_policy):
            progress.tell("warning", text=f"{candidate.id}: {lacked}"[:_LINE_CHARACTERS])
        return ran

    async def _collect(
        self, box: AsyncSandbox, layout: Layout, turn: Turn, attempt: Attempt, progress: _Progress
    ) -> Attempt:
        """Take artifacts out for any exit code. A missing artifact decides the outcome only after exit code 0."""
        try:
            # A candidate can make a folder slow to read, but not a single file of bounded size.
            async with self._phase("collect", progress, own=True, own_time=not layout.alone):
                files, refused = await take_out(
                    box, layout.out, self.folder_of(turn), self.settings.take, layout.name, alone=layout.alone
                )
        except TimeoutError:
            return _lost(attempt, f"its artifacts took longer than {self.settings.timeouts.collect:g} seconds to read")
        except (SandboxFileError, SandboxClosedError) as error:  # closed: by its own function
            return _lost(attempt, f"its artifacts can't be read: {error.message}")
        attempt = replace(attempt, artifacts=files, refused=refused)
        if not attempt.ok or any(file.path == layout.name for file in files):
            return attempt
        for item in refused:
            if item.path == layout.name:
                return _lost(attempt, f"its artifact was not taken: {item.reason}")
        return replace(attempt, outcome="no-artifact", reason=f"it wrote no {layout.name}")

    @contextlib.asynccontextmanager
    async def _sandbox(self, candidate: Candidate, base: Base, progress: _Progress) -> AsyncIterator[AsyncSandbox]:
        async with self._phase("create", progress):
            box = await self.backend.create(self.spec_for(candidate, base))
        progress.sandbox_id = box.id
        try:
            yield box
        finally:
            try:
                await box.aclose()
            except (CorralError, OSError) as error:  # the sweeper removes it later; the candidate is not to blame
                log.warning("sandbox %s was not deleted: %s", box.id, error)
                progress.tell("warning", text=f"Could not delete sandbox {box.id}: {error}"[:_LINE_CHARACTERS])

    def spec_for(self, candidate: Candidate, base: Base) -> Spec:
        """The spec of a candidate's sandbox."""
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
    async def _phase(
        self, phase: Phase, progress: _Progress, *, own: bool = False, own_time: bool = False, **more: object
    ) -> AsyncIterator[None]:
        """A phase with its timeout. Failures in it are the infrastructure's, unless they are the candidate's `own`:
        those of files, and with `own_time` the timeout."""
        limit = getattr(self.settings.timeouts, phase)
        begun = time.monotonic()
        progress.tell("phase", phase=phase, **more)
        try:
            async with asyncio.timeout(limit):
                yield
        except CorralError as error:
            if own and isinstance(error, SandboxFileError | SandboxClosedError):
                raise
            # A request that can't be met is not met the second time either.
            retry = not isinstance(error, SpecError | CapabilityError)
            raise _InfrastructureError(f"{self.failed[phase]}: {error}", retry=retry) from error
        except TimeoutError as error:
            if own_time:
                raise
            raise _InfrastructureError(f"{self.failed[phase]}: timed out after {limit:g} seconds") from error
        finally:
            progress.phases[phase] = time.monotonic() - begun

    def _describe(self, turn: Turn, progress: _Progress, ran: RunEnd) -> Attempt:
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
        # Gone or unreadable since the contest was created: the other candidates go on without it.
        raise _InfrastructureError(f"its files can't be read on this machine: {error}") from error


def _lost(attempt: Attempt, reason: str) -> Attempt:
    """The artifact can't be taken. A run that failed before keeps its own reason."""
    return replace(attempt, outcome="refused-artifact", reason=reason) if attempt.ok else attempt


def _judge_end(ran: RunEnd, log: str, settings: Settings) -> tuple[Outcome, str]:
    if ran.reason == "timeout":
        return "timeout", f"timed out after {settings.timeouts.run:g} seconds"
    if ran.reason == "oom":
        return "oom", "out of memory"
    if ran.limit:
        return "crashed", f"out of {ran.limit}"
    if ran.exit_code == 0:
        return "ok", ""
    if ran.signal is not None:
        how = f"ended by {_SIGNALS.get(ran.signal, f'signal {ran.signal}')}"
    else:
        how = f"exit code {ran.exit_code}"
    last = ran.said or next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    return "crashed", f"{how}: {last[:_LINE_CHARACTERS]}" if last else how


async def _meter(box: AsyncSandbox, every: float, tell: Tell) -> None:
    """Tell what a running candidate uses, until this is cancelled."""
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
