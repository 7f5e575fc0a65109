"""Two runs compared: their settings, candidates and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from corral.forge.numbers import round_all
from corral.forge.overview import CandidateRow, Overview, make_overview

if TYPE_CHECKING:
    from corral.forge.runfolder import Run

ArtifactState = Literal["same", "changed", "only-a", "only-b"]
_ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs between two runs. The name is such as `settings.timeouts.run`."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Change:
    """A number in both runs; None where a run lacks it."""

    a: float | None
    b: float | None

    @property
    def delta(self) -> float | None:
        """Second minus first."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def ratio(self) -> float | None:
        """Second divided by first."""
        return None if not self.a or self.b is None else self.b / self.a


@dataclass(frozen=True, slots=True)
class ArtifactChange:
    """One file of one round."""

    round: int
    path: str
    state: ArtifactState


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateChange:
    """One candidate that took part in both."""

    id: str
    name: str
    source: tuple[Difference, ...]
    """Differences in its source and options: hashes, packages, resources, environment."""
    rank: Change
    total: Change
    scores: dict[str, Change]
    seconds: Change
    intervals_overlap: bool | None
    """Whether the intervals of the two medians meet: then the difference may be chance. None: unknown."""
    cpu_seconds: Change
    memory_bytes: Change
    outcome_a: str
    outcome_b: str
    artifacts: tuple[ArtifactChange, ...]

    @property
    def artifacts_same(self) -> bool:
        """Whether both left the same files, byte for byte."""
        return all(change.state == "same" for change in self.artifacts)

    @property
    def source_same(self) -> bool:
        """Whether its source and options were the same."""
        return not self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The whole comparison. `settings` has the differences in rules, objective, judge and versions."""

    run_a: str
    run_b: str
    winners_a: tuple[str, ...]
    winners_b: tuple[str, ...]
    settings: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    candidates: tuple[CandidateChange, ...]
    """Those in both, in the order of the second run's ranking."""

    @property
    def same_winners(self) -> bool:
        """Whether the same candidates won, in any order."""
        return set(self.winners_a) == set(self.winners_b)

    @property
    def same_rules(self) -> bool:
        """Whether the numbers may be compared at all."""
        return not self.settings

    def to_json(self) -> dict[str, Any]:
        """As plain values, with the derived ones."""
        found = asdict(self) | {"same_winners": self.same_winners, "same_rules": self.same_rules}
        for plain, candidate in zip(found["candidates"], self.candidates, strict=True):
            plain |= {"artifacts_same": candidate.artifacts_same, "source_same": candidate.source_same}
        return dict(round_all(found))


def compare_runs(a: Run, b: Run) -> Comparison:
    """Compare two runs, finished or not."""
    overview_a, overview_b = make_overview(a), make_overview(b)
    rows_a, rows_b = ({row.id: row for row in overview.rows} for overview in (overview_a, overview_b))
    return Comparison(
        run_a=a.run_id,
        run_b=b.run_id,
        winners_a=tuple(row.id for row in overview_a.winners),
        winners_b=tuple(row.id for row in overview_b.winners),
        settings=tuple(_compare(_rules(overview_a), _rules(overview_b))),
        only_a=tuple(id_ for id_ in rows_a if id_ not in rows_b),
        only_b=tuple(id_ for id_ in rows_b if id_ not in rows_a),
        candidates=tuple(_compare_candidate(rows_a[id_], row) for id_, row in rows_b.items() if id_ in rows_a),
    )


def _rules(overview: Overview) -> dict[str, Any]:
    return {key: overview.run.definition.get(key) for key in ("objective", "settings", "jobs", "judge", "versions")}


def _compare(a: Any, b: Any, *, name: str = "") -> list[Difference]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        found: list[Difference] = []
        for key in dict.fromkeys([*a, *b]):
            below = f"{name}.{key}" if name else str(key)
            found += _compare(a.get(key, _ABSENT), b.get(key, _ABSENT), name=below)
        return found
    return [] if a == b else [Difference(name, a, b)]


def _compare_candidate(a: CandidateRow, b: CandidateRow) -> CandidateChange:
    scores_a, scores_b = ({name: points.points for name, points in row.standing.scores.items()} for row in (a, b))
    return CandidateChange(
        id=b.id,
        name=b.name,
        source=tuple(_compare(_made_of(a), _made_of(b))),
        rank=Change(a.standing.rank, b.standing.rank),
        total=Change(a.total, b.total),
        scores={name: Change(scores_a.get(name), scores_b.get(name)) for name in dict.fromkeys([*scores_a, *scores_b])},
        seconds=Change(a.median_seconds, b.median_seconds),
        intervals_overlap=_overlap(a.interval, b.interval),
        cpu_seconds=Change(a.cpu_seconds, b.cpu_seconds),
        memory_bytes=Change(a.peak_memory_bytes, b.peak_memory_bytes),
        outcome_a=a.outcome,
        outcome_b=b.outcome,
        artifacts=_compare_artifacts(a, b),
    )


def _made_of(row: CandidateRow) -> dict[str, Any]:
    """Without its path: the hash says what it was. Hashes of variables have another salt in each run."""
    definition = dict(row.definition)
    source = definition.get("source")
    if isinstance(source, Mapping) and "sha256" in source:
        definition["source"] = {key: value for key, value in source.items() if key != "path"}
    env = definition.get("env")
    definition["env"] = sorted(env) if isinstance(env, Mapping) else []
    return {key: value for key, value in definition.items() if key not in ("id", "name", "description")}


def _overlap(a: tuple[float, float] | None, b: tuple[float, float] | None) -> bool | None:
    return None if a is None or b is None else a[0] <= b[1] and b[0] <= a[1]


def _compare_artifacts(a: CandidateRow, b: CandidateRow) -> tuple[ArtifactChange, ...]:
    files_a, files_b = (
        {(attempt.round, file.path): file.sha256 for attempt in row.attempts for file in attempt.artifacts}
        for row in (a, b)
    )
    found = []
    for number, path in sorted({*files_a, *files_b}):
        one, other = files_a.get((number, path)), files_b.get((number, path))
        state: ArtifactState = (
            "only-b" if one is None else "only-a" if other is None else "same" if one == other else "changed"
        )
        found.append(ArtifactChange(number, path, state))
    return tuple(found)
