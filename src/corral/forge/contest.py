"""The contest: candidates on one objective, each in its own sandbox, judged and recorded.

    from corral.forge import Candidate, race

    result = race(["fast.py", "thorough.py"], "Summarise the data")
    print(result.winners, result.winner_artifact)

Sandboxes are created and filled while others run; only the run itself takes one of the `jobs` slots.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corral.client.registry import get_backend, need_isolation
from corral.errors import BackendUnavailableError, CapabilityError, CorralError, RunFolderError, SpecError, did_you_mean
from corral.forge.artifacts import are_whole
from corral.forge.attempt import AttemptMaker
from corral.forge.base import Base
from corral.forge.callback import run_with_callback
from corral.forge.calling import do_all
from corral.forge.candidate import as_candidates
from corral.forge.definition import describe_run, differences
from corral.forge.events import Listener, Teller
from corral.forge.ids import check_id, new_run_id
from corral.forge.judge.judge import Judge, default_judge
from corral.forge.judge.model import Entry, Standing
from corral.forge.judge.sandboxes import SandboxBench
from corral.forge.outcome import Attempt
from corral.forge.plan import Slots, Turn, decide_jobs, list_processors, plan_turns
from corral.forge.result import ContestResult, State
from corral.forge.runfolder import Run, RunWriter, artifact_folder, read_run
from corral.forge.settings import Settings
from corral.protocol import Backend
from corral.results import Event
from corral.spec import Lifetime, NetworkPolicy, Spec

MAX_OBJECTIVE_BYTES = 100_000
"""The objective is an argument of a command, which Linux limits to 128 KiB."""
_LOCAL_BACKENDS = ("embedded", "docker", "memory")
_BASE_SECONDS = 3600.0


class Contest:
    """A contest, ready to run. `settings` may also be given as keywords: `jobs=4, repeat=5` …"""

    def __init__(
        self,
        candidates: Iterable[object],
        objective: str,
        judge: Judge | None = None,
        *,
        backend: str | Backend = "embedded",
        artifacts_dir: Path | str = "artifacts",
        on_event: Listener | Sequence[Listener] = (),
        settings: Settings | None = None,
        **more: Any,
    ) -> None:
        """
        Raises:
            SpecError: no candidates, two with the same id, an invalid objective or setting.
            CapabilityError: a backend without isolation.
        """
        self.candidates = as_candidates(candidates)
        self.objective = _check_objective(objective)
        self.judge = judge if judge is not None else default_judge()
        if not isinstance(self.judge, Judge):
            raise SpecError(
                f"judge={judge!r} is not a judge",
                hint="give a corral.forge.Judge, or leave it out for the default judge",
            )
        self.backend = get_backend(backend)
        need_isolation(self.backend, who="a contest")
        self.settings = replace(_merge(settings or Settings(), more), backend=self.backend.name)
        self.artifacts_dir = Path(artifacts_dir)
        self.listeners = (on_event,) if callable(on_event) else tuple(on_event)

    async def run(self, *, run_id: str | None = None, resume: Path | str | None = None) -> ContestResult:
        """Run the contest: a new run, or the rest of an interrupted one.

        If it is cancelled, it ends every sandbox and keeps the results so far; the run can be resumed.

        Raises:
            RunFolderError: the folder can't be used, or belongs to another contest.
            JudgeError: a judge failed; the attempts are kept, and a resumed run judges them again.
            SpecError, BackendError: the base can't be created.
        """
        if resume is not None:
            if run_id is not None:
                raise SpecError("a resumed run has its id already", hint="give either run_id or resume")
            return await _ContestRun(self, resumed=read_run(resume)).run()
        path = self.artifacts_dir / check_id(run_id or new_run_id(), what="a run's id")
        return await _ContestRun(self, path=path).run()

    def race(self, *, run_id: str | None = None, resume: Path | str | None = None) -> ContestResult:
        """`run` for synchronous code. If it is interrupted, it first ends its sandboxes and saves the results so far.

        Raises: as `run`.
        """
        return run_with_callback(lambda _: self.run(run_id=run_id, resume=resume), None)


def race(candidates: Iterable[object], objective: str, judge: Judge | None = None, **options: Any) -> ContestResult:
    """Run a contest and return its result. Options are those of `Contest`. Raises: as `Contest` and `Contest.run`."""
    return Contest(candidates, objective, judge, **options).race()


class _ContestRun:
    """One run of a contest, from its first event to its last."""

    def __init__(self, contest: Contest, *, path: Path | None = None, resumed: Run | None = None) -> None:
        self._contest = contest
        self._settings = contest.settings
        self._resumed = resumed
        self._path = resumed.path if resumed is not None else path or Path()
        self._by_id = {candidate.id: candidate for candidate in contest.candidates}
        self._bases: dict[str, Base] = {}
        """By the `repr` of an image: candidates with the same image share a base."""
        self._attempts: dict[Turn, Attempt] = {}
        self._standings: tuple[Standing, ...] = ()
        self._jobs = decide_jobs(contest.candidates, contest.settings, local=contest.backend.name in _LOCAL_BACKENDS)
        self._turns = plan_turns(contest.candidates, contest.settings)

    async def run(self) -> ContestResult:
        # Hashing folders may take a while: not on the event loop.
        self._definition = await asyncio.to_thread(self._define)
        self._take_over()
        writer = RunWriter.begin(self._path) if self._resumed is None else RunWriter.resume(self._path)
        try:
            offset = self._resumed.seconds if self._resumed else 0.0
            self._teller = Teller(writer.append, self._contest.listeners, offset=offset)
            writer.define(self._definition)
            try:
                await self._run_and_judge()
            except BaseException:
                self._close(writer, "interrupted")
                raise
            return self._close(writer, "finished")
        finally:
            writer.close()

    def _define(self) -> dict[str, Any]:
        old = self._resumed.definition if self._resumed is not None else {}
        definition = describe_run(
            run=str(old.get("run", self._path.name)),
            started=str(old.get("started", datetime.now(UTC).isoformat(timespec="seconds"))),
            objective=self._contest.objective,
            settings=self._settings,
            candidates=self._contest.candidates,
            judge=self._contest.judge.describe(),
            order=self._turns,
            jobs=self._jobs,
            salt=str(old.get("salt", "")),
        )
        if old and (found := differences(old, definition, judged=bool(self._resumed and self._resumed.standings))):
            raise RunFolderError(
                f"run {self._path.name!r} belongs to another contest: {', '.join(found)} differ",
                hint="resume it with the same candidates, objective, settings and judge, or start a new run",
            )
        return definition

    def _take_over(self) -> None:
        """Keep the attempts of a resumed run whose artifacts are unchanged."""
        if self._resumed is None:
            return
        for (candidate, number), attempt in self._resumed.attempts.items():
            turn = Turn(candidate, number)
            whole = are_whole(self._folder_of(turn), attempt.artifacts)
            if attempt.finished and whole and turn in self._turns:
                self._attempts[turn] = attempt

    async def _run_and_judge(self) -> None:
        self._teller.tell(
            "run-started",
            run=self._definition["run"],
            objective=self._contest.objective,
            candidates=[
                {"id": candidate.id, "name": candidate.name, "description": candidate.description}
                for candidate in self._contest.candidates
            ],
            order=self._definition["order"],
            jobs=self._jobs,
            repeat=self._settings.repeat,
            seed=self._settings.seed,
            backend=self._settings.backend,
            resumed=self._resumed is not None,
            done=[list(turn) for turn in self._attempts],
        )
        left = [turn for turn in self._turns if turn not in self._attempts]
        if left:
            await self._make_attempts(left)
            for name in await asyncio.to_thread(self._list_changed):
                self._teller.tell("warning", text=f"candidate {name} was changed on disk while the contest ran")
        self._teller.tell("judging")
        self._standings = await self._judge()
        for standing in self._standings:
            self._teller.tell("judged", standing.candidate, **standing.to_json())

    def _list_changed(self) -> list[str]:
        """Candidates that differ from what `run.json` says."""
        said = {item["id"]: item["source"] for item in self._definition["candidates"]}
        changed = []
        for candidate in self._contest.candidates:
            try:
                same = candidate.source.describe() == said[candidate.id]
            except (OSError, SpecError):
                same = False
            if not same:
                changed.append(candidate.id)
        return changed

    async def _make_attempts(self, left: Sequence[Turn]) -> None:
        begun = time.monotonic()
        attempts = AttemptMaker(
            backend=self._contest.backend,
            settings=self._settings,
            objective=self._contest.objective,
            base_of=lambda candidate: self._bases[repr(candidate.image)],
            folder_of=self._folder_of,
            tell=self._teller.tell,
            on_end=self._keep,
        )
        try:
            await self._prepare_bases()
            await self._rehearse(attempts)
            how = next(iter(self._bases.values())).how
            self._teller.tell("base-ready", how=how, seconds=round(time.monotonic() - begun, 3))
            await self._run_all(left, attempts)
        finally:
            for base in self._bases.values():
                await base.aclose()

    def _keep(self, attempt: Attempt) -> None:
        self._attempts[Turn(attempt.candidate, attempt.round)] = attempt

    async def _prepare_bases(self) -> None:
        images = {repr(candidate.image): candidate.image for candidate in self._contest.candidates}
        resources, lifetime = self._settings.resources, Lifetime(seconds=_BASE_SECONDS)
        for key, image in images.items():
            base = self._bases[key] = Base(self._contest.backend, self._settings)
            spec = Spec(image=image, resources=resources, lifetime=lifetime, labels={"corral.forge": "base"})
            await base.prepare(spec)

    async def _rehearse(self, attempts: AttemptMaker) -> None:
        """Create one sandbox of each kind and end it: a spec that can't be met is reported before any candidate runs.

        Packages and images that this fetches are then available, and take no candidate's time.
        """
        # The base had this spec.
        seen: set[tuple[object, ...]] = {(repr(None), NetworkPolicy(), (), self._settings.resources)}
        for candidate in self._contest.candidates:
            resources = candidate.resources or self._settings.resources
            key = repr(candidate.image)
            kind = (key, candidate.network_policy, candidate.packages, resources)
            if kind in seen:
                continue
            seen.add(kind)
            try:
                spec = attempts.spec_for(candidate, self._bases[key])
                box = await self._contest.backend.create(spec, on_event=self._tell_packages)
                await box.aclose()
            except (SpecError, CapabilityError, BackendUnavailableError):
                raise
            except CorralError as error:  # may be temporary: the attempts will see
                self._teller.tell("warning", text=f"could not create a sandbox for {candidate.id}: {error}")

    def _tell_packages(self, event: Event) -> None:
        if event.kind == "packages":
            self._teller.tell("packages", doing=str(event.details["doing"]))

    async def _run_all(self, left: Sequence[Turn], attempts: AttemptMaker) -> None:
        if self._settings.pin and self._contest.backend.name != "embedded":
            raise CapabilityError(
                f"the backend {self._contest.backend.name!r} can't pin a run to a processor",
                hint="leave pin out, or use the embedded backend",
            )
        processors = list_processors() if self._settings.pin else []
        slots = Slots(self._jobs, processors)

        async def make(turn: Turn) -> None:
            await attempts.make(self._by_id[turn.candidate], turn, slots)

        # Sandboxes at once: those that run, as many that are ready, and one whose artifacts are being collected. An
        # error that belongs to no attempt, such as a full disk here, ends the others.
        await do_all(left, make, jobs=2 * self._jobs + 1)

    async def _judge(self) -> tuple[Standing, ...]:
        entries, unfinished = [], {}
        for candidate in self._contest.candidates:
            mine = [self._attempts[turn] for turn in sorted(self._attempts) if turn.candidate == candidate.id]
            finished = tuple(attempt for attempt in mine if attempt.finished)
            if not finished:
                unfinished[candidate.id] = mine[-1].reason if mine else "it was never started"
                continue
            entries.append(
                Entry(
                    candidate=candidate.id,
                    objective=self._contest.objective,
                    settings=self._settings,
                    attempts=finished,
                    folders={a.round: self._folder_of(Turn(candidate.id, a.round)) for a in finished},
                )
            )
        spec = Spec(resources=self._settings.resources, labels={"corral.forge": "judge"})
        bench = SandboxBench(
            self._contest.backend,
            spec,
            timeout=self._settings.timeouts.judge,
            jobs=self._jobs,
            # A judge's command may need what the candidates had.
            prepare=Base(self._contest.backend, self._settings).set_up if self._settings.setup else None,
        )
        return await self._contest.judge.decide(entries, unfinished, bench)

    def _close(self, writer: RunWriter, state: State) -> ContestResult:
        result = ContestResult(
            run=self._definition["run"],
            folder=self._path,
            objective=self._contest.objective,
            state=state,
            seconds=self._teller.seconds,
            standings=self._standings,
            attempts=tuple(self._attempts[turn] for turn in self._turns if turn in self._attempts),
            output=self._settings.output,
            artifact_folders={(turn.candidate, turn.round): self._folder_of(turn) for turn in self._attempts},
        )
        self._teller.tell("run-ended", state=state, winners=list(result.winners), seconds=round(result.seconds, 3))
        writer.define(self._definition | {"state": state})
        writer.finish(result.to_json())
        return result

    def _folder_of(self, turn: Turn) -> Path:
        return artifact_folder(self._path, turn, self._settings.repeat)


def _check_objective(objective: str) -> str:
    if not isinstance(objective, str) or not objective.strip() or "\0" in objective:
        raise SpecError(
            f"objective={objective!r} is not an objective", hint="give a text that is not empty and has no NUL"
        )
    try:
        size = len(objective.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise SpecError(f"objective={objective!r} has unpaired surrogates", hint="give valid Unicode text") from error
    if size > MAX_OBJECTIVE_BYTES:
        raise SpecError(
            f"the objective is longer than {MAX_OBJECTIVE_BYTES} bytes", hint="write data to files with setup"
        )
    return objective


def _merge(settings: Settings, more: Mapping[str, Any]) -> Settings:
    names = [item.name for item in fields(Settings)]
    for name in more:
        if name not in names:
            hint = did_you_mean(name, names, otherwise=f"settings: {', '.join(names)}")
            raise SpecError(f"a contest has no setting {name!r}", hint=hint)
    return replace(settings, **more)
