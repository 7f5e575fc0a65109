"""Environments and tools with a real agent of AG2 and a scripted model."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adapters.ag2.agents import ask
from corral import Environment
from corral.adapters.ag2 import (
    CodeRunResult,
    CorralEnvironment,
    ExecResult,
    LocalEnvironment,
    SandboxCodeTool,
    SandboxShellTool,
    Variable,
    framework,
)

pytestmark = pytest.mark.needs_userns


@pytest.fixture
async def environment() -> AsyncIterator[CorralEnvironment]:
    async with CorralEnvironment() as made:
        yield made


def python(code: str) -> tuple[str, dict[str, Any]]:
    return "run_code", {"code": code, "language": "python"}


def shell(command: str) -> tuple[str, dict[str, Any]]:
    return "run_shell_command", {"command": command}


# The state table of AG2's guide, a test for each row.


async def test_nothing_is_made_before_the_first_call(environment: CorralEnvironment) -> None:
    SandboxCodeTool(environment)
    assert environment.environment.sandbox_ids == ()


async def test_files_persist_between_calls_and_globals_do_not(environment: CorralEnvironment) -> None:
    told = await ask(
        [SandboxCodeTool(environment)],
        python("x = 1; open('a.txt', 'w').write('kept')"),
        python("print(open('a.txt').read())"),
        python("print(x)"),
    )
    assert told[1] == "kept\n"
    assert "NameError" in told[2]
    assert told[2].endswith("[exit code: 1]")


async def test_two_agents_that_share_a_tool_share_the_sandbox(environment: CorralEnvironment) -> None:
    tool = SandboxCodeTool(environment)
    await ask([tool], python("open('a.txt', 'w').write('from the first')"))
    assert await ask([tool], python("print(open('a.txt').read())")) == ["from the first\n"]


async def test_a_new_environment_is_a_new_sandbox(environment: CorralEnvironment) -> None:
    await ask([SandboxCodeTool(environment)], python("open('a.txt', 'w')"))
    async with CorralEnvironment() as other:
        (told,) = await ask([SandboxCodeTool(other)], python("import os; print(os.listdir())"))
    assert told == "[]\n"


async def test_code_and_shell_tool_share_one_environment(environment: CorralEnvironment) -> None:
    tools = [SandboxCodeTool(environment), SandboxShellTool(environment, readonly=True)]
    told = await ask(tools, python("open('a.txt', 'w').write('x')"), shell("cat a.txt"), shell("sh -c 'rm a.txt'"))
    assert told == ["", "x", "Command not allowed: \"sh -c 'rm a.txt'\""]


async def test_after_aclose_the_sandbox_is_gone_and_open_makes_a_new_one(environment: CorralEnvironment) -> None:
    async with environment.open() as first:
        await first.put_file("a.txt", b"x")
    await environment.aclose()
    await environment.aclose()
    async with environment.open() as second:
        assert second.id != first.id
        assert (await second.exec(["ls"])).output == ""


# What AG2's protocols ask for.


async def test_protocols_of_ag2(environment: CorralEnvironment) -> None:
    assert isinstance(environment, framework.get("tools.sandbox", "SandboxFactory"))
    assert isinstance(
        SandboxCodeTool(environment).environment, framework.get("tools.code.environment.base", "CodeEnvironment")
    )


async def test_workdir_is_the_cwd_and_is_told(environment: CorralEnvironment) -> None:
    tool = SandboxShellTool(environment)
    assert str(tool.workdir) == "/workspace"
    assert await ask([tool], shell("pwd")) == ["/workspace\n"]


async def test_sandbox_of_ag2(environment: CorralEnvironment) -> None:
    async with environment.open() as sandbox:
        assert isinstance(sandbox, framework.get("tools.sandbox", "Sandbox"))
        assert await sandbox.exec([]) == ExecResult(output="", exit_code=2)
        assert (await sandbox.exec(["sh", "-c", "echo [$FOO]"], env={"FOO": "x"})).output == "[x]\n"
        assert (await sandbox.exec(["no-such-program"])).exit_code == 127
        result = await sandbox.exec(["sh", "-c", "echo begun; sleep 60"], timeout=3.5)
        assert (result.output, result.exit_code) == (
            "Command timed out after 3.5s; it had printed:\nbegun\n",
            124,
        )
        await sandbox.put_file("folder/a.bin", b"\xff\x00")
        assert await sandbox.get_file("folder/a.bin") == b"\xff\x00"
        await sandbox.remove_file("folder/a.bin")
        await sandbox.remove_file("folder/a.bin")
        for bad in ("/etc/passwd", "../x"):
            with pytest.raises(ValueError, match=r"Absolute paths|Path escapes"):
                await sandbox.put_file(bad, b"")


async def test_tools_of_ag2_itself_run_in_our_environment(environment: CorralEnvironment) -> None:
    code, command = framework.get("tools", "SandboxCodeTool"), framework.get("tools", "SandboxShellTool")
    tools = [code(environment), command(environment, allowed=["cat"])]
    told = await ask(tools, python("open('a.txt', 'w').write('x')"), shell("cat a.txt"), shell("rm a.txt"))
    assert told == ["", "x", "Command not allowed: 'rm a.txt'"]


async def test_environments_of_ag2_itself_run_in_our_tools(tmp_path: Path) -> None:
    environment = framework.get("tools.sandbox", "LocalEnvironment")(tmp_path)
    shell_tool = SandboxShellTool(environment, allowed=["cat"])
    told = await ask(
        [SandboxCodeTool(environment), shell_tool],
        ("run_code", {"code": "echo x > a.txt", "language": "bash"}),
        shell("cat a.txt"),
        shell("rm a.txt"),
    )
    assert told == ["", "x", "Command not allowed: 'rm a.txt'"]
    assert not (await shell_tool.capabilities()).kernel


async def test_a_users_own_code_environment_runs_in_our_tool() -> None:
    class Echo:
        supported_languages = ("python",)

        async def run(self, code: str, language: str, *, context: Any = None) -> Any:
            return CodeRunResult(output=code.upper(), exit_code=0)

    tool = SandboxCodeTool(Echo())
    assert await ask([tool], python("hello")) == ["HELLO"]
    with pytest.raises(ValueError, match="runners"):
        SandboxCodeTool(Echo(), runners={})


async def test_a_plain_environment_of_corral_will_do() -> None:
    async with Environment(env={"A": "b"}) as environment:
        told = await ask([SandboxCodeTool(environment), SandboxShellTool(environment)], shell("echo $A"))
        assert told == ["b\n"]
        assert len(environment.sandbox_ids) == 1


async def test_disabled_language_opens_no_sandbox(environment: CorralEnvironment) -> None:
    runner = SandboxCodeTool(environment, languages=("python",)).environment
    result = await runner.run("ls", "bash")
    assert (result.output, result.exit_code) == ("Language 'bash' is not enabled. Available: ['python']", 2)
    assert environment.environment.sandbox_ids == ()
    with pytest.raises(ValueError, match="No LanguageRunner registered for language 'ocaml'"):
        SandboxCodeTool(environment, languages=("ocaml",))


async def test_variables_are_looked_up_on_each_call() -> None:
    async with CorralEnvironment(env=Variable("settings")) as environment:
        tool = SandboxCodeTool(environment)
        for tenant in ("one", "two"):
            told = await ask(
                [tool],
                python("import os; print(os.environ['TENANT'], os.listdir()); open(os.environ['TENANT'], 'w')"),
                variables={"settings": {"TENANT": tenant}},
            )
            assert told == [f"{tenant} []\n"]
        assert len(environment.environment.sandbox_ids) == 2


async def test_restrictions_hold_whatever_a_command_starts(environment: CorralEnvironment) -> None:
    tool = SandboxShellTool(environment, allowed=["env", "find", "sh"], readonly=True)
    assert (await tool.capabilities()).kernel
    async with environment.open() as sandbox:
        await sandbox.put_file("a.txt", b"x")
    told = await ask(
        [tool],
        shell("env sh -c 'echo y'"),
        shell("sh -c 'echo y > a.txt'"),
        shell("find . -name a.txt -exec rm {} +"),
    )
    assert told[0] == "y\n"
    assert all(text.endswith("[exit code: 2]") or "exit code" in text for text in told[1:])
    async with environment.open() as sandbox:
        assert await sandbox.get_file("a.txt") == b"x"


async def test_local_environment_is_isolated_and_brings_its_folder_back(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("from the host")
    environment = LocalEnvironment(tmp_path)
    told = await ask(
        [SandboxShellTool(environment)], shell("cat in.txt; echo out > out.txt"), shell(f"ls {tmp_path} 2>&1 || true")
    )
    assert told[0] == "from the host"
    assert "No such file" in told[1]
    await environment.aclose()
    assert (tmp_path / "out.txt").read_text() == "out\n"


async def test_local_output_is_cut_with_a_word_about_it() -> None:
    environment = LocalEnvironment(max_output=10)
    try:
        async with environment.open() as sandbox:
            result = await sandbox.exec(["sh", "-c", "echo 0123456789abcdef"])
        assert result.output == "0123456789\n[truncated: showing first 10 of 17 chars]"
    finally:
        await environment.aclose()


@pytest.mark.parametrize("timeout", [0, -1])
def test_bad_timeouts(timeout: float) -> None:
    with pytest.raises(ValueError, match="`timeout` must be > 0"):
        CorralEnvironment(timeout=timeout)
