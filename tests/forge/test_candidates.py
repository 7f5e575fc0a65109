"""Candidates, their ids, their sources, and who starts when."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import SpecError
from corral.forge.candidate import Candidate, as_candidates
from corral.forge.consent import Granted, permissions_of_run
from corral.forge.definition import describe_run, rebuild_candidates
from corral.forge.ids import check_id, id_from_name, new_run_id
from corral.forge.plan import decide_jobs, plan_turns
from corral.forge.settings import Settings, Take, Timeouts
from corral.forge.sources import fill_in, hash_folder
from corral.spec import NetworkLimits, NetworkPolicy, Resources


@pytest.mark.parametrize("value", ["", ".", "..", "../x", "a/b", "a.b", "-a", "a b", "a\n", "é", "a" * 64, None, 3])
def test_id_that_could_be_a_path_is_refused(value: object) -> None:
    with pytest.raises(SpecError):
        check_id(value)


@given(st.text(max_size=100))
def test_id_from_any_name_is_one(name: str) -> None:
    try:
        found = id_from_name(name)
    except SpecError:
        return
    assert check_id(found) == found


def test_run_ids_are_ids_and_differ() -> None:
    assert len({check_id(new_run_id()) for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("name", "candidate_id"), [("agent_alpha", "alpha"), ("Agent_x-1", "x-1"), ("agent", "agent"), ("agent_", "agent")]
)
def test_id_of_a_file_that_calls_itself_an_agent(name: str, candidate_id: str) -> None:
    assert id_from_name(name) == candidate_id


def test_network_of_a_candidate_survives_the_run_folder(tmp_path: Path) -> None:
    policies = [NetworkPolicy(), NetworkPolicy("packages", ("a.org:443",), NetworkLimits(total_bytes=5))]
    candidates = [Candidate.command("true", id=f"c{number}", network=policy) for number, policy in enumerate(policies)]
    told = describe_run(
        run="run", started="", objective="goal", settings=Settings(), candidates=candidates, judge={}, order=(), jobs=1
    )
    assert [each.network for each in rebuild_candidates(told, {})] == policies
    assert told["candidates"][0]["network"] == {"mode": "none", "hosts": []}  # as earlier releases wrote it
    granted = [permissions_of_run(told, Granted(network=policy)) for policy in (None, policies[1])]
    assert [[(each.what, each.words) for each in found] for found in granted] == [
        [("network packages,a.org:443", ())], []
    ]  # fmt: skip


def test_same_names_are_numbered_and_same_ids_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "agent.v2.py").write_text("")
    paths = [tmp_path / "one" / "agent.v2.py", tmp_path / "two" / "agent.v2.py"]
    assert [candidate.id for candidate in as_candidates(paths)] == ["agent-v2", "agent-v2-2"]
    with pytest.raises(SpecError, match="two candidates have the id 'Same'"):
        as_candidates([Candidate.command("true", id="same"), Candidate.command("true", id="Same")])
    with pytest.raises(SpecError, match="needs candidates"):
        as_candidates([])


@pytest.mark.parametrize("value", [3, None, "no-such-file.py", "", object()])
def test_nonsense_is_no_candidate(value: object) -> None:
    with pytest.raises(SpecError):
        as_candidates([value])


def test_words_are_filled_in() -> None:
    assert fill_in(["python3", "x.py"], objective="a b", output="/o") == ["python3", "x.py", "a b", "/o"]
    assert fill_in(["x", "--to={output}", "{objective}"], objective="{output}", output="/o") == [
        "x",
        "--to=/o",
        "{output}",
    ]
    shell = fill_in(["/bin/sh", "-c", "echo {objective} > {output}", "candidate"], objective="it's; rm", output="/o o")
    assert shell[2] == "echo 'it'\"'\"'s; rm' > '/o o'"


def test_folder_hash_sees_names_modes_links_and_contents(tmp_path: Path) -> None:
    def change(action: str) -> str:
        folder = tmp_path / action
        (folder / "sub").mkdir(parents=True)
        (folder / "a").write_text("1")
        (folder / "sub" / "b").write_text("2")
        (folder / "link").symlink_to("a")
        if action == "content":
            (folder / "a").write_text("3")
        elif action == "name":
            (folder / "a").rename(folder / "c")
        elif action == "mode":
            (folder / "a").chmod(0o755)
        elif action == "link":
            (folder / "link").unlink()
            (folder / "link").symlink_to("sub")
        return hash_folder(folder)

    hashes = {action: change(action) for action in ("nothing", "again", "content", "name", "mode", "link")}
    assert hashes["nothing"] == hashes["again"]
    assert len(set(hashes.values())) == 5


@given(st.integers(1, 6), st.integers(1, 5), st.integers())
def test_every_candidate_has_its_turn_in_every_round(count: int, repeat: int, seed: int) -> None:
    candidates = as_candidates([Candidate.command("true", id=f"c{number}") for number in range(count)])
    settings = Settings(repeat=repeat, seed=seed)
    turns = plan_turns(candidates, settings)
    assert turns == plan_turns(tuple(reversed(candidates)), settings)
    assert Counter(turns) == Counter(
        {(f"c{number}", round_): 1 for number in range(count) for round_ in range(1, repeat + 1)}
    )
    assert [turn.round for turn in turns] == sorted(turn.round for turn in turns)


def test_seeds_give_orders() -> None:
    candidates = as_candidates([Candidate.command("true", id=f"c{number}") for number in range(6)])
    assert len({plan_turns(candidates, Settings(seed=seed)) for seed in range(20)}) > 10


def test_jobs_respect_processors_and_memory() -> None:
    many = as_candidates([Candidate.command("true", id=f"c{number}") for number in range(1000)])
    available = len(os.sched_getaffinity(0))
    assert decide_jobs(many, Settings(), local=True) <= available
    assert decide_jobs(many, Settings(resources=Resources(cpus=available)), local=True) == 1
    assert decide_jobs(many, Settings(resources=Resources(cpus=0.01, memory_bytes=2**62)), local=True) == 1
    assert decide_jobs(many, Settings(jobs=7), local=True) == 7
    assert decide_jobs(many[:2], Settings(jobs=7), local=True) == 2


@pytest.mark.parametrize(
    "settings",
    [{"repeat": 0}, {"repeat": True}, {"jobs": 0}, {"retries": -1}, {"seed": "x"}, {"output": "a/b"}, {"output": ".."}],
    ids=str,
)
def test_settings_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        Settings(**settings)  # type: ignore[arg-type]


def test_times_and_sizes_are_checked() -> None:
    with pytest.raises(SpecError):
        Timeouts(run=0)
    with pytest.raises(SpecError):
        Timeouts(create=float("nan"))
    with pytest.raises(SpecError):
        Take(files=0)
    assert Take(file_bytes="1MiB").file_bytes == 2**20
