"""The hostile suite through both ends of the wire: the official SDK on one side, `corral`'s server on the other.

The server makes small sandboxes, so that a bomb beyond their limits is a small bomb; the wire itself counts in GiB.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from daytona import AsyncDaytona, CodeRunParams, DaytonaConfig

from corral.backends.daytona import DaytonaBackend
from corral.backends.embedded import EmbeddedBackend
from corral.backends.embedded.sandbox import EmbeddedSandbox
from corral.door import AsyncSandbox
from corral.results import Event
from corral.server.app import opened
from corral.server.serving import listening
from corral.server.settings import ServerSettings
from corral.spec import Spec
from corral.testing.hostile import ALL, RESOURCES, Canaries, Finding, Probe, Report, Verdict, plant, prove
from corral.testing.hostile.canary import find_processes
from corral.testing.hostile.prelude import compose

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(900)]

BY_THE_SDK_ALONE = {
    "kill-whoever-serves-the-host": "the agent of our backend is of the programs' own user, and goes down with them",
    "open-terminals-of-others": "the agent of our backend talks over a terminal, which is there to be seen",
}
"""The other probes are run by our backend, which is built on the SDK; these by the SDK's own calls, as nothing but the
server's own means may be in the sandbox. What becomes of the agent that is killed is tested beside the backend."""


TRIES = 3


def shows_something(finding: Finding | None) -> bool:
    return finding is not None and finding.verdict is not Verdict.UNPROVEN


class SmallBackend(EmbeddedBackend):
    """Whatever is asked for, a sandbox is small."""

    async def create(self, spec: Spec, *, on_event: Callable[[Event], None] | None = None) -> EmbeddedSandbox:
        return await super().create(replace(spec, resources=RESOURCES), on_event=on_event)


@asynccontextmanager
async def open_server(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Its address, and a key."""
    settings = ServerSettings(data_folder=folder, port=0, backend="embedded")
    small = SmallBackend(folder)
    async with opened(settings, backend=small) as server, listening(server) as url:
        _, key = server.keyring.create(organisation=server.keyring.organisation_named("default"), name="first")
        try:
            yield url, key
        finally:
            for info in await small.list():
                await small.delete(info.sandbox_id)


async def attack(probes: Sequence[Probe], *, url: str, key: str, canaries: Canaries) -> Report:
    """By our backend."""
    backend = DaytonaBackend(api_key=key, api_url=url)
    try:
        make: Any = partial(AsyncSandbox, backend=backend, resources=RESOURCES)
        return await prove(make, canaries=canaries, probes=probes)
    finally:
        await backend.aclose()


async def attack_plainly(probe: Probe, *, url: str, key: str, canaries: Canaries) -> Finding:
    """By the SDK's own calls, in a sandbox of its own; it must work as before afterwards."""
    token = f"probe-{secrets.token_hex(8)}"
    async with AsyncDaytona(DaytonaConfig(api_key=key, api_url=url)) as sdk:
        box = await sdk.create()
        try:
            code = compose(probe, targets={**canaries.targets(), "token": token})
            answer = await box.process.code_run(code, CodeRunParams(argv=[token]), timeout=30)
            await box.fs.upload_file(b"42", "after")
            after = (await box.process.exec("cat after")).result, await box.fs.download_file("after")
        finally:
            await box.delete()
    said = [json.loads(line) for line in answer.result.splitlines() if line.startswith('{"verdict"')]
    if touched := canaries.find_touched():
        return Finding(Verdict.BREACHED, "; ".join(touched))
    if find_processes(token):
        return Finding(Verdict.BREACHED, "a process outlived the sandbox")
    if after != ("42", b"42"):
        return Finding(Verdict.BREACHED, f"the sandbox no longer works: {after}")
    if len(said) != 1:
        return Finding(Verdict.UNPROVEN, f"no verdict: {answer.exit_code}: {answer.result[-300:]!r}")
    return Finding(Verdict(said[0]["verdict"]), said[0]["evidence"])


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Finding]:
    """What each probe showed that was selected."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    wished = {str(item.callspec.params["name"]) for item in items if item.originalname == "test_contained"}
    probes = [probe for probe in ALL if probe.name in wished]
    found: dict[str, Finding] = {}

    async def run() -> None:
        async with open_server(tmp_path_factory.mktemp("server") / "data") as (url, key):
            with plant() as canaries:
                for probe in probes:
                    if probe.name in BY_THE_SDK_ALONE:
                        found[probe.name] = await attack_plainly(probe, url=url, key=key, canaries=canaries)
                # A probe that could not do its work shows nothing, neither good nor bad: it is asked again.
                for _ in range(TRIES):
                    rest = [probe for probe in probes if not shows_something(found.get(probe.name))]
                    if rest:
                        report = await attack(rest, url=url, key=key, canaries=canaries)
                        found.update({outcome.probe.name: outcome.finding for outcome in report.outcomes})

    asyncio.run(run())
    return found


def set_apart(name: str) -> list[pytest.MarkDecorator]:
    """A bomb may take our backend's agent along, when the kernel chooses it: on a busy machine that shows nothing."""
    return [pytest.mark.backends] if "bomb" in name else []


@pytest.mark.parametrize("name", [pytest.param(probe.name, marks=set_apart(probe.name)) for probe in ALL])
def test_contained(name: str, findings: dict[str, Finding]) -> None:
    finding = findings[name]
    assert finding.verdict is Verdict.HELD, f"{finding.verdict}: {finding.evidence}"
