"""A contest on the embedded engine: what it writes, which failures count for whom, and that it can be resumed."""

import asyncio
import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.backends.unsafe_subprocess import open_backend as open_unsafe
from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendError, CapabilityError, SpecError
from corral.forge import Candidate, Contest, ForgeEvent, Seat, SyncSeat, Timeouts, read_run
from corral.forge.outcome import Attempt
from corral.spec import Resources, Spec

pytestmark = pytest.mark.needs_userns

WRITES = 'import sys\nprint("working on", sys.argv[1])\nopen(sys.argv[2], "w").write("made by {}")\n'


@pytest.fixture
def backend() -> EmbeddedBackend:
    return EmbeddedBackend()


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def only(result: Any) -> Attempt:
    (attempt,) = result.attempts
    assert isinstance(attempt, Attempt)
    return attempt


async def run_one(tmp_path: Path, candidate: object, **settings: Any) -> Attempt:
    return only(await Contest([candidate], "objective", artifacts_dir=tmp_path / "artifacts", **settings).run())


async def test_run_is_a_folder(tmp_path: Path) -> None:
    names = ["alpha", "beta", "gamma"]
    candidates = [script(tmp_path, f"{name}.py", WRITES.format(name)) for name in names]
    told: list[ForgeEvent] = []
    contest = Contest(candidates, "a goal", artifacts_dir=tmp_path / "artifacts", on_event=told.append)
    result = await contest.run(run_id="first")
    assert result.folder == tmp_path / "artifacts" / "first"
    assert {attempt.candidate for attempt in result.attempts} == set(names)
    assert all(attempt.ok for attempt in result.attempts), result.attempts
    for attempt in result.attempts:
        (file,) = attempt.artifacts
        content = (result.folder / attempt.candidate / "artifact.md").read_bytes()
        assert content == f"made by {attempt.candidate}".encode()
        assert (file.path, file.size, file.sha256) == ("artifact.md", len(content), hashlib.sha256(content).hexdigest())
        assert attempt.log == "working on a goal\n"
        assert attempt.seconds is not None
        assert attempt.phases.keys() == {"create", "place", "run", "collect"}
    again = read_run(result.folder)
    assert (again.state, again.objective) == ("finished", "a goal")
    assert {key[0]: value for key, value in again.attempts.items()} == {a.candidate: a for a in result.attempts}
    assert again.standings == result.standings
    assert [event.to_line() for event in again.events()] == [event.to_line() for event in told]
    assert json.loads((result.folder / "result.json").read_text())["winners"] == list(result.winners)
    assert not again.is_held()


@pytest.mark.parametrize(
    ("text", "outcome", "reason"),
    [
        ("1 / 0", "crashed", "exit code 1: ZeroDivisionError: division by zero"),
        ("import os; os.kill(os.getpid(), 11)", "crashed", "ended by SIGSEGV"),
        ("import time; time.sleep(1000)", "timeout", "timed out after 2 seconds"),
        ("pass", "no-artifact", "it wrote no artifact.md"),
        ("import os, sys; os.symlink('/etc/passwd', sys.argv[2])", "refused-artifact", "a link (to /etc/passwd)"),
        ("import os, sys; os.mkfifo(sys.argv[2])", "refused-artifact", "a fifo"),
        ("import sys; open(sys.argv[2], 'w').truncate(10**9)", "refused-artifact", "1000000000 bytes"),
    ],
    ids=["crash", "signal", "timeout", "nothing", "link", "fifo", "sparse"],
)
async def test_own_failure_has_its_reason(tmp_path: Path, text: str, outcome: str, reason: str) -> None:
    found = await run_one(tmp_path, script(tmp_path, "a.py", text), timeouts=Timeouts(run=2))
    assert (found.outcome, reason in found.reason) == (outcome, True), found
    assert found.retries == 0
    assert list((tmp_path / "artifacts").glob("*/a")) == []


@pytest.mark.needs_root
async def test_out_of_memory_is_its_own(tmp_path: Path) -> None:
    bomb = script(tmp_path, "a.py", "x = []\nwhile True: x.append(bytearray(10**7))")
    found = await run_one(tmp_path, bomb, resources=Resources(memory_bytes="64MiB"))
    assert (found.outcome, found.reason) == ("oom", "out of memory")


async def test_flood_is_bounded_everywhere(tmp_path: Path) -> None:
    flood = (
        'import sys\nfor _ in range(3000): print("x" * 9999)\nprint("the end")\nopen(sys.argv[2], "w").write("fine")'
    )
    contest = Contest([script(tmp_path, "a.py", flood)], "goal", artifacts_dir=tmp_path)
    result = await contest.run(run_id="run")
    found = only(result)
    assert found.ok
    assert found.log_bytes == 3000 * 10_000 + 8
    assert len(found.log) < 100_000
    assert found.log.endswith("the end\n")
    assert (tmp_path / "run" / "events.jsonl").stat().st_size < 2 * 2**20
    assert [event.kind for event in read_run(tmp_path / "run").events()].count("output-cut") == 1


async def test_artifacts_are_many_and_binary(tmp_path: Path) -> None:
    text = """
import os, sys
folder = os.path.dirname(sys.argv[2])
os.makedirs(folder + "/deep/er")
open(sys.argv[2], "wb").write(bytes(range(256)) * 10_000)
open(folder + "/deep/er/.hidden one\\n", "w").write("x")
open(folder + "/leads", "w").write("y"); os.symlink("leads", folder + "/link")
"""
    contest = Contest([script(tmp_path, "a.py", text)], "goal", artifacts_dir=tmp_path)
    found = only(await contest.run(run_id="run"))
    assert found.ok
    assert [file.path for file in found.artifacts] == ["artifact.md", "deep/er/.hidden one\n", "leads"]
    assert (tmp_path / "run/a/artifact.md").read_bytes() == bytes(range(256)) * 10_000
    assert [(item.path, item.reason) for item in found.refused] == [("link", "a link (to leads)")]


async def test_limits_on_artifacts_are_said(tmp_path: Path) -> None:
    text = """
import os, sys
folder = os.path.dirname(sys.argv[2])
for number in range(30):
    open(f"{folder}/{number:02}", "wb").write(b"x" * 100)
open(sys.argv[2], "w").write("here")
"""
    from corral.forge import Take

    found = await run_one(tmp_path, script(tmp_path, "a.py", text), take=Take(files=10), output="00")
    assert len(found.artifacts) == 10
    assert {item.reason for item in found.refused} == {"more than 10 files"}
    found = await run_one(tmp_path, script(tmp_path, "a.py", text), take=Take(total_bytes=1000), output="00")
    assert sum(file.size for file in found.artifacts) <= 1000
    assert {item.reason for item in found.refused} == {"more than 1000 bytes in all"}


async def test_background_program_has_no_more_time(tmp_path: Path) -> None:
    """A candidate that ends early and lets a child go on writing gets what it had at its end."""
    text = """
import subprocess, sys
open(sys.argv[2], "w").write("early")
subprocess.Popen(["sh", "-c", f"while :; do echo late >> {sys.argv[2]}; done"], start_new_session=True)
"""
    contest = Contest([script(tmp_path, "a.py", text)], "goal", artifacts_dir=tmp_path)
    found = only(await contest.run(run_id="run"))
    assert found.ok
    content = (tmp_path / "run/a/artifact.md").read_bytes()
    assert hashlib.sha256(content).hexdigest() == found.artifacts[0].sha256


async def test_rivals_are_out_of_reach(tmp_path: Path) -> None:
    """One writes a secret and waits; the other looks everywhere for it. Both run at the same time."""
    keeps = """
import sys, time
open("/tmp/secret-of-a", "w").write("s3cret")
open(sys.argv[2], "w").write("a")
time.sleep(2)
"""
    looks = """
import os, subprocess, sys, time
time.sleep(0.5)
found = subprocess.run("cat /tmp/secret* /home/daytona/*/* /proc/*/environ 2>/dev/null; ls -R /tmp /home; ps ax",
                       shell=True, capture_output=True).stdout
open(sys.argv[2], "wb").write(found)
"""
    result = await Contest(
        [script(tmp_path, "a.py", keeps), script(tmp_path, "b.py", looks)], "goal", artifacts_dir=tmp_path, jobs=2
    ).run(run_id="run")
    assert all(attempt.ok for attempt in result.attempts), result.attempts
    found = (tmp_path / "run/b/artifact.md").read_bytes()
    assert b"b.py" in found
    assert b"s3cret" not in found
    assert b"a.py" not in found


class Flaky:
    """A backend whose first sandboxes fail; everything else is the real one's."""

    def __init__(self, real: EmbeddedBackend, failures: int) -> None:
        self._real = real
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def create(self, spec: Spec) -> AsyncSandbox:
        if spec.labels.get("corral.forge") not in ("base", "judge") and self.failures > 0:
            self.failures -= 1
            raise BackendError("no sandbox today")
        return await self._real.create(spec)


@pytest.mark.parametrize(("failures", "outcome"), [(1, "ok"), (2, "infrastructure")])
async def test_infrastructure_is_tried_again(
    tmp_path: Path, backend: EmbeddedBackend, failures: int, outcome: str
) -> None:
    flaky: Any = Flaky(backend, failures)
    contest = Contest([script(tmp_path, "a.py", WRITES)], "goal", backend=flaky, artifacts_dir=tmp_path, jobs=1)
    result = await contest.run()
    found = only(result)
    assert (found.outcome, found.retries) == (outcome, 1)
    (standing,) = result.standings
    assert not standing.disqualified
    assert standing.rank == (1 if outcome == "ok" else None)
    if outcome != "ok":
        assert "no sandbox today" in standing.reason


async def test_functions_drive_agents(tmp_path: Path) -> None:
    async def drives(seat: Seat) -> None:
        seat.log(f"asked for {seat.objective}")
        done = await seat.sandbox.exec(["sh", "-c", 'echo "$0" > "$1"', seat.objective, seat.output], check=True)
        assert done.ok

    def plainly(seat: SyncSeat) -> None:
        seat.log("in a thread")
        seat.sandbox.files.write(seat.output, "plain")

    def fails(seat: SyncSeat) -> None:
        raise ValueError("no idea")

    async def hangs(seat: Seat) -> None:
        await asyncio.sleep(1000)

    result = await Contest(
        [drives, plainly, fails, hangs], "goal", artifacts_dir=tmp_path, timeouts=Timeouts(run=5)
    ).run(run_id="run")
    found = {attempt.candidate: attempt for attempt in result.attempts}
    assert {name: attempt.outcome for name, attempt in found.items()} == {
        "drives": "ok", "plainly": "ok", "fails": "crashed", "hangs": "timeout",
    }, [attempt.reason for attempt in found.values()]  # fmt: skip
    assert found["drives"].log == "asked for goal\n"
    assert found["fails"].reason == "exit code 1: ValueError: no idea"
    assert (tmp_path / "run/plainly/artifact.md").read_text() == "plain"


async def test_candidates_of_every_kind(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    script(folder, "helper.py", "NAME = 'folder'")
    script(folder, "main.py", "import sys, helper\nopen(sys.argv[2], 'w').write(helper.NAME)")
    own = script(tmp_path, "own", '#!/bin/sh\nprintf "$1" > "$2"')
    result = await Contest(
        [
            folder,
            own,
            script(tmp_path, "shell.sh", 'echo shell > "$2"'),
            ["sh", "-c", "echo {objective} > {output}"],
            Candidate.command('echo "$1" > "$2"', id="text"),
        ],
        "don't; echo x",
        artifacts_dir=tmp_path,
    ).run(run_id="run")
    assert {attempt.candidate: attempt.reason for attempt in result.attempts if not attempt.ok} == {}
    read = {
        attempt.candidate: (tmp_path / "run" / attempt.candidate / "artifact.md").read_text()
        for attempt in result.attempts
    }
    assert read == {
        "folder": "folder", "own": "don't; echo x", "shell": "shell\n", "sh": "don't; echo x\n",
        "text": "don't; echo x\n",
    }  # fmt: skip


@pytest.mark.needs_git
async def test_commit_is_what_takes_part(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *identity, *words], cwd=repository, check=True, capture_output=True)

    script(repository, "main.py", 'import sys\nopen(sys.argv[2], "w").write("committed")')
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    script(repository, "main.py", "1 / 0")
    found = await run_one(tmp_path, f"git+{repository}@HEAD")
    assert found.ok, found
    with pytest.raises(SpecError, match="check that it is a repository"):
        Candidate.git(repository, "nowhere")
    with pytest.raises(SpecError, match="not a commit"):
        Candidate.git(repository, "--output=/tmp/x")


async def test_all_begin_from_one_base(tmp_path: Path, backend: EmbeddedBackend) -> None:
    text = """
import sys
open(sys.argv[2], "w").write(open("/home/daytona/given").read())
open("/home/daytona/given", "w").write("spoiled")
"""
    before = {info.snapshot_id for info in await backend.list_snapshots()}
    result = await Contest(
        [script(tmp_path, "a.py", text)], "goal", setup="echo given > given", repeat=3, artifacts_dir=tmp_path
    ).run(run_id="run")
    assert [attempt.ok for attempt in result.attempts] == [True] * 3
    assert {(tmp_path / "run/a" / str(number) / "artifact.md").read_text() for number in (1, 2, 3)} == {"given\n"}
    assert {info.snapshot_id for info in await backend.list_snapshots()} <= before
    with pytest.raises(SpecError, match=r"the setup failed with exit code 3.*\n*no way"):
        await run_one(tmp_path, script(tmp_path, "a.py", text), setup="echo no way; exit 3")
    assert {info.snapshot_id for info in await backend.list_snapshots()} <= before


async def test_base_of_a_killed_contest_is_swept(tmp_path: Path, backend: EmbeddedBackend) -> None:
    from corral.forge import base

    async with await backend.create(Spec()) as box:
        own = await box.snapshot(base._new_name())
        orphan = base._new_name().split("-")
        orphan[2], orphan[3] = str(os.getpid()), "1"  # a process of that number, but of another time
        lost = await box.snapshot("-".join(orphan))
    await run_one(tmp_path, script(tmp_path, "a.py", WRITES))
    left = [info.snapshot_id for info in await backend.list_snapshots()]
    assert own in left
    assert lost not in left
    await backend.delete_snapshot(own)


async def test_env_values_are_never_written(tmp_path: Path) -> None:
    candidate = Candidate.script(
        script(tmp_path, "a.py", "import os, sys; open(sys.argv[2], 'w').write(str(len(os.environ['TOKEN'])))"),
        env={"TOKEN": "hunter2-hunter2"},
    )
    assert "hunter2" not in repr(candidate)
    result = await Contest([candidate], "goal", artifacts_dir=tmp_path).run(run_id="run")
    assert (tmp_path / "run/a/artifact.md").read_text() == "15"
    assert "TOKEN" in (result.folder / "run.json").read_text()
    for file in result.folder.rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes(), file


def test_unisolated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="does not isolate"):
        Contest([script(tmp_path, "a.py", WRITES)], "goal", backend=open_unsafe())


async def test_pinned_runs_have_one_processor(tmp_path: Path) -> None:
    text = "import os, sys; open(sys.argv[2], 'w').write(str(len(os.sched_getaffinity(0))))"
    contest = Contest([script(tmp_path, "a.py", text)], "goal", pin=True, artifacts_dir=tmp_path)
    assert only(await contest.run(run_id="run")).ok
    assert (tmp_path / "run/a/artifact.md").read_text() == "1"


async def test_listener_that_fails_is_not_called_again(tmp_path: Path) -> None:
    calls: list[str] = []
    fine: list[str] = []

    def fails(event: ForgeEvent) -> None:
        calls.append(event.kind)
        raise ValueError("a bug")

    await Contest(
        [script(tmp_path, "a.py", WRITES)], "goal", artifacts_dir=tmp_path,
        on_event=[fails, lambda event: fine.append(event.kind)],
    ).run()  # fmt: skip
    assert calls == ["run-started"]
    assert fine[-1] == "run-ended"
    assert "warning" in fine


async def test_candidate_that_changes_meanwhile_is_told_of(tmp_path: Path) -> None:
    path = script(tmp_path, "a.py", WRITES)
    told: list[str] = []

    def listen(event: ForgeEvent) -> None:
        if event.kind == "attempt-ended":
            path.write_text("1 / 0")
        if event.kind == "warning":
            told.append(event.data["text"])

    await Contest([path, ["true"]], "goal", artifacts_dir=tmp_path, on_event=listen).run()
    assert told == ["candidate a was changed on disk while the contest ran"]


async def test_full_disk_here_is_one_plain_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from corral.forge import attempt

    async def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(attempt, "take_out", fails)
    contest = Contest([script(tmp_path, "a.py", WRITES)], "goal", artifacts_dir=tmp_path)
    with pytest.raises(OSError, match="No space left"):
        await contest.run(run_id="run")
    assert read_run(tmp_path / "run").state == "interrupted"


async def test_judges_have_the_setup_too(tmp_path: Path) -> None:
    from corral.forge import Judge
    from corral.forge.judge.commands import Command

    contest = Contest(
        [script(tmp_path, "a.py", WRITES)], "goal", Judge(gates=(Command("test -e ~/given"),), scores=()),
        setup="touch given", artifacts_dir=tmp_path,
    )  # fmt: skip
    (standing,) = (await contest.run()).standings
    assert [gate.passed for gate in standing.gates] == [True], standing


async def test_option_that_cannot_be_met_is_reported_before_the_first_run(tmp_path: Path) -> None:
    path = script(tmp_path, "a.py", WRITES)
    kinds: list[str] = []
    contest = Contest(
        [path, Candidate.script(path, id="other", image="busybox:1")], "goal", artifacts_dir=tmp_path,
        on_event=lambda event: kinds.append(event.kind),
    )  # fmt: skip
    with pytest.raises(CapabilityError, match="image"):
        await contest.run()
    assert "phase" not in kinds
