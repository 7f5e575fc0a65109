"""`corral bench --forge`: what a contest costs beyond the time of its candidates, and what it leaves behind."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

from corral.cli.display import show_seconds, show_size
from corral.client.registry import get_backend
from corral.forge.candidate import Candidate
from corral.forge.contest import Contest
from corral.forge.events import ForgeEvent
from corral_bench.measuring import Figure, Tell, read_memory

_SCRIPT = """\
import sys, time
time.sleep({seconds})
print("done")
open(sys.argv[2], "w").write("x" * 1000)
"""
_OVERHEAD_AIM = 0.05
_GROWTH_AIM_BYTES = 16 * 1024 * 1024
_PHASES = {
    "create": "a sandbox, while others run",
    "place": "the candidate's files, while others run",
    "run": "with starting it and hearing of its end",
    "collect": "its artifacts, while others run",
}


async def measure(*, candidates: int, seconds: float, jobs: int, tell: Tell) -> list[Figure]:
    """Hold a contest of candidates that sleep, and measure what else it took."""
    memory: list[int] = []

    def listen(event: ForgeEvent) -> None:
        if event.kind == "attempt-ended":
            memory.append(read_memory("VmRSS"))
            tell(f"{len(memory)} of {candidates} candidates have ended …")

    backend = get_backend()
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        script = Path(folder, "candidate.py")
        await asyncio.to_thread(script.write_text, _SCRIPT.format(seconds=seconds), encoding="ascii")
        contest = Contest(
            [Candidate.script(script, id=f"candidate-{number}") for number in range(candidates)],
            "sleep",
            artifacts_dir=Path(folder, "artifacts"),
            jobs=jobs,
            on_event=listen,
        )
        result = await contest.run()
    left = len(await backend.list())
    if "snapshot" in (await backend.capabilities()).powers:
        left += sum((info.name or "").startswith("forge-") for info in await backend.list_snapshots())
    own = sum(attempt.seconds or 0.0 for attempt in result.attempts) / jobs
    overhead = (result.seconds - own) / own
    # From a quarter on: by then everything that is loaded once is loaded.
    growth = memory[-1] - memory[len(memory) // 4]
    grown = f"{show_size(abs(growth))} {'more' if growth > 0 else 'less'} than after a quarter"
    ended = sum(attempt.ok for attempt in result.attempts)
    phases = {phase: statistics.median(each.phases.get(phase, 0.0) for each in result.attempts) for phase in _PHASES}
    return [
        Figure(
            "candidates", ended, "things", f"of {candidates}; {seconds:g} s each, {jobs} at once", ended == candidates
        ),
        Figure("whole contest", result.seconds, "seconds", f"their own time ÷ {jobs}: {show_seconds(own)}"),
        Figure("overhead", overhead, "share", f"aim: at most {_OVERHEAD_AIM:.0%}", overhead <= _OVERHEAD_AIM),
        *(Figure(f"  {phase}", phases[phase], "seconds", detail) for phase, detail in _PHASES.items()),
        Figure("our memory", memory[-1], "bytes", grown, growth <= _GROWTH_AIM_BYTES),
        Figure("left behind", left, "things", "sandboxes and snapshots", left == 0),
    ]
