"""Languages without a runtime in the sandbox, in each of AG2's environments."""

import os

import pytest

from adapters.ag2.conftest import Kind
from corral.adapters.ag2 import CodeRunner

pytestmark = pytest.mark.needs_userns


async def test_where_nothing_runs_typescript_the_remedy_is_that_places_own(kind: Kind) -> None:
    given = {"env" if kind.name == "corral" else "env_vars": {"PATH": "/nowhere"}}
    async with kind.make(**given) as environment:
        result = await CodeRunner(environment, languages=("typescript",)).run("1", "typescript")
    assert result.exit_code == 127
    assert "Node.js 22.18" in result.output
    remedies = {
        "docker": "image",  # nothing that is installed here would be in it
        "daytona": "corral --data-dir DIR setup typescript",
    }
    here = f"corral --data-dir {os.environ['CORRAL_DATA_DIR']} setup typescript"
    assert remedies.get(kind.name, here) in result.output
    assert kind.name != "docker" or "corral setup" not in result.output
