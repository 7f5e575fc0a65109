"""Programs that attack what watches over them inside a foreign service: nothing on this side waits for ever."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from corral.backends.daytona import DaytonaBackend
from corral.base.agent import channel
from corral.client.sandbox import AsyncSandbox
from corral.results import ExecResult, OutputChunk
from support.serving import ServedProcess

pytestmark = [pytest.mark.check, pytest.mark.needs_root, pytest.mark.timeout(300)]

PATIENCE_SECONDS = 120.0
ATTACK = """
import os, signal, time
print("armed", flush=True)
input()
if {apart} and os.fork() != 0:
    time.sleep(1000)
for _ in range({times}):
    for pid in range(2, 400):
        if pid != os.getpid():
            try:
                os.kill(pid, signal.{name})
            except OSError:
                pass
    time.sleep(0.05)
print("did it", flush=True)
"""
WITHOUT_END = 1_000_000


def attack(
    server: ServedProcess, name: str, *, times: int, timeout: float | None = None, apart: bool = False
) -> tuple[ExecResult, ...]:
    """The attacker's result, and that of a program beside it. Afterwards the sandbox works as before."""

    async def run() -> tuple[ExecResult, ...]:
        backend = DaytonaBackend(api_key=server.key, api_url=server.url)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), AsyncSandbox(backend=backend) as box:
                beside = await box.start("cat", stdin=True)
                armed = asyncio.Event()

                async def go(armed: asyncio.Event = armed) -> AsyncIterator[bytes]:
                    await armed.wait()
                    yield b"\n"

                def heard(chunk: OutputChunk, armed: asyncio.Event = armed) -> None:
                    if b"\n" in chunk.data:  # Python inside is unbuffered: the end of the line is a write of its own
                        armed.set()

                code = ATTACK.format(name=name, times=times, apart=apart)
                attacker = await box.run_code(code, timeout=timeout, stdin=go(), on_output=heard)
                assert (await box.exec("echo $((6 * 7))")).stdout == "42\n"
                await box.files.write("after", b"42")
                assert await box.files.read("after") == b"42"
                beside.end_tree("cancelled")
                return attacker, await beside.wait()
        finally:
            await backend.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("apart", [False, True], ids=["the-program-itself", "a-child-of-it"])
def test_killed_agent_is_a_result_for_all_and_is_started_again(server: ServedProcess, apart: bool) -> None:
    attacker, beside = attack(server, "SIGKILL", times=WITHOUT_END, apart=apart)
    assert (attacker.exit_code, attacker.reason, attacker.stdout) == (137, "signalled", "armed\n")
    assert "ended" in attacker.usage.notes[0]
    assert beside.exit_code == 137


def test_agent_that_was_stopped_goes_on(server: ServedProcess) -> None:
    attacker, beside = attack(server, "SIGSTOP", times=1)
    assert (attacker.exit_code, attacker.stdout) == (0, "armed\ndid it\n")
    assert beside.reason == "cancelled"


def test_agent_that_is_kept_stopped_is_ended_from_outside(
    server: ServedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_ASK_SECONDS", 0.5)
    attacker, beside = attack(server, "SIGSTOP", times=WITHOUT_END)
    assert (attacker.exit_code, attacker.reason) == (137, "signalled")
    assert beside.exit_code == 137


def test_timeout_holds_though_the_agent_is_stopped(server: ServedProcess) -> None:
    attacker, _ = attack(server, "SIGSTOP", times=WITHOUT_END, timeout=5.0)
    assert attacker.reason in ("timeout", "signalled")
    assert attacker.stdout.strip() == "armed"  # the end of the line may be on the wrong side of the stop


def test_silence_of_a_paused_sandbox_means_nothing(server: ServedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_ASK_SECONDS", 0.1)

    async def run() -> ExecResult:
        backend = DaytonaBackend(api_key=server.key, api_url=server.url)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), AsyncSandbox(backend=backend) as box:
                process = await box.start("read line; echo $line", stdin=True)
                await box.pause()
                await asyncio.sleep(0.1 * 30)  # far longer than it would be waited for
                await box.resume()
                await process.write("still here\n")
                return await process.wait()
        finally:
            await backend.aclose()

    assert asyncio.run(run()).stdout == "still here\n"
