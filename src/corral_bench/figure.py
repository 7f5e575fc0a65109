"""Promises as figures: how soon a program is gone, how much we hold, what is left after many rounds."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from corral.cli.display import show_seconds, show_size
from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.spec import Resources

Tell = Callable[[str], None]

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
# In a process of its own: what the bench itself holds would hide what matters.
_FLOOD = """
import json, sys
from corral import Sandbox
with Sandbox() as box:
    result = box.exec(["head", "-c", sys.argv[1], "/dev/zero"])
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    print(json.dumps({"printed": result.stdout_total_bytes, "wall": result.usage.wall_seconds,
                      "peak": int(status["VmHWM"].split()[0]) * 1024, "now": int(status["VmRSS"].split()[0]) * 1024}))
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One promise, measured."""

    what: str
    value: float
    unit: str
    text: str
    detail: str
    good: bool


async def measure_figures(*, rounds: int, tell: Tell) -> list[Figure]:
    """All of them. Raises: as opening a sandbox does."""
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
    return Figure(f"{name}: gone at timeout +", median, "seconds", show_seconds(median), detail, left == 0)


async def _count_inside(box: AsyncSandbox) -> int:
    """Python programs that still run, seen from inside; the dead ones that nobody has collected yet don't count."""
    script = "for file in /proc/[0-9]*/stat; do read -r line < $file && echo $line; done 2>/dev/null; :"
    lines = (await box.exec(script, timeout=20)).stdout.splitlines()
    return sum("(python" in line and line.rpartition(")")[2].split()[0] != "Z" for line in lines)


async def _measure_flood() -> Figure:
    process = await asyncio.create_subprocess_exec(
        # -P: a folder named corral that lies here is not ours
        *(sys.executable, "-P", "-c", _FLOOD, str(_OUTPUT_BYTES)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise CorralError(
            "the program that was to read 300 MB of output failed", op="bench", hint="run `corral doctor`"
        )
    found = json.loads(output)
    rate = found["printed"] / found["wall"]
    good = found["printed"] == _OUTPUT_BYTES and found["now"] < _OUTPUT_LIMIT_BYTES
    detail = f"peak {show_size(found['peak'])}, {show_size(rate)}/s"
    return Figure("300 MB of output: our process holds", found["now"], "bytes", show_size(found["now"]), detail, good)


def environment() -> dict[str, str]:
    """In which another Python finds this very package."""
    package = str(Path(__file__).resolve().parents[1])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{package}:{path}" if path else package}


async def _measure_rounds(rounds: int, tell: Tell) -> list[Figure]:
    from corral.backends.embedded import EmbeddedBackend, report

    backend = EmbeddedBackend()
    try:
        async with AsyncSandbox(backend=backend):
            pass  # the launcher, the pump and the templates are there from here on
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
        Figure(f"{rounds} × open, close: left behind", total, "things", str(total), detail, total == 0),
        Figure(
            "open, close: one after another",
            rounds / seconds,
            "per second",
            f"{rounds / seconds:.0f}/s",
            "one thread",
            True,
        ),
    ]


async def _settle(data_folder: Path) -> None:
    """Files are deleted in the background; the counting waits for that."""
    deadline = time.monotonic() + 5
    # Polled, since another process deletes, and tells nobody.
    while any((data_folder / "trash").iterdir()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
