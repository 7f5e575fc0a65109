"""The Docker backend at podman's socket, where podman is installed: `make backends`."""

from collections.abc import Iterator

import pytest

from corral.backends.docker import DockerBackend
from corral.errors import InvalidCommandError
from corral.protocol import Backend
from corral.spec import make_spec
from corral.testing.check import Check
from corral.testing.pytest import conformance_tests
from support.dockerd import Daemon
from support.podman import open_podman

_ORDER = "the daemon reads both streams apart, and the order between them is lost there"
CANNOT = {
    "streams_are_apart_and_in_order": _ORDER,
    "on_output_gets_everything": _ORDER,
    "events_are_in_order": _ORDER,
    "background_child_lives_on": "podman closes a program's output when it ends: who writes there later is ended",
}

_services: list[Daemon] = []

pytestmark = [
    pytest.mark.backends,
    pytest.mark.timeout(240),
    pytest.mark.needs_podman,
]


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[Daemon]:
    """One service for all of this file."""
    with open_podman() as opened:
        _services.append(opened)
        yield opened
        _services.clear()


def make() -> DockerBackend:
    """A backend at the tests' podman."""
    return DockerBackend(host=_services[0].host, image=_services[0].image)


def count(backend: Backend) -> int:
    """All containers of the service."""
    assert isinstance(backend, DockerBackend)
    return backend.count_living()


def only_rules(item: Check) -> list[pytest.MarkDecorator]:
    """The ten rules of the contract, and views."""
    wanted = item.promise.isdigit() or item.name in ("views_hold_for_one_call", "missing_power_is_said")
    return [] if wanted else [pytest.mark.skip(reason="tried on Docker")]


test_conformance = conformance_tests(make, cannot=CANNOT, count=count, marks=only_rules)


async def test_the_sandbox_is_strict_and_has_views(service: Daemon) -> None:
    backend = make()
    assert "views" in (await backend.capabilities()).powers
    box = await backend.create(make_spec())
    seen = (await box.exec("cat /proc/self/status; ls /sys/class/net")).stdout
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in seen
    assert seen.rstrip().endswith("\nlo")
    with pytest.raises(InvalidCommandError):
        await box.exec("true", user="no-such-user")
    await box.files.write("kept/file", b"old")
    result = await box.exec("echo new > kept/file; cat /proc/1/root/home/daytona/kept/file", read_only=["/"])
    assert result.stdout == ""
    assert await box.files.read("kept/file") == b"old"
    await backend.aclose()
    assert service.count() == 0
