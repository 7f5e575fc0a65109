"""The hostile suite against the embedded engine, as root and as an ordinary user: one test for each probe.

The probes of a mode are asked of one process of that user, which keeps its sandboxes, neighbour and canaries. It asks
another one for those of windows, which runs on a test ground of its own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

import pytest

from corral.testing.hostile import ALL, WINDOW, Probe
from corral.testing.hostile.probe import Area, Severity
from support.asked import Asked, asking
from support.user import open_ordinary_user

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only")

EVERY = (*ALL, *WINDOW)
NAMES = [probe.name for probe in EVERY]
SUITE = ("-m", "corral.testing.hostile", "-")


@pytest.fixture(scope="module")
def as_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    env = os.environ | {"CORRAL_DATA_DIR": str(tmp_path_factory.mktemp("hostile"))}
    with asking(lambda **pipes: subprocess.Popen([sys.executable, *SUITE], env=env, cwd="/", **pipes)) as asked:
        yield asked


@pytest.fixture(scope="module")
def as_user() -> Iterator[Asked]:
    with open_ordinary_user() as user:
        env = {"CORRAL_DATA_DIR": str(user.home / "data")}
        with asking(lambda **pipes: user.start([str(user.python), *SUITE], env=env, **pipes)) as asked:
            yield asked


def judge(asked: Asked, name: str) -> None:
    row = asked.ask(name)
    if row["verdict"] == "unpromised":
        pytest.xfail(f"capabilities() says that this limit is soft here: {row['evidence']}")
    assert row["verdict"] == "held", f"{row['verdict']}: {row['evidence']}; should be stopped by {row['stopped_by']}"


@pytest.mark.needs_root
@pytest.mark.parametrize("name", NAMES)
def test_contained_as_root(name: str, as_root: Asked) -> None:
    judge(as_root, name)


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.parametrize("name", NAMES)
def test_contained_as_an_ordinary_user(name: str, as_user: Asked) -> None:
    judge(as_user, name)


def test_suite_covers_every_area_with_unique_probes() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 70
    assert {probe.area for probe in EVERY} == set(get_args(Area))
    assert {probe.severity for probe in EVERY} <= set(get_args(Severity))


def test_probe_without_a_defence_is_refused() -> None:
    with pytest.raises(ValueError, match="the defence that stops it"):
        Probe("name", "escape", "", "print(1)", area="files")


def test_window_is_attacked_on_the_test_ground_alone() -> None:
    assert {probe.area for probe in WINDOW} == {"window"}
    assert "window" not in {probe.area for probe in ALL}


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
