"""The interface that users of Dream Foundry's forge know: the same names, results, log lines and files.

    result = run_forge("Weekly AI events", use_daytona=True, log_callback=lambda who, line: print(who, line))
    print(result.winner_id, result.winner_artifact)

What runs is ours: candidates side by side, scripts and artifacts of any size, times of the run alone, and no execution
without a sandbox: LOCAL is the embedded engine. `corral.forge.Contest` does more; docs/forge-recorded.md compares.

All functions here are plain ones and may be called inside a running event loop. `log_callback(candidate_id, line)` is
called on the caller's own thread, one line at a time, the candidate's own output among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from corral.client.registry import get_backend, need_isolation
from corral.errors import CorralError, SpecError
from corral.forge.callback import LogCallback, SayFor, run_with_callback
from corral.forge.ids import check_id
from corral.forge.judge.rubric import ScoreResult, score_candidate
from corral.forge.plan import count_processors
from corral.forge.recordedrun import (
    CandidateRun,
    DaytonaResult,
    Job,
    Limits,
    Place,
    failed_run,
    run_candidate,
    say_error,
)
from corral.forge.recordedtext import (
    ScoreLine,
    candidate_lines,
    falls_back,
    forget_artifact,
    heading,
    keep_artifact,
    scoring,
    write_lines,
)
from corral.forge.service import (
    NOT_CONFIGURED,
    describe_service,
    find_lack,
    get_daytona_config,
    is_daytona_configured,
    open_service,
)
from corral.forge.shipped import OBJECTIVE, find_scripts, list_shipped
from corral.protocol import Backend
from corral.spec import NetworkPolicy, Resources, Spec

__all__ = [
    "CANDIDATES",
    "CandidateRun",
    "DaytonaResult",
    "ForgeResult",
    "get_daytona_config",
    "is_daytona_configured",
    "run_all_candidates_in_daytona",
    "run_candidate_in_daytona",
    "run_forge",
]

log = logging.getLogger(__name__)

NO_KEY = "Daytona API key not configured"
_REMOTE_JOBS = 8

CANDIDATES: list[dict[str, Any]] = [
    {"id": each.id, "name": each.name, "description": each.description, "script": str(each.path)}
    for each in list_shipped()
]
"""The five that ship."""


@dataclass(frozen=True, slots=True)
class ForgeResult:
    """A whole run."""

    objective: str
    timestamp: str
    execution_mode: str
    """"local" or "daytona"."""
    candidates: list[dict[str, Any]]
    """Of each: id, name, description, script, artifact (its text, or None)."""
    scores: list[dict[str, Any]]
    """Of each: candidate_id, success, quality_score, speed_score, total_score, quality_details."""
    winner_id: str | None
    winner_score: float
    winner_artifact: str | None
    artifacts_dir: str


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

    The script is told to write `/home/daytona/<id>_output.md`, whatever `output_file` says, and what it wrote comes
    back in the result: nothing is written on this machine. `backend` is another place than the Daytona service.
    """
    job = Job(candidate_id=candidate_id, name=candidate_id, script=Path(script_path), objective=objective)
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
    """Run candidates (`{"id": …, "script": …}`) side by side, each in its own sandbox; results in the same order.

    What a candidate wrote is laid down at `<artifacts_dir>/<id>/discord_post.md`, byte for byte.
    """
    wanted = [_as_job(candidate, objective) for candidate in candidates]
    folder = Path(artifacts_dir)
    found = run_with_callback(
        lambda say: _run_jobs(wanted, say, backend, limits or Limits(), jobs, folder), log_callback
    )
    return list(found)


def run_forge(
    objective: str = OBJECTIVE,
    use_daytona: bool = False,  # noqa: FBT001, FBT002 - the interface that is known
    log_callback: LogCallback | None = None,
    *,
    candidates: Sequence[Mapping[str, Any]] | None = None,
    artifacts_dir: Path | str = "artifacts",
    backend: str | Backend = "embedded",
    limits: Limits | None = None,
    jobs: int | None = None,
    quiet: bool = False,
) -> ForgeResult:
    """The whole loop: run all candidates, score them, choose the winner; what happens is also printed.

    Without `candidates` those in `./candidates/*.py` take part, else the five that ship. Where Daytona is asked for
    and not there, the run is local: on `backend`, isolated.

    Raises:
        SpecError: candidates that are none.
        CapabilityError: a backend without isolation.
    """
    chosen = [dict(candidate) for candidate in candidates] if candidates is not None else _find_candidates()
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

    def tell(job: Job, each: CandidateRun) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: no reason to lose the run
            write_lines(
                out,
                candidate_lines(
                    job.name,
                    error=each.error_message,
                    has_artifact=each.artifact is not None,
                    seconds=each.runtime_seconds,
                ),
            )

    def run(where: str | Backend | None) -> list[CandidateRun]:
        return run_with_callback(lambda say: _run_jobs(wanted, say, where, limits, jobs, folder, tell), log_callback)

    runs = run(None if remote else backend)
    if remote and runs and all(each.failure == "infrastructure" for each in runs):
        # Nobody had a sandbox there. One after another elsewhere would not be a fair contest; all of them are.
        write_lines(out, falls_back(str(runs[0].error_message)))
        remote = False
        runs = run(backend)
    return _conclude(objective, chosen, wanted, runs, folder, out, remote=remote)


def _conclude(
    objective: str, chosen: list[dict[str, Any]], wanted: list[Job], runs: list[CandidateRun], folder: Path,
    out: TextIO | None, *, remote: bool,
) -> ForgeResult:  # fmt: skip
    scores = [_score(each) for each in runs]
    # Who had no sandbox has not lost, but can't have won either.
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
        scores=[_as_dict(run, score) for run, score in zip(runs, scores, strict=True)],
        winner_id=winner.candidate_id if winner else None,
        winner_score=best,
        winner_artifact=winner.artifact_content if winner else None,
        artifacts_dir=str(folder),
    )  # fmt: skip


async def _run_jobs(
    wanted: Sequence[Job], say: SayFor, backend: str | Backend | None, limits: Limits, jobs: int | None,
    folder: Path | None, on_done: Callable[[Job, CandidateRun], None] = lambda *_: None,
) -> list[CandidateRun]:  # fmt: skip
    """All of them, so many at once; None as backend is the service."""
    if jobs is not None and jobs < 1:
        raise SpecError(f"jobs={jobs} is not a count", hint="give 1 or more, or None")
    remote = backend is None
    lack = find_lack() if remote else None
    if lack is not None:
        lack = NO_KEY if lack == NOT_CONFIGURED else lack
        for job in wanted:
            say_error(lambda line, who=job.candidate_id: say(who, line), lack)  # type: ignore[misc] # one argument
        return [failed_run(job.candidate_id, lack) for job in wanted]
    maker = open_service() if backend is None else get_backend(backend)
    try:
        need_isolation(maker, who="the forge")
        place = Place(backend=maker, spec=await _spec(maker, remote=remote), remote=remote, limits=limits)
        free = asyncio.Semaphore(jobs or (_REMOTE_JOBS if remote else count_processors()))
        first = _first_of_each(wanted)

        async def run(number: int, job: Job) -> CandidateRun:
            def tell(line: str) -> None:
                say(job.candidate_id, line)

            if number not in first:
                message = f"Two candidates have the id {job.candidate_id!r}"
                say_error(tell, message)
                return failed_run(job.candidate_id, message, failure="candidate")
            async with free:
                await asyncio.to_thread(_forget, folder, job)
                done = await run_candidate(job, place, tell)
                done = await asyncio.to_thread(_keep, folder, done)
                on_done(job, done)
                return done

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(number, job)) for number, job in enumerate(wanted)]
        return [task.result() for task in tasks]
    finally:
        if remote:
            await maker.aclose()


async def _spec(maker: Backend, *, remote: bool) -> Spec:
    if not remote:
        return Spec(resources=Resources(cpus=1.0).as_usual())
    # On a service a sandbox has what the service gives, as those who know this interface expect.
    try:
        offered = (await maker.capabilities()).network
    except (CorralError, OSError) as error:
        log.info("the service was not asked what it offers: %s", error)
        offered = ("none",)  # making a sandbox will say what is wrong
    return Spec(network=NetworkPolicy("open") if "open" in offered else NetworkPolicy())


def _first_of_each(wanted: Sequence[Job]) -> set[int]:
    """Two of one id would write to one folder. Capitals make no difference: on some file systems they don't."""
    found: dict[str, int] = {}
    for number, job in enumerate(wanted):
        found.setdefault(str(job.candidate_id).lower(), number)
    return set(found.values())


def _forget(folder: Path | None, job: Job) -> None:
    """What an earlier run left must not look like this one's."""
    if folder is not None:
        try:
            forget_artifact(folder, check_id(job.candidate_id))
        except (SpecError, OSError):
            pass  # an id that is none is refused in a moment; a file that stays is written over or told of


def _keep(folder: Path | None, done: CandidateRun) -> CandidateRun:
    if folder is None or done.artifact is None:
        return done
    try:
        keep_artifact(folder, done.candidate_id, done.artifact)
    except OSError as error:
        message = f"Could not save artifact: {error.strerror or error}"
        return replace(done, success=False, error_message=done.error_message or message, failure="infrastructure")
    return done


def _as_job(candidate: Mapping[str, Any], objective: str) -> Job:
    try:
        candidate_id, script = candidate["id"], candidate["script"]
    except (KeyError, TypeError) as error:
        raise SpecError(
            f"{candidate!r} is not a candidate", hint='give {"id": "alpha", "script": "alpha.py"}'
        ) from error
    return Job(
        candidate_id=str(candidate_id), name=str(candidate.get("name") or candidate_id), script=Path(script),
        objective=objective,
    )  # fmt: skip


def _find_candidates() -> list[dict[str, Any]]:
    return [
        {"id": each.id, "name": each.name, "description": each.description, "script": str(each.path)}
        for each in find_scripts()
    ]


def _score(run: CandidateRun) -> ScoreResult:
    return score_candidate(
        run.candidate_id,
        produced_output=run.artifact is not None,
        error_occurred=run.failure is not None,
        artifact_content=run.artifact_content,
        runtime_seconds=run.runtime_seconds,
        error_message=run.error_message,
    )


def _as_dict(run: CandidateRun, score: ScoreResult) -> dict[str, Any]:
    details = asdict(score.quality) if score.quality is not None else {}
    if run.failure is not None:
        details |= {"failure": run.failure, "error_message": run.error_message}
    return {
        "candidate_id": run.candidate_id, "success": score.success, "quality_score": score.quality_score,
        "speed_score": score.speed_score, "total_score": score.total_score, "quality_details": details,
    }  # fmt: skip
