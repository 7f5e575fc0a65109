"""Where AG2's classes run in these tests: the embedded engine, `corral serve` as a Daytona service, a Docker daemon."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from corral.adapters.ag2 import CorralEnvironment, DaytonaEnvironment, DockerEnvironment, LocalEnvironment
from corral.adapters.ag2.environments import EnvironmentBase
from corral.backends.daytona import DaytonaBackend
from corral.backends.docker import DockerBackend
from support.dockerd import Daemon
from support.serving import ServedProcess, make_client

_DOCKER = (pytest.mark.needs_docker, pytest.mark.timeout(240))


@pytest.fixture
def service(server: ServedProcess, monkeypatch: pytest.MonkeyPatch) -> ServedProcess:
    """The same, as AG2's users point at a Daytona service: by two variables."""
    monkeypatch.setenv("DAYTONA_API_URL", server.url)
    monkeypatch.setenv("DAYTONA_API_KEY", server.key)
    return server


Living = Callable[[], list[str]]


@pytest.fixture
def living(server: ServedProcess) -> Living:
    """The names of the sandboxes that the server has."""
    client = make_client(server)
    return lambda: [box.name for box in client.list() if box.state not in ("destroyed", "destroying")]


@dataclass(frozen=True)
class Kind:
    """One of the environments, and how it says what AG2's own says."""

    name: str
    make: Callable[..., EnvironmentBase]
    closed: str
    late: str
    """The beginning of what is said when the time was up, after 3 seconds."""
    strips: bool = False
    """Whether white space around the output goes."""

    def shown(self, printed: str) -> str:
        """What it gives of what a program has printed."""
        return printed.strip() if self.strips else printed


KINDS = {
    "corral": Kind("corral", CorralEnvironment, "The sandbox has been closed.", "Command timed out after 3s"),
    "local": Kind(
        "local", LocalEnvironment, "LocalSandbox has been closed.", "Command timed out after 3s", strips=True
    ),
    "daytona": Kind("daytona", DaytonaEnvironment, "DaytonaSandbox has been closed.", "Execution timed out: "),
    "docker": Kind("docker", DockerEnvironment, "DockerSandbox has been closed.", "Execution timed out after 3s", True),
}


@pytest.fixture(
    params=["corral", "local", pytest.param("daytona", marks=pytest.mark.check), pytest.param("docker", marks=_DOCKER)],
)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """Each environment of AG2's, with a place to run in."""
    found = KINDS[request.param]
    if found.name == "daytona":
        request.getfixturevalue("service")
    if found.name == "docker":
        daemon: Daemon = request.getfixturevalue("daemon")
        monkeypatch.setenv("CORRAL_DOCKER_HOST", daemon.host)

        def make(**options: Any) -> EnvironmentBase:
            return DockerEnvironment(image=daemon.image, **options)

        return replace(found, make=make)
    return found


@pytest.fixture
async def environment(kind: Kind) -> AsyncIterator[EnvironmentBase]:
    """One of each, closed at the end."""
    async with kind.make(timeout=30) as made:
        yield made


@pytest.fixture(
    params=["embedded", pytest.param("daytona", marks=pytest.mark.check), pytest.param("docker", marks=_DOCKER)]
)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What to give to the general classes, for each backend."""
    if request.param == "daytona":
        server: ServedProcess = request.getfixturevalue("server")
        return {"backend": DaytonaBackend(api_key=server.key, api_url=server.url)}
    if request.param == "docker":
        daemon: Daemon = request.getfixturevalue("daemon")
        return {"backend": DockerBackend(host=daemon.host, image=daemon.image)}
    return {}
