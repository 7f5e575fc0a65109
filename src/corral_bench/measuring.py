"""What the measurements share: figures, timing, other processes that run Python, and their memory."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corral.cli.display import show_seconds, show_size

Tell = Callable[[str], None]
Work = Callable[[], Awaitable[Any]]
Timed = Callable[[], Awaitable[float]]
_PACKAGES = str(Path(__file__).resolve().parents[1])
_SHOW: dict[str, Callable[[float], str]] = {
    "seconds": show_seconds,
    "bytes": show_size,
    "bytes per second": lambda value: f"{show_size(value)}/s",
    "per second": lambda value: f"{value:.0f}/s",
    "share": lambda value: f"{value:.1%}",
}
"""How values are shown, by their unit."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, and whether it is as good as promised."""

    what: str
    value: float
    unit: str
    detail: str
    good: bool = True

    @property
    def text(self) -> str:
        """The value in readable units."""
        return _SHOW.get(self.unit, str)(self.value)

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {**asdict(self), "text": self.text}


async def time_work(work: Work, undo: Callable[[Any], Awaitable[object]] | None = None) -> float:
    """How many seconds it took; its result is then given to `undo`."""
    begun = time.perf_counter()
    result = await work()
    seconds = time.perf_counter() - begun
    if undo is not None:
        await undo(result)
    return seconds


async def take_turns(tasks: Mapping[str, Mapping[str, Timed]], *, runs: int, tell: Tell) -> dict[str, dict[str, float]]:
    """Task → contestant → its median seconds. All take turns; the first turn warms up and does not count.

    Every other turn goes backwards: a sandbox is cleaned up while the next one is measured.
    """
    seconds: dict[str, dict[str, list[float]]] = {task: {name: [] for name in tasks[task]} for task in tasks}
    for turn in range(-1, runs):
        for task, contestants in tasks.items():
            tell(f"{max(0, turn)}/{runs}  {task}")
            for name in contestants if turn % 2 else reversed(list(contestants)):
                took = await contestants[name]()
                if turn >= 0:
                    seconds[task][name].append(took)
    return {task: {name: statistics.median(each) for name, each in times.items()} for task, times in seconds.items()}


def in_thread(work: Callable[..., Any], *arguments: Any) -> Work:
    """The same work, in a thread."""
    return lambda: asyncio.to_thread(work, *arguments)


async def start_python(
    *words: str, env: Mapping[str, str] | None = None, **streams: Any
) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
    """A process that finds this very package, and its standard output."""
    path = os.environ.get("PYTHONPATH")
    variables = {**os.environ, "PYTHONPATH": f"{_PACKAGES}:{path}" if path else _PACKAGES, **(env or {})}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", *words),  # -P: a folder named corral in the working folder is not ours
        stdout=subprocess.PIPE,
        env=variables,
        **{"stdin": subprocess.DEVNULL, **streams},
    )
    assert process.stdout is not None, "requested"
    return process, process.stdout


def read_memory(field: str, *, pid: int | str = "self") -> int:
    """Bytes that a process holds, from a field of its status: VmRSS now, VmHWM at its peak."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    (line,) = (line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
