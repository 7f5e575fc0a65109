"""Sandboxes of both classes on the backends that run here."""

from collections.abc import Iterator

import pytest

from corral import Sandbox
from corral.adapters.pydantic_ai import CorralSandbox, DaytonaSandbox

KINDS = {"corral": CorralSandbox, "daytona": DaytonaSandbox}


@pytest.fixture
def box() -> Iterator[Sandbox]:
    """An embedded sandbox."""
    with Sandbox(exec_timeout=60) as box:
        yield box


@pytest.fixture(params=sorted(KINDS))
def sandbox(request: pytest.FixtureRequest, box: Sandbox) -> CorralSandbox:
    """The protocol over an embedded sandbox: the general class, and the one of the known name, which forgives more."""
    return KINDS[request.param].over(box)


@pytest.fixture(params=["embedded", pytest.param("memory", id="memory")])
def holder(request: pytest.FixtureRequest) -> Iterator[CorralSandbox]:
    """For what needs files only, on the fake too."""
    with CorralSandbox(backend=request.param) as sandbox:
        yield sandbox
