"""Environments and tools with a real agent of AG2 and a scripted model."""

import subprocess
import sys
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
    LocalSandbox,
    SandboxCodeTool,
    SandboxShellTool,
    Variable,
    framework,
)
from corral.adapters.ag2.environments import EnvironmentBase

pytestmark = pytest.mark.needs_userns


@pytest.fixture
async def environment() -> AsyncIterator[CorralEnvironment]:
    async with CorralEnvironment() as made:
        yield made


def python(code: str) -> tuple[str, dict[str, Any]]:
    return "run_code", {"code": code, "language": "python"}


def shell(command: str) -> tuple[str, dict[str, Any]]:
    return "run_shell_command", {"command": command}


# What AG2's protocols ask for.


async def test_what_ag2_has_from_the_host_is_brought_into_a_local_environment(tmp_path: Path) -> None:
    library = tmp_path / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    library.mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").touch()
    (library / "house_rules.py").write_text("limit = 3\n")
    environment = LocalEnvironment(venv=tmp_path, packages=["hello"], network="packages")
    spec = environment.environment.resolve()
    assert (spec.packages, str(spec.network)) == (("hello",), "packages")
    async with LocalEnvironment(venv=tmp_path) as made, made.open() as sandbox:
        ended = await sandbox.exec(["python3", "-c", "import house_rules; print(house_rules.limit)"])
    assert ended.output.strip() == "3"


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


@pytest.mark.needs_git
async def test_settings_of_git_are_not_brought_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The user's next `git status` in the folder would run what they say."""
    ran, work = tmp_path / "ran", tmp_path / "work"
    subprocess.run(["git", "init", "-q", work], check=True)
    before = (work / ".git/config").read_text()
    environment = LocalEnvironment(work)
    command = (
        f"git config core.fsmonitor 'touch {ran}' && git -c user.name=n -c user.email=e@example.org "
        "-c core.fsmonitor= commit -q --allow-empty -m inside"
    )
    await ask([SandboxShellTool(environment)], shell(command))
    await environment.aclose()
    assert (work / ".git/config").read_text() == before
    told = subprocess.run(["git", "-C", work, "log", "--format=%s"], check=True, capture_output=True, text=True).stdout
    assert told == "inside\n"
    subprocess.run(["git", "-C", work, "status"], check=True, stdout=subprocess.DEVNULL)
    assert not ran.exists()
    assert "'.git/config'" in caplog.text
    assert "git_settings=True" in caplog.text


async def test_a_folder_is_brought_back_from_each_tenants_sandbox(tmp_path: Path) -> None:
    environment = EnvironmentBase(timeout=30, folder=tmp_path, env=Variable("settings"), workdir="/workspace")
    for tenant in ("one", "two"):
        async with environment.open({"settings": {"TENANT": tenant}}) as sandbox:
            await sandbox.exec(["sh", "-c", "echo $TENANT > $TENANT.txt"])
    await environment.aclose()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.txt", "two.txt"]


FORGETS = """
import asyncio, sys
from corral.adapters.ag2 import LocalEnvironment

environment = LocalEnvironment(sys.argv[1])

async def main():
    async with environment.open() as sandbox:
        await sandbox.exec(["sh", "-c", "mkdir new; echo out > new/out.txt"])

asyncio.run(main())
"""


def test_a_folder_is_brought_back_when_a_program_forgets_to_close(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORGETS, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "new" / "out.txt").read_text() == "out\n"


# What a model is told.

Rules = dict[str, Any]


@pytest.mark.parametrize("rules", [{}, {"allowed": ["printf", "head"]}], ids=["shell", "restricted"])
async def test_what_a_model_reads_is_bounded_and_harmless(environment: CorralEnvironment, rules: Rules) -> None:
    tools = [SandboxCodeTool(environment), SandboxShellTool(environment, **rules)]
    told = await ask(
        tools,
        python("print('a' * 5_000_000); raise SystemExit(3)"),
        python("print('\\x1b[31mred\\x1b[0m \\x07 \\u202e')"),
        shell("head -c 5000000 /dev/zero"),
    )
    assert len(told[0]) <= 101_000
    assert "left out" in told[0]
    assert told[0].endswith("[exit code: 3]")
    assert told[1] == "red \u2407 <U+202E>\n"
    assert len(told[2]) <= 101_000


async def test_an_environments_own_wider_bound_holds() -> None:
    async with LocalEnvironment(max_output=200_000) as environment:
        (told,) = await ask([SandboxCodeTool(environment)], python("print('a' * 300_000)"))
    assert told == "a" * 200_000 + "\n[truncated: showing first 200000 of 300000 chars]"


@pytest.mark.parametrize("rules", [{}, {"blocked": ["rm"]}], ids=["shell", "restricted"])
async def test_what_a_model_can_mend_is_told_to_it(environment: CorralEnvironment, rules: Rules) -> None:
    tool = SandboxShellTool(environment, **rules)
    (told,) = await ask([tool], shell("echo a\0b"))
    assert "NUL byte" in told
    assert told.endswith("[exit code: 1]")


async def test_an_empty_command_is_one_that_does_nothing(environment: CorralEnvironment) -> None:
    assert await ask([SandboxShellTool(environment)], shell(""), shell("  ")) == ["", ""]


async def test_rules_hold_in_a_sandbox_that_stands_alone() -> None:
    async with LocalSandbox() as sandbox:
        tool = SandboxShellTool(sandbox, allowed=["sh"], readonly=True)
        assert (await tool.capabilities()).kernel
        await sandbox.put_file("a.txt", b"x")
        (told,) = await ask([tool], shell("sh -c 'rm -f a.txt'"))
        assert "[exit code: " in told
        assert await sandbox.get_file("a.txt") == b"x"


async def test_a_name_may_be_given_by_its_place(environment: CorralEnvironment) -> None:
    tool = SandboxCodeTool(environment, "my_tool")
    assert tool.name == "my_tool"
    assert await ask([tool], ("my_tool", {"code": "print(1)", "language": "python"})) == ["1\n"]


async def test_local_output_is_cut_with_a_word_about_it() -> None:
    environment = LocalEnvironment(max_output=10)
    try:
        async with environment.open() as sandbox:
            result = await sandbox.exec(["sh", "-c", "echo 0123456789abcdef"])
        assert result.output == "0123456789\n[truncated: showing first 10 of 16 chars]"
    finally:
        await environment.aclose()


@pytest.mark.parametrize("timeout", [0, -1])
def test_bad_timeouts(timeout: float) -> None:
    with pytest.raises(ValueError, match="`timeout` must be > 0"):
        CorralEnvironment(timeout=timeout)
