"""`corral bench --server`: calls through the official SDK, beside a server that does nothing and the engine alone."""

from __future__ import annotations

import asyncio
import filecmp
import importlib
import importlib.util
import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from corral.cli.display import show_seconds, show_size
from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendUnavailableError, CorralError
from corral.protocol import Backend
from corral.server.settings import GIB
from corral.sessions.interpreter.oneshot import run_with_charts
from corral.spec import Resources, Spec
from corral_bench.constant import ORIGIN
from corral_bench.measuring import Figure, Tell, Timed, in_thread, take_turns, time_work
from corral_bench.peer import SNIPPET
from corral_bench.served import OwnServer, ask, constant_server, own_server

_TRANSFER_BYTES = 200 * 1000 * 1000
_AT_ONCE = 8
_COMMAND = "true"


@dataclass(frozen=True, slots=True)
class CallTimes:
    """One call of the SDK; medians, in seconds."""

    task: str
    ours: float
    constant: float
    engine: float

    @property
    def ratio(self) -> float:
        """What our server adds to a call, in calls to a server that does nothing."""
        return (self.ours - self.engine) / self.constant


async def measure(*, runs: int, restart: int, tell: Tell) -> tuple[list[CallTimes], list[Figure]]:
    """Measure calls, transfers and a restart. Raises: BackendUnavailableError without the SDK; as opening a sandbox."""
    if importlib.util.find_spec("daytona") is None:
        message = "the daytona SDK is not installed; the benchmark uses it"
        raise BackendUnavailableError(message, op="bench", hint="pip install daytona")
    async with own_server(tell) as server:
        calls = await _measure_calls(server, runs=runs, tell=tell)
        figures = await _measure_transfer(server, tell=tell)
        if restart:
            figures += await _measure_restart(server, count=restart, tell=tell)
    return calls, figures


def _client(url: str, key: str) -> Any:
    # By name: only this measurement knows the SDK, and only where it is installed.
    sdk = importlib.import_module("daytona")
    return sdk.Daytona(sdk.DaytonaConfig(api_url=url, api_key=key))


async def _measure_calls(server: OwnServer, *, runs: int, tell: Tell) -> list[CallTimes]:
    from corral.backends.embedded import EmbeddedBackend

    answers = await asyncio.to_thread(_record, server)
    backend = EmbeddedBackend(server.folder / "engine")
    try:
        async with constant_server(answers) as address:
            ours, constant = _client(server.url, server.key), _client(f"{address}/api", server.key)
            calls = await _time_calls(ours, constant, backend, data_folder=server.data_folder, runs=runs, tell=tell)
    finally:
        for info in await backend.list():  # one is left if we were interrupted between creating and ending it
            await backend.delete(info.sandbox_id)
        await backend.aclose()
    return calls


async def _time_calls(
    ours: Any, constant: Any, backend: Backend, *, data_folder: Path, runs: int, tell: Tell
) -> list[CallTimes]:
    from corral.backends.embedded import EmbeddedBackend

    box, same = await asyncio.to_thread(ours.create), await asyncio.to_thread(constant.create)
    limits = Resources(cpus=box.cpu, memory_bytes=int(box.memory * GIB), disk_bytes=int(box.disk * GIB)).as_usual()

    async def create_alone() -> AsyncSandbox:
        """As the server does it: with the same limits, and held by a keeper."""
        made = await backend.create(Spec(resources=limits))
        await made.detach()
        return made

    # The very sandbox that the server has, reached without it: two of them are never equally quick.
    there = EmbeddedBackend(data_folder)
    (info,) = await there.list()
    alone = await there.connect(info.sandbox_id)
    tasks: dict[str, dict[str, Timed]] = {
        "create": {
            "ours": lambda: time_work(in_thread(ours.create), lambda made: asyncio.to_thread(ours.delete, made)),
            "constant": lambda: time_work(in_thread(constant.create)),
            "engine": lambda: time_work(create_alone, lambda made: made.kill()),
        },
        "code_run": {
            "ours": lambda: time_work(in_thread(box.process.code_run, SNIPPET)),
            "constant": lambda: time_work(in_thread(same.process.code_run, SNIPPET)),
            "engine": lambda: time_work(lambda: run_with_charts(alone, SNIPPET)),
        },
        "exec": {
            "ours": lambda: time_work(in_thread(box.process.exec, _COMMAND)),
            "constant": lambda: time_work(in_thread(same.process.exec, _COMMAND)),
            "engine": lambda: time_work(lambda: alone.exec(_COMMAND)),
        },
    }
    try:
        medians = await take_turns(tasks, runs=runs, tell=tell)
    finally:
        await alone.aclose()
        await asyncio.to_thread(ours.delete, box)
    return [CallTimes(task, **found) for task, found in medians.items()]


def _record(server: OwnServer) -> dict[str, Any]:
    """The answers of our server, for the other one to repeat."""
    sandbox = ask("POST", f"{server.url}/sandbox", {}, key=server.key)
    base = f"{sandbox['toolboxProxyUrl']}/{sandbox['id']}"
    answers = {f"POST {urlsplit(server.url).path}/sandbox": sandbox}
    for path, body in (
        ("/process/execute", {"command": _COMMAND}),
        ("/process/code-run", {"code": SNIPPET, "language": "python"}),
    ):
        answers[f"POST {urlsplit(base).path}{path}"] = ask("POST", base + path, body, key=server.key)
    ask("DELETE", f"{server.url}/sandbox/{sandbox['id']}", key=server.key)
    whole = urlsplit(server.url)
    repeated: dict[str, Any] = json.loads(json.dumps(answers).replace(f"{whole.scheme}://{whole.netloc}", ORIGIN))
    return repeated


async def _measure_transfer(server: OwnServer, *, tell: Tell) -> list[Figure]:
    size = show_size(_TRANSFER_BYTES)
    there, back, copy = (server.folder / name for name in ("there", "back", "copy"))
    tell(f"{size} there and back …")
    await asyncio.to_thread(_write_noise, there)
    client = _client(server.url, server.key)
    box = await asyncio.to_thread(client.create)
    before = server.peak_bytes
    try:
        plain = await time_work(in_thread(shutil.copyfile, there, copy))
        up = await time_work(in_thread(box.fs.upload_file, str(there), "blob"))
        down = await time_work(in_thread(box.fs.download_file, "blob", str(back)))
        if not await asyncio.to_thread(filecmp.cmp, there, back, shallow=False):
            raise CorralError(f"{size} were not read back as written", op="bench")
    finally:
        await asyncio.to_thread(client.delete, box)
        for file in (there, back, copy):
            file.unlink(missing_ok=True)
    grown = server.peak_bytes - before
    figures = [
        Figure(f"{what} of {size}", _TRANSFER_BYTES / seconds, "bytes per second", f"plain copy ×{seconds / plain:.1f}")
        for what, seconds in (("upload", up), ("download", down))
    ]
    detail = f"peak {show_size(before + grown)}"
    return [*figures, Figure("the server's memory grew by", grown, "bytes", detail, grown < _TRANSFER_BYTES // 4)]


def _write_noise(file: Path) -> None:
    block = os.urandom(1 << 20)
    with file.open("wb") as target:
        left = _TRANSFER_BYTES
        while left:
            left -= target.write(block[:left])


async def _measure_restart(server: OwnServer, *, count: int, tell: Tell) -> list[Figure]:
    tell("a restart with no sandboxes …")
    await server.end(signal.SIGKILL)
    empty = await server.start()
    made = 0

    async def make_some() -> None:
        nonlocal made
        while made < count:
            made += 1
            await asyncio.to_thread(ask, "POST", f"{server.url}/sandbox", {}, key=server.key)
            tell(f"creating sandboxes, {made}/{count} …")

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(make_some())
    tell(f"a restart with {count} sandboxes …")
    await server.end(signal.SIGKILL)
    seconds = await server.start()
    items = await asyncio.to_thread(ask, "GET", f"{server.url}/sandbox/paginated?limit=1", key=server.key)
    if items["total"] != count:
        raise CorralError(f"of {count} sandboxes {items['total']} were there after the restart", op="bench")
    detail = f"with none: {show_seconds(empty)}"
    return [Figure(f"killed, ready again with {count} sandboxes", seconds, "seconds", detail, seconds < 2)]
