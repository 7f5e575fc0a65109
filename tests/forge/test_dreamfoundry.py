"""Dream Foundry's interface: the same names, fields, log lines, messages and files, on the engine and on a service."""

import asyncio
import os
import re
import socket
import sys
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from corral.backends.embedded import EmbeddedBackend
from corral.backends.embedded.files import EmbeddedFiles
from corral.cli.root import root
from corral.forge.dreamfoundry import (
    CANDIDATES,
    CandidateRun,
    DaytonaResult,
    ForgeResult,
    Limits,
    get_daytona_config,
    is_daytona_configured,
    run_all_candidates_in_daytona,
    run_candidate_in_daytona,
    run_forge,
)
from corral.forge.runfolder import read_run
from corral.forge.service import DEFAULT_BASE_URL, find_service_url
from support.project import ROOT
from support.serving import ServedProcess, make_client

GOOD = """\
import sys
print("for", sys.argv[1])
open(sys.argv[2], "w").write("made for " + sys.argv[1])
"""


@pytest.fixture(autouse=True)
def nothing_is_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DAYTONA_API_KEY", "DAYTONA_API_URL", "DAYTONA_BASE_URL", "DAYTONA_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def service(server: ServedProcess, monkeypatch: pytest.MonkeyPatch) -> ServedProcess:
    monkeypatch.setenv("DAYTONA_API_KEY", server.key)
    monkeypatch.setenv("DAYTONA_API_URL", server.url)
    return server


def script(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


class Log:
    """A callback that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.threads: set[int] = set()

    def __call__(self, candidate_id: str, message: str) -> None:
        self.lines.append((candidate_id, message))
        self.threads.add(threading.get_ident())

    def of(self, candidate_id: str) -> list[str]:
        return [message for who, message in self.lines if who == candidate_id]


# The shape.


def test_results_have_the_known_fields_in_their_order() -> None:
    assert [each.name for each in fields(DaytonaResult)] == [
        "candidate_id", "sandbox_id", "success", "output", "artifact_content", "runtime_seconds", "error_message",
    ]  # fmt: skip
    assert DaytonaResult("a", "", False, "", None, 0.0).error_message is None
    assert [each.name for each in fields(ForgeResult)] == [
        "objective", "timestamp", "execution_mode", "candidates", "scores", "winner_id", "winner_score",
        "winner_artifact", "artifacts_dir",
    ]  # fmt: skip


def test_five_candidates_ship() -> None:
    assert [each["id"] for each in CANDIDATES] == ["alpha", "beta", "gamma", "delta", "epsilon"]
    for each in CANDIDATES:
        assert set(each) == {"id", "name", "description", "script"}
        assert Path(each["script"]).is_file()
        assert each["description"]


# Configuration.


def test_nothing_set_is_not_configured() -> None:
    assert get_daytona_config() == (None, DEFAULT_BASE_URL)
    assert not is_daytona_configured()
    assert find_service_url() is None, "the default is no address"


@pytest.mark.parametrize("key", ["", "  ", "your_api_key_here", "your_daytona_key"])
def test_placeholder_is_no_key(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", key)
    assert get_daytona_config()[0] is None
    assert not is_daytona_configured()


def test_api_url_wins_over_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_BASE_URL", "http://base.example/api")
    assert get_daytona_config()[1] == find_service_url() == "http://base.example/api"
    monkeypatch.setenv("DAYTONA_API_URL", "http://api.example/api")
    assert get_daytona_config()[1] == find_service_url() == "http://api.example/api"


def test_default_base_url_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_BASE_URL", f"{DEFAULT_BASE_URL}/")
    assert find_service_url() is None


def test_dotenv_is_read_and_the_environment_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text(
        "# ours\nexport DAYTONA_API_KEY='from the file'\n"
        "DAYTONA_BASE_URL=http://file.example/api # optional\nnonsense\n"
    )
    before = dict(os.environ)
    assert get_daytona_config() == ("from the file", "http://file.example/api")
    assert dict(os.environ) == before
    monkeypatch.setenv("DAYTONA_API_KEY", "really set")
    assert get_daytona_config() == ("really set", DEFAULT_BASE_URL), "the file's address is for the file's key"


# What is missing.


def test_without_a_key_every_result_says_so() -> None:
    log = Log()
    result = run_candidate_in_daytona("alpha", script("a.py", GOOD), "x", "out.md", log)
    assert (result.success, result.error_message, result.sandbox_id) == (False, "Daytona API key not configured", None)
    assert log.of("alpha") == ["[Error] Daytona API key not configured"]
    (other,) = run_all_candidates_in_daytona([{"id": "b", "script": "a.py"}], "x", "artifacts")
    assert other.error_message == "Daytona API key not configured"


def test_without_the_sdk_every_result_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "a-key")
    monkeypatch.setitem(sys.modules, "daytona", None)
    result = run_candidate_in_daytona("alpha", script("a.py", GOOD), "x", "out.md")
    assert (result.success, result.error_message) == (False, "Daytona SDK not installed")


@pytest.mark.needs_userns
def test_forge_without_the_sdk_falls_back_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "a-key")
    monkeypatch.setitem(sys.modules, "daytona", None)
    result = run_forge("x", use_daytona=True, candidates=[{"id": "a", "script": script("a.py", GOOD)}])
    assert "Execution: LOCAL\n(Daytona SDK not installed, falling back to local)\n" in capsys.readouterr().out
    assert result.candidates[0]["artifact"] == "made for x"


# Here.


@pytest.mark.needs_userns
def test_forge_falls_back_to_the_engine_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    script("candidates/one.py", f'"""The one."""\n{GOOD}')
    script("candidates/two.py", "1 / 0\n")
    result = run_forge("a goal", True, log)
    shown = capsys.readouterr().out
    assert "DREAM FOUNDRY - Forge Loop" in shown
    assert (
        "Objective: a goal\nCandidates: 2\nExecution: LOCAL\n(Daytona not configured, falling back to local)" in shown
    )
    assert "PHASE: Running Candidates" in shown
    assert "PHASE: Scoring" in shown
    assert result.execution_mode == "local"
    assert result.artifacts_dir == "artifacts"
    assert [each["id"] for each in result.candidates] == ["one", "two"]
    assert result.candidates[0]["description"] == "The one"
    assert result.candidates[0]["artifact"] == "made for a goal"
    assert Path("artifacts/one/discord_post.md").read_text() == "made for a goal"
    assert not Path("artifacts/two").exists()
    assert log.of("one")[:2] == ["[Run] Starting Agent One...", "for a goal"]
    assert "[Done] Output produced" in log.of("one")
    assert "[Error] Exit code 1: ZeroDivisionError: division by zero" in log.of("two")
    assert set(result.scores[0]) == {
        "candidate_id", "success", "quality_score", "speed_score", "total_score", "quality_details",
    }  # fmt: skip


@pytest.mark.needs_userns
def test_shipped_contest_has_the_winner_that_everybody_expects() -> None:
    result = run_forge(quiet=True)
    scores = {each["candidate_id"]: each for each in result.scores}
    assert result.winner_id == "gamma"
    assert result.winner_artifact == result.candidates[2]["artifact"] != ""
    assert result.winner_score == scores["gamma"]["total_score"]
    others = [scores[name]["total_score"] for name in ("alpha", "beta", "delta", "epsilon")]
    assert result.winner_score > max(others) + 5, "not by the noise of a clock"
    assert not scores["delta"]["success"]
    assert not scores["epsilon"]["success"]


@pytest.mark.needs_userns
async def test_works_inside_a_running_loop_and_calls_back_on_the_callers_thread() -> None:
    log = Log()
    result = run_candidate_in_daytona("a", script("a.py", GOOD), "x", "out.md", log, backend="embedded")
    assert result.success
    assert result.artifact_content == "made for x"
    assert log.threads == {threading.get_ident()}
    await asyncio.sleep(0)


@pytest.mark.needs_userns
def test_callback_that_fails_loses_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def broken(candidate_id: str, message: str) -> None:
        calls.append(message)
        raise RuntimeError("mine")

    result = run_candidate_in_daytona("a", script("a.py", GOOD), "x", "out.md", broken, backend="embedded")
    assert result.success
    assert len(calls) == 1
    assert "log_callback failed" in caplog.text


@pytest.mark.needs_userns
@pytest.mark.parametrize(
    ("limits", "stalled", "message"),
    [
        (Limits(create=0.05), (EmbeddedBackend, "create"), "Could not create sandbox"),
        (Limits(upload=0.05), (EmbeddedFiles, "write"), "Could not write script"),
        (Limits(read=0.05), (EmbeddedFiles, "stat"), "Could not read artifact"),
    ],
    ids=["create", "upload", "read"],
)
def test_each_phase_has_its_own_time_and_message(
    limits: Limits, stalled: tuple[type, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stall(*args: object, **options: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(*stalled, stall)
    result = run_candidate_in_daytona("a", script("a.py", GOOD), "x", "out.md", backend="embedded", limits=limits)
    assert not result.success
    assert str(result.error_message).startswith(f"{message}: timed out after 0.05 seconds")
    assert isinstance(result, CandidateRun)
    assert result.failure == "infrastructure"


@pytest.mark.needs_userns
def test_run_that_takes_too_long_keeps_what_it_printed() -> None:
    path = script("a.py", "import time\nprint('so far')\ntime.sleep(1000)\n")
    log = Log()
    result = run_candidate_in_daytona("a", path, "x", "out.md", log, backend="embedded", limits=Limits(run=1))
    assert (result.success, result.error_message) == (False, "Execution timed out after 1 seconds")
    assert result.output == "so far\n"
    assert "[Error] Execution timed out after 1 seconds" in log.of("a")


@pytest.mark.needs_userns
def test_full_disk_here_is_a_result_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("corral.forge.attempt.take_out", full)
    result = run_candidate_in_daytona("a", script("a.py", GOOD), "x", "out.md", backend="embedded")
    assert result.error_message == "Could not save artifact: No space left on device"


def test_former_module_names_still_work() -> None:
    from corral.forge import dreamfoundry, recorded, recordedrun

    assert {name: getattr(recorded, name) for name in recorded.__all__} == {
        name: getattr(dreamfoundry, name) for name in dreamfoundry.__all__
    }
    assert recordedrun.Limits is Limits


def test_known_times_are_the_defaults() -> None:
    limits = Limits()
    assert (limits.upload, limits.run, limits.read) == (30, 60, 10)


# On a service.


@pytest.mark.needs_userns
def test_service_log_lines_paths_and_artifacts_are_the_known_ones(service: ServedProcess) -> None:
    shows_itself = "import sys\nprint(sys.argv)\nopen(sys.argv[2], 'w').write('an artifact')\n"
    wanted = [
        {"id": "alpha", "script": script("one.py", shows_itself)},
        {"id": "beta", "script": script("two.py", "print('no file')\n")},
    ]
    log, client = Log(), make_client(service)
    before = {box.id for box in client.list()}  # the server is shared with other tests
    alpha, beta = run_all_candidates_in_daytona(wanted, "a 'goal'", "kept", log)
    assert alpha.success, alpha
    assert alpha.sandbox_id
    assert alpha.output == "['/home/daytona/alpha.py', \"a 'goal'\", '/home/daytona/alpha_output.md']\n"
    assert alpha.artifact_content == Path("kept/alpha/discord_post.md").read_text() == "an artifact"
    assert log.of("alpha") == [
        "[Daytona] Connecting...",
        "[Daytona] Creating sandbox...",
        f"[Daytona] Sandbox ready: {alpha.sandbox_id[:8]}...",
        "[Daytona] Script uploaded",
        "[Run] Executing...",
        alpha.output.strip(),
        "[Run] Exit code: 0",
        "[Done] Artifact retrieved",
        "[Daytona] Cleaning up...",
    ]
    assert not beta.success
    assert str(beta.error_message).startswith("Could not read artifact")
    assert any(line.startswith("[Warn] Could not read artifact") for line in log.of("beta"))
    assert not Path("kept/beta").exists()
    assert {box.id for box in client.list()} <= before, "nothing is left there"


@pytest.mark.needs_userns
def test_forge_on_a_service(service: ServedProcess, capsys: pytest.CaptureFixture[str]) -> None:
    script("candidates/one.py", GOOD)
    result = run_forge("a goal", use_daytona=True)
    assert "Execution: DAYTONA\n" in capsys.readouterr().out
    assert result.execution_mode == "daytona"
    assert result.candidates[0]["artifact"] == "made for a goal"


@pytest.mark.needs_userns
def test_service_that_refuses_everybody_is_replaced_by_the_engine(
    service: ServedProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "not-a-key")
    script("candidates/one.py", GOOD)
    (refused,) = run_all_candidates_in_daytona([{"id": "a", "script": "candidates/one.py"}], "x", "artifacts")
    assert str(refused.error_message).startswith("Could not create sandbox")
    result = run_forge("a goal", use_daytona=True)
    assert "falling back to local" in capsys.readouterr().out
    assert result.execution_mode == "local"
    assert result.candidates[0]["artifact"] == "made for a goal"


@pytest.mark.needs_userns
def test_command_line_finds_the_service_by_dotenv(server: ServedProcess) -> None:
    Path(".env").write_text(f"DAYTONA_API_KEY={server.key}\nDAYTONA_BASE_URL={server.url}\n")
    arguments = ["forge", "run", script("a.py", GOOD), "-o", "goal", "--daytona", "--trust"]
    result = CliRunner().invoke(root, arguments, standalone_mode=False)
    assert result.exception is None, result.exception
    assert result.return_value == 0, result.output
    assert "[a] for goal" in result.output
    assert f"address {server.url} (in .env)" in result.output
    assert "Winner: a" in result.output
    (folder,) = Path("artifacts").iterdir()
    assert read_run(folder).definition["settings"]["backend"] == "daytona"


def without_times(text: str) -> list[str]:
    """What was printed, in the order of candidates' names, without what is of one run alone."""
    lines = [re.sub(r"\d+\.\ds$", "N s", line) for line in text.splitlines()]
    return sorted(re.sub(r"(PASS +\d+\.\d|\() *[\d. ]+", r"\1 N", line) for line in lines if line)


@pytest.mark.needs_userns
@pytest.mark.parametrize("where", ["nowhere", "refused"])
def test_command_line_prints_and_writes_what_the_function_does(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("alpha", "delta"):
        text = next(Path(each["script"]).read_text() for each in CANDIDATES if each["id"] == name)
        script(f"candidates/agent_{name}.py", text)
    script("candidates/agent_zeta.py", "print('no events were found')\nraise SystemExit(3)\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        if where == "refused":
            monkeypatch.setenv("DAYTONA_API_KEY", "a-key")
            monkeypatch.setenv("DAYTONA_API_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/api")
        given = ["forge", "run", "--objective", "Weekly AI events", "--daytona"]
        result = CliRunner().invoke(root, given, standalone_mode=False)
        assert result.exception is None, result.exception
        kept = Path("artifacts/alpha/discord_post.md").read_text()
        found = run_forge("Weekly AI events", use_daytona=True)
    printed = [line for line in without_times(result.output) if not line.startswith("artifacts/")]
    known = without_times(capsys.readouterr().out)
    if where == "refused":  # the function learns of it by trying
        assert "Execution: LOCAL" in printed
        assert any("can't reach" in line and "falling back to local" in line for line in printed)
    else:
        assert printed == known
        assert "(Daytona not configured, falling back to local)" in printed
    assert "  [Error] Exit code 3: no events were found" in known
    assert found.winner_id == "alpha"
    assert kept == found.winner_artifact == Path("artifacts/alpha/discord_post.md").read_text()
    assert not Path("artifacts/delta").exists()


# What is written about it.


def test_page_has_every_message_with_its_remedy() -> None:
    page = (ROOT / "docs" / "forge-dreamfoundry.md").read_text(encoding="utf-8")
    folder = ROOT / "src" / "corral" / "forge"
    source = "".join((folder / name).read_text(encoding="utf-8") for name in ("dreamfoundry.py", "service.py"))
    said = r"Could not [a-z ]+|Daytona [A-Za-z ]+ not [a-z]+|Out of memory|Execution timed out"
    messages = set(re.findall(f'"({said})', source))
    assert len(messages) >= 8
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    missing = [message for message in messages if not any(message.strip() in row for row in rows)]
    assert missing in ([], ["Daytona not configured"]), "that one is said when falling back, and needs none"
