"""The hostile suite through both ends of the wire: the official SDK on one side, `corral`'s server on the other.

The server makes small sandboxes, so that a bomb beyond their limits is a small bomb; the wire itself counts in GiB.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from daytona import AsyncDaytona, CodeRunParams, DaytonaConfig

from corral.backends.daytona import DaytonaBackend
from corral.backends.embedded import EmbeddedBackend
from corral.client.sandbox import AsyncSandbox
from corral.results import Event
from corral.server.app import opened
from corral.server.serving import listening
from corral.server.settings import ServerSettings
from corral.spec import Spec
from corral.testing.hostile import ALL, RESOURCES, Canaries, Finding, Probe, Verdict, besiege, plant
from corral.testing.hostile.canary import find_processes
from corral.testing.hostile.prelude import compose
from corral.testing.hostile.run import Siege

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(900)]

BY_THE_SDK_ALONE = {
    "kill-whoever-serves-the-host": "the agent of our backend is of the programs' own user, and goes down with them",
    "open-terminals-of-others": "the agent of our backend talks over a terminal, which is there to be seen",
}
"""The other probes are run by our backend, which is built on the SDK; these by the SDK's own calls, as nothing but the
server's own means may be in the sandbox. What becomes of the agent that is killed is tested beside the backend."""


TRIES = 3
BY_NAME = {probe.name: probe for probe in ALL}


class SmallBackend(EmbeddedBackend):
    """Whatever is asked for, a sandbox is small."""

    async def create(self, spec: Spec, *, on_event: Callable[[Event], None] | None = None) -> AsyncSandbox:
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


@dataclass(frozen=True)
class Place:
    """A server, something to find on the host, and an attack on sandboxes of that server."""

    url: str
    key: str
    canaries: Canaries
    siege: Siege

    async def try_probe(self, name: str) -> Finding:
        probe = BY_NAME[name]
        if name in BY_THE_SDK_ALONE:
            return await attack_plainly(probe, url=self.url, key=self.key, canaries=self.canaries)
        for _ in range(TRIES):
            finding = (await self.siege.try_probe(probe)).finding
            if finding.verdict is not Verdict.UNPROVEN:
                break  # one that could not do its work shows nothing, neither good nor bad: it is asked again
        return finding


@asynccontextmanager
async def open_place(folder: Path, canaries: Canaries) -> AsyncIterator[Place]:
    async with open_server(folder) as (url, key):
        backend = DaytonaBackend(api_key=key, api_url=url)
        try:
            make: Any = partial(AsyncSandbox, backend=backend, resources=RESOURCES)
            async with make() as sandbox, besiege(sandbox, canaries=canaries, make=make) as siege:
                yield Place(url, key, canaries, siege)
        finally:
            await backend.aclose()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all of the file: the server and the sandboxes live in it between the tests."""
    with asyncio.Runner() as opened:
        yield opened


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, runner: asyncio.Runner) -> Iterator[Place]:
    with plant() as canaries:
        opening = open_place(tmp_path_factory.mktemp("server") / "data", canaries)
        yield runner.run(opening.__aenter__())
        runner.run(opening.__aexit__(None, None, None))


def set_apart(name: str) -> list[pytest.MarkDecorator]:
    """A bomb may take our backend's agent along, when the kernel chooses it: on a busy machine that shows nothing."""
    return [pytest.mark.backends] if "bomb" in name else [pytest.mark.check]


@pytest.mark.parametrize("name", [pytest.param(probe.name, marks=set_apart(probe.name)) for probe in ALL])
def test_contained(name: str, runner: asyncio.Runner, place: Place) -> None:
    finding = runner.run(place.try_probe(name))
    if "bomb" in name and finding.verdict is Verdict.UNPROVEN and "was ended" in finding.evidence:
        pytest.xfail("the kernel chose our backend's agent, and the bomb went with it: nothing is shown")
    assert finding.verdict is Verdict.HELD, f"{finding.verdict}: {finding.evidence}"
