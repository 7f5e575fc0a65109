"""One candidate of the recorded surface, once: sandbox, script, run, artifact. It gives a result, whatever happens.

Each phase has its own time, and each failure its own words. Whose fault it was is decided here: a sandbox that could
not be made or was lost is nobody's loss and is tried again; all else is the candidate's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    CapabilityError,
    CorralError,
    ExecError,
    SandboxFileError,
    SandboxFileInterruptedError,
    SandboxNoSpaceError,
    SpecError,
)
from corral.forge.ids import check_id
from corral.forge.lines import LineSplitter
from corral.forge.settings import MIB
from corral.protocol import Backend
from corral.results import ExecResult, OutputChunk
from corral.spec import HOME, Spec

log = logging.getLogger(__name__)

Say = Callable[[str], None]
_ERROR_CHARACTERS = 50
_MESSAGE_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class DaytonaResult:
    """What came of one candidate."""

    candidate_id: str
    sandbox_id: str | None
    """None: it had no sandbox."""
    success: bool
    """Exit code 0, and an artifact that could be read."""
    output: str
    """All that it printed, bounded; also of one that failed."""
    artifact_content: str | None
    runtime_seconds: float
    """The run alone: neither the sandbox's making nor any transfer is in it."""
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRun(DaytonaResult):
    """A `DaytonaResult` that says more."""

    exit_code: int | None = None
    """None: it was never run to an end."""
    failure: Literal["candidate", "infrastructure"] | None = None
    """Whose: that of the candidate, or of what it was to run in."""
    artifact: bytes | None = field(default=None, repr=False)
    """The artifact byte for byte; `artifact_content` is the same as text."""
    retry: bool = False
    """Whether another try may go better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds for each phase, and bytes that are taken out."""

    create: float = 120.0
    upload: float = 30.0
    run: float = 60.0
    read: float = 10.0
    artifact_bytes: int = 64 * MIB
    log_bytes: int = MIB
    retries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Who, and what it is to do."""

    candidate_id: str
    name: str
    script: Path
    objective: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where candidates run."""

    backend: Backend
    spec: Spec
    remote: bool
    """Whether the log speaks of Daytona."""
    limits: Limits = field(default_factory=Limits)


async def run_candidate(job: Job, place: Place, say: Say) -> CandidateRun:
    """Run it; what fails for want of a sandbox is tried again."""
    try:
        check_id(job.candidate_id)
        script = await asyncio.to_thread(job.script.read_bytes)
    except SpecError as error:
        return _refused(job, say, str(error))
    except OSError as error:
        return _refused(job, say, f"Could not read script: {error.strerror or error}")
    done = await _Try(job, place, say).run(script)
    for _ in range(place.limits.retries):
        if not done.retry:
            break
        say("[Warn] That was not the candidate's doing: trying again")
        done = await _Try(job, place, say).run(script)
    return done


def _refused(job: Job, say: Say, message: str) -> CandidateRun:
    say_error(say, message)
    return failed_run(job.candidate_id, message, failure="candidate")


def failed_run(
    candidate_id: str, message: str, *, failure: Literal["candidate", "infrastructure"] = "infrastructure"
) -> CandidateRun:
    """The result of one that never ran."""
    return CandidateRun(candidate_id, None, False, "", None, 0.0, message, failure=failure)


def say_error(say: Say, message: str) -> None:
    """The line that is known, and the whole message after it where the line has no room for it."""
    first = message.replace("\n", " ")
    say(f"[Error] {first[:_ERROR_CHARACTERS]}")
    if len(first) > _ERROR_CHARACTERS:
        say(f"[Error] {first[:_MESSAGE_CHARACTERS]}")


class _Try:
    """One try."""

    def __init__(self, job: Job, place: Place, say: Say) -> None:
        self._job = job
        self._place = place
        self._limits = place.limits
        self._say = say
        self._done = failed_run(job.candidate_id, "Could not create sandbox")
        self._script = f"{HOME}/{job.candidate_id}.py"
        self._output = f"{HOME}/{job.candidate_id}_output.md"

    async def run(self, script: bytes) -> CandidateRun:
        if self._place.remote:
            self._say("[Daytona] Connecting...")
            self._say("[Daytona] Creating sandbox...")
        else:
            self._say(f"[Run] Starting {self._job.name}...")
        try:
            async with asyncio.timeout(self._limits.create):
                box = await AsyncSandbox(backend=self._place.backend, spec=self._place.spec)
        except (CorralError, OSError) as error:
            return self._lost("Could not create sandbox", error, seconds=self._limits.create)
        try:
            self._done = replace(self._done, sandbox_id=box.id, error_message=None, failure=None)
            await self._use(box, script)
        finally:
            if self._place.remote:
                self._say("[Daytona] Cleaning up...")
            await self._close(box)
        return self._done

    async def _use(self, box: AsyncSandbox, script: bytes) -> None:
        if self._place.remote:
            self._say(f"[Daytona] Sandbox ready: {box.id[:8]}...")
        try:
            async with asyncio.timeout(self._limits.upload):
                await box.files.write(self._script, script)
        except (CorralError, OSError) as error:
            self._done = self._lost("Could not write script", error, seconds=self._limits.upload)
            return
        if self._place.remote:
            self._say("[Daytona] Script uploaded")
            self._say("[Run] Executing...")
        try:
            result = await self._execute(box)
        except ExecError as error:  # an objective that no program can be given
            message = f"Could not run script: {error.message}"
            say_error(self._say, message)
            self._done = replace(self._done, error_message=message, failure="candidate")
            return
        except (CorralError, OSError) as error:
            self._done = self._lost("The sandbox was lost", error)
            return
        self._take_result(result)
        await self._read(box)

    async def _execute(self, box: AsyncSandbox) -> ExecResult:
        lines = LineSplitter(limit=self._limits.log_bytes)

        def stream(chunk: OutputChunk) -> None:
            was_full = lines.full
            for line in lines.feed(chunk.stream, chunk.data):
                self._say(line)
            if lines.full and not was_full:
                self._say("[Warn] It prints a lot: the rest is not passed on")

        process = await box.start(
            ["python3", self._script, self._job.objective, self._output],
            env={"PYTHONUNBUFFERED": "1"},  # what it prints is seen when it prints it
            stdin=False, timeout=self._limits.run, output_limit_bytes=self._limits.log_bytes,
        )  # fmt: skip
        try:
            async for chunk in process.output():
                stream(chunk)
            result = await process.wait()
            await process.end_rest()  # what it left in the background must not go on writing
            return result
        finally:
            await process.aclose()
            for line in lines.finish():
                self._say(line)

    def _take_result(self, result: ExecResult) -> None:
        message = _explain(result, self._limits.run)
        if self._place.remote:
            self._say(f"[Run] Exit code: {result.exit_code}")
        if message is not None:
            say_error(self._say, message)
        self._done = replace(
            self._done, output=result.output, runtime_seconds=result.usage.wall_seconds, exit_code=result.exit_code,
            error_message=message, failure="candidate" if message else None,
        )  # fmt: skip

    async def _read(self, box: AsyncSandbox) -> None:
        """The artifact: also that of a candidate that failed, for people to look at."""
        try:
            async with asyncio.timeout(self._limits.read):
                content = await self._read_confined(box)
        except TimeoutError as error:
            self._unread(f"timed out after {self._limits.read:g} seconds", error)
            return
        except (CorralError, OSError) as error:
            self._unread(error.message if isinstance(error, CorralError) else str(error), error)
            return
        self._done = replace(
            self._done, artifact=content, artifact_content=content.decode("utf-8", "replace"),
            success=self._done.failure is None,
        )  # fmt: skip
        self._say("[Done] Artifact retrieved" if self._place.remote else "[Done] Output produced")
        if not self._place.remote:
            self._say(f"[Done] {self._done.runtime_seconds:.1f}s")

    async def _read_confined(self, box: AsyncSandbox) -> bytes:
        info = await box.files.stat(self._output, follow=False)
        if info.kind != "file":
            raise SandboxFileError(f"it is a {info.kind}")
        try:
            return await box.files.read(self._output, max_bytes=self._limits.artifact_bytes)
        except SandboxFileInterruptedError:
            return await box.files.read(self._output, max_bytes=self._limits.artifact_bytes)

    def _unread(self, reason: str, error: Exception) -> None:
        # What the file is like, or that it is not there, is the candidate's doing; anything else is not.
        own = isinstance(error, SandboxFileError) and not isinstance(error, SandboxFileInterruptedError)
        message = f"Could not read artifact: {reason}"
        self._say(f"[Warn] {message}")
        if self._done.failure is None:
            self._done = replace(
                self._done, error_message=message, failure="candidate" if own else "infrastructure", retry=not own
            )

    def _lost(self, what: str, error: Exception, *, seconds: float = 0.0) -> CandidateRun:
        reason = error.message if isinstance(error, CorralError) else str(error)
        if isinstance(error, TimeoutError) and not isinstance(error, CorralError):
            reason = f"timed out after {seconds:g} seconds"
        message = f"{what}: {reason}" if reason else what
        say_error(self._say, message)
        own = isinstance(error, SandboxNoSpaceError)
        return replace(
            self._done, success=False, error_message=message, failure="candidate" if own else "infrastructure",
            # A wish that can't be met is not met the second time either.
            retry=not own and not isinstance(error, SpecError | CapabilityError),
        )  # fmt: skip

    async def _close(self, box: AsyncSandbox) -> None:
        try:
            await box.aclose()
        except (CorralError, OSError) as error:
            log.warning("sandbox %s was not deleted: %s", box.id, error)
            self._say(f"[Warn] Could not delete sandbox {box.id}: {error}"[:_MESSAGE_CHARACTERS])


def _explain(result: ExecResult, seconds: float) -> str | None:
    """Why a run is no success; None if it is one."""
    if result.ok:
        return None
    if result.timed_out:
        return f"Execution timed out after {seconds:g} seconds"
    if result.reason == "oom":
        return "Out of memory"
    if result.reason == "signalled":
        return f"Ended by signal {result.signal}"
    said = _lines(result.stderr) or _lines(result.stdout)
    return f"Exit code {result.exit_code}" + (f": {said[-1][:_MESSAGE_CHARACTERS]}" if said else "")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
