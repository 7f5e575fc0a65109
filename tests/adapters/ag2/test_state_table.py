"""Which state persists, and between which calls: the table of the guide, a test for each row, on each backend."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.ag2.agents import ask, converse
from corral.adapters.ag2 import (
    CorralEnvironment,
    DaytonaEnvironment,
    DockerEnvironment,
    SandboxCodeTool,
    SandboxShellTool,
    Variable,
)
from corral.adapters.ag2.environments import EnvironmentBase
from support.dockerd import Daemon
from support.project import ROOT

pytestmark = pytest.mark.needs_userns

Make = Callable[..., EnvironmentBase]


@pytest.fixture(
    params=[
        "embedded",
        pytest.param("daytona", marks=pytest.mark.check),
        pytest.param("docker", marks=(pytest.mark.needs_docker, pytest.mark.timeout(240))),
    ]
)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """An environment of each backend."""
    if request.param == "daytona":
        request.getfixturevalue("service")
        return DaytonaEnvironment
    if request.param == "docker":
        daemon: Daemon = request.getfixturevalue("daemon")
        monkeypatch.setenv("CORRAL_DOCKER_HOST", daemon.host)
        return lambda **options: DockerEnvironment(image=daemon.image, **options)
    return lambda env_vars=None, **options: CorralEnvironment(env=env_vars or {}, **options)


def python(code: str) -> tuple[str, dict[str, Any]]:
    return "run_code", {"code": code, "language": "python"}


def shell(command: str) -> tuple[str, dict[str, Any]]:
    return "run_shell_command", {"command": command}


def lines(told: list[str]) -> list[str]:
    """Without the end of the line, which AG2's Docker environment strips."""
    return [text.strip() for text in told]


WRITE = python("open('a.txt', 'w').write('kept')")
READ = python("print(open('a.txt').read())")
LIST = python("import os; print(os.listdir())")


async def test_nothing_was_run_yet(make: Make) -> None:
    async with make() as environment:
        SandboxCodeTool(environment)
        SandboxShellTool(environment, readonly=True)
        assert environment.environment.sandbox_ids == ()
        assert await ask([SandboxShellTool(environment, readonly=True)], shell("rm a.txt"))
        assert environment.environment.sandbox_ids == ()  # what is refused needs none
        await ask([SandboxCodeTool(environment)], LIST)
        assert len(environment.environment.sandbox_ids) == 1


PACKAGES = "/tmp/packages"
INSTALL = f"import os; os.mkdir('{PACKAGES}'); open('{PACKAGES}/a_package.py', 'w').write('word = 1')"
IMPORT = f"import sys; sys.path.append('{PACKAGES}'); import a_package; print(a_package.word)"


async def test_files_and_installed_packages(make: Make) -> None:
    async with make() as environment:
        told = await ask([SandboxCodeTool(environment)], WRITE, READ, python(INSTALL), python(IMPORT))
        assert lines(told) == ["", "kept", "", "1"]


async def test_variables_of_a_snippet(make: Make) -> None:
    async with make() as environment:
        (_, told) = await ask([SandboxCodeTool(environment)], python("x = 1"), python("print(x)"))
        assert "NameError" in told
        assert told.endswith("[exit code: 1]")


async def test_ask_and_ask_of_its_reply(make: Make) -> None:
    async with make() as environment:
        assert lines(await converse([SandboxCodeTool(environment)], WRITE, READ)) == ["", "kept"]
        assert len(environment.environment.sandbox_ids) == 1


async def test_two_agents_with_the_same_tool(make: Make) -> None:
    async with make() as environment:
        tool = SandboxCodeTool(environment)
        await ask([tool], WRITE)
        assert lines(await ask([tool], READ)) == ["kept"]


async def test_the_code_and_the_shell_tool_with_one_environment(make: Make) -> None:
    async with make() as environment:
        tools = [SandboxCodeTool(environment), SandboxShellTool(environment)]
        assert lines(await ask(tools, WRITE, shell("cat a.txt"))) == ["", "kept"]


async def test_two_environments(make: Make) -> None:
    async with make() as environment, make() as other:
        await ask([SandboxCodeTool(environment)], WRITE)
        assert lines(await ask([SandboxCodeTool(other)], LIST)) == ["[]"]


async def test_two_tenants_told_apart_by_a_variable(make: Make) -> None:
    async with make(env_vars=Variable("settings")) as environment:
        tool = SandboxCodeTool(environment)
        for tenant in ("one", "two"):
            code = "import os; print(os.environ['TENANT'], os.listdir()); open(os.environ['TENANT'], 'w')"
            told = await ask([tool], python(code), variables={"settings": {"TENANT": tenant}})
            assert lines(told) == [f"{tenant} []"]
        assert len(environment.environment.sandbox_ids) == 2


async def test_two_conversations(make: Make) -> None:
    async with make() as environment:
        await ask([SandboxCodeTool(environment)], WRITE)
        assert lines(await ask([SandboxCodeTool(environment)], READ)) == ["kept"]
    async with CorralEnvironment(per_conversation=True) as apart:
        await ask([SandboxCodeTool(apart)], WRITE)
        assert lines(await ask([SandboxCodeTool(apart)], LIST)) == ["[]"]


async def test_after_aclose(make: Make) -> None:
    """The end of a program and a crash are in `test_forgotten.py`."""
    environment = make()
    async with environment.open() as first:
        await first.put_file("a.txt", b"x")
    await environment.aclose()
    await environment.aclose()
    assert first.closed
    async with environment.open() as second:
        assert second.id != first.id
        assert (await second.exec(["ls"])).output == ""
    await environment.aclose()


ROWS = {
    "before the first call": test_nothing_was_run_yet,
    "files and installed packages": test_files_and_installed_packages,
    "variables of a snippet": test_variables_of_a_snippet,
    "`ask`, and `ask` of its reply": test_ask_and_ask_of_its_reply,
    "two agents with the same tool": test_two_agents_with_the_same_tool,
    "the code and the shell tool with one environment": test_the_code_and_the_shell_tool_with_one_environment,
    "two environments": test_two_environments,
    "two tenants, told apart by a [variable](#variables)": test_two_tenants_told_apart_by_a_variable,
    "two conversations": test_two_conversations,
    "after `aclose()`, at the end of the program, after a crash": test_after_aclose,
}


def test_every_row_of_the_guide_has_a_test() -> None:
    guide = Path(ROOT / "docs" / "ag2.md").read_text()
    (table,) = re.findall(r"## What persists\n\n\|[^\n]*\n\|[^\n]*\n(.*?)\n\n", guide, re.DOTALL)
    assert [line.split("|")[1].strip() for line in table.splitlines()] == list(ROWS)
