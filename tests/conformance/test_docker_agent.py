"""Files of Docker containers: by an agent where the image has a Python, by shell scripts where it has none."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator

import pytest

from corral.backends.docker import DockerBackend
from corral.base.agent import channel
from corral.base.shellfiles.files import ShellFiles
from corral.base.taskfiles import TaskFiles
from corral.client.sandbox import AsyncSandbox
from corral.errors import SandboxFileError, SandboxFileInterruptedError, SandboxPausedError
from corral.image import Image
from corral.spec import make_spec
from support.dockerd import Daemon

pytestmark = [pytest.mark.check, pytest.mark.needs_docker, pytest.mark.timeout(240)]

PATIENCE_SECONDS = 60.0
AGENTS = "ps -eo pid,args | while read -r pid rest; do case $rest in python3*stdin.buffer*) echo $pid ;; esac; done"
KILL = f"for pid in $({AGENTS}); do kill -KILL $pid 2>/dev/null; done; true"
"""What an agent has forked for an operation ends with it, and may be gone when its turn comes."""


@pytest.fixture
async def backend(daemon: Daemon) -> AsyncIterator[DockerBackend]:
    made = DockerBackend(host=daemon.host, image=daemon.image)
    yield made
    await made.aclose()


@pytest.fixture
async def box(backend: DockerBackend) -> AsyncIterator[AsyncSandbox]:
    async with await backend.create(make_spec()) as opened:
        yield opened


async def find_agents(box: AsyncSandbox) -> list[str]:
    return (await box.exec(AGENTS, check=True)).stdout.split()


async def slowly(go_on: asyncio.Event) -> AsyncIterator[bytes]:
    """More than is held back, a pause, and the rest."""
    yield bytes(3 << 20)
    await go_on.wait()
    yield b"rest"


async def begin_write(box: AsyncSandbox, name: str, go_on: asyncio.Event) -> asyncio.Task[int]:
    """A write that has begun inside, and waits for more content."""
    writing = asyncio.ensure_future(box.files.write(name, slowly(go_on)))
    while ".corral-" not in (await box.exec("ls -A")).stdout:
        assert not writing.done(), writing
    return writing


async def test_an_agent_is_started_when_it_is_first_needed_and_serves_all(box: AsyncSandbox) -> None:
    assert isinstance(box.files, TaskFiles)
    assert await find_agents(box) == []
    await asyncio.gather(*(box.files.write(f"d/{number}", b"x") for number in range(20)))
    assert len(await box.files.list("d")) == 20
    assert len(await find_agents(box)) == 1


@pytest.mark.backends
async def test_another_event_loop_uses_the_same_agent(box: AsyncSandbox) -> None:
    await box.files.write("file", b"one")
    contents = await asyncio.gather(*(asyncio.to_thread(asyncio.run, box.files.read("file")) for _ in range(4)))
    assert contents == [b"one"] * 4
    assert len(await find_agents(box)) == 1


async def test_a_killed_agent_is_told_and_replaced(box: AsyncSandbox) -> None:
    await box.files.write("file", b"old")
    go_on = asyncio.Event()
    writing = await begin_write(box, "file", go_on)
    await box.exec(KILL, check=True)
    with pytest.raises(SandboxFileInterruptedError):
        await writing
    assert await box.files.read("file") == b"old"
    assert len(await find_agents(box)) == 1


@pytest.mark.backends
async def test_an_agent_that_is_killed_between_two_calls_is_replaced(box: AsyncSandbox) -> None:
    for _ in range(3):
        with contextlib.suppress(SandboxFileInterruptedError):  # its end may not be known yet
            await box.files.write("file", b"new")
        assert await box.files.read("file") == b"new"
        await box.exec(KILL, check=True)


@pytest.mark.backends
async def test_a_stopped_agent_is_woken_or_replaced(box: AsyncSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_ASK_SECONDS", 0.2)
    await box.files.write("file", b"old")
    await box.exec(f"kill -STOP $({AGENTS})", check=True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await box.files.read("file") == b"old"


async def test_an_operation_that_is_stopped_in_the_middle_goes_on(box: AsyncSandbox) -> None:
    go_on = asyncio.Event()
    writing = await begin_write(box, "file", go_on)
    await box.exec(f"kill -STOP $({AGENTS})", check=True)  # the agent, the warden and the writer
    go_on.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await writing == (3 << 20) + 4


async def test_a_cancelled_write_leaves_nothing(box: AsyncSandbox) -> None:
    writing = await begin_write(box, "file", asyncio.Event())
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await box.files.list() == []
    assert len(await find_agents(box)) == 1


@pytest.mark.backends
async def test_a_pause_in_the_middle_is_waited_for(box: AsyncSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_ASK_SECONDS", 0.1)
    go_on = asyncio.Event()
    writing = await begin_write(box, "file", go_on)
    await box.pause()
    with pytest.raises(SandboxPausedError):
        await box.files.read("file")
    go_on.set()
    await asyncio.sleep(0.1 * 30)  # far longer than an agent that runs would be waited for
    assert not writing.done()
    await box.resume()
    assert await writing == (3 << 20) + 4
    assert (await box.files.stat("file")).size == (3 << 20) + 4


async def test_an_agent_ends_with_its_client_and_each_life_has_its_own(backend: DockerBackend) -> None:
    box = await backend.create(make_spec())
    await box.files.write("file", b"kept")
    fork = await box.fork()
    assert isinstance(fork, AsyncSandbox)
    assert await fork.files.read("file") == b"kept"
    await fork.kill()
    sandbox_id = await box.detach()
    writing = await begin_write(box, "half", asyncio.Event())
    await box.aclose()
    writing.cancel()
    connected = await backend.connect(sandbox_id)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await find_agents(connected):
                await asyncio.sleep(0.05)
        assert [info.name for info in await connected.files.list()] == ["file"]
        await connected.stop()
        started = await backend.start(sandbox_id)
        assert await find_agents(started) == []
        assert await started.files.read("file") == b"kept"
        await started.aclose()
    finally:
        await backend.delete(sandbox_id)


LIES = {
    "too old or broken": "#!/bin/sh\nexit 1\n",
    "says yes and does nothing": "#!/bin/sh\nexit 0\n",
    "talks nonsense": "#!/bin/sh\ncase $4 in *assert*) exit 0 ;; esac\nexec cat /dev/zero\n",
    "forges frames": "#!/bin/sh\ncase $4 in *assert*) exit ;; esac\nprintf 'H\\0\\0\\0\\7\\377\\377\\377\\377'; cat\n",
}


@pytest.mark.parametrize(
    "lie", [pytest.param(lie, marks=[] if lie == "talks nonsense" else [pytest.mark.backends]) for lie in LIES]
)
async def test_a_python_that_is_none_costs_one_call_at_most(daemon: Daemon, backend: DockerBackend, lie: str) -> None:
    text = base64.b64encode(LIES[lie].encode()).decode()
    put = f"rm -f /usr/bin/python3 && echo {text} | base64 -d > /usr/bin/python3 && chmod 755 /usr/bin/python3"
    image = Image.from_dockerfile(f"FROM {daemon.image}\nUSER root\nRUN {put}\nUSER daytona\n")
    async with asyncio.timeout(PATIENCE_SECONDS), await backend.create(make_spec(image=image)) as box:
        if isinstance(box.files, TaskFiles):
            with pytest.raises(SandboxFileError):
                await box.files.write("file", b"first")
        assert isinstance(box.files, ShellFiles)
        await box.files.write("file", b"second")
        assert await box.files.read("file") == b"second"
