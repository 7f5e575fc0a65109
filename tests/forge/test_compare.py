"""Two runs side by side."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from corral.forge.compare import Change, Difference, compare_runs
from corral.forge.runfolder import Run, read_run
from support.forge_runs import write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read_run(write_run(tmp_path / "a"))


def test_a_run_is_the_same_as_itself(run: Run) -> None:
    found = compare_runs(run, run)
    assert found.same_winners
    assert found.same_rules
    assert (found.only_a, found.only_b) == ((), ())
    assert [one.id for one in found.candidates] == ["thorough", "balanced", "fast", "crash", "rubbish"]
    for one in found.candidates:
        assert one.source_same
        assert one.artifacts_same
        assert one.total.delta == 0
        assert one.seconds.ratio == 1


def test_what_was_different_is_named(run: Run, tmp_path: Path) -> None:
    other = read_run(write_run(tmp_path / "b", repeat=5, seed=9, faster=2.0))
    found = compare_runs(run, other)
    assert (found.run_a, found.run_b) == ("a", "b")
    assert found.settings == (Difference("settings.repeat", 1, 5), Difference("settings.seed", 7, 9))
    assert not found.same_rules
    (thorough,) = [one for one in found.candidates if one.id == "thorough"]
    assert thorough.seconds.ratio == pytest.approx(0.5)
    assert thorough.seconds.delta == pytest.approx(-2.4)
    assert thorough.intervals_overlap is None, "one round has no interval"
    rounds = {(change.round, change.state) for change in thorough.artifacts}
    assert rounds == {(1, "same"), *((number, "only-b") for number in range(2, 6))}


def test_intervals_say_whether_it_may_be_chance(tmp_path: Path) -> None:
    first = read_run(write_run(tmp_path / "a", repeat=6))
    near = read_run(write_run(tmp_path / "b", repeat=6, faster=1.01))
    far = read_run(write_run(tmp_path / "c", repeat=6, faster=3))
    assert {one.intervals_overlap for one in compare_runs(first, near).candidates} == {True}
    assert {one.intervals_overlap for one in compare_runs(first, far).candidates} == {False}


def test_changed_candidates_and_artifacts_are_seen(run: Run) -> None:
    definition = json.loads(json.dumps(run.definition))
    definition["candidates"][0]["source"] |= {"sha256": "other", "path": "elsewhere/fast.py"}
    definition["candidates"][1]["source"]["path"] = "elsewhere/thorough.py"
    definition["candidates"][2]["packages"] = ["numpy"]
    definition["candidates"][3] |= {"id": "newcomer"}
    attempt = run.attempts["balanced", 1]
    changed = replace(attempt, artifacts=(replace(attempt.artifacts[0], sha256="0" * 64),), outcome="timeout")
    attempts = {key: value for key, value in run.attempts.items() if key[0] != "crash"} | {("balanced", 1): changed}
    standings = tuple(standing for standing in run.standings if standing.candidate != "crash")
    found = compare_runs(run, replace(run, definition=definition, attempts=attempts, standings=standings))
    assert (found.only_a, found.only_b) == (("crash",), ("newcomer",))
    by_id = {one.id: one for one in found.candidates}
    (difference,) = by_id["fast"].source
    assert (difference.name, difference.b) == ("source.sha256", "other")
    assert by_id["thorough"].source_same, "the same script at another place is the same script"
    assert by_id["balanced"].source == (Difference("packages", [], ["numpy"]),)
    assert [change.state for change in by_id["balanced"].artifacts] == ["changed"]
    assert (by_id["balanced"].outcome_a, by_id["balanced"].outcome_b) == ("ok", "timeout")


def test_values_of_variables_are_not_compared_by_their_salted_hashes(run: Run) -> None:
    one, other = (json.loads(json.dumps(run.definition)) for _ in range(2))
    one["candidates"][0]["env"] = {"TOKEN": "0123"}
    other["candidates"][0]["env"] = {"TOKEN": "4567"}
    found = compare_runs(replace(run, definition=one), replace(run, definition=other))
    assert all(candidate.source_same for candidate in found.candidates)
    other["candidates"][0]["env"] = {}
    found = compare_runs(replace(run, definition=one), replace(run, definition=other))
    assert [difference.name for one in found.candidates for difference in one.source] == ["env"]


def test_a_run_that_nobody_judged_can_be_compared(run: Run, tmp_path: Path) -> None:
    broken = read_run(write_run(tmp_path / "b", state="interrupted", judged=False))
    found = compare_runs(run, broken)
    assert found.winners_b == ()
    assert not found.same_winners
    assert {one.total.delta for one in found.candidates} == {None}
    assert all(one.seconds.delta == pytest.approx(0, abs=0.2) for one in found.candidates)


def test_numbers_that_are_missing_have_no_difference() -> None:
    assert Change(None, 1.0).delta is None
    assert Change(0.0, 1.0).ratio is None
    assert Change(2.0, 1.0).ratio == 0.5


def test_everything_is_plain_data(run: Run, tmp_path: Path) -> None:
    found = compare_runs(run, read_run(write_run(tmp_path / "b", tie=True))).to_json()
    assert json.loads(json.dumps(found))["winners_b"] == ["thorough", "balanced"]
    assert found["candidates"][0]["artifacts_same"] is True
