"""Each weak point of AG2's own classes, by its number: ours do not have it."""

import asyncio
import contextlib
import copy
import logging
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from daytona import CreateSandboxFromSnapshotParams, Daytona

from adapters.ag2.conftest import Kind, Living
from corral import SandboxGoneError
from corral.adapters.ag2 import (
    CodeBlock,
    CorralEnvironment,
    DaytonaCodeEnvironment,
    DaytonaCodeExecutor,
    DaytonaEnvironment,
    LocalEnvironment,
    MarkdownCodeExtractor,
    SandboxCodeExecutor,
    SandboxCodeTool,
    SandboxShellTool,
    Variable,
)
from corral.adapters.ag2.environments import EnvironmentBase
from corral.client.sync import Sandbox
from support.serving import ServedProcess, make_client

pytestmark = pytest.mark.needs_userns


def run(executor: Any, *blocks: tuple[str, str]) -> Any:
    return executor.execute_code_blocks([CodeBlock(code=code, language=language) for language, code in blocks])


@pytest.fixture
def hasty(service: ServedProcess) -> Iterator[DaytonaCodeExecutor]:
    """One whose blocks have little time."""
    with DaytonaCodeExecutor(timeout=3) as made:
        yield made


@pytest.fixture(scope="module")
def embedded() -> Iterator[SandboxCodeExecutor]:
    with SandboxCodeExecutor(timeout=30, aliases={"console": "bash"}) as made:
        yield made


# The classic executor.


def test_1e1_a_timeout_of_python_is_told_as_one(hasty: DaytonaCodeExecutor) -> None:
    result = run(hasty, ("python", "import time; time.sleep(60)"))
    assert (result.exit_code, result.output) == (1, "Execution timed out: no end after 3 seconds")


def test_1e2_what_was_printed_before_a_timeout_is_kept(hasty: DaytonaCodeExecutor) -> None:
    for block in (
        ("python", "print('begun', flush=True); import time; time.sleep(60)"),
        ("sh", "echo begun; sleep 60"),
    ):
        result = run(hasty, block)
        assert result.output.startswith("Execution timed out: ")
        assert result.output.endswith("begun\n")
        assert result.blocks[0].timed_out
        assert result.blocks[0].result.exit_code == 124


def test_1e3_no_script_is_left_behind(hasty: DaytonaCodeExecutor) -> None:
    run(hasty, ("sh", "sleep 60"))
    run(hasty, ("python", "import time; time.sleep(60)"))
    assert hasty.sandbox.files.list("/tmp") == []


def test_1e4_what_came_before_a_failure_is_kept(hasty: DaytonaCodeExecutor) -> None:
    result = run(hasty, ("sh", "echo one"), ("sh", "echo two; exit 3"))
    assert [(block.output, block.exit_code) for block in result.blocks] == [("one\n", 0), ("two\n", 3)]
    result = run(hasty, ("sh", "echo one"), ("cobol", "x"))
    assert [block.exit_code for block in result.blocks] == [0, 1]


def test_1e5_streams_are_apart_and_output_is_bounded() -> None:
    with SandboxCodeExecutor(timeout=60, output_limit_bytes=10_000) as executor:
        (block,) = run(executor, ("sh", "echo out; echo err >&2")).blocks
        assert (block.result.stdout, block.result.stderr) == ("out\n", "err\n")
        result = run(executor, ("python", "print('x' * 30_000_000)"))
        assert result.exit_code == 0
        assert len(result.output) < 20_000
        assert result.blocks[0].result.truncated


def test_1e6_after_delete_the_error_says_what_to_do(service: ServedProcess, living: Living) -> None:
    executor = DaytonaCodeExecutor(name="deleted")
    executor.delete()
    for blocks in ([], [CodeBlock(code="ls", language="sh")]):
        with pytest.raises(Exception, match=r"restart\(\) creates a new one"):
            executor.execute_code_blocks(blocks)
    executor.restart()
    assert run(executor, ("sh", "echo back")).output == "back\n"
    del executor  # and it is cleared up as before
    wait_until(lambda: "deleted" not in living())


def test_1e7_a_restart_waits_until_its_name_is_free(server: ServedProcess) -> None:
    client = make_client(server)
    with DaytonaCodeExecutor(server.key, server.url, name="taken") as executor:
        executor.delete()
        other = client.create(CreateSandboxFromSnapshotParams(name="taken"))
        timer = threading.Timer(1.0, lambda: client.delete(other))
        timer.start()
        executor.restart()
        timer.join()
        assert run(executor, ("sh", "echo new")).output == "new\n"


def test_1e8_the_service_ends_it_when_nobody_else_does(server: ServedProcess, hasty: DaytonaCodeExecutor) -> None:
    told = make_client(server).get(str(hasty.sandbox_id))
    assert told.auto_stop_interval is not None
    assert 0 < told.auto_stop_interval <= 60
    assert told.auto_delete_interval == 0  # as soon as it is stopped


def test_1e9_it_can_be_copied_and_used_from_threads(embedded: SandboxCodeExecutor) -> None:
    assert copy.deepcopy({"executor": embedded})["executor"] is embedded
    outputs: list[str] = []

    def use(number: int) -> None:
        outputs.append(run(embedded, ("python", f"print({number})")).output)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs) == ["0\n", "1\n", "2\n", "3\n"]


def test_1e10_more_languages_and_where_they_run(embedded: SandboxCodeExecutor) -> None:
    for language in ("python3", "Python", "console", "zsh", "shell"):
        code = "print('ran')" if "ython" in language else "echo ran"
        result = run(embedded, (language, code))
        assert (result.exit_code, result.output) == (0, "ran\n"), language
    with SandboxCodeExecutor(env={"A": "1"}, workdir="/workspace/here") as placed:
        assert run(placed, ("bash", "echo $A; pwd")).output == "1\n/workspace/here\n"


@pytest.mark.parametrize(
    ("text", "language", "code"),
    [
        ("```python title=x\nprint(1)\n```", "python", "print(1)"),
        ("```c++\nint x;\n```", "c++", "int x;"),
        ("~~~sh\nls\n~~~", "sh", "ls"),
        ("```sh\n```", "sh", ""),
        ("````md\n```sh\nls\n```\n````", "md", "```sh\nls\n```"),
    ],
    ids=["info", "sign", "tilde", "empty", "nested"],
)
def test_1e11_fences_as_models_write_them(text: str, language: str, code: str) -> None:
    (block,) = MarkdownCodeExtractor().extract_code_blocks(text)
    assert (block.language, block.code) == (language, code)


def test_1e12_a_sandbox_that_could_not_be_deleted_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    executor = SandboxCodeExecutor()
    box = executor.sandbox

    def refuse(self: Sandbox) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "corral.ag2"):
        patch.setattr(Sandbox, "kill", refuse)
        executor.delete()
    assert box.id in caplog.text
    box.kill()


# Environments.


def test_2e1_what_is_forgotten_is_deleted_at_the_exit(service: ServedProcess, living: Living) -> None:
    before = living()
    program = """
import asyncio
from corral.adapters.ag2 import DaytonaEnvironment

async def main():
    async with DaytonaEnvironment(env_vars={"A": "1"}).open() as sandbox:
        print((await sandbox.exec(["sh", "-c", "echo $A"])).output)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout == "1\n\n", done.stderr
    wait_until(lambda: living() == before)


def test_2e2_one_environment_in_two_event_loops(kind: Kind) -> None:
    environment = kind.make(timeout=30)

    async def use(*argv: str) -> str:
        async with environment.open() as sandbox:
            return str((await sandbox.exec(list(argv))).output)

    assert asyncio.run(use("sh", "-c", "echo kept > a.txt; echo first")) == kind.shown("first\n")
    assert asyncio.run(use("cat", "a.txt")) == kind.shown("kept\n")
    asyncio.run(environment.aclose())


@pytest.mark.parametrize("workdir", ["/workspace", "/workspace/deep/er", "/tmp/a b"])
async def test_2e3_the_workdir_is_where_programs_start(service: ServedProcess, workdir: str) -> None:
    async with DaytonaEnvironment(workdir=workdir) as environment:
        tool = SandboxShellTool(environment)
        assert str(tool.workdir) == workdir
        async with environment.open() as sandbox:
            await sandbox.put_file("a.txt", b"x")
            assert (await sandbox.exec(["sh", "-c", "pwd; cat a.txt"])).output == f"{workdir}\nx"


async def test_2e4_the_environment_of_a_call_arrives(environment: EnvironmentBase) -> None:
    async with environment.open() as sandbox:
        value = 'it\'s "$x" \\ and\na line'
        assert (await sandbox.exec(["sh", "-c", 'printf %s "$FOO"'], env={"FOO": value})).output == value


async def test_2e5_half_a_second_is_half_a_second(environment: EnvironmentBase) -> None:
    async with environment.open() as sandbox:
        assert (await sandbox.exec(["sleep", "60"], timeout=0.5)).exit_code == 124
        assert sandbox.result is not None
        assert sandbox.result.timed_out


@pytest.mark.parametrize("name", ["api_key", "api_url", "target", "snapshot", "image", "env_vars"])
async def test_2e6_every_variable_without_a_context_is_told_alike(name: str) -> None:
    with pytest.raises(RuntimeError, match="given as Variable but no Context available"):
        async with DaytonaEnvironment(**{name: Variable("x")}).open():
            pass


async def test_2e7_no_secret_is_a_key(server: ServedProcess) -> None:
    async with DaytonaEnvironment(api_key=server.key, api_url=server.url, env_vars={"T": "s3cret"}) as environment:
        async with environment.open():
            pass
        keys = repr(list(environment.environment._cache._entries))
        for secret in (server.key, "s3cret"):
            assert secret not in keys + repr(environment.environment)


async def test_2e8_what_failed_is_not_kept_and_what_is_kept_is_bounded(service: ServedProcess, living: Living) -> None:
    before = living()
    async with DaytonaEnvironment(snapshot=Variable("snapshot")) as environment:
        with pytest.raises(LookupError):
            async with environment.open({"snapshot": "nowhere"}):
                pass
        assert environment.environment.sandbox_ids == ()
    assert living() == before
    async with CorralEnvironment(env=Variable("settings"), max_sandboxes=2) as bounded:
        for tenant in range(4):
            async with bounded.open({"settings": {"TENANT": str(tenant)}}) as sandbox:
                assert (await sandbox.exec(["sh", "-c", "echo $TENANT"])).output == f"{tenant}\n"
        assert len(bounded.environment.sandbox_ids) == 2


async def test_2e9_a_snippet_of_five_megabytes(environment: EnvironmentBase) -> None:
    code = "x = '" + "a" * 5_000_000 + "'\nprint(len(x))"
    result = await SandboxCodeTool(environment).environment.run(code, "python")
    assert (result.output.strip(), result.exit_code) == ("5000000", 0)


async def ends(sandbox: Any, command: str) -> None:
    """A list of processes may be of the whole machine, so the process has a number that no other one uses."""
    async with asyncio.timeout(60):
        while command in (await sandbox.exec(["ps", "-eo", "args"])).output:
            await asyncio.sleep(0.05)


async def test_2e10_a_timeout_ends_what_a_program_started(environment: EnvironmentBase) -> None:
    async with environment.open() as sandbox:
        mark = f"7{secrets.randbelow(10**8)}"
        result = await sandbox.exec(["sh", "-c", f"sleep {mark} & touch begun; sleep 60"], timeout=2)
        assert result.exit_code == 124
        assert (await sandbox.exec(["ls"])).output.strip() == "begun"
        await ends(sandbox, f"sleep {mark}")


async def test_2e10_cancelling_ends_the_program(environment: EnvironmentBase) -> None:
    async with environment.open() as sandbox:
        mark = f"7{secrets.randbelow(10**8)}"
        task = asyncio.ensure_future(sandbox.exec(["sh", "-c", f"touch begun; sleep {mark}"]))
        while (await sandbox.exec(["ls"])).output.strip() != "begun":
            await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await ends(sandbox, f"sleep {mark}")


async def test_2e10_output_that_is_no_text_and_files_that_do_not_run(environment: EnvironmentBase) -> None:
    async with environment.open() as sandbox:
        assert (await sandbox.exec(["sh", "-c", r"printf 'a\377b'"])).output == "a\N{REPLACEMENT CHARACTER}b"
        await sandbox.put_file("plain.txt", b"x")
        assert (await sandbox.exec(["./plain.txt"])).exit_code == 126


async def test_2e10_the_environment_of_this_process_stays_here(
    environment: EnvironmentBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "s3cret")
    async with environment.open() as sandbox:
        assert "s3cret" not in (await sandbox.exec(["env"])).output


async def test_2e10_much_output_is_cut_while_it_comes() -> None:
    environment = LocalEnvironment(max_output=1000)
    try:
        async with environment.open() as sandbox:
            result = await sandbox.exec(["sh", "-c", "yes | head -c 300000000"])
            assert result.output.startswith("y\ny\n")
            assert "[truncated: showing first 1000 of " in result.output
            assert sandbox.result is not None
            assert len(sandbox.result.output) < 50_000_000
    finally:
        await environment.aclose()


async def test_2e11_a_timeout_keeps_files_and_other_programs(environment: EnvironmentBase) -> None:
    async with environment.open() as sandbox:
        other = asyncio.ensure_future(sandbox.exec(["sh", "-c", "sleep 4; echo done"]))
        await sandbox.put_file("not/yet/there.txt", b"kept")
        assert (await sandbox.exec(["sleep", "60"], timeout=1)).exit_code == 124
        assert await sandbox.get_file("not/yet/there.txt") == b"kept"
        assert (await other).output.strip() == "done"


async def test_2e12_everything_else_is_there(environment: EnvironmentBase) -> None:
    async with environment.open() as sandbox:
        await sandbox.exec(["sh", "-c", "echo out; echo err >&2"])
        assert sandbox.result is not None
        assert (sandbox.result.stdout, sandbox.result.stderr) == ("out\n", "err\n")
        process = await sandbox.box.start(["cat"])
        await process.write("hello\n")
        await process.close_stdin()
        assert (await process.wait()).stdout == "hello\n"


async def test_2e13_a_sandbox_that_is_gone_is_no_answer_for_a_model(service: ServedProcess) -> None:
    async with DaytonaEnvironment() as environment:
        async with environment.open() as sandbox:
            Daytona().delete(Daytona().get(sandbox.id))
            with pytest.raises(SandboxGoneError):
                await sandbox.exec(["ls"])
        with contextlib.suppress(SandboxGoneError):  # until the environment has noticed
            async with environment.open() as same:
                await same.exec(["ls"])
        async with environment.open() as new:
            assert new.id != sandbox.id


# The guide.


async def test_3e1_each_tenant_has_a_sandbox_of_its_own(service: ServedProcess) -> None:
    async with DaytonaCodeEnvironment(env_vars=Variable("settings")) as environment:
        for tenant in ("one", "two"):
            code = "import os; print(os.environ['TENANT'], os.listdir()); open(os.environ['TENANT'], 'w')"
            result = await environment.run(code, "python", context={"settings": {"TENANT": tenant}})
            assert result.output == f"{tenant} []\n"


def test_3e2_an_environment_may_be_made_outside_of_any_event_loop(service: ServedProcess) -> None:
    environment = DaytonaCodeEnvironment()
    for number in range(2):
        assert asyncio.run(environment.run(f"print({number})", "python")).output == f"{number}\n"
    asyncio.run(environment.aclose())


@pytest.mark.needs_node
async def test_3e3_large_javascript() -> None:
    async with CorralEnvironment() as environment:
        runner = SandboxCodeTool(environment, languages=("javascript",)).environment
        result = await runner.run("const x = '" + "a" * 1_000_000 + "'; console.log(x.length)", "javascript")
        assert (result.output, result.exit_code) == ("1000000\n", 0)


async def test_3e4_conversations_may_have_sandboxes_of_their_own() -> None:
    async with CorralEnvironment(per_conversation=True) as environment:
        for conversation in ("a", "b", "a"):
            async with environment.open({"conversation_id": conversation}) as sandbox:
                await sandbox.exec(["touch", conversation])
                assert (await sandbox.exec(["ls"])).output == f"{conversation}\n"
        assert len(environment.environment.sandbox_ids) == 2


def wait_until(holds: Any) -> None:
    guard = threading.Event()
    for _ in range(600):
        if holds():
            return
        guard.wait(0.1)
    raise AssertionError(f"it does not come to hold in process {os.getpid()}")
