"""pydantic-ai-daytona: its session, and its capability with a model that calls every tool at once."""

import asyncio

from daytona import AsyncDaytona
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from pydantic_ai_daytona import (
    DaytonaSandbox,
    DaytonaSandboxError,
    DaytonaSandboxSession,
    DaytonaSandboxTerminalError,
)

EVERY_BYTE = bytes(range(256))


async def fails(expected, awaitable) -> None:
    try:
        got = await awaitable
    except expected:
        return
    raise AssertionError(f"it gave {got!r} and raised nothing")


async def use(session) -> None:
    answer = await session.exec("echo $A; pwd; echo err >&2; exit 3", timeout=60)
    assert (answer.exit_code, answer.stdout, answer.stderr) == (3, "it's\n/workspace\n", "err\n"), answer
    answer = await session.exec("echo before; sleep 600", timeout=5)
    assert (answer.timed_out, answer.stdout) == (True, "before\n"), answer
    answer = await session.exec("seq 1 100000", timeout=60, max_output_bytes=1000)
    assert answer.stdout_truncated, answer
    assert answer.stdout.endswith("\n100000\n"), answer
    await session.write_bytes("a/b.bin", EVERY_BYTE)
    assert await session.file_size("a/b.bin") == 256
    assert await session.read_bytes("a/b.bin") == EVERY_BYTE
    assert await session.list_entries("a") == [("b.bin", False)]
    for awaitable in (session.read_bytes("none"), session.list_entries("none"), session.write_bytes("a", b"")):
        await fails(DaytonaSandboxError, awaitable)


async def main() -> None:
    async with DaytonaSandboxSession(env={"A": "it's"}, workdir="/workspace", ephemeral=True) as session:
        await use(session)
        async with DaytonaSandboxSession(sandbox_id=session.sandbox_id) as second:
            assert (await second.exec("pwd", timeout=60)).stdout == "/home/daytona\n"
        async with AsyncDaytona() as daytona:
            await (await daytona.get(session.sandbox_id)).delete()
        await fails(DaytonaSandboxTerminalError, session.exec("true", timeout=60))


asyncio.run(main())
answer = Agent(TestModel(), capabilities=[DaytonaSandbox()]).run_sync("Call every tool.").output
assert "command not found" in answer, answer  # the command is "a"
print("came to its end")
