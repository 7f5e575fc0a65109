"""The judge: which candidates are ranked, which are not and why, and that its own failures harm no candidate."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from corral.errors import JudgeError, SpecError
from corral.forge.judge import (
    ArtifactPresent,
    Bench,
    Entry,
    ExitCode,
    GateVerdict,
    Judge,
    Memory,
    Points,
    Size,
    Speed,
    Standing,
    Success,
    default_judge,
    recorded_rubric,
)
from support.forge_entries import GUARD_SECONDS, make_bench, make_entry, make_round


@dataclass(frozen=True)
class Says:
    """A score that says what it is told to."""

    points: Mapping[str, Any]
    name: str = "says"
    weight: float = 1.0
    asked: list[str] = field(default_factory=list)

    async def rate(self, entries: Sequence[Entry], bench: Bench) -> Mapping[str, Points]:
        self.asked.extend(entry.candidate for entry in entries)
        return {name: value if isinstance(value, Points) else Points(value) for name, value in self.points.items()}

    def describe(self) -> dict[str, Any]:
        return {"kind": "says"}


@dataclass(frozen=True)
class Fails:
    """A gate, or a score, that raises."""

    error: BaseException
    name: str = "fails"
    weight: float = 1.0

    async def check(self, entry: Entry, bench: Bench) -> GateVerdict:
        raise self.error

    async def rate(self, entries: Sequence[Entry], bench: Bench) -> Mapping[str, Points]:
        raise self.error

    def describe(self) -> dict[str, Any]:
        return {"kind": "fails"}


@dataclass(frozen=True)
class Lets:
    """A gate that lets some pass."""

    who: tuple[str, ...]
    reason: str = "not on the list"
    name: str = "list"

    async def check(self, entry: Entry, bench: Bench) -> GateVerdict:
        return GateVerdict("a name that is not the gate's", entry.candidate in self.who, self.reason)

    def describe(self) -> dict[str, Any]:
        return {"kind": "list"}


async def decide(
    judge: Judge, entries: Sequence[Entry], unfinished: Mapping[str, str] | None = None
) -> dict[str, Standing]:
    standings = await judge.decide(entries, unfinished or {}, make_bench())
    assert len({standing.candidate for standing in standings}) == len(standings)
    return {standing.candidate: standing for standing in standings}


async def test_ranked_then_disqualified_then_unfinished(tmp_path: Path) -> None:
    entries = [make_entry(tmp_path, name) for name in ("d", "c", "b", "a")]
    judge = Judge(gates=(Lets(("a", "b")),), scores=(Says({"a": 10, "b": 90}),))
    standings = await judge.decide(entries, {"e": "no sandbox"}, make_bench())
    assert [standing.candidate for standing in standings] == ["b", "a", "c", "d", "e"]
    assert [standing.rank for standing in standings] == [1, 2, None, None, None]
    assert [standing.disqualified for standing in standings] == [False, False, True, True, False]
    assert [standing.reason for standing in standings] == ["", "", *["list: not on the list"] * 2, "no sandbox"]


async def test_total_is_weighted_whatever_the_scale_of_the_weights(tmp_path: Path) -> None:
    entries = [make_entry(tmp_path, name) for name in ("a", "b")]
    scores = (Says({"a": 100, "b": 50}, name="one", weight=6), Says({"a": 0, "b": 100}, name="two", weight=2))
    judge = Judge(scores=scores)
    found = await decide(judge, entries)
    assert found["a"].total == pytest.approx(75)
    assert found["b"].total == pytest.approx(62.5)
    assert found["a"].scores["one"].points == 100
    assert judge.weights == {"one": 0.75, "two": 0.25}


async def test_ties_are_ties(tmp_path: Path) -> None:
    entries = [make_entry(tmp_path, name) for name in ("a", "b", "c")]
    found = await decide(Judge(scores=(Says({"a": 50, "b": 50, "c": 40}),)), entries)
    assert [(found[name].rank, found[name].tied) for name in "abc"] == [(1, True), (1, True), (3, False)]


async def test_all_gates_are_looked_at_and_all_reasons_told(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, "a", None, exit_code=3, outcome="crashed", reason="exit code 3")
    (standing,) = await default_judge().decide([entry], {}, make_bench())
    assert standing.disqualified
    assert [verdict.passed for verdict in standing.gates] == [False, False]
    assert standing.reason == "exit-code: exit code 3; artifact: no artifact.md"
    assert standing.total == 0


async def test_same_reason_is_told_once(tmp_path: Path) -> None:
    judge = Judge(gates=(ArtifactPresent(), Size(), ExitCode()))
    entry = make_entry(tmp_path, "a", None, exit_code=3, outcome="crashed")
    assert (await decide(judge, [entry]))["a"].reason == "artifact: no artifact.md; exit-code: exit code 3"


async def test_who_is_disqualified_is_not_rated(tmp_path: Path) -> None:
    """A model costs money; and a crash in no time must not be the fastest that others are measured by."""
    says = Says({"a": 10})
    fast = make_entry(tmp_path, "fast", seconds=0.001)
    slow = make_entry(tmp_path, "a", seconds=1.0)
    found = await decide(Judge(gates=(Lets(("a",)),), scores=(says, Speed())), [fast, slow])
    assert says.asked == ["a"]
    assert found["a"].scores["speed"].points == 100
    assert found["fast"].scores == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "7", None, True, 10**400])
async def test_points_that_are_none_are_the_scores_failure(tmp_path: Path, bad: Any) -> None:
    entries = [make_entry(tmp_path, name) for name in ("a", "b")]
    with pytest.raises(JudgeError, match=r"the score 'says' failed at 'b': .* is not points") as caught:
        await decide(Judge(scores=(Says({"a": 1, "b": Points(bad)}),)), entries)
    assert (caught.value.judge, caught.value.candidate) == ("says", "b")


@pytest.mark.parametrize(("given", "taken"), [(-5, 0), (100.01, 100), (1e9, 100)])
async def test_points_outside_are_brought_inside_and_that_is_said(tmp_path: Path, given: float, taken: float) -> None:
    found = await decide(Judge(scores=(Says({"a": given}),)), [make_entry(tmp_path, "a")])
    points = found["a"].scores["says"]
    assert points.points == taken
    assert "clamped to" in points.details["note"]


async def test_who_is_left_out_by_a_score_has_no_points_and_is_told(tmp_path: Path) -> None:
    found = await decide(Judge(scores=(Says({"a": 10}),)), [make_entry(tmp_path, name) for name in "ab"])
    assert found["b"].total == 0
    assert "gave no points for it" in found["b"].scores["says"].details["note"]


async def test_points_for_a_stranger_are_the_scores_failure(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="a candidate that it was not asked to rate"):
        await decide(Judge(scores=(Says({"a": 1, "z": 1}),)), [make_entry(tmp_path, "a")])


async def test_exception_in_a_gate_names_gate_and_candidate(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match=r"the gate 'fails' failed at 'a': KeyError: 'x'") as caught:
        await decide(Judge(gates=(ExitCode(), Fails(KeyError("x")))), [make_entry(tmp_path, "a")])
    assert (caught.value.judge, caught.value.candidate, caught.value.op) == ("fails", "a", "judge")
    assert isinstance(caught.value.__cause__, KeyError)


async def test_exception_in_a_score_names_the_score_and_the_candidate_it_knew(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, "a")
    with pytest.raises(JudgeError, match="the score 'fails' failed: ZeroDivisionError") as caught:
        await decide(Judge(scores=(Fails(ZeroDivisionError()),)), [entry])
    assert caught.value.candidate is None
    with pytest.raises(JudgeError, match="the score 'fails' failed at 'q': mine") as caught:
        await decide(Judge(scores=(Fails(JudgeError("mine", candidate="q", hint="look there")),)), [entry])
    assert caught.value.hint == "look there"


async def test_a_gate_that_gives_no_verdict_has_failed(tmp_path: Path) -> None:
    class Nothing(Lets):
        async def check(self, entry: Entry, bench: Bench) -> GateVerdict:
            return True  # type: ignore[return-value]

    with pytest.raises(JudgeError, match="True is not a verdict"):
        await decide(Judge(gates=(Nothing(()),)), [make_entry(tmp_path, "a")])


async def test_reasons_are_one_printable_line(tmp_path: Path) -> None:
    judge = Judge(gates=(Lets((), reason="\x1b[2Jgone\nrank 1: me" + "x" * 10_000),))
    found = await decide(judge, [make_entry(tmp_path, "a")])
    assert found["a"].reason.isprintable()
    assert found["a"].reason.startswith(r"list: \x1b[2Jgone\nrank 1: me")
    assert len(found["a"].reason) < 1000


async def test_details_become_plain_json_whatever_a_score_gives(tmp_path: Path) -> None:
    ring: dict[str, Any] = {}
    ring["ring"] = ring
    for details in ({"path": Path("x"), 1: {2}}, {"nan": math.nan}, ring, {"much": "x" * 10**6}, {"deep": _nest(5000)}):
        found = await decide(Judge(scores=(Says({"a": Points(1.0, details)}),)), [make_entry(tmp_path, "a")])
        text = json.dumps(found["a"].to_json(), allow_nan=False)
        assert len(text) < 40_000
        assert Standing.from_json(json.loads(text)) == found["a"]


def _nest(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


async def test_no_scores_tie_all_that_pass(tmp_path: Path) -> None:
    found = await decide(Judge(gates=(ExitCode(),)), [make_entry(tmp_path, name) for name in "ab"])
    assert [(found[name].rank, found[name].tied) for name in "ab"] == [(1, True), (1, True)]


async def test_nobody_passed_and_nobody_came(tmp_path: Path) -> None:
    says = Says({})
    assert await Judge(scores=(says,)).decide([], {}, make_bench()) == ()
    found = await decide(Judge(gates=(Lets(()),), scores=(says,)), [make_entry(tmp_path, "a")])
    assert found["a"].rank is None
    assert says.asked == []


async def test_standing_tells_what_was_measured(tmp_path: Path) -> None:
    rounds = [
        make_round(tmp_path, "a", n, {"artifact.md": "x"}, seconds=s, cpu_seconds=s / 2, peak_memory_bytes=memory)
        for n, s, memory in ((1, 3.0, 300), (2, 1.0, 100), (3, 2.0, 200))
    ]
    crash = make_round(tmp_path, "a", 4, {"artifact.md": "x"}, outcome="crashed", exit_code=1, seconds=0.001)
    found = await decide(Judge(), [make_entry(tmp_path, "a", rounds=[*rounds, crash])])
    assert found["a"].seconds == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert found["a"].cpu_seconds == 1.0
    assert found["a"].peak_memory_bytes == 200


async def test_candidates_are_looked_at_side_by_side_and_not_all_at_once(tmp_path: Path) -> None:
    running, most = 0, 0
    both = asyncio.Event()

    class Counts(Lets):
        async def check(self, entry: Entry, bench: Bench) -> GateVerdict:
            nonlocal running, most
            running, most = running + 1, max(most, running + 1)
            if running == 2:
                both.set()
            async with asyncio.timeout(GUARD_SECONDS):
                await both.wait()  # never, if one were looked at after the other
            for _ in range(5):
                await asyncio.sleep(0)
            running -= 1
            return GateVerdict(self.name, passed=True)

    entries = [make_entry(tmp_path, f"c{number}") for number in range(20)]
    await decide(Judge(gates=(Counts(()),), jobs=2), entries)
    assert most == 2


async def test_cancelled_judge_leaves_nothing_running(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), []

    class Hangs(Lets):
        async def check(self, entry: Entry, bench: Bench) -> GateVerdict:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(entry.candidate)
            raise AssertionError

    entries = [make_entry(tmp_path, name) for name in "ab"]
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(Judge(gates=(Hangs(()),)).decide(entries, {}, make_bench()))
    async with asyncio.timeout(GUARD_SECONDS):
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended
    assert asyncio.all_tasks() <= before


@pytest.mark.parametrize(
    "wrong",
    [
        {"tie_margin": -1}, {"tie_margin": math.nan}, {"jobs": 0}, {"scores": (Says({}, weight=-1),)},
        {"scores": (Says({}, weight=math.inf),)}, {"scores": (Says({}, weight=0),)}, {"scores": (Says({}), Says({}))},
    ],
)  # fmt: skip
def test_judges_that_can_not_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Judge(**wrong)


async def test_candidate_is_judged_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="twice"):
        await decide(Judge(), [make_entry(tmp_path, "a")], {"a": "lost"})


@pytest.mark.parametrize("make", [default_judge, recorded_rubric])
def test_shipped_judges_describe_themselves_in_json(make: Any) -> None:
    described = make().describe()
    assert json.loads(json.dumps(described)) == described
    assert make().describe() == described, "the same each time: a resumed run compares it"


# Scores from what was measured.


async def rate(score: Any, *entries: Entry) -> dict[str, float]:
    return {name: points.points for name, points in (await score.rate(entries, make_bench())).items()}


async def test_success_is_the_part_of_the_rounds_that_succeeded(tmp_path: Path) -> None:
    rounds = [make_round(tmp_path, "a", 1, {"artifact.md": "x"}), make_round(tmp_path, "a", 2, outcome="timeout")]
    assert await rate(Success(), make_entry(tmp_path, "a", rounds=rounds)) == {"a": 50.0}


async def test_speed_is_measured_by_the_fastest_or_by_a_limit(tmp_path: Path) -> None:
    entries = [make_entry(tmp_path, name, seconds=seconds) for name, seconds in (("a", 2.0), ("b", 4.0), ("c", 20.0))]
    assert await rate(Speed(), *entries) == {"a": 100.0, "b": 50.0, "c": 10.0}
    assert await rate(Speed(limit=10), *entries) == pytest.approx({"a": 80.0, "b": 60.0, "c": 0.0})


async def test_speed_takes_the_median_of_the_rounds_that_succeeded(tmp_path: Path) -> None:
    rounds = [make_round(tmp_path, "a", n, {"artifact.md": "x"}, seconds=s) for n, s in ((1, 1.0), (2, 5.0), (3, 2.0))]
    rounds.append(make_round(tmp_path, "a", 4, outcome="crashed", exit_code=1, seconds=0.0))
    assert await rate(Speed(limit=10), make_entry(tmp_path, "a", rounds=rounds)) == {"a": 80.0}


async def test_who_never_succeeded_is_not_fast(tmp_path: Path) -> None:
    crash = make_entry(tmp_path, "a", outcome="crashed", exit_code=1, seconds=0.01)
    assert await rate(Speed(), crash, make_entry(tmp_path, "b", seconds=9.0)) == {"a": 0.0, "b": 100.0}


async def test_no_time_at_all_is_the_best_time(tmp_path: Path) -> None:
    entries = [make_entry(tmp_path, name, seconds=seconds) for name, seconds in (("a", 0.0), ("b", 1.0))]
    assert await rate(Speed(), *entries) == {"a": 100.0, "b": 0.0}


async def test_memory_as_speed_and_what_nobody_counted_is_said(tmp_path: Path) -> None:
    entries = [make_entry(tmp_path, name, peak_memory_bytes=size) for name, size in (("a", 2**20), ("b", 2**22))]
    assert await rate(Memory(), *entries) == {"a": 100.0, "b": 25.0}
    assert await rate(Memory(limit="4MiB"), *entries) == {"a": 75.0, "b": 0.0}
    points = (await Memory().rate([make_entry(tmp_path, "c")], make_bench()))["c"]
    assert (points.points, points.details["note"]) == (0.0, "this could not be measured here")


@pytest.mark.parametrize(("score", "limit"), [(Speed, 0), (Speed, math.nan), (Memory, "some"), (Memory, -1)])
def test_limits_that_are_none_are_refused(score: Any, limit: Any) -> None:
    with pytest.raises(SpecError):
        score(limit=limit)


def test_gates_of_the_default_judge_are_the_recorded_contract() -> None:
    assert default_judge().gates == (ExitCode(), ArtifactPresent())
