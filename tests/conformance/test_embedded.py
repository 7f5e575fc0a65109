"""The embedded backend keeps every promise, as root and as an ordinary user."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.protocol import Backend
from corral.testing.conformance import ALL_CHECKS
from corral.testing.pytest import conformance_tests
from support.asked import Asked, asking
from support.user import open_ordinary_user


def count_folders(backend: Backend) -> int:
    """Every sandbox, owned or detached, has a folder for as long as anything of it is there."""
    assert isinstance(backend, EmbeddedBackend)
    folder = Path(backend.data_folder) / "sandboxes"
    return len(list(folder.iterdir())) if folder.is_dir() else 0


test_as_root = pytest.mark.needs_root(conformance_tests(EmbeddedBackend, count=count_folders))

# Names come on standard input, which the checks' own children must not read from.
SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
from corral.backends.embedded import EmbeddedBackend
from corral.testing.check import run_check
from corral.testing.conformance import ALL_CHECKS

names = os.fdopen(os.dup(0))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
checks = {item.name: item for item in ALL_CHECKS}

def count(backend):
    folder = Path(backend.data_folder) / "sandboxes"
    return len(list(folder.iterdir())) if folder.is_dir() else 0

backend = EmbeddedBackend()
for name in names:
    verdict = asyncio.run(run_check(checks[name.strip()], backend, cannot={}, count=count))
    print(json.dumps(verdict.to_json()), flush=True)
asyncio.run(backend.aclose())
"""


@pytest.fixture(scope="module")
def as_user() -> Iterator[Asked]:
    """One process of an ordinary user, with one backend, that runs the checks it is asked for."""
    with (
        open_ordinary_user() as user,
        asking(lambda **pipes: user.start([str(user.python), "-c", SCRIPT], **pipes)) as asked,
    ):
        yield asked


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.parametrize("name", [item.name for item in ALL_CHECKS])
def test_as_ordinary_user(as_user: Asked, name: str) -> None:
    verdict = as_user.ask(name)
    if verdict["outcome"] == "skipped":
        pytest.xfail(verdict["detail"])
    if verdict["outcome"] == "failed":
        pytest.fail(f"{name} [{verdict['promise']}] {verdict['title']}\n{verdict['detail']}", pytrace=False)
