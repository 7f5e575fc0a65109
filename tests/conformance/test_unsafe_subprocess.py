"""The backend without isolation keeps every other promise, as root and as an ordinary user."""

import json
import os
from pathlib import Path

import pytest

from corral.backends.unsafe_subprocess import UnsafeSubprocessBackend
from corral.testing.pytest import conformance_tests
from support.tiers import further_backend
from support.user import open_ordinary_user

CANNOT = {
    "oom": "capabilities(): memory is not limited",
    "network_none": "capabilities(): the network is the host's",
    "fork_bomb_ends_with_its_timeout": "capabilities(): processes are not limited, and the host would be the bomb's",
    "workdir_exists_and_is_the_cwd": "capabilities(): programs see real paths, so the requested one is only a name",
}
_ROOT = "root may everything; the same check is run as an ordinary user below"
REFUSED_TO_OTHERS = {
    "glob_has_its_options": _ROOT,
    "unreadable_is_told_apart": _ROOT,
    "write_needs_permission": _ROOT,
}

pytestmark = pytest.mark.filterwarnings("ignore::corral.backends.unsafe_subprocess.UnsafeWarning")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this file's sandboxes, so that no others are counted."""
    _folders.append(tmp_path_factory.mktemp("unsafe"))
    return _folders[0]


_folders: list[Path] = []


def make() -> UnsafeSubprocessBackend:
    """A backend in that folder."""
    return UnsafeSubprocessBackend(_folders[0])


test_conformance = conformance_tests(
    make, cannot=CANNOT | (REFUSED_TO_OTHERS if os.geteuid() == 0 else {}), marks=further_backend
)

SCRIPT = """
import asyncio, json, sys, warnings
from corral.backends.unsafe_subprocess import UnsafeSubprocessBackend, UnsafeWarning
from corral.testing.check import run_check
from corral.testing.conformance import ALL_CHECKS

warnings.simplefilter("ignore", UnsafeWarning)
backend = UnsafeSubprocessBackend()
for item in ALL_CHECKS:
    if item.name in sys.argv[1:]:
        verdict = asyncio.run(run_check(item, backend, cannot={}))
        print("VERDICT", json.dumps(verdict.to_json()), flush=True)
asyncio.run(backend.aclose())
"""


@pytest.mark.needs_user
def test_what_root_can_t_be_refused_is_refused_to_others() -> None:
    with open_ordinary_user() as user:
        done = user.run(SCRIPT, args=sorted(REFUSED_TO_OTHERS))
    verdicts = [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("VERDICT ")]
    assert {verdict["name"] for verdict in verdicts} == set(REFUSED_TO_OTHERS), done.stderr
    assert [verdict for verdict in verdicts if verdict["outcome"] != "passed"] == []
