"""Processes for `corral bench --server`: a server of our own, and one that answers constants."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from corral.errors import BackendUnavailableError
from corral_bench.figure import environment

_READY_SECONDS = 120.0
_END_SECONDS = 120.0
_LISTENING = b"listening on "
_REMOVALS = 20


class OwnServer:
    """`corral serve` on a free port, with a data folder of its own."""

    def __init__(self, data_folder: Path) -> None:
        self.data_folder = data_folder
        self.key = secrets.token_urlsafe(32)
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> float:
        """Gives how long it took from the start of the process until it listened. Raises: BackendUnavailableError."""
        begun = time.perf_counter()
        with (self.data_folder / "stderr.log").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "corral.cli"),  # -P: a folder named corral that lies here is not ours
                *("serve", "--port", "0", "--data-dir", str(self.data_folder)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**self._environment(), "CORRAL_API_KEY": self.key},
                start_new_session=True,  # a Ctrl-C is for us; we tell it then
            )
        assert self._process.stdout is not None, "asked for"
        try:
            async with asyncio.timeout(_READY_SECONDS):
                async for line in self._process.stdout:
                    if line.startswith(_LISTENING):
                        self.url = line.split()[-1].decode()
                        return time.perf_counter() - begun
        except TimeoutError:
            pass
        last = (self.data_folder / "stderr.log").read_text(encoding="utf-8", errors="replace").strip()[-300:]
        raise BackendUnavailableError("`corral serve` did not start", op="bench", hint=last or "run `corral doctor`")

    def _environment(self) -> dict[str, str]:
        """With bytecode, as an installed server has it, wherever it is run from: its first start writes that."""
        variables = environment()
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        return {**variables, "PYTHONPYCACHEPREFIX": str(self.data_folder.parent / "bytecode")}

    @property
    def peak_bytes(self) -> int:
        """The most memory that its process has held, ever or since `forget_peak`."""
        return self._memory("VmHWM")

    @property
    def now_bytes(self) -> int:
        """What its process holds now."""
        return self._memory("VmRSS")

    def forget_peak(self) -> None:
        """Measure the peak from here on."""
        assert self._process is not None, "started"
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5", encoding="ascii")

    def _memory(self, field: str) -> int:
        assert self._process is not None, "started"
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii", errors="replace")
        (line,) = (line for line in status.splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024

    async def end(self, number: int) -> None:
        """A signal, and its end. SIGINT ends its sandboxes, too."""
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
async def own_server(data_folder: Path) -> AsyncIterator[OwnServer]:
    """A started one; at the end its sandboxes are ended with it."""
    server = OwnServer(data_folder)
    try:
        await server.start()
        yield server
    finally:
        await server.end(signal.SIGINT)


@contextlib.asynccontextmanager
async def constant_server(answers: dict[str, Any]) -> AsyncIterator[str]:
    """Gives its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "corral_bench.constant"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    assert process.stdin is not None, "asked for"
    assert process.stdout is not None, "asked for"
    try:
        process.stdin.write(json.dumps(answers).encode() + b"\n")
        await process.stdin.drain()
        address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise BackendUnavailableError("the server for comparison did not start", op="bench")
        yield address
    finally:
        process.stdin.close()
        await process.wait()


def make_folder() -> Path:
    """With a data folder in it, whose path must not have a link: TMPDIR may be one."""
    folder = Path(tempfile.mkdtemp(prefix="corral-bench-")).resolve()
    (folder / "data").mkdir(mode=0o700)
    return folder


def remove_folder(folder: Path) -> None:
    """Keepers put their folders away when the server has gone already: what comes up meanwhile is met again."""
    for _ in range(_REMOVALS):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)


def make_headers(key: str) -> dict[str, str]:
    """Of a call with JSON."""
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


def ask(method: str, url: str, body: dict[str, Any] | None = None, *, key: str) -> Any:
    """One call to a server; its answer. Raises: OSError, if it is refused."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, headers=make_headers(key), method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        content = answer.read()
    return json.loads(content) if content else None
