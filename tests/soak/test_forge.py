"""Contests of hundreds, and contests that are killed at any moment and resumed. Run by `make soak`."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.forge import Candidate, Contest, ForgeEvent, read_run
from support.leftovers import count_descriptors, resident_bytes, take_stock, watch_differences

pytestmark = [pytest.mark.soak, pytest.mark.needs_userns]

MIB = 2**20
SCRIPT = "import sys\nprint('x' * 5000)\nopen(sys.argv[2], 'w').write(sys.argv[1] * 1000)\n"


async def test_200_candidates_leave_nothing_and_memory_flat(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SCRIPT)
    backend = EmbeddedBackend(tmp_path / "data")
    memory: list[int] = []
    descriptors: list[int] = []

    def listen(event: ForgeEvent) -> None:
        if event.kind == "attempt-ended":
            memory.append(resident_bytes())
            descriptors.append(count_descriptors())

    async def hold(count: int) -> None:
        result = await Contest(
            [Candidate.script(tmp_path / "a.py", id=f"c{number}") for number in range(count)], "goal",
            backend=backend, artifacts_dir=tmp_path / "artifacts", jobs=2, on_event=listen,
        ).run()  # fmt: skip
        assert len(result.attempts) == count
        assert all(attempt.ok for attempt in result.attempts)

    await hold(10)
    before = take_stock(tmp_path / "data")
    await hold(200)
    assert watch_differences(before, lambda: take_stock(tmp_path / "data")) == {}
    assert await backend.list_snapshots() == []
    assert memory[-1] - memory[50] < 8 * MIB
    assert max(descriptors[50:]) - min(descriptors[50:]) < 100


KILLED = """
import sys
from corral.forge import race
race(sys.argv[2:], "goal", artifacts_dir=sys.argv[1], jobs=2)
"""


@pytest.mark.parametrize("seed", range(30))
def test_killed_at_a_random_moment_and_resumed(tmp_path: Path, seed: int) -> None:
    """As often as it takes: what was finished keeps its times, and the end is as if nothing had happened."""
    candidates = []
    for number in range(4):
        path = tmp_path / f"c{number}.py"
        path.write_text(f"import sys, time\ntime.sleep(0.1)\nopen(sys.argv[2], 'w').write('made by {number}')\n")
        candidates.append(path)
    folder = tmp_path / "artifacts"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(folder), *map(str, candidates)]) as program:
        time.sleep(random.Random(seed).uniform(0.2, 3.0))
        program.send_signal(signal.SIGKILL)
    runs = list(folder.glob("*/run.json"))
    if not runs:
        return  # killed before there was a run
    run = runs[0].parent
    before = read_run(run).attempts
    result = Contest(candidates, "goal", artifacts_dir=folder, jobs=2).race(resume=run)
    assert result.complete
    assert len(result.attempts) == 4
    for attempt in result.attempts:
        assert (run / attempt.candidate / "artifact.md").read_text() == f"made by {attempt.candidate[1:]}"
        old = before.get((attempt.candidate, 1))
        assert old is None or not old.finished or old == attempt
    assert sorted(path.name for path in run.iterdir()) == [
        "c0", "c1", "c2", "c3", "events.jsonl", "result.json", "run.json",
    ]  # fmt: skip
