"""Faults of Dream Foundry, one test for each: Corral has none of them.

Numbers are those of docs/forge-dreamfoundry.md.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendUnavailableError, CapabilityError
from corral.forge.dreamfoundry import (
    CandidateRun,
    Limits,
    run_all_candidates_in_daytona,
    run_candidate_in_daytona,
    run_forge,
)
from corral.spec import Spec

pytestmark = pytest.mark.needs_userns

GOOD = 'import sys\nopen(sys.argv[2], "w").write("made")\n'


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DAYTONA_API_KEY", "DAYTONA_API_URL", "DAYTONA_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


class Watched(EmbeddedBackend):
    """Remembers what it made, and may be told to be slow or to fail."""

    def __init__(self, *, failures: int = 0, wait: float = 0.0, meet: int = 0) -> None:
        super().__init__()
        self.made: list[AsyncSandbox] = []
        self.failures = failures
        self._wait = wait
        self._meeting = asyncio.Barrier(meet) if meet else None

    async def create(self, spec: Spec, **more: Any) -> Any:
        if self.failures > 0:
            self.failures -= 1
            raise BackendUnavailableError("the machine is on fire, and has been for quite a while as it seems to us")
        await asyncio.sleep(self._wait)
        if self._meeting is not None:
            await self._meeting.wait()
        box = await super().create(spec, **more)
        self.made.append(box)
        return box


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def run(text: str | bytes, backend: EmbeddedBackend | str = "embedded", **more: Any) -> CandidateRun:
    result = run_candidate_in_daytona("one", write("one.py", text), "x", "out.md", backend=backend, **more)
    assert isinstance(result, CandidateRun)
    return result


def test_01_candidates_run_side_by_side() -> None:
    # Each sandbox is made only when all three are being made.
    candidates = [{"id": name, "script": write("a.py", GOOD)} for name in ("a", "b", "c")]
    results = run_all_candidates_in_daytona(candidates, "x", "artifacts", backend=Watched(meet=3), jobs=3)
    assert [result.success for result in results] == [True] * 3, results


def test_02_big_script_arrives_whole() -> None:
    padding = "# " + "x" * 1_000_000 + "\n"
    result = run(padding + 'import sys\nopen(sys.argv[2], "w").write(str(len(open(__file__).read())))\n')
    assert result.success, result
    assert result.artifact_content == str(len(Path("one.py").read_text()))


def test_02_binary_artifact_stays_as_it_is() -> None:
    text = 'import sys\nprint("also said")\nopen(sys.argv[2], "wb").write(bytes(range(256)) * 5000)\n'
    candidates = [{"id": "one", "script": write("one.py", text)}]
    (result,) = run_all_candidates_in_daytona(candidates, "x", "artifacts", backend="embedded")
    assert result.success, result
    assert Path("artifacts/one/discord_post.md").read_bytes() == bytes(range(256)) * 5000


def test_02_artifact_that_is_no_file_is_refused() -> None:
    result = run('import os, sys\nos.symlink("/etc/passwd", sys.argv[2])\n')
    assert not result.success
    assert result.artifact_content is None
    assert result.failure == "candidate"
    result = run('import sys\nopen(sys.argv[2], "w").truncate(2**30)\n')
    assert not result.success
    assert result.artifact is None


@pytest.mark.parametrize("name", ["../x", "a b; touch pwned", "/tmp/x", "", "a\nb", "."])
def test_03_id_is_never_a_path_nor_a_command(name: str) -> None:
    backend = Watched()
    candidates = [{"id": name, "script": write("one.py", GOOD)}]
    (result,) = run_all_candidates_in_daytona(candidates, "x", "artifacts", backend=backend)
    assert not result.success
    assert "is not a candidate's id" in str(result.error_message)
    assert backend.made == []
    assert not Path("artifacts").exists()


def test_03_two_of_one_id_do_not_overwrite_each_other() -> None:
    candidates = [{"id": "a", "script": write("one.py", GOOD)}, {"id": "A", "script": "one.py"}]
    first, second = run_all_candidates_in_daytona(candidates, "x", "artifacts", backend="embedded")
    assert first.success
    assert second.error_message == "Two candidates have the id 'A'"


def test_04_runtime_is_the_run_alone() -> None:
    begun = time.monotonic()
    result = run(GOOD, Watched(wait=1.0))
    assert result.success
    # However slow this machine is: the second that the sandbox took to come is not in it.
    assert 0 < result.runtime_seconds <= time.monotonic() - begun - 1.0


def test_05_success_needs_exit_code_and_artifact() -> None:
    failed = run(GOOD + "sys.exit(3)\n")
    assert (failed.success, failed.exit_code, failed.artifact_content) == (False, 3, "made")
    assert failed.error_message == "Exit code 3"
    silent = run("pass")
    assert (silent.success, silent.exit_code) == (False, 0)
    assert str(silent.error_message).startswith("Could not read artifact")


def test_06_output_and_whole_error_are_kept() -> None:
    lines: list[str] = []
    text = 'print("before")\nraise ValueError("a reason that is much longer than fifty characters of a log line")\n'
    result = run(text, log_callback=lambda _, line: lines.append(line))
    assert "before\n" in result.output
    assert str(result.error_message).endswith("much longer than fifty characters of a log line")
    assert f"[Error] {result.error_message}"[:58] in lines
    assert f"[Error] {result.error_message}" in lines


def test_06_infrastructure_failure_is_tried_again() -> None:
    backend = Watched(failures=1)
    result = run(GOOD, backend)
    assert result.success, result
    assert len(backend.made) == 1


def test_06_infrastructure_failure_is_nobodys_loss(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = [{"id": name, "script": write("a.py", GOOD)} for name in ("a", "b")]
    result = run_forge("x", candidates=candidates, backend=Watched(failures=2), jobs=1)
    first, second = result.scores
    assert first["quality_details"]["failure"] == "infrastructure"
    assert "failure" not in second["quality_details"]
    table = capsys.readouterr().out.partition("PHASE: Scoring")[2]
    assert "VOID" in table


def test_07_without_isolation_nothing_runs() -> None:
    with pytest.raises(CapabilityError, match="does not isolate"):
        run_forge("x", candidates=[{"id": "a", "script": write("a.py", GOOD)}], backend="unsafe-subprocess", quiet=True)
    assert not Path("artifacts").exists()


def test_08_every_candidate_begins_in_the_same_empty_place() -> None:
    text = 'import os, sys\nprint(sorted(os.listdir()))\nopen(sys.argv[2], "w").write(os.getcwd())\nopen("left", "w")\n'
    candidates = [{"id": name, "script": write("a.py", text)} for name in ("a", "b")]
    results = run_all_candidates_in_daytona(candidates, "x", "artifacts", backend="embedded", jobs=1)
    assert [result.output.replace("b.py", "a.py") for result in results] == [results[0].output] * 2
    assert "left" not in results[1].output


def test_10_interrupt_leaves_no_sandbox_and_11_output_is_seen_while_it_runs() -> None:
    backend = Watched()

    def interrupt(_: str, line: str) -> None:
        if line == "first":
            raise KeyboardInterrupt  # as Ctrl-C, while the candidate is running

    with pytest.raises(KeyboardInterrupt):
        run("import time\nprint('first')\ntime.sleep(1000)\n", backend, log_callback=interrupt, limits=Limits(run=1000))
    assert [box.closed for box in backend.made] == [True]


def test_11_flood_is_cut_and_said() -> None:
    lines: list[str] = []
    result = run(
        'import sys\nfor _ in range(3000): print("x" * 999)\nopen(sys.argv[2], "w").write("made")\n',
        log_callback=lambda _, line: lines.append(line), limits=Limits(log_bytes=100_000),
    )  # fmt: skip
    assert result.success, result.error_message
    assert sum(map(len, lines)) < 200_000
    assert len(result.output) < 300_000
    assert "[Warn] It prints a lot: the rest is not passed on" in lines


@pytest.mark.parametrize("objective", ["x" * 200_000, "a\0b"])
def test_objective_that_no_program_can_be_given_is_a_result(objective: str) -> None:
    result = run_candidate_in_daytona("one", write("one.py", GOOD), objective, "out.md", backend="embedded")
    assert not result.success
    assert str(result.error_message).startswith("Could not run script: ")


def test_what_an_earlier_run_left_is_not_taken_for_this_ones() -> None:
    old = Path("artifacts/one/discord_post.md")
    old.parent.mkdir(parents=True)
    old.write_text("of yesterday")
    run_all_candidates_in_daytona(
        [{"id": "one", "script": write("a.py", "1 / 0")}], "x", "artifacts", backend="embedded"
    )
    assert not old.exists()


def test_process_left_in_the_background_does_not_go_on_writing() -> None:
    text = (
        "import os, sys, time\n"
        "open(sys.argv[2], 'w').write('made')\n"
        "if os.fork() == 0:\n"
        "    while True:\n"
        "        open(sys.argv[2], 'w').write('changed ' * 9999)\n"
    )
    result = run(text)
    assert result.exit_code == 0
    assert result.runtime_seconds < 60
