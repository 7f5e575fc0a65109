"""A second sandbox beside the attacked one, with a process, files, sockets and locks for lateral probes to find."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.waiting import cancel_all
from corral.testing.hostile.probe import MakeSandbox

VICTIM_PORT = 47321
_READY_SECONDS = 15.0

_VICTIM = r"""
import ctypes, fcntl, json, os, signal, socket, sys, time
token, port = sys.argv[1], int(sys.argv[2])
count = {"signals": 0, "connections": 0}
def note(*_):
    count["signals"] += 1
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCONT, signal.SIGINT):
    signal.signal(number, note)
listening = socket.create_server(("127.0.0.1", port))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0" + token)
abstract.listen()
for sock in (listening, abstract):
    sock.setblocking(False)
for path in ("/tmp/" + token, "/dev/shm/" + token):
    with open(path, "w") as file:
        file.write("victim")
libc = ctypes.CDLL(None, use_errno=True)
segment = libc.shmget(0x7C0FFEE, 4096, 0o1666)
locks = [open(path) for path in ("/usr/bin/env", "/etc/passwd")]
for lock in locks:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
with open("/proc/self/uid_map") as file:
    outer = int(file.read().split()[1])
print(json.dumps({"ready": segment >= 0, "outer_uid": outer}), flush=True)
while True:
    time.sleep(0.05)
    for sock in (listening, abstract):
        try:
            sock.accept()[0].close()
            count["connections"] += 1
        except BlockingIOError:
            pass
    if count["signals"] or count["connections"]:
        print(json.dumps(count), flush=True)
        count = {"signals": 0, "connections": 0}
"""
"""It prints one line when it is ready, and one each time it is touched."""


@dataclass(slots=True)
class Neighbour:
    """A second sandbox with a victim process in it."""

    sandbox: AsyncSandbox
    victim: AsyncProcess
    token: str
    outer_uid: int
    heard: list[bytes]

    def touched(self) -> str | None:
        """What the victim reports about signals and connections; None if it got none."""
        said = b"".join(self.heard).decode(errors="replace").splitlines()
        return f"the neighbour's victim was touched: {said[1]}" if len(said) > 1 else None


@contextlib.asynccontextmanager
async def open_neighbour(make: MakeSandbox) -> AsyncIterator[Neighbour]:
    token = f"victim-{secrets.token_hex(8)}"
    async with make() as sandbox:
        victim = await sandbox.start(["python3", "-c", _VICTIM, token, str(VICTIM_PORT)])
        heard: list[bytes] = []
        ready = asyncio.Event()

        async def listen() -> None:
            async for chunk in victim.output():
                heard.append(chunk.data)
                ready.set()

        listening = asyncio.create_task(listen())
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await ready.wait()
            first = json.loads(b"".join(heard).decode().splitlines()[0])
            yield Neighbour(sandbox, victim, token, int(first["outer_uid"]), heard)
        finally:
            await cancel_all(listening)
            await victim.aclose()
