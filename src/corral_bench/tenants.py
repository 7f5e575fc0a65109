"""`corral bench --tenants`: how long one tenant waits, and how much the server grows, while another one attacks it."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from corral.errors import CorralError
from corral_bench.attacks import ATTACKS
from corral_bench.measuring import Tell, start_python
from corral_bench.served import OwnServer, ask, make_headers, own_server

WAIT_SECONDS = 0.3
GROWTH_BYTES = 64 * 1024 * 1024
_PAUSE_SECONDS = 0.01
_ATTACK_SECONDS = 900.0
_SETTLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Endured:
    """What an attack did to others."""

    attack: str
    what: str
    longest_wait_seconds: float
    """The longest that the second tenant waited for a cheap call."""
    calls: int
    """Calls that the second tenant made meanwhile."""
    failed: int
    """How many of them were refused or broke off."""
    grown_bytes: int
    """The server's peak, beyond what it held before."""
    seconds: float
    """How long the attack took."""
    answers: dict[str, int]
    """What the attacker was told, by status."""

    @property
    def good(self) -> bool:
        """True if the second tenant was not harmed."""
        return self.longest_wait_seconds <= WAIT_SECONDS and self.grown_bytes <= GROWTH_BYTES and not self.failed


async def measure(*, names: Sequence[str] = (), scale: float = 1.0, tell: Tell) -> list[Endured]:
    """Make each attack, one after the other, against a new server. Raises: as starting a server does."""
    endured = []
    async with own_server(tell) as server:
        second = await _second_key(server)
        victim = await asyncio.to_thread(ask, "POST", f"{server.url}/sandbox", {}, key=second)
        for name in names or ATTACKS:
            tell(f"{ATTACKS[name].what} …")
            endured.append(await _endure(server, name, second=second, victim=victim, scale=scale))
    return endured


async def _second_key(server: OwnServer) -> str:
    """A key of another organisation, as an administrator creates it."""
    process, _ = await start_python(
        *("-m", "corral.cli", "key", "create", "--organisation", "second"),
        *("--data-dir", str(server.data_folder), "--json"),
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise CorralError("could not create a second key", op="bench")
    return str(json.loads(output)["key"])


class _Victim:
    """A thread that makes cheap calls, one after the other, and keeps the longest wait."""

    def __init__(self, sandbox: dict[str, Any], *, url: str, key: str) -> None:
        self._paths = [f"{urlsplit(url).path}/sandbox/{sandbox['id']}"]
        self._paths.append(f"{urlsplit(sandbox['toolboxProxyUrl']).path}/{sandbox['id']}/work-dir")
        self._url, self._key = url, key
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._call, daemon=True)
        self.longest, self.calls, self.failed = 0.0, 0, 0

    def __enter__(self) -> _Victim:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _call(self) -> None:
        parts = urlsplit(self._url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=300)
        while not self._over.is_set():
            begun = time.perf_counter()
            try:
                connection.request("GET", self._paths[self.calls % len(self._paths)], headers=make_headers(self._key))
                answer = connection.getresponse()
                answer.read()
                self.failed += answer.status != 200
            except (OSError, http.client.HTTPException):
                self.failed += 1
                connection.close()
            self.longest = max(self.longest, time.perf_counter() - begun)
            self.calls += 1
            time.sleep(_PAUSE_SECONDS)
        connection.close()


async def _endure(server: OwnServer, name: str, *, second: str, victim: dict[str, Any], scale: float) -> Endured:
    sandbox = await asyncio.to_thread(ask, "POST", f"{server.url}/sandbox", {}, key=server.key)
    told = {
        "attack": name,
        "base": f"{sandbox['toolboxProxyUrl']}/{sandbox['id']}",
        "api": server.url,
        "sandbox_id": sandbox["id"],
        "key": server.key,
        "scale": scale,
    }
    process, output = await start_python("-c", "from corral_bench.attacks import main; main()", stdin=subprocess.PIPE)
    assert process.stdin is not None, "requested"
    try:
        async with asyncio.timeout(_ATTACK_SECONDS):
            process.stdin.write(json.dumps(told).encode() + b"\n")
            if await output.readline() != b"ready\n":
                raise CorralError(f"the attack {name!r} could not be prepared", op="bench")
            await asyncio.sleep(_SETTLE_SECONDS)
            server.forget_peak()
            before = server.now_bytes
            with _Victim(victim, url=server.url, key=second) as waiting:
                begun = time.perf_counter()
                process.stdin.write(b"go\n")
                line = await output.readline()
                seconds = time.perf_counter() - begun
        if not line:
            raise CorralError(f"the attack {name!r} failed by itself", op="bench")
        grown = max(0, server.peak_bytes - before)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.to_thread(ask, "DELETE", f"{server.url}/sandbox/{sandbox['id']}", key=server.key)
    return Endured(
        attack=name,
        what=ATTACKS[name].what,
        longest_wait_seconds=waiting.longest,
        calls=waiting.calls,
        failed=waiting.failed,
        grown_bytes=grown,
        seconds=seconds,
        answers=json.loads(line),
    )
