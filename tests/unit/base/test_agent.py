"""The agent inside, as a child of ours: what it runs, passes on and ends; also on systems other than Linux."""

import asyncio
import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral import AsyncSandbox
from corral.backends.unsafe_subprocess import agent as local
from corral.backends.unsafe_subprocess.agent import Child, get_portal
from corral.base.agent.channel import Channel, agent_text
from corral.base.agent.process import AgentProcess, Task
from corral.errors import CorralError, ExecError
from corral.inside.frames import HEAD
from corral.protocol import SpawnRequest
from corral.results import ExecResult

FUTURE = b"from __future__ import annotations\n"
ELSEWHERE = FUTURE + b"import select, sys\nsys.platform = 'darwin'\ndel select.epoll\n"
"""As a Mac is: no epoll, no /proc, no subreaper, no pipe of packets."""
HANG_SECONDS = 30.0


async def explain(op: str) -> CorralError:
    return ExecError("the agent is gone", op=op)


class Inside:
    """A channel to an agent of our own, used from any event loop."""

    def __init__(self) -> None:
        self.child = Child()
        self.channel: Channel | None = None

    async def _open(self) -> Channel:
        channel = Channel(self.child, explain)
        await channel.open()
        return channel

    async def start(self, *argv: str, task: Task | None = None, **options: Any) -> AgentProcess:
        if self.channel is None:
            self.channel = await get_portal().finish(self._open())
        values = {"env": {"PATH": os.environ["PATH"]}, "cwd": "/", "timeout": None, "stdin": False} | options
        request = SpawnRequest(argv=argv, user="", output_limit_bytes=1 << 20, **values)
        process = AgentProcess(request, sandbox_id="id", portal=get_portal(), inherit=False, task=task)
        await get_portal().finish(process.start(self.channel, explain))
        return process

    async def run(self, *argv: str, **options: Any) -> ExecResult:
        process = await self.start(*argv, **options)
        return await process.wait(timeout=HANG_SECONDS)


@pytest.fixture(params=["linux", "elsewhere"])
async def inside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Inside]:
    if request.param == "elsewhere":
        text = agent_text().replace(FUTURE, ELSEWHERE, 1)
        monkeypatch.setattr(local, "agent_text", lambda: text)
    opened = Inside()
    yield opened
    opened.child.close()
    await asyncio.to_thread(opened.child.finish)


def running(marker: str) -> bool:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


async def until_gone(marker: str) -> None:
    guard = time.monotonic() + HANG_SECONDS
    while running(marker):
        assert time.monotonic() < guard, "it goes on"
        await asyncio.sleep(0.05)


async def test_program_is_run_and_its_streams_are_told_apart(inside: Inside) -> None:
    result = await inside.run("/bin/sh", "-c", "echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.reason) == ("out\n", "err\n", 3, "exited")
    assert (await inside.run("no-such-program")).exit_code == 127
    assert (await inside.run("/bin/sh", "-c", "kill -9 $$")).signal == 9


async def test_much_output_and_input_go_through(inside: Inside) -> None:
    process = await inside.start("cat", stdin=True, listened=True)
    sent = os.urandom(1 << 20)

    async def write() -> None:
        for offset in range(0, 3 << 20, 1 << 18):
            await process.write(sent[offset % len(sent) :][: 1 << 18])
        await process.close_stdin()

    writing = asyncio.ensure_future(write())
    came = b"".join([chunk.data async for chunk in process.output()])
    await writing
    assert came == sent * 3


async def test_terminal_has_a_size_and_takes_input(inside: Inside) -> None:
    process = await inside.start("/bin/sh", "-c", "stty size; read a; echo got $a", pty=True, rows=33, columns=99)
    await process.write("it\n")
    result = await process.wait(timeout=HANG_SECONDS)
    assert "33 99" in result.stdout
    assert "got it" in result.stdout


async def test_timeout_ends_the_tree(inside: Inside) -> None:
    marker = secrets.token_hex(8)
    result = await inside.run("/bin/sh", "-c", f"(sleep 1000; : {marker}) & sleep 1000; : {marker}", timeout=0.5)
    assert (result.reason, result.exit_code) == ("timeout", 124)
    await until_gone(marker)


@pytest.mark.filterwarnings("ignore:the unsafe-subprocess backend")
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="how much a program has written is read from /proc")
async def test_program_that_floods_a_reader_that_stopped_can_be_ended() -> None:
    async with AsyncSandbox(backend="unsafe-subprocess") as box:
        process = await box.start(["cat", "/dev/zero"])
        output = process.output()
        await anext(output)
        written, before = 0, -1
        while written != before:  # until it has to wait for its reader
            await asyncio.sleep(0.2)
            before, written = written, int(Path(f"/proc/{process.pid}/io").read_text().split()[3])
        assert (await process.kill()).reason == "cancelled"
        assert (await box.exec("echo on")).stdout == "on\n", "only the program was ended"
        await output.aclose()  # type: ignore[attr-defined]  # every one of ours is an async generator


async def test_what_a_program_left_is_ended_when_asked_for(inside: Inside) -> None:
    marker = secrets.token_hex(8)
    process = await inside.start("/bin/sh", "-c", f"(sleep 1000; : {marker}) >/dev/null 2>&1 & echo begun")
    assert (await process.wait(timeout=HANG_SECONDS)).stdout == "begun\n"
    assert running(marker)
    await process.end_rest()
    assert not running(marker)
    await process.end_rest()


async def test_task_is_run_like_a_program(inside: Inside) -> None:
    text = b"import os\ndef count(request):\n    os.write(1, os.read(0, 100) * request['times'])\n    return 7\n"
    task = Task(text, "count", {"times": 3})
    for _ in range(2):
        process = await inside.start(task=task, stdin=True)
        await process.write(b"ab")
        result = await process.wait(timeout=HANG_SECONDS)
        assert (result.stdout, result.exit_code) == ("ababab", 7)
    with pytest.raises(ExecError):
        await inside.start(task=Task(b"", "nothing", {}))


async def test_task_has_its_standard_streams_alone(inside: Inside) -> None:
    text = b"import os\ndef look(request):\n    names = sorted(os.listdir('/proc/self/fd'))\n"
    text += b"    names = [name for name in names if os.path.exists('/proc/self/fd/' + name)]\n"
    text += b"    os.write(1, ' '.join(names).encode())\n    return 0\n"
    process = await inside.start(task=Task(text, "look", {}))
    assert (await process.wait(timeout=HANG_SECONDS)).stdout == "0 1 2"


async def test_all_ends_with_the_host(inside: Inside, tmp_path: Path) -> None:
    marker, folder = secrets.token_hex(8), tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "folder.lock").touch()
    await inside.start("/bin/sh", "-c", f"(sleep 1000; : {marker}) & sleep 1000; : {marker}")
    assert inside.channel is not None
    inside.channel.say(b"O", 0, f'{{"folder": "{folder}", "seconds": 0.2, "removes": true}}'.encode())
    await asyncio.to_thread(inside.child.process.wait, HANG_SECONDS)
    await until_gone(marker)
    assert list(tmp_path.iterdir()) == []


async def test_size_that_an_agent_makes_up_does_not_keep_the_event_loop_busy(inside: Inside) -> None:
    process = await inside.start("/bin/sh", "-c", "read line", stdin=True)
    for size in (1 << 60, -1, 10**300):
        message = json.dumps({"stream": "o", "bytes": size}).encode()
        with contextlib.suppress(ValueError):
            process.hear(b"k", message)  # as the channel does it, in the event loop of all sandboxes
    await process.close_stdin()
    result = await process.wait(timeout=HANG_SECONDS)
    assert result.truncated
    assert f"{1 << 60} bytes of stdout left out" in result.stdout


async def test_beginning_and_end_of_long_output_that_is_not_listened_to_are_kept(inside: Inside) -> None:
    text = "import sys; sys.stdout.write('a' * 3_000_000 + 'b' * 3_000_000)"
    result = await inside.run(sys.executable, "-c", text, quiet=True)
    half = 1 << 19
    left = 6_000_000 - 2 * half
    assert result.stdout == "a" * half + f"\n[corral: {left} bytes of stdout left out]\n" + "b" * half


async def test_frame_that_no_agent_sends_ends_the_channel_before_it_is_read(inside: Inside) -> None:
    process = await inside.start("sleep", "100")
    channel = inside.channel
    assert channel is not None
    with pytest.raises(ValueError, match="too long"):
        channel._take(HEAD.pack(b"x", 1, 1 << 24))
    await process.aclose()


async def test_more_output_than_was_asked_for_ends_the_channel_and_is_not_kept(inside: Inside) -> None:
    process = await inside.start("sleep", "2", listened=True)  # the agent stays as long as this
    output = process.output()
    for _ in range(256):
        get_portal().loop.call_soon_threadsafe(process.hear, b"o", bytes(64 * 1024))
    kept = 0
    async with asyncio.timeout(HANG_SECONDS):
        with contextlib.suppress(CorralError):
            await asyncio.sleep(0.5)  # a reader that lags
            async for chunk in output:
                kept += len(chunk.data)
    assert kept < 8 << 20
    assert inside.channel is not None
    assert inside.channel.lost
