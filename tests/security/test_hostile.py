"""The hostile suite against the embedded engine, as root and as an ordinary user: one test for each probe.

All probes of a mode run once, in one process of that user; each test reads the verdict on its own.
"""

import json
import os
import subprocess
import sys
from typing import Any, get_args

import pytest

from corral.testing.hostile import ALL, Probe
from corral.testing.hostile.probe import Area, Severity
from support.user import open_ordinary_user

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only"),
    pytest.mark.timeout(600),  # the first test of a mode waits for all of its probes: about a minute
]

NAMES = [probe.name for probe in ALL]
RUN_SECONDS = 400

Verdicts = dict[str, dict[str, Any]]


def list_wished(request: pytest.FixtureRequest, test: str) -> list[str]:
    """Only what was selected, so that `-k fork-bomb` takes seconds."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    return [str(item.callspec.params["name"]) for item in items if item.originalname == test]


def read_verdicts(done: subprocess.CompletedProcess[str]) -> Verdicts:
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows, f"the suite did not even start: {done.stderr[-2000:]}"
    return {row["name"]: row for row in rows}


@pytest.fixture(scope="session")
def verdicts_as_root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    argv = [sys.executable, "-m", "corral.testing.hostile", *list_wished(request, "test_contained_as_root")]
    env = os.environ | {"CORRAL_DATA_DIR": str(tmp_path_factory.mktemp("hostile"))}
    done = subprocess.run(
        argv, env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    return read_verdicts(done)


@pytest.fixture(scope="session")
def verdicts_as_user(request: pytest.FixtureRequest) -> Verdicts:
    names = list_wished(request, "test_contained_as_an_ordinary_user")
    with open_ordinary_user() as user:
        done = user.run_argv(
            [str(user.python), "-m", "corral.testing.hostile", *names],
            env={"CORRAL_DATA_DIR": str(user.home / "data")},
            timeout=RUN_SECONDS,
        )
    return read_verdicts(done)


def judge(verdicts: Verdicts, name: str) -> None:
    assert name in verdicts, "the suite ended before this probe"
    row = verdicts[name]
    if row["verdict"] == "unpromised":
        pytest.xfail(f"capabilities() says that this limit is soft here: {row['evidence']}")
    assert row["verdict"] == "held", f"{row['verdict']}: {row['evidence']}; should be stopped by {row['stopped_by']}"


@pytest.mark.needs_root
@pytest.mark.parametrize("name", NAMES)
def test_contained_as_root(name: str, verdicts_as_root: Verdicts) -> None:
    judge(verdicts_as_root, name)


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.parametrize("name", NAMES)
def test_contained_as_an_ordinary_user(name: str, verdicts_as_user: Verdicts) -> None:
    judge(verdicts_as_user, name)


def test_suite_covers_every_area_with_unique_probes() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 70
    assert {probe.area for probe in ALL} == set(get_args(Area))
    assert {probe.severity for probe in ALL} <= set(get_args(Severity))


def test_probe_without_a_defence_is_refused() -> None:
    with pytest.raises(ValueError, match="the defence that stops it"):
        Probe("name", "files", "escape", "", "print(1)")


@pytest.mark.parametrize("probe", [probe for probe in ALL if probe.area == "network"], ids=lambda probe: probe.name)
def test_probe_sends_nothing_beyond_loopback_unless_that_is_all_there_is(probe: Probe) -> None:
    """Read from the program itself: an address that is not loopback stands behind the guard."""
    code = probe.code
    outside = [
        word
        for word in ("169.254", "10.0.0", "172.17", "192.0.2", "255.255", "224.0", "fe80", ".invalid")
        if word in code
    ]
    if outside:
        assert code.index("only_loopback()") < min(code.index(word) for word in outside)
