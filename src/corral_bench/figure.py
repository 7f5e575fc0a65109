"""Promises as figures: how soon a program is killed, how much memory is held, what is left after many rounds."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import fields
from pathlib import Path

from corral.cli.display import show_seconds, show_size
from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.spec import Resources
from corral_bench.measuring import Figure, Tell, start_python

TIMEOUT = 0.5
_STUBBORN = {
    "ignores TERM": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "forks without end": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
}
_TIMES = 5
_PATIENCE = 3.0
_OUTPUT_BYTES = 300 * 1000 * 1000
_OUTPUT_LIMIT_BYTES = 50 * 1000 * 1000
# In a separate process that imports nothing else: what the benchmark itself holds would hide what matters.
_FLOOD = """
import json, sys
from corral import Sandbox
with Sandbox() as box:
    result = box.exec(["head", "-c", sys.argv[1], "/dev/zero"])
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    print(json.dumps({"printed": result.stdout_total_bytes, "wall": result.usage.wall_seconds,
                      "peak": int(status["VmHWM"].split()[0]) * 1024, "now": int(status["VmRSS"].split()[0]) * 1024}))
"""


async def measure_figures(*, rounds: int, tell: Tell) -> list[Figure]:
    """Measure all promises. Raises: as opening a sandbox does."""
    figures = []
    for name, program in _STUBBORN.items():
        tell(f"a program that {name} …")
        figures.append(await _measure_stubborn(name, program))
    tell("300 MB of output …")
    figures.append(await _measure_flood())
    figures += await _measure_rounds(rounds, tell)
    return figures


async def _measure_stubborn(name: str, program: str) -> Figure:
    late, left = [], 0
    async with AsyncSandbox(resources=Resources(processes=64)) as box:
        for _ in range(_TIMES):
            begun = time.perf_counter()
            result = await box.run_code(program, timeout=TIMEOUT)
            if result.reason != "timeout":
                raise CorralError(
                    f"a program that {name} ended by {result.reason}", op="bench", hint=result.output[-200:]
                )
            gone = time.perf_counter()
            while (left := await _count_inside(box)) and time.perf_counter() < begun + TIMEOUT + _PATIENCE:
                gone = time.perf_counter()
            late.append(gone - begun - TIMEOUT)
    median = statistics.median(late)
    detail = f"worst of {_TIMES}: {show_seconds(max(late))}; {left} left"
    return Figure(f"{name}: gone at timeout +", median, "seconds", detail, left == 0)


async def _count_inside(box: AsyncSandbox) -> int:
    """How many Python programs still run, seen from inside; zombies don't count."""
    script = "for file in /proc/[0-9]*/stat; do read -r line < $file && echo $line; done 2>/dev/null; :"
    lines = (await box.exec(script, timeout=20)).stdout.splitlines()
    return sum("(python" in line and line.rpartition(")")[2].split()[0] != "Z" for line in lines)


async def _measure_flood() -> Figure:
    process, _ = await start_python("-c", _FLOOD, str(_OUTPUT_BYTES))
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise CorralError(
            "the program that was to read 300 MB of output failed", op="bench", hint="run `corral doctor`"
        )
    found = json.loads(output)
    rate = found["printed"] / found["wall"]
    good = found["printed"] == _OUTPUT_BYTES and found["now"] < _OUTPUT_LIMIT_BYTES
    detail = f"peak {show_size(found['peak'])}, {show_size(rate)}/s"
    return Figure("300 MB of output: our process holds", found["now"], "bytes", detail, good)


async def _measure_rounds(rounds: int, tell: Tell) -> list[Figure]:
    from corral.backends.embedded import EmbeddedBackend, report

    backend = EmbeddedBackend()
    try:
        async with AsyncSandbox(backend=backend):
            pass  # from here on the launcher, the pump and the templates exist
        await _settle(backend.data_folder)
        before = await asyncio.to_thread(report.count_traces, backend.data_folder)
        begun = time.perf_counter()
        for number in range(rounds):
            if number % 10 == 0:
                tell(f"open and close, {number}/{rounds} …")
            async with AsyncSandbox(backend=backend):
                pass
        seconds = time.perf_counter() - begun
        await _settle(backend.data_folder)
        after = await asyncio.to_thread(report.count_traces, backend.data_folder)
    finally:
        await backend.aclose()
    grown = {field.name: getattr(after, field.name) - getattr(before, field.name) for field in fields(after)}
    left = {name: count for name, count in grown.items() if count > 0}
    detail = ", ".join(f"{count} {name}" for name, count in left.items()) or "processes, mounts, cgroups, files, fds"
    total = sum(left.values())
    return [
        Figure(f"{rounds} × open, close: left behind", total, "things", detail, total == 0),
        Figure("open, close: one after another", rounds / seconds, "per second", "one thread"),
    ]


async def _settle(data_folder: Path) -> None:
    """Wait until the files of closed sandboxes are deleted, which happens in the background."""
    deadline = time.monotonic() + 5
    # Polled: another process deletes them, and does not say when it has finished.
    while any((data_folder / "trash").iterdir()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
