"""What a window costs: create and exec with a policy against none, the first connection, and throughput.

Throughput is compared with a plain relay: a process that copies bytes from one connection to another and nothing else.
All of it runs on the test ground, so that nothing is sent out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass

from corral import AsyncSandbox
from corral.backends.embedded.settings import default_data_folder
from corral.cli.display import show_seconds
from corral.errors import BackendUnavailableError
from corral.testing.ground import Ground
from corral_bench.measuring import Figure, Tell, start_python, take_turns, time_work

SLOWER_SHARE, RELAY_SHARE = 0.05, 0.8
"""What a policy may cost before the first connection, and the least throughput beside the relay."""
_SERVER, _PORT, _WEB_PORT, _NAME = "93.184.215.14", 7000, 80, "bench.test"
_MEGABYTES = 256
_READ_BYTES = 256 * 1024

# Both are programs of their own, the client also inside the sandbox: `connect` and first byte, and bytes per second.
_CLIENT = """
import socket, sys, time
host, port, megabytes, web = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "web"
wanted, buffer = megabytes << 20, bytearray(262144)
begun = time.perf_counter()
sock = socket.create_connection((host, port), timeout=60)
if web:
    sock.sendall(b"GET /%d HTTP/1.1\\r\\nHost: bench.test\\r\\nConnection: close\\r\\n\\r\\n" % wanted)
else:
    sock.sendall(b"%d\\n" % wanted)
got = sock.recv_into(buffer)
first = time.perf_counter() - begun
while got < wanted and (size := sock.recv_into(buffer)):
    got += size
assert got >= wanted, got
print(first, got / (time.perf_counter() - begun - first * (megabytes > 0)))
"""
_RELAY = """
import socket, sys, threading
def copy(source, target):
    buffer = bytearray(262144)
    view = memoryview(buffer)
    try:
        while size := source.recv_into(buffer):
            target.sendall(view[:size])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def serve(here):
    there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    threading.Thread(target=copy, args=(there, here), daemon=True).start()
    copy(here, there)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured."""

    medians: dict[str, dict[str, float]]
    """Task → "none", "policy" or "relay" → seconds; of throughput, bytes per second."""
    figures: list[Figure]


async def measure(*, runs: int, tell: Tell) -> Costs:
    """Measure on the test ground, in a process of its own. Raises: BackendUnavailableError if there can't be one."""
    tell("making the test ground …")
    process, output = await start_python(
        "-m", "corral.testing.ground", sys.executable, "-P", "-m", "corral_bench.network", str(runs),
        env={"CORRAL_DATA_DIR": str(default_data_folder())}, stderr=subprocess.PIPE,
    )  # fmt: skip
    said = ""
    async for line in output:
        said = line.decode()
        if not said.startswith("{"):
            tell(said.rstrip())
    assert process.stderr is not None, "requested"
    errors = (await process.stderr.read()).decode(errors="replace").strip()
    if await process.wait() or not said.startswith("{"):
        raise BackendUnavailableError(f"the window can't be measured here: {errors[-500:]}", op="bench")
    found = json.loads(said)
    return Costs(found["medians"], [Figure(**figure) for figure in found["figures"]])


async def _measure_here(runs: int) -> Costs:
    ground = Ground()
    ground.set_hosts({_NAME: _SERVER})
    with ground.listen(_SERVER, _PORT) as plain, ground.listen(_SERVER, _WEB_PORT) as web:
        for listener in (plain, web):
            threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        async with (
            _relay(_PORT) as relay,
            AsyncSandbox() as without,
            AsyncSandbox(network=[_NAME]) as quiet,
            AsyncSandbox(network=[_NAME]) as busy,
        ):
            medians = await take_turns(
                {
                    "create and close": {
                        "none": lambda: time_work(lambda: _open_and_close("none")),
                        "policy": lambda: time_work(lambda: _open_and_close(_NAME)),
                    },
                    "exec of true": {
                        "none": lambda: time_work(lambda: without.exec(["true"])),
                        "policy": lambda: time_work(lambda: quiet.exec(["true"])),
                    },
                    "first connection": {
                        "relay": lambda: _time_first(relay),
                        "policy": _time_first_inside,
                    },
                    "another connection": {
                        "relay": lambda: _time_first(relay),
                        "policy": lambda: _run_inside(busy, _PORT, 0),
                    },
                },
                runs=runs, tell=lambda text: print(text, flush=True),
            )  # fmt: skip
            speeds = await take_turns(
                {
                    "throughput": {
                        "relay": lambda: _run_plain(relay),
                        "policy": lambda: _run_inside(busy, _PORT, _MEGABYTES),
                        "policy, HTTP": lambda: _run_inside(busy, _WEB_PORT, _MEGABYTES),
                    }
                },
                runs=max(3, runs // 4), tell=lambda text: print(text, flush=True),
            )  # fmt: skip
    return Costs(medians | speeds, _judge(medians, speeds["throughput"]))


def _judge(medians: dict[str, dict[str, float]], speeds: dict[str, float]) -> list[Figure]:
    figures = []
    for task in ("create and close", "exec of true"):
        none, policy = medians[task]["none"], medians[task]["policy"]
        detail = f"{show_seconds(policy)} with a policy, {show_seconds(none)} without"
        figures.append(
            Figure(f"{task}, slower by", policy / none - 1, "share", detail, policy / none - 1 <= SLOWER_SHARE)
        )
    for task in ("first connection", "another connection"):
        detail = f"through a plain relay {show_seconds(medians[task]['relay'])}"
        figures.append(Figure(task, medians[task]["policy"], "seconds", detail))
    for name in ("policy", "policy, HTTP"):
        share = speeds[name] / speeds["relay"]
        detail = f"{share:.2f} times a plain relay; at least {RELAY_SHARE} is the aim"
        figures.append(Figure(f"throughput, {name}", speeds[name], "bytes per second", detail, share >= RELAY_SHARE))
    return figures


async def _open_and_close(network: str) -> None:
    async with AsyncSandbox(network=network):
        pass


async def _time_first_inside() -> float:
    """In a sandbox that has not connected before, so the gate's start is in it."""
    async with AsyncSandbox(network=[_NAME]) as box:
        return await _run_inside(box, _PORT, 0)


async def _run_inside(box: AsyncSandbox, port: int, megabytes: int) -> float:
    kind = "web" if port == _WEB_PORT else "plain"
    result = await box.run_code(_CLIENT, "python", args=[_NAME, str(port), str(megabytes), kind], check=True)
    return _pick(result.stdout, megabytes)


async def _run_plain(relay: int, megabytes: int = _MEGABYTES) -> float:
    process, output = await start_python("-I", "-S", "-c", _CLIENT, "127.0.0.1", str(relay), str(megabytes), "plain")
    said = await output.read()
    await process.wait()
    return _pick(said.decode(), megabytes)


async def _time_first(relay: int) -> float:
    return await _run_plain(relay, 0)


def _pick(said: str, megabytes: int) -> float:
    first, speed = map(float, said.split())
    return speed if megabytes else first


@contextlib.asynccontextmanager
async def _relay(port: int) -> AsyncIterator[int]:
    process, output = await start_python("-I", "-S", "-c", _RELAY, _SERVER, str(port))
    try:
        yield int(await output.readline())
    finally:
        process.kill()
        await process.wait()


def _serve(listener: socket.socket) -> None:
    """Give as many bytes as the first line, or the path of a request, asks for; at least one."""

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            asked = connection.recv(4096)
            if asked.startswith(b"GET"):
                wanted = max(1, int(asked.split()[1][1:]))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % wanted)
            else:
                wanted = max(1, int(asked))
            zeros = bytes(_READ_BYTES)
            while wanted > 0:
                wanted -= connection.send(zeros[:wanted] if wanted < _READ_BYTES else zeros)

    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    costs = asyncio.run(_measure_here(int(sys.argv[1])))
    print(json.dumps({"medians": costs.medians, "figures": [asdict(figure) for figure in costs.figures]}), flush=True)
