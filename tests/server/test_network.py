"""What sandboxes of a server may reach: the operator's ceiling, the SDK's settings beneath it, and what was refused.

Nothing here reaches a network: the backend is the fake, or nothing but names under `.invalid` is tried.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams, DaytonaConfig, DaytonaError

from corral import AsyncSandbox
from corral.backends.daytona import DaytonaBackend
from corral.backends.memory import MemoryBackend
from corral.cli import main
from corral.errors import CapabilityError, PolicyError
from corral.results import Denial
from corral.server.app import Server, opened
from corral.server.serving import listening
from corral.server.settings import ServerSettings
from corral.spec import NetworkPolicy, Spec
from support.serving import ServedProcess, make_client, served


class Fake(MemoryBackend):
    """A machine with one registry."""

    async def registries(self) -> tuple[str, ...]:
        return ("*.registry.test",)


class Running:
    """A server in this process, on the fake."""

    def __init__(self, server: Server, url: str, backend: Fake) -> None:
        self.server, self.url, self.backend = server, url, backend

    def client(self, network: str | None = None) -> AsyncDaytona:
        """The official client, with a key of its own ceiling."""
        keyring = self.server.keyring
        ceiling = NetworkPolicy.parse(network) if network is not None else None
        name = f"key-{len(keyring.keys)}"
        _, key = keyring.create(organisation=keyring.organisation_named("default"), name=name, network=ceiling)
        return AsyncDaytona(DaytonaConfig(api_url=self.url, api_key=key))

    def reached(self, sandbox_id: str) -> str:
        """What the sandbox may reach, as its backend knows it."""
        sandbox = self.server.sandboxes.find(sandbox_id, organisation_id=None)
        assert sandbox.handle is not None
        return str(sandbox.handle.box.spec.network)


Run = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    backend = Fake()

    @contextlib.asynccontextmanager
    async def run_one(network: str = "none") -> AsyncIterator[Running]:
        policy = NetworkPolicy.parse(network)
        settings = ServerSettings(data_folder=tmp_path / "data", port=0, backend="memory", network=policy)
        async with opened(settings, backend=backend) as server, listening(server) as url:
            yield Running(server, url, backend)

    return run_one


def wish(**options: Any) -> CreateSandboxFromSnapshotParams:
    return CreateSandboxFromSnapshotParams(**options)


async def test_without_a_flag_there_is_no_network_and_the_usual_create_works(run: Run) -> None:
    async with run() as running, running.client() as daytona:
        box = await daytona.create()
        assert (running.reached(box.id), box.network_block_all, box.network_allow_list) == ("none", False, None)
        blocked = await daytona.create(wish(network_block_all=True))
        assert (running.reached(blocked.id), blocked.network_block_all) == ("none", True)
        for refused in ({"domain_allow_list": "a.org"}, {"network_allow_list": "10.0.0.0/8"}):
            with pytest.raises(DaytonaError) as caught:
                await daytona.create(wish(**refused))
            assert caught.value.status_code == 403
            assert "this API key may reach nothing" in str(caught.value)
            assert "corral serve --network" in str(caught.value)
        await box.update_network_settings(network_block_all=True)
        await box.update_network_settings(network_block_all=False)
        assert running.reached(box.id) == "none"


async def test_flag_is_the_default_and_lists_are_beneath_it(run: Run) -> None:
    async with run("packages,a.org") as running, running.client() as daytona:
        box = await daytona.create()
        assert running.reached(box.id) == "packages,a.org"
        listed = await daytona.create(wish(domain_allow_list="pip.registry.test, a.org"))
        assert running.reached(listed.id) == "pip.registry.test,a.org"
        assert (listed.network_block_all, listed.domain_allow_list) == (False, "pip.registry.test, a.org")
        for beyond in ({"domain_allow_list": "a.org,b.org"}, {"network_allow_list": "9.9.9.0/24"}):
            with pytest.raises(DaytonaError) as caught:
                await daytona.create(wish(**beyond))
            assert caught.value.status_code == 403
            assert "may reach package registries, a.org" in str(caught.value)
            with pytest.raises(DaytonaError):
                await listed.update_network_settings(**beyond)
        assert running.reached(listed.id) == "pip.registry.test,a.org"


async def test_key_has_a_ceiling_of_its_own(run: Run) -> None:
    async with run("packages") as running, running.client("open") as broad, running.client("none") as narrow:
        box = await broad.create()
        assert running.reached(box.id) == "open"
        listed = await broad.create(wish(domain_allow_list="*.a.org", network_allow_list="9.9.9.9/16"))
        assert running.reached(listed.id) == "9.9.0.0/16,*.a.org"
        with pytest.raises(DaytonaError) as caught:
            await broad.create(wish(network_allow_list="10.0.0.0/8"))
        assert caught.value.status_code == 403
        assert running.reached((await narrow.create()).id) == "none"
        theirs = await narrow.get(box.id)
        with pytest.raises(DaytonaError):
            await theirs.update_network_settings(domain_allow_list="a.org")
        await theirs.update_network_settings(network_block_all=False)  # "no restriction", beneath its own ceiling
        assert running.reached(box.id) == "none"


async def test_a_change_of_nothing_changes_nothing(run: Run) -> None:
    async with run("open") as running, running.client() as daytona, aiohttp.ClientSession() as session:
        box = await daytona.create(wish(domain_allow_list="a.org"))
        _, key = running.server.keyring.create(
            organisation=running.server.keyring.organisation_named("default"), name="raw"
        )
        for body in ({}, {"networkBlockAll": None}):
            async with session.post(
                f"{running.url}/sandbox/{box.id}/network-settings",
                json=body,
                headers={"Authorization": f"Bearer {key}"},
            ) as response:
                assert response.status == 400, await response.text()
        assert running.reached(box.id) == "a.org"


async def test_settings_change_while_it_runs_and_are_shown(run: Run) -> None:
    async with run("open") as running, running.client() as daytona:
        box = await daytona.create()

        async def change(**settings: Any) -> str:
            await box.update_network_settings(**settings)
            seen = await daytona.get(box.id)
            assert (seen.network_block_all, seen.network_allow_list, seen.domain_allow_list) == (
                box.network_block_all, box.network_allow_list, box.domain_allow_list,
            )  # fmt: skip
            return running.reached(box.id)

        assert await change(network_block_all=True) == "none"
        assert await change(domain_allow_list="a.org") == "a.org"
        assert box.network_block_all is False
        assert await change(network_allow_list="9.9.9.0/24") == "9.9.9.0/24,a.org"
        assert await change(domain_allow_list="") == "9.9.9.0/24"
        assert await change(network_block_all=False) == "open"
        assert (box.network_allow_list, box.domain_allow_list) == (None, None)
        assert await change(network_block_all=True, domain_allow_list="a.org") == "none"
        with pytest.raises(DaytonaError, match="no entry"):  # an empty list is no way to ask for more
            await daytona.create(wish(domain_allow_list=""))
        for wrong in (
            {"domain_allow_list": ""},
            {"network_allow_list": "10.0.0.1"},
            {"domain_allow_list": "localhost"},
        ):
            with pytest.raises(DaytonaError) as caught:
                await change(**wrong)
            assert caught.value.status_code == 400
        assert running.reached(box.id) == "none"
        with pytest.raises(DaytonaError, match=r"outboundProxyUrl \(sandboxes use the proxy"):
            await daytona.create(wish(outbound_proxy_url="http://127.0.0.1:9"))


async def test_next_server_applies_a_lower_ceiling_to_what_runs_already(run: Run) -> None:
    async with run("open") as running, running.client() as daytona, running.client("open") as own:
        ids = [
            (await daytona.create()).id,
            (await daytona.create(wish(domain_allow_list="x.registry.test"))).id,
            (await daytona.create(wish(domain_allow_list="a.org"))).id,
            (await own.create(wish(domain_allow_list="a.org"))).id,
        ]
    async with run("packages") as running, running.client() as daytona:
        for sandbox_id in ids:
            await (await daytona.get(sandbox_id)).process.exec("true")
        assert [running.reached(each) for each in ids] == ["packages", "x.registry.test", "none", "a.org"]
        assert (await daytona.get(ids[2])).domain_allow_list == "a.org"  # for a later server that permits it
    async with run("open") as running, running.client() as daytona:
        await (await daytona.get(ids[2])).process.exec("true")
        assert running.reached(ids[2]) == "a.org"


async def test_ceiling_that_the_backend_lacks_is_refused_at_the_start(tmp_path: Path) -> None:
    class Poor(MemoryBackend):
        async def capabilities(self):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            return replace(await super().capabilities(), network=("none",))

    settings = ServerSettings(data_folder=tmp_path, port=0, backend="memory", network=NetworkPolicy("packages"))
    with pytest.raises(CapabilityError, match="--network packages"):
        async with opened(settings, backend=Poor()):
            pass


async def test_what_was_refused_is_in_the_log_and_the_metrics(
    run: Run, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="corral.server")
    async with run("a.org") as running, running.client() as daytona:
        box = await daytona.create()
        denied = [Denial("b.org", 443, "policy", 3), Denial("\x1b[2Jx\n\u202e", None, "private"), Denial("c", 1, "new")]
        running.backend.reply(re.compile("fetch"), stdout="out\n", denied=denied)
        assert (await box.process.exec("fetch")).result == "out\n"
        await box.process.exec("true")
        told = [record.fields for record in caplog.records if record.message == "network refused"]  # type: ignore[attr-defined]
        assert [(each["sandbox"], each["host"], each["port"], each["rule"], each["count"]) for each in told] == [
            (box.id, "b.org", 443, "policy", 3), (box.id, r"'\x1b[2Jx\n\u202e'", None, "private", 1),
            (box.id, "c", 1, "new", 1),
        ]  # fmt: skip
        many = [Denial(f"h{number}.org", 443, "policy") for number in range(300)]
        running.backend.reply(re.compile("scan"), denied=many)
        await box.process.exec("scan")
        assert sum(record.message == "network refused" for record in caplog.records) == 23
        (more,) = (record for record in caplog.records if record.message == "network refused more")
        assert more.fields["count"] == 280  # type: ignore[attr-defined]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{running.url.removesuffix('/api')}/metrics") as response,
        ):
            metrics = await response.text()
        assert 'corral_network_denied_total{rule="policy"} 303' in metrics
        assert 'corral_network_denied_total{rule="other"} 1' in metrics
        assert "org" not in metrics


# A real one.


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with served(tmp_path_factory.mktemp("open") / "data", arguments=("--network", "permitted.invalid")) as running:
        yield running


LOOK_UP = """
import socket
try:
    socket.getaddrinfo("refused.invalid", 443)
except OSError as error:
    print(type(error).__name__)
"""


def test_engine_of_a_server_refuses_what_is_not_listed_and_says_so(open_server: ServedProcess) -> None:
    daytona = make_client(open_server)
    box = daytona.create()
    try:
        assert box.process.code_run(LOOK_UP).result == "gaierror\n"
        box.update_network_settings(network_block_all=True)
        assert box.process.code_run(LOOK_UP).result == "gaierror\n"
        box.stop()
        box.start()
        assert daytona.get(box.id).network_block_all is True
        assert box.process.code_run(LOOK_UP).result == "gaierror\n"
    finally:
        daytona.delete(box)
    told = [json.loads(line) for line in open_server.log.splitlines() if '"network refused"' in line]
    mine = [(each["host"], each["rule"]) for each in told if each["sandbox"] == box.id]
    assert ("refused.invalid", "policy") in mine
    assert ("refused.invalid", "no network") in mine
    assert mine[-1] == ("refused.invalid", "no network")


def test_keys_are_made_with_a_ceiling_and_listed(
    open_server: ServedProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--data-dir", str(open_server.data_folder))
    assert main(["key", "create", *where, "--name", "closed", "--network", "none", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["network"] == "none"
    assert main(["key", "create", *where, "--name", "odd", "--network", "none,a.org"]) == 2
    assert "asks for more than one thing" in capsys.readouterr().err
    assert main(["key", "list", *where, "--json"]) == 0
    listed = {each["name"]: each["network"] for each in json.loads(capsys.readouterr().out)}
    assert (listed["closed"], listed["first"]) == ("none", None)
    assert main(["key", "list", *where]) == 0
    assert "as serve" in capsys.readouterr().out

    async def create() -> None:
        async with AsyncDaytona(DaytonaConfig(api_url=open_server.url, api_key=made["key"])) as daytona:
            with pytest.raises(DaytonaError) as caught:
                await daytona.create(wish(domain_allow_list="permitted.invalid"))
            assert caught.value.status_code == 403

    asyncio.run(create())


async def test_our_own_backend_asks_for_lists_beneath_the_ceiling(open_server: ServedProcess) -> None:
    backend = DaytonaBackend(api_key=open_server.key, api_url=open_server.url)
    assert (await backend.capabilities()).network == ("none", "allow", "open")
    async with AsyncSandbox(backend=backend, network=["permitted.invalid"]) as box:
        for wanted in ("none", "permitted.invalid"):
            await box.set_network(wanted)
            assert str((await backend.connect(await box.detach())).spec.network) == str(box.spec.network) == wanted
        with pytest.raises(PolicyError, match="is not permitted"):
            await box.set_network("elsewhere.invalid")
        assert str(box.spec.network) == "permitted.invalid"
        await box.primitives.kill()
    with pytest.raises(PolicyError):
        await backend.create(Spec(network=NetworkPolicy("allow", ("elsewhere.invalid",))))
    with pytest.raises(CapabilityError, match="list the hosts"):
        await backend.create(Spec(network=NetworkPolicy("packages")))
    async with await backend.create(Spec(network=NetworkPolicy("open"))) as box:  # what the server gives by default
        assert (await box.exec("getent hosts elsewhere.invalid")).exit_code != 0
    await backend.aclose()
