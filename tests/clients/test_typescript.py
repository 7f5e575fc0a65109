"""The official TypeScript SDK, on Node: part of every run, as a second client finds what the first tolerates."""

from collections.abc import Iterator

import pytest

from clients.conftest import RunClient
from support.serving import ServedProcess, served

pytestmark = [pytest.mark.needs_network, pytest.mark.needs_git, pytest.mark.needs_node, pytest.mark.needs_npm]


# The SDK leaves the other two open, and the newest of one may want a version of the other that is not published yet.
SDK = ("@daytona/sdk@0.216.0", "@aws-sdk/client-s3@3.1164.0", "@aws-sdk/lib-storage@3.1164.0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """One with a ceiling of the network, under a name that exists nowhere."""
    with served(tmp_path_factory.mktemp("server") / "data", arguments=("--network", "permitted.invalid")) as running:
        yield running


@pytest.mark.check
@pytest.mark.timeout(900)  # npm fetches a few hundred files first
@pytest.mark.parametrize("script", ["sdk.mjs", "window.mjs"])
def test_typescript_sdk(run_node: RunClient, script: str) -> None:
    assert run_node(script, *SDK).endswith("came to its end\n")
