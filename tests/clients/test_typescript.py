"""The other official SDK, on Node: part of every run, since a second language shows what one client forgives."""

import pytest

from clients.conftest import RunClient

pytestmark = [pytest.mark.needs_network, pytest.mark.needs_git, pytest.mark.needs_node, pytest.mark.needs_npm]


@pytest.mark.check
@pytest.mark.timeout(900)  # npm fetches a few hundred files first
def test_typescript_sdk(run_node: RunClient) -> None:
    assert run_node("sdk.mjs", "@daytona/sdk@0.216.0").endswith("came to its end\n")
