"""One suite through both ends of the wire: the daytona backend, by the official SDK, against `corral serve`."""

from collections.abc import Iterator
from functools import cache

import pytest
from daytona import Daytona, DaytonaConfig

from corral.backends.daytona import DaytonaBackend
from corral.protocol import Backend
from corral.testing.pytest import conformance_tests
from support.serving import ServedProcess
from support.tiers import further_backend

CANNOT = {
    "out_of_memory_is_a_reason": "the wire counts memory in GiB and does not tell why a program was killed",
    "policy_changes_while_running": "the wire's lists have no ports, and this server permits no network",
    "stopped_sandbox_is_rolled_back": "the wire has no rollback",
}

_server: list[ServedProcess] = []


@pytest.fixture(scope="module", autouse=True)
def for_the_suite(server: ServedProcess) -> Iterator[None]:
    """The suite makes its backends without asking for fixtures."""
    _server.append(server)
    yield
    _server.clear()


def make() -> DaytonaBackend:
    """A backend for that server."""
    return DaytonaBackend(api_key=_server[0].key, api_url=_server[0].url)


@cache
def client(url: str) -> Daytona:
    """One that asks beside the backend."""
    return Daytona(DaytonaConfig(api_key=_server[0].key, api_url=url))


def count(backend: Backend) -> int:
    """Every sandbox, owned or detached, as the server says by itself."""
    return sum(box.state not in ("destroyed", "destroying") for box in client(_server[0].url).list())


test_conformance = pytest.mark.needs_root(conformance_tests(make, cannot=CANNOT, count=count, marks=further_backend))
