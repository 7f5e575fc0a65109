"""For every test: the needs_* markers, --require, a separate data folder, and an ordinary user."""

import gc
import getpass
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

from support.dockerd import Daemon, open_daemon
from support.machine import NEEDS, find_lack
from support.surroundings import make_neutral
from support.tiers import belongs_to_check
from support.user import OrdinaryUser, open_ordinary_user

if TYPE_CHECKING:
    from support.serving import ServedProcess  # imported by the tests that use it: there may be no engine here

# No deadline: a sandbox's first start on a busy machine is not a failing example.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True)
hypothesis.settings.register_profile("more", deadline=None, max_examples=1000)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=5000)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

try:
    getpass.getuser()
except (KeyError, OSError):
    # A uid without a name: pytest would call its temporary folder the same for all of them, and find another's.
    os.environ["LOGNAME"] = f"uid-{os.getuid()}"

_required = pytest.StashKey[frozenset[str]]()
_excused = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        default="",
        metavar="NAME,…",
        help=f"what this machine must have ({', '.join(NEEDS)}, or all): a test that lacks it fails instead of being "
        "skipped, and so does any other skip",
    )


def pytest_configure(config: pytest.Config) -> None:
    make_neutral()
    for name, need in NEEDS.items():
        config.addinivalue_line("markers", f"needs_{name}: {need.meaning}")
    names = frozenset(name for name in config.getoption("--require").split(",") if name)
    if names == {"all"}:
        names = frozenset(NEEDS)
    if unknown := names - NEEDS.keys():
        raise pytest.UsageError(f"--require: unknown {', '.join(sorted(unknown))}; there are {', '.join(NEEDS)}, all")
    config.stash[_required] = names


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if belongs_to_check(item):
            item.add_marker(pytest.mark.check)


def pytest_collection_finish() -> None:
    # Several tests collect garbage to see what they left. What is imported by now is not theirs, and most of the heap.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    required = item.config.stash[_required]
    for marker in item.iter_markers():
        name = marker.name.removeprefix("needs_")
        if name == marker.name or (lack := find_lack(name)) is None:
            continue
        if name in required:
            pytest.fail(f"--require={name}: {lack}", pytrace=False)
        item.stash[_excused] = True
        pytest.skip(f"needs {name}: {lack}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In a strict run the only good skip is one for a power that was not required."""
    report = yield
    excused = item.stash.get(_excused, False) or hasattr(report, "wasxfail")
    if item.config.stash[_required] and report.skipped and not excused:
        report.outcome = "failed"
        report.longrepr = f"skipped in a strict run: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The same for a whole module that skips itself, as importorskip does."""
    report = yield
    if collector.config.stash[_required] and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in a strict run: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Corral is written for asyncio; trio users reach it through the sync door."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests never touch the sandboxes of the person who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRAL_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ServedProcess"]:
    """`corral serve` as a process, shared by the tests that don't end it: `.url`, `.key`, `.data_folder`."""
    from support.serving import served

    with served(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """A Docker daemon, shared by all tests that are marked needs_docker."""
    with open_daemon() as opened:
        yield opened


@pytest.fixture
def ordinary_user() -> Iterator[OrdinaryUser]:
    """An ordinary user who can import corral, also when root runs the tests. Mark the test needs_user."""
    with open_ordinary_user() as user:
        yield user
