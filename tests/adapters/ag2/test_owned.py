"""Sandboxes that stand alone: `DaytonaSandbox` with the SDK's own client and parameters, and the others."""

import asyncio
from pathlib import Path

import pytest
from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams, DaytonaConfig, Resources
from daytona import CreateSandboxFromImageParams as FromImage

from adapters.ag2.agents import ask
from adapters.ag2.conftest import Living
from corral.adapters.ag2 import (
    DaytonaEnvironment,
    DaytonaResources,
    DaytonaSandbox,
    DockerEnvironment,
    DockerSandbox,
    ExecResult,
    LocalSandbox,
    SandboxCodeTool,
    SandboxShellTool,
    framework,
)
from corral.adapters.ag2.service import ServiceBackend, fields_of
from corral.spec import make_spec
from support.dockerd import Daemon
from support.serving import ServedProcess, make_client

pytestmark = pytest.mark.needs_userns


def client_of(server: ServedProcess) -> AsyncDaytona:
    return AsyncDaytona(DaytonaConfig(api_url=server.url, api_key=server.key))


async def test_a_client_and_parameters_of_the_sdk(server: ServedProcess, living: Living) -> None:
    before = living()
    params = CreateSandboxFromSnapshotParams(
        name="Mine, by name", env_vars={"A": "1"}, labels={"team": "red"}, auto_stop_interval=0
    )
    sandbox = DaytonaSandbox(client=client_of(server), params=params, timeout=30)
    assert await sandbox.exec([]) == ExecResult("", 2)
    assert living() == before  # nothing is made before it is needed
    async with sandbox as entered:
        assert entered is sandbox
        assert "Mine, by name" in living()
        told = make_client(server).get("Mine, by name")
        assert told.labels["team"] == "red"
        assert told.auto_stop_interval  # 0 would be for ever
        assert isinstance(sandbox, framework.get("tools.sandbox", "Sandbox"))
        result = await sandbox.exec(["sh", "-c", "echo $A$B; pwd"], env={"B": "2"})
        assert result == ExecResult("12\n/workspace\n", 0)
        await sandbox.put_file("new/a.bin", b"\xff")
        assert await sandbox.get_file("new/a.bin") == b"\xff"
    assert sandbox.closed
    assert living() == before
    await sandbox.aclose()
    with pytest.raises(RuntimeError, match=r"^DaytonaSandbox has been closed\.$"):
        await sandbox.exec(["ls"])


def test_one_sandbox_for_several_event_loops_and_tasks(server: ServedProcess, living: Living) -> None:
    before = living()

    async def make() -> DaytonaSandbox:
        return DaytonaSandbox(client=client_of(server), params=None, timeout=30)

    sandbox = asyncio.run(make())

    async def use() -> None:
        results = await asyncio.gather(*(sandbox.exec(["echo", str(number)]) for number in range(4)))
        assert [result.output for result in results] == ["0\n", "1\n", "2\n", "3\n"]

    asyncio.run(use())
    assert len(living()) == len(before) + 1
    asyncio.run(use())
    asyncio.run(sandbox.aclose())
    assert living() == before


def test_what_the_sdk_is_asked_for() -> None:
    given = FromImage(image="python:3.12", resources=Resources(cpu=2), auto_delete_interval=60, public=True)
    fields = fields_of(given)
    backend = ServiceBackend(api_key="x", fields=fields)
    params = backend._params(make_spec(image="python:3.12"), {"corral.owned": "true"}, None)
    assert (params.image, params.resources, params.public) == ("python:3.12", Resources(cpu=2), True)
    assert params.auto_delete_interval == 60
    assert params.auto_stop_interval
    assert params.network_block_all is None  # the network is the service's choice, as in AG2's own
    plain = ServiceBackend(api_key="x")._params(make_spec(image="python:3.12"), {}, None)
    assert plain.resources is None


@pytest.mark.parametrize(
    "wanted", [{"cpus": 2, "memory": "1g"}, {"cpu": 2, "memory": 1}, Resources(cpu=2, memory=1), DaytonaResources(2, 1)]
)
def test_limits_may_be_anybodys(wanted: object) -> None:
    params = ServiceBackend(api_key="x", limits=wanted)._params(make_spec(image="python:3.12"), {}, None)
    assert params.resources == Resources(cpu=2, memory=1)
    given = DaytonaEnvironment(api_key="x", image="python:3.12", resources=wanted)  # type: ignore[arg-type]
    assert given.environment.resolve(None).resources.memory == 1 << 30


def test_memory_in_dockers_words_is_what_docker_gives() -> None:
    for mem_limit in ("512m", "512mb", 536_870_912):
        environment = DockerEnvironment(mem_limit=mem_limit)
        assert environment.environment.resolve(None).resources.memory == 536_870_912


async def test_a_local_one_is_isolated(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("from the host")
    async with LocalSandbox(tmp_path, env_vars={"A": "1"}) as sandbox:
        result = await sandbox.exec(["sh", "-c", f"cat in.txt; echo $A > out.txt; ls {tmp_path}"])
        assert result.output.startswith("from the host")
        assert "No such file" in result.output
    assert (tmp_path / "out.txt").read_text() == "1\n"


@pytest.mark.needs_docker
async def test_a_container(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_DOCKER_HOST", daemon.host)
    async with DockerSandbox(image=daemon.image, env_vars={"A": "1"}) as sandbox:
        assert await sandbox.exec(["sh", "-c", "echo $A; pwd"]) == ExecResult("1\n/workspace", 0)


async def test_tools_take_one(server: ServedProcess) -> None:
    async with DaytonaSandbox(client=client_of(server), params=None) as sandbox:
        shell = SandboxShellTool(sandbox, allowed=["echo"])
        assert not (await shell.capabilities()).kernel
        assert await ask(
            [shell, SandboxCodeTool(sandbox)],
            ("run_shell_command", {"command": "echo hello"}),
            ("run_code", {"code": "print(6 * 7)", "language": "python"}),
        ) == ["hello\n", "42\n"]
