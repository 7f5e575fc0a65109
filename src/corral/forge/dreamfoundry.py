"""The interface that users of Dream Foundry's forge know: the same names, results, log lines and files.

    result = run_forge("Weekly AI events", use_daytona=True, log_callback=lambda who, line: print(who, line))
    print(result.winner_id, result.winner_artifact)

It is a layer over `corral.forge.attempt`: candidates run in parallel, scripts and artifacts may have any size, times
are those of the run alone, and nothing runs without a sandbox: LOCAL is the embedded engine. `corral.forge.Contest`
does more; docs/forge-dreamfoundry.md compares.

All functions here are plain ones and may be called inside a running event loop. `log_callback(candidate_id, line)` is
called on the caller's own thread, one line at a time, with the candidate's own output among the lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

from corral.client.registry import get_backend, need_isolation
from corral.errors import CorralError, SpecError
from corral.forge.artifacts import read_artifact
from corral.forge.attempt import AttemptMaker, Layout
from corral.forge.base import Base
from corral.forge.callback import LogCallback, SayFor, run_with_callback
from corral.forge.calling import do_all
from corral.forge.candidate import Candidate
from corral.forge.ids import check_id
from corral.forge.judge.rubric import ScoreResult, score_candidate
from corral.forge.outcome import Attempt
from corral.forge.output import LineSplitter
from corral.forge.plan import Slots, Turn, count_processors
from corral.forge.service import (
    NOT_CONFIGURED,
    describe_service,
    find_lack,
    get_daytona_config,
    is_daytona_configured,
    open_service,
)
from corral.forge.settings import MIB, Phase, Settings, Take, Timeouts
from corral.forge.shipped import OBJECTIVE, find_scripts, list_shipped
from corral.forge.sources import ScriptSource
from corral.protocol import Backend
from corral.spec import HOME, NetworkPolicy, Resources

__all__ = [
    "CANDIDATES",
    "CandidateRun",
    "DaytonaResult",
    "ForgeResult",
    "Limits",
    "get_daytona_config",
    "is_daytona_configured",
    "run_all_candidates_in_daytona",
    "run_candidate_in_daytona",
    "run_forge",
]

log = logging.getLogger(__name__)

ARTIFACT = "discord_post.md"
"""What a candidate wrote is saved at `<artifacts>/<candidate's id>/` under this name."""
NO_KEY = "Daytona API key not configured"
_FAILED: Mapping[Phase, str] = {
    "create": "Could not create sandbox",
    "place": "Could not write script",
    "run": "The sandbox was lost",
    "collect": "Could not read artifact",
}
_REMOTE_JOBS = 8
_ERROR_CHARACTERS = 50
_MESSAGE_CHARACTERS = 500
_MAX_ARGUMENT_BYTES = 128 * 1024
_RULE, _THIN = "=" * 60, "-" * 40


def _as_dict(candidate: Candidate) -> dict[str, Any]:
    assert isinstance(candidate.source, ScriptSource), "the default candidates are scripts"
    return {
        "id": candidate.id, "name": candidate.name, "description": candidate.description,
        "script": str(candidate.source.path),
    }  # fmt: skip


CANDIDATES: list[dict[str, Any]] = [_as_dict(candidate) for candidate in list_shipped()]
"""The five candidates that ship with Corral."""


@dataclass(frozen=True, slots=True)
class DaytonaResult:
    """The result of one candidate."""

    candidate_id: str
    sandbox_id: str | None
    """None: it had no sandbox."""
    success: bool
    """Exit code 0, and an artifact that could be read."""
    output: str
    """What it printed, bounded; also of a candidate that failed."""
    artifact_content: str | None
    runtime_seconds: float
    """The run alone, without creating the sandbox and without any transfer."""
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRun(DaytonaResult):
    """A `DaytonaResult` with more details."""

    exit_code: int | None = None
    """None: it never ran to its end."""
    failure: Literal["candidate", "infrastructure"] | None = None
    """What failed: the candidate, or the infrastructure that it was to run on."""
    artifact: bytes | None = field(default=None, repr=False)
    """The artifact byte for byte; `artifact_content` is the same as text."""
    retry: bool = False
    """Whether another try may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds for each phase, and how many bytes are taken out of a sandbox."""

    create: float = 120.0
    upload: float = 30.0
    run: float = 60.0
    read: float = 10.0
    artifact_bytes: int = 64 * MIB
    log_bytes: int = MIB
    retries: int = 1

    def to_settings(self, resources: Resources) -> Settings:
        """The same as the settings of a contest."""
        return Settings(
            resources=resources,
            timeouts=Timeouts(create=self.create, place=self.upload, run=self.run, collect=self.read),
            take=Take(files=1, file_bytes=self.artifact_bytes, total_bytes=self.artifact_bytes,
                      log_bytes=self.log_bytes),
            retries=self.retries,
            meter_seconds=0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForgeResult:
    """The result of a whole run."""

    objective: str
    timestamp: str
    execution_mode: str
    """"local" or "daytona"."""
    candidates: list[dict[str, Any]]
    """For each candidate: id, name, description, script, artifact (its text, or None)."""
    scores: list[dict[str, Any]]
    """For each candidate: candidate_id, success, quality_score, speed_score, total_score, quality_details."""
    winner_id: str | None
    winner_score: float
    winner_artifact: str | None
    artifacts_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One candidate, as it was given."""

    candidate_id: str
    name: str
    script: Path
    objective: str

    def find_fault(self) -> str | None:
        """Why it can't be run, in words for its result; None if it can."""
        try:
            check_id(self.candidate_id)
            self.script.open("rb").close()
            size = len(self.objective.encode("utf-8", "surrogateescape"))
        except SpecError as error:
            return str(error)
        except OSError as error:
            return f"Could not read script: {error.strerror or error}"
        except UnicodeEncodeError:
            return "Could not run script: the objective has unpaired surrogates"
        if "\0" in self.objective:
            return "Could not run script: the objective contains NUL"
        if size >= _MAX_ARGUMENT_BYTES:
            return f"Could not run script: the objective has {size} bytes, too many for an argument of a program"
        return None


def run_candidate_in_daytona(
    candidate_id: str,
    script_path: Path | str,
    objective: str,
    output_file: Path | str,
    log_callback: LogCallback | None = None,
    *,
    backend: str | Backend | None = None,
    limits: Limits | None = None,
) -> DaytonaResult:
    """Run one candidate in a fresh sandbox; a failure is a result too.

    The script is told to write `/home/daytona/<id>_output.md`, whatever `output_file` says. Its content comes back in
    the result; no file is kept on this machine. `backend`: another one than the Daytona service.
    """
    job = _Job(candidate_id=candidate_id, name=candidate_id, script=Path(script_path), objective=objective)
    return run_with_callback(lambda say: _run_jobs([job], say, backend, limits or Limits(), 1, None), log_callback)[0]


def run_all_candidates_in_daytona(
    candidates: Sequence[Mapping[str, Any]],
    objective: str,
    artifacts_dir: Path | str,
    log_callback: LogCallback | None = None,
    *,
    backend: str | Backend | None = None,
    limits: Limits | None = None,
    jobs: int | None = None,
) -> list[DaytonaResult]:
    """Run candidates (`{"id": …, "script": …}`) in parallel, each in its own sandbox; results in the same order.

    The artifact of a candidate is saved at `<artifacts_dir>/<id>/discord_post.md`, byte for byte.
    """
    wanted = [_as_job(candidate, objective) for candidate in candidates]
    folder = Path(artifacts_dir)
    return [
        *run_with_callback(lambda say: _run_jobs(wanted, say, backend, limits or Limits(), jobs, folder), log_callback)
    ]


def run_forge(
    objective: str = OBJECTIVE,
    use_daytona: bool = False,  # noqa: FBT001, FBT002 - Dream Foundry's signature
    log_callback: LogCallback | None = None,
    *,
    candidates: Sequence[Mapping[str, Any]] | None = None,
    artifacts_dir: Path | str = "artifacts",
    backend: str | Backend = "embedded",
    limits: Limits | None = None,
    jobs: int | None = None,
    quiet: bool = False,
) -> ForgeResult:
    """Run all candidates, score them, choose the winner, and print the progress.

    Without `candidates` those in `./candidates/*.py` take part, else the five that ship. If Daytona is requested but
    not available, the run is local: on `backend`, isolated.

    Raises:
        SpecError: malformed candidates.
        CapabilityError: a backend without isolation.
    """
    chosen = list(candidates) if candidates is not None else [_as_dict(each) for each in find_scripts()]
    wanted = [_as_job(candidate, objective) for candidate in chosen]
    out = None if quiet else sys.stdout
    lack = find_lack() if use_daytona else None
    remote = use_daytona and lack is None
    remarks = [f"{lack}, falling back to local"] if lack is not None else []
    if remote and (told := describe_service()):
        remarks.append(told)
    write_lines(out, heading(objective, len(chosen), remote=remote, remarks=remarks))
    folder = Path(artifacts_dir)
    limits = limits or Limits()

    def tell(job: _Job, each: CandidateRun) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader is gone; the run goes on
            lines = candidate_lines(
                job.name, error=each.error_message, has_artifact=each.artifact is not None,
                seconds=each.runtime_seconds,
            )  # fmt: skip
            write_lines(out, lines)

    def run(where: str | Backend | None) -> list[CandidateRun]:
        return run_with_callback(lambda say: _run_jobs(wanted, say, where, limits, jobs, folder, tell), log_callback)

    runs = run(None if remote else backend)
    if remote and runs and all(each.failure == "infrastructure" for each in runs):
        # No candidate got a sandbox there. Times are comparable only if all run in one place, so all run here.
        write_lines(out, falls_back(str(runs[0].error_message)))
        remote = False
        runs = run(backend)
    return _conclude(objective, chosen, wanted, runs, folder, out, remote=remote)


def _conclude(
    objective: str, chosen: Sequence[Mapping[str, Any]], wanted: list[_Job], runs: list[CandidateRun], folder: Path,
    out: TextIO | None, *, remote: bool,
) -> ForgeResult:  # fmt: skip
    scores = [_score(each) for each in runs]
    # A candidate without a sandbox has not lost, but can't have won either.
    able = [(score, run) for score, run in zip(scores, runs, strict=True) if score.success and run.success]
    best = max((score.total_score for score, _ in able), default=0.0)
    winners = [run for score, run in able if score.total_score == best]
    winner = winners[0] if winners else None
    table = [
        ScoreLine(
            candidate_id=run.candidate_id,
            word="PASS" if score.success else "VOID" if run.failure == "infrastructure" else "FAIL",
            quality=score.quality_score,
            speed=score.speed_score,
            total=score.total_score,
        )
        for run, score in zip(runs, scores, strict=True)
    ]
    write_lines(out, scoring(table, [run.candidate_id for run in winners], best, folder))
    return ForgeResult(
        objective=objective,
        timestamp=datetime.now(UTC).isoformat(),
        execution_mode="daytona" if remote else "local",
        candidates=[
            {
                "id": job.candidate_id, "name": job.name, "description": str(given.get("description", "")),
                "script": str(job.script), "artifact": run.artifact_content,
            }
            for given, job, run in zip(chosen, wanted, runs, strict=True)
        ],
        scores=[_describe_score(run, score) for run, score in zip(runs, scores, strict=True)],
        winner_id=winner.candidate_id if winner else None,
        winner_score=best,
        winner_artifact=winner.artifact_content if winner else None,
        artifacts_dir=str(folder),
    )  # fmt: skip


async def _run_jobs(
    wanted: Sequence[_Job], say: SayFor, backend: str | Backend | None, limits: Limits, jobs: int | None,
    folder: Path | None, on_done: Callable[[_Job, CandidateRun], None] = lambda *_: None,
) -> list[CandidateRun]:  # fmt: skip
    """Run all of them, `jobs` at once. The backend None is the Daytona service."""
    if jobs is not None and jobs < 1:
        raise SpecError(f"jobs={jobs} is not a count", hint="give 1 or more, or None")
    remote = backend is None
    lack = find_lack() if remote else None
    if lack is not None:
        lack = NO_KEY if lack == NOT_CONFIGURED else lack
        return [_Narrator(job, say, remote=remote).refuse(lack, failure="infrastructure") for job in wanted]
    maker = open_service() if backend is None else get_backend(backend)
    try:
        need_isolation(maker, who="the forge")
        network = await _find_network(maker) if remote else NetworkPolicy()
        # On a service a sandbox has the resources that the service gives it.
        settings = limits.to_settings(Resources() if remote else Settings().resources)
        # Two candidates with one id would write to one folder. Case is ignored, as some file systems do.
        first = {str(job.candidate_id).lower(): job for job in reversed(wanted)}

        async def run(job: _Job, scratch: Path) -> CandidateRun:
            narrator = _Narrator(job, say, remote=remote)
            if first[str(job.candidate_id).lower()] is not job:
                return narrator.refuse(f"Two candidates have the id {job.candidate_id!r}")
            if folder is not None:
                await asyncio.to_thread(forget_artifact, folder, job.candidate_id)
            if (fault := await asyncio.to_thread(job.find_fault)) is not None:
                return narrator.refuse(fault)
            done = await _run_one(job, maker, settings, network, narrator, scratch)
            done = await asyncio.to_thread(_save, folder, done)
            on_done(job, done)
            return done

        at_once = jobs or (_REMOTE_JOBS if remote else count_processors())
        with tempfile.TemporaryDirectory(prefix="corral-forge-") as scratch:
            return await do_all(wanted, lambda job: run(job, Path(scratch)), jobs=at_once)
    finally:
        if remote:
            await maker.aclose()


async def _run_one(
    job: _Job, backend: Backend, settings: Settings, network: NetworkPolicy, narrator: _Narrator, scratch: Path
) -> CandidateRun:
    """One candidate, with its retries."""
    source = ScriptSource(job.script, name=f"{job.candidate_id}.py")
    candidate = Candidate(source=source, id=job.candidate_id, name=job.name, network=network)
    name = f"{job.candidate_id}_output.md"
    attempts = AttemptMaker(
        backend=backend, settings=settings, objective=job.objective,
        base_of=lambda _: Base(backend, settings),
        folder_of=lambda turn: scratch / turn.candidate,
        tell=narrator.tell,
        on_end=narrator.end,
        layout_for=lambda _: Layout(folder=HOME, out=HOME, name=name, alone=True),
        kept_bytes=int(settings.take.log_bytes),
        failed=_FAILED,
    )  # fmt: skip
    try:
        await attempts.make(candidate, Turn(job.candidate_id, 1), Slots(1))
    except OSError as error:  # a full disk here
        return narrator.refuse(f"Could not save artifact: {error.strerror or error}", failure="infrastructure")
    attempt, content = narrator.attempt, None
    assert attempt is not None, "every attempt that was begun ends"
    if attempt.artifacts:
        content, _ = await asyncio.to_thread(
            read_artifact, scratch / job.candidate_id, name, max_bytes=int(settings.take.file_bytes)
        )
    return _as_result(attempt, content)


def _as_result(attempt: Attempt, content: bytes | None) -> CandidateRun:
    return CandidateRun(
        candidate_id=attempt.candidate,
        sandbox_id=attempt.sandbox_id or None,
        success=attempt.ok,
        output=attempt.log,
        artifact_content=None if content is None else content.decode("utf-8", "replace"),
        runtime_seconds=attempt.seconds or 0.0,
        error_message=explain(attempt),
        exit_code=attempt.exit_code,
        failure=None if attempt.ok else "candidate" if attempt.finished else "infrastructure",
        artifact=content,
        retry=not attempt.finished,
    )


def explain(attempt: Attempt) -> str | None:
    """Why an attempt failed, in Dream Foundry's words; None if it succeeded."""
    if attempt.ok:
        return None
    reason = attempt.reason or attempt.outcome
    if attempt.outcome == "timeout":
        return f"Execution {reason}"
    if attempt.outcome in ("no-artifact", "refused-artifact"):
        return f"Could not read artifact: {reason}"
    return reason[:1].upper() + reason[1:]


class _Narrator:
    """Says what happens to one candidate, in Dream Foundry's log lines."""

    def __init__(self, job: _Job, say: SayFor, *, remote: bool) -> None:
        self._job = job
        self._say_for = say
        self._remote = remote
        self._sandbox_id = ""
        self._lines = LineSplitter()
        self.attempt: Attempt | None = None

    def refuse(self, message: str, *, failure: Literal["candidate", "infrastructure"] = "candidate") -> CandidateRun:
        """The result of a candidate that is not run."""
        self._say_error(message)
        return CandidateRun(self._job.candidate_id, None, False, "", None, 0.0, message, failure=failure)

    def tell(self, kind: str, _candidate: str, _round: int, /, **data: Any) -> None:
        """An event of an attempt."""
        if kind == "phase":
            self._enter(**data)
        elif kind == "output":
            self._say(*self._lines.feed(data["stream"], data["text"]))
        elif kind == "output-cut":
            self._say("[Warn] It prints a lot: the rest is not passed on")
        elif kind == "retry":
            self._say_error(data["reason"])
            self._clean_up()
            self._say("[Warn] That was not the candidate's doing: trying again")
        elif kind == "warning":
            self._say(f"[Warn] {data['text']}")

    def _enter(self, *, phase: str, sandbox_id: str = "") -> None:
        if phase == "create":
            local = [f"[Run] Starting {self._job.name}..."]
            self._say(*(["[Daytona] Connecting...", "[Daytona] Creating sandbox..."] if self._remote else local))
        elif phase == "place":
            self._sandbox_id = sandbox_id
            if self._remote:
                self._say(f"[Daytona] Sandbox ready: {sandbox_id[:8]}...")
        elif phase == "run" and self._remote:
            self._say("[Daytona] Script uploaded", "[Run] Executing...")

    def end(self, attempt: Attempt) -> None:
        """The end of the last attempt."""
        self.attempt = attempt
        self._say(*self._lines.finish())
        if self._remote and attempt.exit_code is not None:
            self._say(f"[Run] Exit code: {attempt.exit_code}")
        message = explain(attempt)
        unread = attempt.outcome in ("no-artifact", "refused-artifact")
        if message is not None and not unread:
            self._say_error(message)
        if attempt.artifacts and self._remote:
            self._say("[Done] Artifact retrieved")
        elif attempt.artifacts:
            self._say("[Done] Output produced", f"[Done] {attempt.seconds or 0.0:.1f}s")
        elif attempt.finished:
            self._say(f"[Warn] {message if unread else 'Could not read artifact: it wrote no file'}")
        self._clean_up()

    def _clean_up(self) -> None:
        if self._remote and self._sandbox_id:
            self._say("[Daytona] Cleaning up...")
        self._sandbox_id = ""

    def _say(self, *lines: str) -> None:
        for line in lines:
            self._say_for(self._job.candidate_id, line)

    def _say_error(self, message: str) -> None:
        """The line with 50 characters that users know, and a line with the whole message if it is longer."""
        first = message.replace("\n", " ")
        self._say(f"[Error] {first[:_ERROR_CHARACTERS]}")
        if len(first) > _ERROR_CHARACTERS:
            self._say(f"[Error] {first[:_MESSAGE_CHARACTERS]}")


async def _find_network(service: Backend) -> NetworkPolicy:
    """An open network, if the service offers it, as Dream Foundry's users expect."""
    try:
        offered = (await service.capabilities()).network
    except (CorralError, OSError) as error:
        log.info("the service did not say what it offers: %s", error)
        return NetworkPolicy()  # creating a sandbox will say what is wrong
    return NetworkPolicy("open") if "open" in offered else NetworkPolicy()


def _save(folder: Path | None, done: CandidateRun) -> CandidateRun:
    if folder is None or done.artifact is None:
        return done
    try:
        keep_artifact(folder, done.candidate_id, done.artifact)
    except OSError as error:
        message = f"Could not save artifact: {error.strerror or error}"
        return replace(done, success=False, error_message=done.error_message or message, failure="infrastructure")
    return done


def _as_job(candidate: Mapping[str, Any], objective: str) -> _Job:
    try:
        candidate_id, script = candidate["id"], candidate["script"]
    except (KeyError, TypeError) as error:
        raise SpecError(
            f"{candidate!r} is not a candidate", hint='give {"id": "alpha", "script": "alpha.py"}'
        ) from error
    return _Job(
        candidate_id=str(candidate_id), name=str(candidate.get("name") or candidate_id), script=Path(script),
        objective=objective,
    )  # fmt: skip


def _score(run: CandidateRun) -> ScoreResult:
    return score_candidate(
        run.candidate_id,
        produced_output=run.artifact is not None,
        error_occurred=run.failure is not None,
        artifact_content=run.artifact_content,
        runtime_seconds=run.runtime_seconds,
        error_message=run.error_message,
    )


def _describe_score(run: CandidateRun, score: ScoreResult) -> dict[str, Any]:
    details = asdict(score.quality) if score.quality is not None else {}
    if run.failure is not None:
        details |= {"failure": run.failure, "error_message": run.error_message}
    return {
        "candidate_id": run.candidate_id, "success": score.success, "quality_score": score.quality_score,
        "speed_score": score.speed_score, "total_score": score.total_score, "quality_details": details,
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLine:
    """A candidate in the table."""

    candidate_id: str
    word: Literal["PASS", "FAIL", "VOID"]
    """VOID: it had no sandbox, so it has not lost either."""
    quality: float = 0.0
    speed: float = 0.0
    total: float = 0.0


def heading(objective: str, candidates: int, *, remote: bool, remarks: Iterable[str] = ()) -> list[str]:
    """The banner, where candidates run, and remarks about that."""
    return [
        _RULE, "DREAM FOUNDRY - Forge Loop", _RULE, f"Objective: {objective}", f"Candidates: {candidates}",
        execution(remote=remote), *(f"({remark})" for remark in remarks), "", "PHASE: Running Candidates", _THIN,
    ]  # fmt: skip


def execution(*, remote: bool) -> str:
    """Where candidates run."""
    return f"Execution: {'DAYTONA' if remote else 'LOCAL'}"


def falls_back(reason: str) -> list[str]:
    """When no candidate got a sandbox on the service."""
    return ["", f"({reason}: falling back to local)", execution(remote=False)]


def candidate_lines(name: str, *, error: str | None, has_artifact: bool, seconds: float) -> list[str]:
    """How one candidate went."""
    lines = ["", f"[{name}]", f"  [Run] Starting {name}..."]
    if error:
        lines.append(f"  [Error] {error}")
    elif has_artifact:
        lines.append("  [Done] Output produced")
    return [*lines, f"  [Done] {seconds:.1f}s"]


def scoring(table: Iterable[ScoreLine], winners: Sequence[str], best: float, artifacts: Path) -> list[str]:
    """The table, the winner, and where its artifact is."""
    lines = ["", _RULE, "PHASE: Scoring", _THIN]
    lines += [f"{'Candidate':<12} {'Success':>8} {'Quality':>8} {'Speed':>8} {'TOTAL':>8}", "-" * 46]
    lines += [
        f"{line.candidate_id:<12} {line.word:>8} {line.quality:8.1f} {line.speed:8.1f} {line.total:8.1f}"
        for line in table
    ]
    lines += ["", f"Winner: {winners[0]} ({best:.1f})" if winners else "Winner: none, no candidate passed"]
    if len(winners) > 1:
        lines.append(f"A tie: {', '.join(winners)}")
    if winners:
        lines.append(f"Artifact: {artifacts / winners[0] / ARTIFACT}")
    return lines


def write_lines(out: TextIO | None, lines: Iterable[str]) -> None:
    """Write lines, without control characters from candidates."""
    if out is not None:
        for line in lines:
            out.write("".join(each if each.isprintable() else "?" for each in line) + "\n")
        out.flush()


def forget_artifact(folder: Path, candidate_id: str) -> None:
    """Remove what an earlier run left, so that it is not taken for this run's."""
    # An invalid id is refused later; a file that can't be removed is overwritten or reported later.
    with contextlib.suppress(SpecError, OSError):
        (folder / check_id(candidate_id) / ARTIFACT).unlink(missing_ok=True)


def keep_artifact(folder: Path, candidate_id: str, content: bytes) -> None:
    """Save an artifact, completely or not at all. Raises: OSError."""
    target = folder / candidate_id / ARTIFACT
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{ARTIFACT}.partial")
    partial.write_bytes(content)
    partial.replace(target)
