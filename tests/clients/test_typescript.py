"""The official TypeScript SDK, on Node: part of every run, as a second client finds what the first tolerates."""

import pytest

from clients.conftest import RunClient

pytestmark = [pytest.mark.needs_network, pytest.mark.needs_git, pytest.mark.needs_node, pytest.mark.needs_npm]


@pytest.mark.check
@pytest.mark.timeout(900)  # npm fetches a few hundred files first
def test_typescript_sdk(run_node: RunClient) -> None:
    # The SDK leaves these two open, and the newest of one may want a version of the other that is not published yet.
    beside = ("@aws-sdk/client-s3@3.1164.0", "@aws-sdk/lib-storage@3.1164.0")
    assert run_node("sdk.mjs", "@daytona/sdk@0.216.0", *beside).endswith("came to its end\n")
