"""Where AG2's classes run in these tests: the embedded engine, `corral serve` as a Daytona service, a Docker daemon."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from daytona import Daytona, DaytonaConfig

from corral.adapters.ag2 import CorralEnvironment, DaytonaEnvironment, DockerEnvironment, LocalEnvironment
from corral.backends.docker import DockerBackend
from support.dockerd import Daemon, open_daemon
from support.serving import ServedProcess, served

PLACES = {
    "embedded": [pytest.mark.needs_userns],
    "daytona": [pytest.mark.needs_userns],
    "docker": [pytest.mark.needs_docker, pytest.mark.timeout(240)],
}
PARAMS = [pytest.param(name, marks=marks) for name, marks in PLACES.items()]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """`corral serve` as a process."""
    with served(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture
def service(server: ServedProcess, monkeypatch: pytest.MonkeyPatch) -> ServedProcess:
    """The same, as AG2's users point at a Daytona service: by two variables."""
    monkeypatch.setenv("DAYTONA_API_URL", server.url)
    monkeypatch.setenv("DAYTONA_API_KEY", server.key)
    return server


@pytest.fixture
def living(server: ServedProcess) -> Callable[[], list[str]]:
    """The names of the sandboxes that the server has."""
    client = Daytona(DaytonaConfig(api_url=server.url, api_key=server.key))
    return lambda: [box.name for box in client.list() if box.state not in ("destroyed", "destroying")]


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """A Docker daemon."""
    with open_daemon() as opened:
        yield opened


@pytest.fixture(params=PARAMS)
def wishes(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What to give to `CorralEnvironment` and `SandboxCodeExecutor`."""
    if request.param == "daytona":
        request.getfixturevalue("service")
        return {"backend": "daytona"} if False else {"backend": _daytona(request)}
    if request.param == "docker":
        daemon: Daemon = request.getfixturevalue("daemon")
        return {"backend": DockerBackend(host=daemon.host, image=daemon.image)}
    return {}


def _daytona(request: pytest.FixtureRequest) -> Any:
    from corral.backends.daytona import DaytonaBackend

    server: ServedProcess = request.getfixturevalue("server")
    return DaytonaBackend(api_key=server.key, api_url=server.url)
