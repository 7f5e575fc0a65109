"""Commands in the background, through the tools that a model has: start, read, write, kill, list."""

import asyncio

import pytest

from corral import AsyncSandbox, Environment, SandboxGoneError
from corral.tools import BackgroundTools, ShellTool, ToolText
from corral.tools.background import MAX_SHELLS, ShellOutput, list_shells, read_shell, start_shell

pytestmark = pytest.mark.needs_userns


async def call(tools: BackgroundTools, name: str, **arguments: object) -> ToolText:
    return await tools[f"{name}_background"](arguments)


async def read_until(tools: BackgroundTools, shell_id: str, mark: str) -> str:
    """Everything that comes until a text is there; the hang guard is the test runner's."""
    said = ""
    while mark not in said:
        said += await call(tools, "read", shell_id=shell_id, wait_seconds=60)
    return said


async def test_a_command_is_started_read_fed_and_ended() -> None:
    async with Environment() as environment:
        tools = BackgroundTools(environment)
        started = await call(tools, "execute", command="echo ready; read line; echo got $line; sleep 1000")
        assert started == "Started shell-1. Read what it prints with read_background."
        assert await read_until(tools, "shell-1", "ready") == "ready\n[shell-1: running]"
        assert await call(tools, "write", shell_id="shell-1", text="a line\n") == "Wrote 7 characters to shell-1"
        assert "got a line" in await read_until(tools, "shell-1", "got")
        listed = await call(tools, "list")
        assert listed == "shell-1: running: echo ready; read line; echo got $line; sleep 1000"
        assert await call(tools, "kill", shell_id="shell-1") == "shell-1 was killed"
        assert await call(tools, "kill", shell_id="shell-1") == "shell-1 had already ended"
        ended = await call(tools, "read", shell_id="shell-1")
        assert ended == "(nothing new)\n[shell-1: ended, exit code: 137 (cancelled)]"
        assert not (await call(tools, "write", shell_id="shell-1", text="x")).ok


async def test_the_end_of_a_command_is_told_with_all_it_printed() -> None:
    async with AsyncSandbox() as box:
        tools = BackgroundTools(box)
        await call(tools, "execute", command="cat; echo err >&2; exit 3")
        await call(tools, "write", shell_id="shell-1", text="in\n", close=True)
        said = await read_until(tools, "shell-1", "exit code: 3")
        assert "in\n" in said
        assert "err\n" in said


async def test_reading_gives_each_thing_once_and_says_when_there_is_more() -> None:
    async with AsyncSandbox() as box:
        handle = await start_shell(box, "seq 1 20000")
        pieces: list[ShellOutput] = []
        while not pieces or pieces[-1].running or pieces[-1].waiting:
            pieces.append(await read_shell(box, handle.shell_id, wait_seconds=60, max_bytes=10_000))
            assert len(pieces[-1].output) <= 10_000
        expected = "".join(f"{number}\n" for number in range(1, 20001))
        assert b"".join(piece.output for piece in pieces).decode() == expected
        assert pieces[-1].exit_code == 0
        assert sum(piece.lost_bytes for piece in pieces) == 0


async def test_a_flood_is_bounded_and_what_is_lost_is_said() -> None:
    async with AsyncSandbox() as box:
        tools = BackgroundTools(box)
        await call(tools, "execute", command="head -c 30000000 /dev/zero | tr '\\0' x; echo; echo the end")
        while (await list_shells(box))[0].running:
            await asyncio.sleep(0.05)
        newest = await call(tools, "read", shell_id="shell-1", newest=True)
        assert newest.startswith("[about ")
        assert newest.endswith("the end\n[shell-1: ended, exit code: 0]")
        assert len(newest) <= 30_000
        assert newest.truncated


@pytest.mark.parametrize("shell_id", ["shell-7", "session-1", "", "shell-", "../x", "shell-1\x1b[2J"])
async def test_a_command_that_is_not_there_is_the_models_to_mend(shell_id: str) -> None:
    async with AsyncSandbox() as box:
        tools = BackgroundTools(box)
        for name, more in (("read", {}), ("write", {"text": "x"}), ("kill", {})):
            answer = await call(tools, name, shell_id=shell_id, **more)
            assert not answer.ok
            assert answer.startswith("Error: no background command named ")
            assert "\x1b" not in answer


async def test_sessions_are_no_background_commands() -> None:
    async with AsyncSandbox() as box:
        await box.open_session("mine")
        tools = BackgroundTools(box)
        assert await call(tools, "list") == "No background commands"
        (recorded,) = await box.list_recorded()
        assert not (await call(tools, "kill", shell_id=recorded.name)).ok


async def test_old_ones_make_room_and_running_ones_do_not() -> None:
    async with AsyncSandbox() as box:
        first = await start_shell(box, "true")
        while (await list_shells(box))[0].running:
            await asyncio.sleep(0.05)
        for _ in range(MAX_SHELLS):
            await start_shell(box, "sleep 1000")
        assert first.shell_id not in [shell.shell_id for shell in await list_shells(box)]
        refused = await call(BackgroundTools(box), "execute", command="sleep 1000")
        assert refused.startswith(f"Error: {MAX_SHELLS} background commands are running")


async def test_several_started_at_once_have_numbers_of_their_own() -> None:
    async with AsyncSandbox() as box:
        handles = await asyncio.gather(*(start_shell(box, f"echo {number}") for number in range(8)))
        assert len({handle.shell_id for handle in handles}) == 8


async def test_a_gone_sandbox_is_raised_and_never_output() -> None:
    async with AsyncSandbox() as box:
        tools = BackgroundTools(box)
        await call(tools, "execute", command="sleep 1000")
        await (await AsyncSandbox.connect(await box.detach())).kill()  # by another handle
        with pytest.raises(SandboxGoneError):
            await call(tools, "execute", command="echo hi")


async def test_a_detached_sandbox_keeps_its_commands() -> None:
    async with AsyncSandbox() as box:
        name = await box.detach()
        handle = await start_shell(box, "echo kept; sleep 1000")
    async with await AsyncSandbox.connect(name) as again:
        try:
            (shell,) = await list_shells(again)
            assert (shell.shell_id, shell.command, shell.running) == (handle.shell_id, "echo kept; sleep 1000", True)
            output = b""
            while b"kept" not in output:
                output += (await read_shell(again, handle.shell_id, wait_seconds=60)).output
        finally:
            await again.kill()


def test_the_schemas_say_what_is_needed() -> None:
    tools = BackgroundTools(Environment())
    assert tools.names == tuple(f"{name}_background" for name in ("execute", "read", "write", "kill", "list"))
    assert [tool.schema["required"] for tool in tools] == [
        ["command"],
        ["shell_id"],
        ["shell_id", "text"],
        ["shell_id"],
        [],
    ]
    assert "read_background" in tools
    assert len(tools) == 5


async def test_what_a_model_writes_is_run_by_bash_wherever_it_comes_in() -> None:
    text = "[[ $0 == bash ]] && echo {1..3}"
    long = f"{text} # {'x' * 70_000}"
    async with AsyncSandbox() as box:
        shell = ShellTool(box)
        assert "1 2 3" in await shell.call({"command": text})
        assert "1 2 3" in await shell.call({"command": long.replace("[[ $0 == bash ]]", "[[ $0 == *script.sh ]]")})
        assert "1 2 3" in await ShellTool(box, blocked=["perl"], enforcement="kernel").call({"command": text})
        tools = BackgroundTools(box)
        await call(tools, "execute", command=text)
        assert "1 2 3" in await read_until(tools, "shell-1", "ended")
        assert (await call(tools, "list")).endswith(text)
        session = await box.open_session("models")
        command = await session.run("echo ${BASH_VERSION:+bash}")
        assert (await session.logs(command.id)).stdout == b"bash\n"
        terminal = await box.open_pty("models")
        await terminal.write("echo it is $0; exit\n")
        assert b"it is bash" in b"".join([piece async for piece in terminal.output()])
