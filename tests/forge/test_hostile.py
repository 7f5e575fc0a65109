"""Hostile candidates, functions, repositories and run folders: they only cause their own failure."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from corral.cli.root import root
from corral.errors import RunFolderError, SpecError
from corral.forge import Candidate, Contest, ForgeEvent, Seat, SyncSeat, Timeouts, read_run
from corral.forge.definition import rebuild_candidates
from corral.forge.outcome import Attempt
from corral.forge.output import AttemptLog
from corral.forge.runfolder import RunWriter
from corral.forge.settings import Settings, Take
from corral.results import OutputChunk
from corral.spec import Resources
from support.wheels import make_evil_project

pytestmark = pytest.mark.needs_userns

HEAD = "import os, sys\nartifact = sys.argv[2]\nout = os.path.dirname(artifact)\n"
GOOD = HEAD + "open(artifact, 'w').write('made')\n"


def script(folder: Path, text: str, name: str = "a.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


async def run_one(tmp_path: Path, candidate: object, **settings: Any) -> Attempt:
    (attempt,) = (await Contest([candidate], "goal", artifacts_dir=tmp_path, **settings).run(run_id="run")).attempts
    return attempt


# Artifacts.


@pytest.mark.parametrize(
    ("text", "outcome", "reason"),
    [
        ("os.rmdir(out); os.symlink('/etc', out)", "refused-artifact", "out: is a link"),
        ("os.rmdir(out); os.mkfifo(out)", "refused-artifact", "Not a directory"),
        ("os.mkdir(artifact); open(artifact + '/x', 'w').close()", "refused-artifact", "a folder, not a regular file"),
        (
            "[os.symlink('x', f'{out}/a{i}') for i in range(99)]; os.symlink('y', artifact)",
            "refused-artifact",
            "(to y)",
        ),
        ("open(artifact, 'w').close(); os.chmod(artifact, 0)", "refused-artifact", "Permission denied"),
        ("open(artifact, 'w').close(); os.chmod(out, 0)", "refused-artifact", "Permission denied"),
    ],
    ids=["out-is-a-link", "out-is-a-fifo", "folder", "crowd-of-links", "unreadable", "unreadable-folder"],
)
async def test_artifact_that_is_none_is_named(tmp_path: Path, text: str, outcome: str, reason: str) -> None:
    found = await run_one(tmp_path, script(tmp_path, HEAD + text))
    assert (found.outcome, reason in found.reason) == (outcome, True), found
    assert not any("/etc" in file.path or file.path == "passwd" for file in found.artifacts)


async def test_crowd_of_files_does_not_hide_the_artifact(tmp_path: Path) -> None:
    crowd = GOOD + "[open(f'{out}/a{i:04}', 'w').close() for i in range(200)]\n"
    found = await run_one(tmp_path, script(tmp_path, crowd), take=Take(files=10))
    assert found.ok, found
    assert len(found.artifacts) == 10
    assert found.artifacts[0].path == "artifact.md"
    assert found.refused[-1].path == "…"


async def test_strange_names_stay_in_the_folder(tmp_path: Path) -> None:
    names = [b"a\nb", b"..x", b"...", b"\xff\xfe", b"n" * 255, b"a\\b", b"-rf", b"\x1b[31m", b"run.json"]
    text = GOOD + f"for name in {names}: open(os.fsencode(out) + b'/' + name, 'w').close()\n"
    found = await run_one(tmp_path, script(tmp_path, text))
    assert found.ok, found
    assert len(found.artifacts) == 10
    laid_down = {os.fsencode(path.name) for path in (tmp_path / "run" / "a").iterdir()}
    assert laid_down == {*names, b"artifact.md"} == {os.fsencode(file.path) for file in found.artifacts}
    assert read_run(tmp_path / "run").attempts["a", 1] == found


async def test_our_full_disk_is_not_the_candidates_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def full(path: Any, *more: Any, **options: Any) -> int:
        if ".a.partial" in str(path):
            raise OSError(28, "No space left on device")
        return real(path, *more, **options)

    monkeypatch.setattr("corral.forge.artifacts.os.open", full)
    with pytest.raises(OSError, match="No space left"):
        await run_one(tmp_path, script(tmp_path, GOOD))
    assert read_run(tmp_path / "run").attempts == {}


def test_short_pieces_of_output_are_bounded_too() -> None:
    told: list[str] = []
    log = AttemptLog(lambda kind, **_: told.append(kind), limit_bytes=6400)
    for _ in range(1000):
        log.take(OutputChunk("stdout", b"x"))
    log.finish()
    assert told == ["output"] * 100 + ["output-cut"]
    assert (log.total_bytes, log.text) == (1000, "x" * 1000)
    log.say("from a thread that could not be ended")
    assert log.text == "x" * 1000


async def test_candidate_that_is_gone_does_not_end_the_contest(tmp_path: Path) -> None:
    gone = script(tmp_path, GOOD, "gone.py")

    def listen(event: ForgeEvent) -> None:
        if event.kind == "base-ready":
            gone.unlink()

    contest = Contest([gone, script(tmp_path, GOOD)], "goal", artifacts_dir=tmp_path / "runs", on_event=listen)
    result = await contest.run()
    assert {a.candidate: a.outcome for a in result.attempts} == {"gone": "infrastructure", "a": "ok"}
    assert result.winners == ("a",)


@pytest.mark.parametrize(
    ("text", "outcomes"),
    [
        ("while True:\n    try: os.fork()\n    except OSError: pass", {"timeout"}),
        ("import signal\nos.kill(os.getpid(), signal.SIGSTOP)", {"timeout"}),
        ("open(artifact, 'w').truncate(2**40)", {"crashed", "refused-artifact"}),
        # Whom it may kill depends on who it is; itself it may not, so it may even come to its end.
        ("os.kill(-1, 9)", {"crashed", "no-artifact"}),
    ],
    ids=["fork-bomb", "stopped", "sparse-terabyte", "kill-all"],
)
async def test_rival_is_not_disturbed(tmp_path: Path, text: str, outcomes: set[str]) -> None:
    candidates = [script(tmp_path, HEAD + text, "bad.py"), script(tmp_path, 'echo made > "$2"', "good.sh")]
    seconds = 4 if outcomes == {"timeout"} else 60
    result = await Contest(
        candidates, "goal", artifacts_dir=tmp_path, jobs=2, timeouts=Timeouts(run=seconds),
        resources=Resources(cpus=0.5, processes=32).as_usual(),
    ).run(run_id="run")  # fmt: skip
    found = {attempt.candidate: attempt for attempt in result.attempts}
    assert found["bad"].outcome in outcomes, found["bad"]
    assert (found["good"].outcome, result.winners) == ("ok", ("good",)), found["good"]
    assert [attempt.retries for attempt in result.attempts] == [0, 0]


# Functions.


class Odd(BaseException):
    """Not an Exception."""


async def leaves(seat: Seat) -> None:
    sys.exit(3)


async def is_odd(seat: Seat) -> None:
    raise Odd


async def cancels(seat: Seat) -> None:
    raise asyncio.CancelledError


async def takes_nothing() -> None:
    pass


async def closes(seat: Seat) -> None:
    await seat.sandbox.files.write(seat.output, b"made")
    await seat.sandbox.aclose()


async def uses_closed(seat: Seat) -> None:
    await seat.sandbox.aclose()
    await seat.sandbox.exec("true")


def leaves_plainly(seat: SyncSeat) -> None:
    sys.exit(3)


def stops(seat: SyncSeat) -> None:
    raise StopIteration


async def works(seat: Seat) -> None:
    await seat.sandbox.files.write(seat.output, b"made")


async def test_function_ends_only_itself(tmp_path: Path) -> None:
    functions = [leaves, is_odd, cancels, takes_nothing, closes, uses_closed, leaves_plainly, stops, works]
    result = await Contest(functions, "goal", artifacts_dir=tmp_path).run()
    found = {attempt.candidate: (attempt.outcome, attempt.retries) for attempt in result.attempts}
    assert found == {name.__name__: ("crashed", 0) for name in functions} | {"works": ("ok", 0)}
    assert result.winners == ("works",)
    reasons = {attempt.candidate: attempt.reason for attempt in result.attempts}
    assert "SystemExit: 3" in reasons["leaves"]
    assert "it closed its sandbox" in reasons["closes"]


async def test_function_that_will_not_end_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.forge.execution._LEAVE_SECONDS", 0.1)
    over = asyncio.Event()

    async def stays(seat: Seat) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async def late(seat: Seat) -> None:
        """Does its work only after its time."""
        await seat.sandbox.files.write(seat.output, b"made")
        try:
            await over.wait()
        except asyncio.CancelledError:
            return

    contest = Contest([stays, late, works], "goal", artifacts_dir=tmp_path, jobs=3, timeouts=Timeouts(run=4))
    result = await asyncio.wait_for(contest.run(), 100)
    over.set()
    found = {attempt.candidate: attempt.outcome for attempt in result.attempts}
    assert found == {"stays": "timeout", "late": "timeout", "works": "ok"}


INTERRUPTED = """
import sys
from corral.forge import race
sleeper = ["sh", "-c", "sleep 1000", "{output}"]
race([sleeper, sleeper], "goal", artifacts_dir=sys.argv[1], jobs=2)
"""


def test_interrupted_program_writes_down_what_there_is(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(tmp_path)], stderr=subprocess.PIPE) as program:
        while '"phase":"run"' not in "".join(log.read_text() for log in tmp_path.glob("*/events.jsonl")):
            assert program.poll() is None
            time.sleep(0.05)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=100)
    assert b"KeyboardInterrupt" in said
    assert b"cannot schedule" not in said
    (run,) = tmp_path.iterdir()
    found = read_run(run)
    assert found.state == "interrupted"
    assert json.loads((run / "result.json").read_text())["state"] == "interrupted"
    assert {attempt.outcome for attempt in found.attempts.values()} == {"cancelled"}


# Repositories.


def git(folder: Path, *words: str) -> None:
    settings = ("-c", "user.email=a@b", "-c", "user.name=n")
    subprocess.run(["git", *settings, "-C", str(folder), *words], check=True, capture_output=True)


@pytest.mark.parametrize("kind", ["smudge", "process"])
async def test_repository_runs_nothing_here(tmp_path: Path, kind: str) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / ".gitattributes").write_text("* filter=a=b\n")
    (repository / "main.py").write_text(GOOD)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "one")
    mark = tmp_path / "was-here"
    git(repository, "config", f"filter.a=b.{kind}", f"touch {mark}; cat")
    git(repository, "config", "filter.a=b.required", "true")
    found = await run_one(tmp_path, Candidate.git(repository))
    assert found.ok, found
    assert not mark.exists()


# Run folders from untrusted sources.


def make_run(folder: Path, **changes: Any) -> Path:
    """A finished run of one candidate, by hand."""
    run = folder / "run"
    writer = RunWriter.begin(run)
    settings = {"repeat": 1, "output": "artifact.md"}
    writer.define({"format": 1, "run": "run", "candidates": [{"id": "a"}], "settings": settings} | changes)
    writer.close()
    return run


def add(run: Path, kind: str, **data: Any) -> None:
    with (run / "events.jsonl").open("a") as log:
        log.write(json.dumps({"at": 1, "kind": kind, "candidate": "a", "round": 1, "data": data}) + "\n")


def test_folder_of_a_newer_format_is_refused_and_one_without_a_number_is_the_first(tmp_path: Path) -> None:
    run = make_run(tmp_path, format=2, run={"moved": "elsewhere"}, versions={"corral": "9.1"})
    with pytest.raises(RunFolderError, match="has the run format 2; this version of Corral reads up to 1") as caught:
        read_run(run)
    assert "corral 9.1" in caught.value.hint
    for number in (0, -1, "1", None):
        (run / "run.json").write_text(json.dumps({"format": number, "run": "run", "candidates": []}))
        with pytest.raises(RunFolderError, match="is not the folder of a run"):
            read_run(run)
    (run / "run.json").write_text(json.dumps({"run": "run", "candidates": []}))
    assert read_run(run).run_id == "run"


def test_line_can_name_nobody_else(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for name in ("../../etc", "b", 7, None, ["a"]):
        add(run, "attempt-ended", candidate=name, outcome="ok")
        add(run, "judged", candidate=name, rank=1)
    for number in (0, 2, -1, "1", "../x", None):
        add(run, "attempt-ended", candidate="a", round=number, outcome="ok")
    for changes in ({"outcome": "great"}, {"log": 7}, {"seconds": "1"}, {"phases": []}, {"artifacts": [{"path": 1}]}):
        add(run, "attempt-ended", **{"candidate": "a", "outcome": "ok"} | changes)
    with (run / "events.jsonl").open("a") as log:
        log.write('{"at":1e999,"kind":"x","data":{}}\n{"at":' + "9" * 400 + ',"kind":"x","data":{}}\n')
        for line in (
            {"kind": "output", "candidate": "a", "round": {}, "data": {}},
            {"kind": "output", "candidate": ["a"], "data": {}},
            {"kind": "output", "candidate": "a", "data": {"text": 7}},
            {"kind": "meter", "candidate": "a", "data": {"seconds": "x"}},
            {"kind": "run-ended", "data": {"winners": 7}},
            {"kind": "x", "data": {}, "at": -1},
        ):
            log.write(json.dumps({"at": 1} | line) + "\n")
        log.write("[" * 100_000 + "\n" + "\x00\xff\n")
    for changes in ({"rank": "1"}, {"scores": {"x": {"points": "y"}}}, {"seconds": []}, {"gates": [7]}):
        add(run, "judged", **{"candidate": "a", "rank": 1} | changes)
    found = read_run(run)
    assert (found.attempts, found.standings) == ({}, ())
    assert {event.kind for event in found.events()} == {"attempt-ended", "judged"}


@pytest.mark.parametrize(
    "changes",
    [
        {"candidates": [{"id": "../x"}]},
        {"candidates": 7},
        {"run": "../x"},
        {"settings": {"output": "../../../etc/passwd"}},
        {"settings": []},
        {"settings": {"repeat": "many"}},
        {"candidates": [{"id": "a", "name": 7}]},
        {"objective": ["x"]},
    ],
    ids=str,
)
def test_definition_that_leads_out_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(RunFolderError, match="not the folder of a run"):
        read_run(make_run(tmp_path, **changes))


@pytest.mark.parametrize("packages", [["evil @ {}"], ["-r {}"], ["{}"], [7], [["numpy"]]], ids=str)
def test_package_by_address_in_a_run_folder_is_refused(tmp_path: Path, packages: list[Any]) -> None:
    """`corral forge run --resume` on the folder of a stranger: its packages are fetched on the host."""
    mark = tmp_path / "evil-ran"
    project = make_evil_project(tmp_path / "evil", mark).as_uri()
    listed = [each.format(project) if isinstance(each, str) else each for each in packages]
    candidate = {
        "id": "a", "name": "a", "description": "", "source": {"kind": "command", "command": ["true"]}, "env": {},
        "packages": listed, "resources": None, "image": None, "network": {"mode": "none", "hosts": []},
    }  # fmt: skip
    run = make_run(tmp_path, candidates=[candidate])
    with pytest.raises(RunFolderError, match="is not a package"):
        rebuild_candidates(read_run(run).definition, {})
    for trust, said in (([], "asks for more than a sandbox here: package"), (["--trust"], "is not a package")):
        done = CliRunner().invoke(root, ["forge", "run", "--resume", str(run), *trust], standalone_mode=False)
        assert said in str(done.exception), done.output
    assert not mark.exists()


@pytest.mark.parametrize("repeat", [1, 2])
def test_link_in_a_candidates_place_is_not_followed(tmp_path: Path, repeat: int) -> None:
    run = make_run(tmp_path, settings={"repeat": repeat})
    (tmp_path / "elsewhere" / "1").mkdir(parents=True)
    (run / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="is a link"):
        read_run(run).artifacts("a", 1)


async def test_resumed_run_writes_only_into_its_folder(tmp_path: Path) -> None:
    contest = Contest([script(tmp_path, GOOD)], "goal", artifacts_dir=tmp_path)
    await contest.run(run_id="run")
    run = tmp_path / "run"
    precious = tmp_path / "precious"
    precious.write_text("precious, and without an end of line")
    (run / ".run.json.new").symlink_to(precious)
    (run / ".result.json.new").symlink_to(precious)
    log = (run / "events.jsonl").read_text()
    (run / "events.jsonl").write_text(log.replace('"path":"artifact.md"', f'"path":"../../{precious.name}"'))
    result = await contest.run(resume=run)  # the artifact that the log names is not one: it is made again
    assert [(a.outcome, a.artifacts[0].path) for a in result.attempts] == [("ok", "artifact.md")]
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").symlink_to(precious)
    with pytest.raises(RunFolderError, match="can't be written"):
        await contest.run(resume=run)
    assert precious.read_text() == "precious, and without an end of line"


def test_pipe_in_the_place_of_a_file_holds_nobody(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "events.jsonl").unlink()
    os.mkfifo(run / "events.jsonl")
    assert read_run(run).attempts == {}
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    with pytest.raises(RunFolderError):
        read_run(run)


@pytest.mark.parametrize("name", ["\ud800", "a/b", "..", "", "x" * 256, "a\0b"])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(SpecError, match="is not a file name"):
        Settings(output=name)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"candidates": "a.py"}, "is a single candidate"),
        ({"judge": "rubric"}, "is not a judge"),
        ({"timeouts": 5}, "timeouts=5 is not Timeouts"),
        ({"resources": "2GiB"}, "is not Resources"),
        ({"setup": b"true"}, "is not str"),
        ({"meter_seconds": float("nan")}, "is not a time"),
        ({"objective": "\ud800"}, "unpaired surrogates"),
    ],
    ids=str,
)
def test_invalid_option_is_reported_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Contest(**{"candidates": [["true"]], "objective": "goal"} | wrong)
