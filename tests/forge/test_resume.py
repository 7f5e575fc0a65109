"""Contests that are interrupted, and resumed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.errors import JudgeError, RunFolderError
from corral.forge import Candidate, Contest, ForgeEvent, Judge, Seat, race, read_run
from corral.forge.judge.rounds import PythonScore
from corral.forge.judge.work import Work

pytestmark = pytest.mark.needs_userns


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


COUNTS = "import sys, uuid\nopen(sys.argv[2], 'w').write(str(uuid.uuid4()))\n"
WAITS = COUNTS + "import time\nprint('waiting', flush=True)\ntime.sleep(1000)\n"


async def test_cancelled_run_keeps_what_there_is(tmp_path: Path) -> None:
    candidates = [script(tmp_path, "done.py", COUNTS), script(tmp_path, "waits.py", WAITS)]
    waiting, done = asyncio.Event(), asyncio.Event()

    def listen(event: ForgeEvent) -> None:
        if event.kind == "output" and event.candidate == "waits":
            waiting.set()
        if event.kind == "attempt-ended" and event.candidate == "done":
            done.set()

    contest = Contest(candidates, "goal", artifacts_dir=tmp_path, jobs=2, on_event=listen)
    running = asyncio.ensure_future(contest.run(run_id="run"))
    await waiting.wait()
    await done.wait()
    with pytest.raises(RunFolderError, match="another process"):
        await contest.run(resume=tmp_path / "run")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    broken = read_run(tmp_path / "run")
    assert broken.state == "interrupted"
    assert {key[0]: value.outcome for key, value in broken.attempts.items()} == {"done": "ok", "waits": "cancelled"}
    ours = f"-{os.getpid()}-"
    assert [info for info in await EmbeddedBackend().list_snapshots() if ours in (info.name or "")] == []

    script(tmp_path, "waits.py", COUNTS)
    with pytest.raises(RunFolderError, match="candidate waits differ"):
        await Contest(candidates, "goal", artifacts_dir=tmp_path).run(resume=tmp_path / "run")


KILLED = """
import sys
from corral.forge import race
race(sys.argv[2:], "goal", artifacts_dir=sys.argv[1], jobs=1, seed=int(sys.argv[1][-1]))
"""


def test_killed_run_is_resumed(tmp_path: Path) -> None:
    """Killed after each line of its log in turn; what was finished keeps its times and its artifacts."""
    candidates = [script(tmp_path, f"{name}.py", COUNTS) for name in ("a", "b")]
    seen = 0
    for round_number, wanted in enumerate(["phase", "attempt-ended", "judging"]):
        folder = tmp_path / f"artifacts{round_number}"
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder), *map(str, candidates)], stderr=subprocess.DEVNULL
        ) as program:
            while not any(f'"{wanted}"' in log.read_text() for log in folder.glob("*/events.jsonl")):
                assert program.poll() is None or wanted == "judging"
            program.send_signal(signal.SIGKILL)
        (run,) = folder.iterdir()
        with (run / "events.jsonl").open("a") as log:
            log.write('{"at":1,"kind":"attempt-ended","candi')  # half a line
        before = read_run(run)
        result = race(candidates, "goal", artifacts_dir=folder, jobs=1, seed=round_number)  # another run beside it
        assert result.folder != run
        contest = Contest(candidates, "goal", artifacts_dir=folder, jobs=2, seed=round_number)
        resumed = contest.race(resume=run)
        assert resumed.complete
        assert {attempt.candidate for attempt in resumed.attempts} == {"a", "b"}
        for attempt in resumed.attempts:
            old = before.attempts.get((attempt.candidate, 1))
            if old is not None and old.finished:
                assert attempt == old
                seen += 1
        assert read_run(run).attempts == {(a.candidate, a.round): a for a in resumed.attempts}
    assert seen > 0


async def test_judge_that_failed_is_mended_and_the_run_resumed(tmp_path: Path) -> None:
    def broken(work: Work) -> float:
        raise ValueError("a bug")

    def mended(work: Work) -> float:
        return 50.0

    candidates = [script(tmp_path, "a.py", COUNTS)]
    first = Contest(candidates, "goal", Judge(gates=(), scores=(PythonScore(broken),)), artifacts_dir=tmp_path)
    with pytest.raises(JudgeError):
        await first.run(run_id="run")
    made = (tmp_path / "run/a/artifact.md").read_text()
    second = Contest(candidates, "goal", Judge(gates=(), scores=(PythonScore(mended),)), artifacts_dir=tmp_path)
    result = await second.run(resume=tmp_path / "run")
    assert (result.winners, result.standings[0].total) == (("a",), 50.0)
    assert (tmp_path / "run/a/artifact.md").read_text() == made
    with pytest.raises(RunFolderError, match="judge differ"):
        await first.run(resume=tmp_path / "run")


class Writer:
    """A candidate that is a callable object."""

    async def __call__(self, seat: Seat) -> None:
        await seat.sandbox.files.write(seat.output, b"done")


@pytest.mark.parametrize(("recorded", "is_resumed"), [(None, True), ("0" * 64, False)])
async def test_an_unrecorded_hash_of_an_agent_is_unknown(
    tmp_path: Path, recorded: str | None, is_resumed: bool
) -> None:
    """Earlier releases recorded null for callable objects."""
    contest = Contest([Candidate.agent(Writer(), id="agent")], "goal", artifacts_dir=tmp_path)
    await contest.run(run_id="run")
    file = tmp_path / "run" / "run.json"
    definition = json.loads(file.read_text())
    source = definition["candidates"][0]["source"]
    known, source["sha256"] = source["sha256"], recorded
    assert known
    file.write_text(json.dumps(definition))
    if is_resumed:
        await contest.run(resume=tmp_path / "run")
        assert json.loads(file.read_text())["candidates"][0]["source"]["sha256"] == known
    else:
        with pytest.raises(RunFolderError, match="candidate agent differ"):
            await contest.run(resume=tmp_path / "run")
