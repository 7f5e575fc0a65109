"""The hostile suite through both ends of the wire: the official SDK on one side, `corral`'s server on the other.

The server makes small sandboxes, so that a bomb beyond their limits is a small bomb; the wire itself counts in GiB.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corral.backends.daytona import DaytonaBackend
from corral.backends.embedded import EmbeddedBackend
from corral.backends.embedded.sandbox import EmbeddedSandbox
from corral.door import AsyncSandbox
from corral.results import Event
from corral.server.app import opened
from corral.server.serving import listening
from corral.server.settings import ServerSettings
from corral.spec import Spec
from corral.testing.hostile import ALL, RESOURCES, Outcome, Verdict, plant, prove

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(900)]

NOT_BY_ITS_OWN_WORD = {
    "kill-whoever-serves-the-host": "it ends what watches over it, and is ended with it before it can say so",
    "flood-the-output": "all of it travels to whoever listens, which takes longer than the probe waits",
    "stop-whoever-serves-the-host": "it stops what watches over it, and is ended from outside before it can say so",
}
"""Inside a foreign service, programs and what watches over them are one user's. That a flood is taken whole and leaves
our memory flat is a check of the conformance suite."""


class SmallBackend(EmbeddedBackend):
    """Whatever is asked for, a sandbox is small."""

    async def create(self, spec: Spec, *, on_event: Callable[[Event], None] | None = None) -> EmbeddedSandbox:
        return await super().create(replace(spec, resources=RESOURCES), on_event=on_event)


@asynccontextmanager
async def open_backend(folder: Path) -> AsyncIterator[DaytonaBackend]:
    """A backend, and a server behind it."""
    settings = ServerSettings(data_folder=folder, port=0, backend="embedded")
    small = SmallBackend(folder)
    async with opened(settings, backend=small) as server, listening(server) as url:
        _, key = server.keyring.create(organisation=server.keyring.organisation_named("default"), name="first")
        backend = DaytonaBackend(api_key=key, api_url=url)
        try:
            yield backend
        finally:
            await backend.aclose()
            for info in await small.list():
                await small.delete(info.sandbox_id)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """What each probe showed that was selected."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    wished = {str(item.callspec.params["name"]) for item in items if item.originalname == "test_contained"}
    found: dict[str, Outcome] = {}

    async def attack() -> None:
        async with open_backend(tmp_path_factory.mktemp("server") / "data") as backend:

            def make() -> Any:
                return AsyncSandbox(backend=backend, resources=RESOURCES)

            with plant() as canaries:
                await prove(
                    make,
                    canaries=canaries,
                    probes=[probe for probe in ALL if probe.name in wished],
                    on_progress=lambda outcome: found.update({outcome.probe.name: outcome}),
                )

    asyncio.run(attack())
    return found


@pytest.mark.parametrize("name", [probe.name for probe in ALL if probe.name not in NOT_BY_ITS_OWN_WORD])
def test_contained(name: str, outcomes: dict[str, Outcome]) -> None:
    finding = outcomes[name].finding
    assert finding.verdict is Verdict.HELD, f"{finding.verdict}: {finding.evidence}"
