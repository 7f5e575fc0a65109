"""Processes for `corral bench --server` and `--tenants`: a `corral serve`, and a server that answers constants."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from corral.errors import BackendUnavailableError
from corral_bench.measuring import Tell, read_memory, start_python

_READY_SECONDS = 120.0
_END_SECONDS = 120.0
_LISTENING = b"listening on "
_REMOVALS = 20


class OwnServer:
    """`corral serve` on a free port, with its own data folder in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_folder = folder / "data"
        self.key = secrets.token_urlsafe(32)
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> float:
        """The seconds from the start of the process until it listens. Raises: BackendUnavailableError."""
        begun = time.perf_counter()
        # With bytecode, as an installed server has it: its first start writes that.
        bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode")}
        with (self.data_folder / "stderr.log").open("ab") as errors:
            self._process, output = await start_python(
                *("-m", "corral.cli", "serve", "--port", "0", "--data-dir", str(self.data_folder)),
                env={**bytecode, "CORRAL_API_KEY": self.key},
                stderr=errors,
                start_new_session=True,  # a Ctrl-C is for the benchmark, which then stops the server
            )
        try:
            async with asyncio.timeout(_READY_SECONDS):
                async for line in output:
                    if line.startswith(_LISTENING):
                        self.url = line.split()[-1].decode()
                        return time.perf_counter() - begun
        except TimeoutError:
            pass
        last = (self.data_folder / "stderr.log").read_text(encoding="utf-8", errors="replace").strip()[-300:]
        raise BackendUnavailableError("`corral serve` did not start", op="bench", hint=last or "run `corral doctor`")

    @property
    def _pid(self) -> int:
        assert self._process is not None, "started"
        return self._process.pid

    @property
    def peak_bytes(self) -> int:
        """The most memory that its process has held, ever or since `forget_peak`."""
        return read_memory("VmHWM", pid=self._pid)

    @property
    def now_bytes(self) -> int:
        """The memory that its process holds now."""
        return read_memory("VmRSS", pid=self._pid)

    def forget_peak(self) -> None:
        """Measure the peak from here on."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5", encoding="ascii")

    async def end(self, number: int) -> None:
        """Send a signal, and wait for the end of the process. SIGINT ends its sandboxes too."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(number)
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def own_server(tell: Tell) -> AsyncIterator[OwnServer]:
    """A running server; at the end its sandboxes are ended with it, and its folder is removed."""
    tell("starting a server …")
    # Resolved: TMPDIR may be a link, and the path of a data folder must not have one.
    folder = await asyncio.to_thread(lambda: Path(tempfile.mkdtemp(prefix="corral-bench-")).resolve())
    server = OwnServer(folder)
    try:
        server.data_folder.mkdir(mode=0o700)
        try:
            await server.start()
            yield server
            tell("ending the sandboxes …")
        finally:
            await server.end(signal.SIGINT)
    finally:
        await asyncio.to_thread(_remove_folder, folder)


@contextlib.asynccontextmanager
async def constant_server(answers: dict[str, Any]) -> AsyncIterator[str]:
    """The address of a server that gives these answers."""
    process, output = await start_python("-m", "corral_bench.constant", stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None, "requested"
    try:
        process.stdin.write(json.dumps(answers).encode() + b"\n")
        await process.stdin.drain()
        address = (await output.readline()).decode().strip()
        if not address:
            raise BackendUnavailableError("the server for comparison did not start", op="bench")
        yield address
    finally:
        process.stdin.close()
        await process.wait()


def _remove_folder(folder: Path) -> None:
    """Remove it, in several attempts: keepers still move their folders when the server has ended."""
    for _ in range(_REMOVALS):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)


def make_headers(key: str) -> dict[str, str]:
    """The headers of a call with JSON."""
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


def ask(method: str, url: str, body: dict[str, Any] | None = None, *, key: str) -> Any:
    """The answer to one call to a server. Raises: OSError, if it is refused."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, headers=make_headers(key), method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        content = answer.read()
    return json.loads(content) if content else None
