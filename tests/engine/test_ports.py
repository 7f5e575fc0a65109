"""Ports of a sandbox on the real kernel: init begins a connection, and the host believes nothing of it."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend, dialling, seam
from corral.backends.embedded.sandbox import EmbeddedSandbox
from corral.client.sandbox import AsyncSandbox
from corral.engine.dialling import DialledSocket, check_dialled, take_dialled
from corral.engine.errors import ProtocolError
from corral.errors import PortClosedError, SandboxClosedError, SandboxGoneError, SandboxPausedError, SandboxStoppedError
from corral.spec import Spec
from corral.testing.checks.ports import echo, serving

ECHO = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    while piece := connection.recv(65536):
        connection.sendall(piece)
    connection.close()
"""

pytestmark = [pytest.mark.needs_userns, pytest.mark.needs_root]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path / "data")
    yield backend
    for info in await backend.list():
        await backend.delete(info.sandbox_id)
    await backend.aclose()


async def test_detached_sandbox_has_ports_until_it_is_stopped(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.detach()
    with contextlib.suppress(SandboxGoneError):  # of the server, which is stopped with it
        await stop_and_look(backend, box)
    again = await backend.start(box.id)
    with pytest.raises(PortClosedError):
        await again.dial(8000)
    await again.kill()
    with pytest.raises(SandboxClosedError):
        await again.dial(8000)
    await box.aclose()


async def stop_and_look(backend: EmbeddedBackend, box: AsyncSandbox) -> None:
    async with serving(box, ECHO, "") as port, await backend.connect(box.id) as other:
        url = await other.expose(port)
        assert await echo(await other.dial(port), b"one") == b"one"
        await other.pause()
        with pytest.raises(SandboxPausedError):
            await other.dial(port)
        await other.resume()
        assert await echo(await box.dial(port), b"two") == b"two"
        await backend.stop(box.id)
        with pytest.raises(SandboxStoppedError):
            await other.dial(port)
        host, _, listening = url.removeprefix("http://").partition(":")
        async with asyncio.timeout(30):
            while True:  # the address ends with the sandbox
                try:
                    socket.create_connection((host, int(listening))).close()
                except ConnectionRefusedError:
                    break
                await asyncio.sleep(0.05)


async def fill(box: AsyncSandbox, port: int, held: list[socket.socket]) -> None:
    for _ in range(4):
        held.append(await box.dial(port))  # noqa: PERF401 - they are to be closed also if one fails


async def test_connection_counts_as_use(backend: EmbeddedBackend) -> None:
    """Init tells the keeper how long a detached sandbox has been idle."""
    box = await backend.create(Spec())
    begun = time.monotonic()
    with pytest.raises(PortClosedError):
        await box.dial(8000)
    primitives = box.primitives
    assert isinstance(primitives, EmbeddedSandbox)
    told = await seam.answer(await seam.ask(primitives._control, {"op": "ping"}))
    assert told["idle_seconds"] <= time.monotonic() - begun
    await box.aclose()


async def test_full_queue_of_a_server_is_said(backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "_CONNECT_SECONDS", 0.3)
    deaf = ECHO.replace('("127.0.0.1", 0)', '("127.0.0.1", 0), backlog=0').replace("while True:", "while input():")
    async with await backend.create(Spec()) as box:
        async with serving(box, deaf, "") as port:
            held: list[socket.socket] = []
            with pytest.raises(PortClosedError):
                await fill(box, port, held)
            for each in held:
                each.close()
        assert (await box.exec("true")).ok


def connected_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def one_of_a_pair() -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


def our_own_connection() -> int:
    ours, theirs = connected_pair()
    theirs.close()
    return ours.detach()


IMPOSTORS: dict[str, Callable[[], int]] = {
    "a pipe": lambda: os.pipe()[0],
    "a file": lambda: os.open("/dev/null", os.O_RDONLY),
    "a unix socket": one_of_a_pair,
    "a datagram socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach(),
    "a listener": lambda: socket.create_server(("127.0.0.1", 0)).detach(),
    "a connection of the host": our_own_connection,
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_host_takes_no_other_descriptor(name: str) -> None:
    descriptor = IMPOSTORS[name]()
    with pytest.raises(ProtocolError):
        take_dialled(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_connection_that_leads_elsewhere_is_refused() -> None:
    ours, theirs = connected_pair()
    with ours, theirs:
        port = ours.getpeername()[1]
        assert check_dialled(ours, port, six=False) == 0
        with pytest.raises(ProtocolError):
            check_dialled(ours, port - 1, six=False)
        with pytest.raises(ProtocolError):
            check_dialled(ours, port, six=True)


def write_for_ever(write: Callable[[bytes], int]) -> None:
    while True:
        write(bytes(1 << 20))


def test_socket_never_blocks_even_if_init_says_so() -> None:
    ours, theirs = connected_pair()
    with theirs, DialledSocket(fileno=ours.detach()) as taken:
        taken.setblocking(False)
        os.set_blocking(taken.fileno(), True)  # as init could, by its own descriptor
        for read in (lambda: taken.recv(1), lambda: taken.recv_into(bytearray(1))):
            with pytest.raises(BlockingIOError):
                read()
        for write in (taken.send, lambda data: taken.sendmsg([data])):
            with pytest.raises(BlockingIOError):
                write_for_ever(write)


def test_command_forwards_until_it_is_interrupted(tmp_path: Path) -> None:
    def corral(*arguments: str) -> str:
        argv = [sys.executable, "-m", "corral.cli", *arguments]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()

    env = {**os.environ, "CORRAL_DATA_DIR": str(tmp_path / "data")}
    box = corral("sandbox", "create")
    corral("sandbox", "exec", box, "--", "sh", "-c", "echo hello > page")
    command = subprocess.Popen(
        [sys.executable, "-m", "corral.cli", "sandbox", "forward", box, "8000", "8000:9123"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with command, contextlib.ExitStack() as stack:
        stack.callback(command.kill)  # of no effect after the end that is expected
        assert command.stdout is not None
        assert command.stderr is not None
        urls = [command.stdout.readline().split(" -> ") for _ in range(2)]
        assert [where for _, where in urls] == [f"{box}:8000\n"] * 2
        assert [url.rpartition(":")[2] for url, _ in urls] == ["8000", "9123"]
        corral("sandbox", "exec", box, "-d", "--", "python3", "-m", "http.server", "8000")
        connects = "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null"
        corral("sandbox", "exec", box, f"until {connects}; do sleep 0.05; done")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for url, _ in urls:
            assert opener.open(f"{url}/page", timeout=30).read() == b"hello\n"
        assert "Ctrl-C" in command.stderr.readline()
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 130
    corral("sandbox", "rm", box)
