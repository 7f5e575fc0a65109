"""Untrusted files (a run's folder, a contest.toml, a `.env`) don't decide what is run or contacted."""

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from corral.backends.daytona import DaytonaBackend
from corral.cli.root import root
from corral.errors import CorralError
from corral.forge import Candidate
from corral.forge.definition import describe_run
from corral.forge.dotenv import read_dotenv
from corral.forge.judge.judge import default_judge
from corral.forge.plan import plan_turns
from corral.forge.recorded import run_candidate_in_daytona, run_forge
from corral.forge.runfolder import RunWriter
from corral.forge.service import NAMES
from corral.forge.settings import Settings
from support.project import ROOT

KEY = "dtn_of_the_user"
WRITES = 'import sys\nopen(sys.argv[2], "w").write("made")\n'


class Listener:
    """A server of a stranger: it keeps what is sent to it, and refuses everything."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def _refuse(self) -> None:
                heard.append(f"{self.command} {self.path}\n{self.headers}")
                self.send_response(401)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self._refuse
                raise AttributeError(name)

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/api"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def stranger(server: Listener) -> Listener:
    server.heard.clear()
    return server


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("DAYTONA_", "CORRAL_"))]:
        if name != "CORRAL_DATA_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def corral(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["forge", *arguments], standalone_mode=False)


def refusal_of(result: Result) -> str:
    """The words and the hint of the error that the command ended with."""
    assert result.exception is not None, result.output
    error = result.exception
    assert isinstance(error, CorralError), error
    return f"{error.message} ({error.hint})"


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def send_run(folder: str = "run", *, backend: str = "embedded", **needs: Any) -> Path:
    """A run's folder from an untrusted source: of one candidate, killed before it started."""
    candidate = Candidate.script(write("a.py", WRITES), id="a", **needs)
    settings = Settings(backend=backend)
    writer = RunWriter.begin(Path(folder))
    writer.define(
        describe_run(
            run="run", started="", objective="goal", settings=settings, candidates=[candidate],
            judge=default_judge().describe(), order=plan_turns([candidate], settings), jobs=1,
        )
    )  # fmt: skip
    writer.close()
    return Path(folder)


# The key, and the address that it is sent to.


def test_key_of_the_environment_is_not_sent_to_the_address_of_a_file(
    stranger: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(".env", f"DAYTONA_API_URL={stranger.url}\n")
    write("a.py", WRITES)
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    said = refusal_of(corral("run", "a.py", "-o", "goal", "--backend", "daytona"))
    assert stranger.url in said
    assert "DAYTONA_API_KEY" in said
    assert KEY not in said
    assert not run_candidate_in_daytona("a", "a.py", "goal", "out.md").success
    candidates = [{"id": "a", "script": "a.py"}]
    result = run_forge("goal", use_daytona=True, candidates=candidates, backend="memory", quiet=True)
    assert result.execution_mode == "local"
    assert stranger.heard == []


def test_key_of_a_file_is_not_sent_to_the_address_of_the_environment(
    stranger: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(".env", "DAYTONA_API_KEY=dtn_of_a_stranger\n")
    write("a.py", WRITES)
    monkeypatch.setenv("DAYTONA_API_URL", stranger.url)
    assert stranger.url in refusal_of(corral("run", "a.py", "-o", "goal", "--backend", "daytona"))
    assert stranger.heard == []


def test_address_of_a_file_is_shown_and_not_used_without_a_flag(stranger: Listener) -> None:
    write(".env", f"DAYTONA_API_KEY=dtn_of_a_stranger\nDAYTONA_API_URL={stranger.url}\n")
    write("a.py", WRITES)
    said = refusal_of(corral("run", "a.py", "-o", "goal", "--daytona"))
    assert f"address {stranger.url}" in said
    assert "--trust" in said
    assert stranger.heard == []


def test_folder_of_a_stranger_gets_no_key(stranger: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole attack: `.env` has the address, run.json the backend, the environment the key."""
    run = send_run(backend="daytona").resolve()
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    monkeypatch.chdir(run)
    write(".env", f"DAYTONA_API_URL={stranger.url}\n")
    for more in ([], ["--backend", "daytona"], ["--trust"], ["--daytona"]):
        refusal_of(corral("run", "--resume", ".", *more))
    for command in (["replay", ".", "--speed", "0"], ["report", "."], ["compare", ".", "."], ["list"]):
        corral(*command)
    assert stranger.heard == []


def test_state_that_a_folder_claims_is_harmless_on_a_terminal() -> None:
    run = send_run()
    definition = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(definition | {"state": "\x1b]0;owned\x07"}))
    listed = corral("list", "--artifacts", str(run.parent))
    assert "?]0;owned?" in listed.output
    assert "\x1b" not in listed.output


async def test_sdk_reads_no_file(stranger: Listener, tmp_path: Path) -> None:
    """It would fill what it was not given from `.env` and `.env.local`, and turn on tracing if they say so."""
    theirs = (
        "DAYTONA_API_KEY=theirs\nDAYTONA_JWT_TOKEN=theirs\nDAYTONA_ORGANIZATION_ID=theirs\nDAYTONA_TARGET=theirs\n"
        "DAYTONA_OTEL_ENABLED=true\nDAYTONA_HAPPY_EYEBALLS_DELAY=theirs\nDAYTONA_API_URL=http://192.0.2.1/api\n"
    )
    write(".env", theirs)
    write(".env.local", theirs)
    backend = DaytonaBackend(api_key=KEY, api_url=stranger.url)
    with pytest.raises(CorralError, match="rejected the API key"):
        await backend.list()
    assert stranger.heard
    assert not [request for request in stranger.heard if "theirs" in request]
    (made,) = backend._client._made.values()
    assert made._target is None
    assert made._organization_id is None
    assert made._tracer_provider is None
    await backend.aclose()


async def test_key_of_a_file_is_no_key_of_the_backend(stranger: Listener) -> None:
    write(".env", "DAYTONA_API_KEY=theirs\nDAYTONA_JWT_TOKEN=theirs\nDAYTONA_ORGANIZATION_ID=theirs\n")
    backend = DaytonaBackend(api_url=stranger.url)
    with pytest.raises(CorralError, match="DAYTONA_API_KEY"):
        await backend.list()
    assert stranger.heard == []


def test_only_our_names_are_read_of_an_env_file(tmp_path: Path) -> None:
    names = ("CORRAL_BACKEND", "PATH", "LD_PRELOAD", "DOCKER_HOST", "HTTPS_PROXY", "PIP_INDEX_URL", "OPENAI_BASE_URL")
    path = tmp_path / ".env"
    path.write_text("".join(f"{name}=x\n" for name in (*names, "DAYTONA_API_KEY", "DAYTONA_OTEL_ENABLED")))
    before = dict(os.environ)
    assert read_dotenv(NAMES, folder=tmp_path) == {"DAYTONA_API_KEY": "x"}
    assert dict(os.environ) == before


# Programs of ours.


def test_no_program_of_ours_imports_from_the_working_folder() -> None:
    """`python -m` and `-c` begin their search for modules where the user happens to be, in a stranger's folder too."""
    starts = re.compile(r'sys\.executable,\s*((?:"-[A-Za-z]+",\s*)+)')
    found = [
        f"{path.relative_to(ROOT)}: {match[1]}"
        for path in (ROOT / "src").rglob("*.py")
        for match in starts.finditer(path.read_text(encoding="utf-8"))
        if not {'"-I"', '"-P"'} & set(re.findall(r'"-[A-Za-z]+"', match[1]))
    ]
    assert found == []


# A run's folder.


@pytest.mark.parametrize(
    ("asks", "shown", "flag"),
    [
        ({"backend": "docker"}, "backend docker", "--backend docker"),
        ({"backend": "daytona"}, "backend daytona", "--backend daytona"),
        ({"packages": ["evil"]}, "package evil", "--package evil"),
        ({"image": "registry.example/evil"}, "image registry.example/evil", "--image registry.example/evil"),
        ({"network": "open"}, "network open", "--network open"),
        ({"network": "evil.example"}, "network evil.example", "--network evil.example"),
        ({"network": "packages,evil.example"}, "network packages,evil.example", "--network packages,evil.example"),
    ],
    ids=str,
)
def test_run_chooses_nothing_without_a_flag_and_what_it_asks_for_is_shown(
    asks: dict[str, Any], shown: str, flag: str
) -> None:
    run = send_run(**asks)
    before = sorted(os.walk(run))
    said = refusal_of(corral("run", "--resume", str(run)))
    assert shown in said
    assert flag in said
    assert "--trust" in said
    assert sorted(os.walk(run)) == before


def test_flag_that_names_something_else_is_not_enough() -> None:
    run = send_run(packages=["evil", "numpy"], network="open")
    said = refusal_of(corral("run", "--resume", str(run), "-p", "numpy", "--network", "a.org"))
    assert "package evil, network open" in said
    assert "numpy" not in said


def test_run_gets_no_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "precious")
    run = send_run(env={"AWS_SECRET_ACCESS_KEY": "precious"})
    said = refusal_of(corral("run", "--resume", str(run)))
    assert "AWS_SECRET_ACCESS_KEY" in said
    assert "--env" in said
    assert "AWS_SECRET_ACCESS_KEY" in refusal_of(corral("run", "--resume", str(run), "--trust"))


@pytest.mark.parametrize("kind", ["script", "folder"])
def test_run_gets_no_file_that_its_writer_did_not_know(kind: str, tmp_path: Path) -> None:
    """What is taken from a path has to have the hash that is written down: who wrote it had the same file."""
    run = send_run()
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "id_rsa").write_text("precious")
    definition = json.loads((run / "run.json").read_text())
    source = {"kind": kind, "path": str(secret / "id_rsa" if kind == "script" else secret), "sha256": "0" * 64}
    definition["candidates"][0]["source"] = source | ({"command": ["./x"]} if kind == "folder" else {})
    (run / "run.json").write_text(json.dumps(definition))
    assert "candidate a differ" in refusal_of(corral("run", "--resume", str(run)))
    assert "candidate a differ" in refusal_of(corral("run", "--resume", str(run), "--trust"))


def test_values_of_any_kind_are_refused_not_obeyed() -> None:
    run = send_run()
    whole = json.loads((run / "run.json").read_text())
    for changes in (
        {"packages": [{}]}, {"packages": ["\x1b[2J"]}, {"image": 7}, {"image": {"base": "x"}}, {"network": "open"},
        {"network": None}, {"network": {"mode": "open"}}, {"network": {"mode": "none", "hosts": ["evil"]}},
        {"network": {"mode": "allow", "hosts": 7}}, {"network": {"mode": ["none"], "hosts": []}},
    ):  # fmt: skip
        candidate = whole["candidates"][0] | changes
        (run / "run.json").write_text(json.dumps(whole | {"candidates": [candidate]}))
        refusal_of(corral("run", "--resume", str(run)))
    for backend in (7, {}, "nobody", "unsafe-subprocess"):
        (run / "run.json").write_text(json.dumps(whole | {"settings": whole["settings"] | {"backend": backend}}))
        refusal_of(corral("run", "--resume", str(run)))


@pytest.mark.parametrize("way", ["flag", "trust", "variable", "file"])
def test_run_is_resumed_on_the_backend_that_its_owner_names(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = send_run(backend="memory")
    more = {"flag": ["--backend", "memory"], "trust": ["--trust"]}.get(way, [])
    if way == "variable":
        monkeypatch.setenv("CORRAL_BACKEND", "memory")
    if way == "file":
        write("../config/corral/config.toml", 'backend = "memory"\n')
    result = corral("run", "--resume", str(run), *more)
    assert result.exception is None, result.exception
    assert json.loads((run / "run.json").read_text())["state"] == "finished"
    assert ("backend memory" in result.output) == (way == "trust"), "what is taken from the folder is said"


def test_command_that_goes_on_has_the_flags_that_it_needs() -> None:
    write("a.sh", 'echo made > "$2"')
    write("judge.py", "from corral.forge import Judge\nfrom corral.forge.judge import PythonScore\n"
                      "def rate(work):\n    return 1 / 0\njudge = Judge(scores=[PythonScore(rate)])\n")  # fmt: skip
    result = corral("run", "a.sh", "-o", "goal", "--backend", "memory", "--judge", "judge.py:judge")
    (run,) = Path("artifacts").iterdir()
    assert f"to resume: corral forge run --resume {run} --judge judge.py:judge --backend memory" in result.output


# A contest.toml.


CONTEST = 'objective = "goal"\n'


def test_judge_of_a_contest_is_not_run_here_without_a_flag() -> None:
    write("sent/candidates/a.py", WRITES)
    write("sent/judge.py", "from pathlib import Path\nPath('was-here').touch()\n"
                           "from corral.forge import default_judge as judge\n")  # fmt: skip
    write("sent/contest.toml", CONTEST + 'judge = "judge.py:judge"\n')
    said = refusal_of(corral("run", "sent", "--backend", "memory"))
    assert "judge sent/judge.py:judge" in said
    assert "--judge sent/judge.py:judge" in said
    os.chdir("sent")
    assert "judge judge.py:judge" in refusal_of(corral("run", "--backend", "memory"))
    os.chdir("..")
    assert not Path("was-here").exists()
    for more in (["--trust"], ["--judge", "sent/judge.py:judge"]):
        assert corral("run", "sent", "--backend", "memory", *more).exception is None
        Path("was-here").unlink()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('backend = "daytona"', "backend daytona"),
        ('artifacts = "../../elsewhere"', "artifacts in {0}/elsewhere"),
        ('candidates = ["../secret/id_rsa"]', "files from {1}/secret/id_rsa"),
        ('candidates = ["link.py"]', "files from {1}/secret/id_rsa"),
        ('candidates = ["git+tree"]', "files from {1}/repository/.git"),
        ('[[candidates]]\nfolder = "../secret"\ncommand = "true"', "files from {1}/secret"),
        ('[[candidates]]\ngit = "../repository"\ncommand = "true"', "files from {1}/repository"),
        ('[[candidates]]\nscript = "candidates/a.py"\npackages = ["evil"]', "package evil"),
        ('[[candidates]]\nscript = "candidates/a.py"\nimage = "evil"', "image evil"),
        ('[[candidates]]\nscript = "candidates/a.py"\nnetwork = "open"', "network open"),
    ],
)
@pytest.mark.needs_git
def test_contest_takes_nothing_from_elsewhere_without_a_flag(text: str, shown: str, tmp_path: Path) -> None:
    write("sent/candidates/a.py", WRITES)
    write("secret/id_rsa", "precious")
    write("repository/main.py", WRITES)
    who = ("-c", "user.email=a@b", "-c", "user.name=n", "-C", "repository")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run(["git", *who, *words], check=True)
    Path("sent/link.py").symlink_to("../secret/id_rsa")
    write("sent/tree/.git", f"gitdir: {Path('repository/.git').resolve()}\n")  # inside, and yet not
    write("sent/contest.toml", f"{CONTEST}{text}\n")
    said = refusal_of(corral("run", "sent"))
    assert shown.format(tmp_path, Path.cwd()) in said
    assert "--trust" in said
    assert not Path("artifacts").exists()
