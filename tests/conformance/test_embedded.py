"""The embedded backend keeps every promise, as root and as an ordinary user."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.protocol import Backend
from corral.testing.conformance import ALL_CHECKS
from corral.testing.pytest import conformance_tests
from support.user import open_ordinary_user

SUITE_SECONDS = 400.0
"""A guard against hanging for the whole suite in one process."""


def count_folders(backend: Backend) -> int:
    """Every sandbox, owned or detached, has a folder for as long as anything of it is there."""
    assert isinstance(backend, EmbeddedBackend)
    folder = Path(backend.data_folder) / "sandboxes"
    return len(list(folder.iterdir())) if folder.is_dir() else 0


test_as_root = pytest.mark.needs_root(conformance_tests(EmbeddedBackend, count=count_folders))

SCRIPT = """
import asyncio, json
from pathlib import Path
from corral.backends.embedded import EmbeddedBackend
from corral.testing.check import run_check
from corral.testing.conformance import ALL_CHECKS

def count(backend):
    folder = Path(backend.data_folder) / "sandboxes"
    return len(list(folder.iterdir())) if folder.is_dir() else 0

backend = EmbeddedBackend()
for item in ALL_CHECKS:
    verdict = asyncio.run(run_check(item, backend, cannot={}, count=count))
    print("VERDICT", json.dumps(verdict.to_json()), flush=True)
asyncio.run(backend.aclose())
"""

Verdicts = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def verdicts() -> Iterator[Verdicts]:
    """The whole suite, run once, in one process of an ordinary user."""
    with open_ordinary_user() as user:
        done = user.run(SCRIPT, timeout=SUITE_SECONDS)
        lines = [line.removeprefix("VERDICT ") for line in done.stdout.splitlines() if line.startswith("VERDICT ")]
        found = {verdict["name"]: verdict for verdict in map(json.loads, lines)}
        yield found | {"": {"detail": f"exit code {done.returncode}\n{done.stderr[-3000:]}"}}


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.timeout(SUITE_SECONDS + 60)  # the first test waits for the whole suite
@pytest.mark.parametrize("name", [item.name for item in ALL_CHECKS])
def test_as_ordinary_user(verdicts: Verdicts, name: str) -> None:
    verdict = verdicts.get(name)
    if verdict is None:
        pytest.fail(f"no verdict: the suite ended early\n{verdicts['']['detail']}", pytrace=False)
    if verdict["outcome"] == "skipped":
        pytest.xfail(verdict["detail"])
    if verdict["outcome"] == "failed":
        pytest.fail(f"{name} [{verdict['promise']}] {verdict['title']}\n{verdict['detail']}", pytrace=False)
