"""`corral sandbox … --url` against a server, as a person types it."""

import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from corral.cli import main
from support.serving import ServedProcess

pytestmark = pytest.mark.needs_root


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    returncode: int
    stdout: str
    stderr: str


Corral = Callable[..., Ended]


@pytest.fixture
def corral(
    server: ServedProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Corral]:
    """A command line with the server's address and key. In this process: the SDK is loaded once."""
    for name in [name for name in os.environ if name.startswith(("CORRAL_", "DAYTONA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CORRAL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    saved = os.dup(0)

    def call(*words: str, key: str | None = server.key, url: str | None = server.url, stdin: str = "") -> Ended:
        at = ["--url", url] if url is not None else []
        if key is not None:
            monkeypatch.setenv("CORRAL_API_KEY", key)
        else:
            monkeypatch.delenv("CORRAL_API_KEY", raising=False)
        group, *rest = words
        argv = [group, rest[0], *at, *rest[1:]] if group == "sandbox" else [group, *at, *rest]
        reader, writer = os.pipe()
        with io.FileIO(writer, "w") as file:
            file.write(stdin.encode())
        os.dup2(reader, 0)
        os.close(reader)
        code = main(argv)
        captured = capfd.readouterr()
        return Ended(code, captured.out, captured.err)

    yield call
    os.dup2(saved, 0)
    os.close(saved)


@pytest.fixture
def box(corral: Corral) -> Iterator[str]:
    made = corral("sandbox", "create", "--name", "cli-box", "--label", "a=b", "--env", "WHO=me")
    assert made.returncode == 0, made.stderr
    yield made.stdout.strip()
    corral("sandbox", "rm", "--force", "cli-box")


def test_sandbox_is_made_used_and_removed(corral: Corral, box: str, tmp_path: Path) -> None:
    (listed,) = [one for one in json.loads(corral("sandbox", "list", "--json").stdout) if one["sandbox_id"] == box]
    assert (listed["name"], listed["labels"], listed["state"]) == ("cli-box", {"a": "b"}, "running")
    ended = corral("sandbox", "exec", "cli-box", 'echo "$WHO"; echo no >&2; exit 3')
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "me\n", "no\n")
    assert corral("sandbox", "exec", "-i", box, "--", "cat", stdin="typed").stdout == "typed"
    (tmp_path / "data.txt").write_text("content")
    assert corral("sandbox", "cp", str(tmp_path / "data.txt"), "cli-box:").returncode == 0
    assert corral("sandbox", "cp", "cli-box:data.txt", "-").stdout == "content"
    assert corral("shell", "cli-box", "-c", "cat data.txt").stdout == "content"
    removed = corral("sandbox", "rm", "cli-box")
    assert (removed.returncode, removed.stdout) == (0, "cli-box\n")
    assert "cli-box" in corral("sandbox", "exec", "cli-box", "true").stderr


def test_program_runs_on_and_its_log_is_there(corral: Corral, box: str) -> None:
    started = corral("sandbox", "exec", "-d", "cli-box", "echo begun; sleep 0.5; echo done; exit 4")
    assert started.stdout == "1\n", started.stderr
    followed = corral("sandbox", "logs", "-f", "cli-box")
    assert followed.stdout == "begun\ndone\n", followed.stderr
    (program,) = json.loads(corral("sandbox", "logs", "--json", "cli-box").stdout)
    assert (program["number"], program["state"], program["exit_code"]) == (1, "ended", 4)
    assert "program 7 not found" in corral("sandbox", "logs", "cli-box", "7").stderr


def test_stop_start_snapshot_and_fork(corral: Corral, box: str) -> None:
    assert corral("sandbox", "exec", "cli-box", "echo kept > file").returncode == 0
    snapshot = corral("sandbox", "snapshot", "cli-box", "--name", "cli-snapshot")
    assert snapshot.returncode == 0, snapshot.stderr
    assert "cli-snapshot" in corral("sandbox", "snapshots").stdout
    fork = corral("sandbox", "fork", "cli-box", "--name", "cli-fork")
    assert fork.returncode == 0, fork.stderr
    assert corral("sandbox", "exec", "cli-fork", "cat file").stdout == "kept\n"
    assert corral("sandbox", "rm", "cli-fork").returncode == 0
    assert corral("sandbox", "stop", "cli-box").returncode == 0
    assert "start" in corral("sandbox", "exec", "cli-box", "true").stderr
    assert corral("sandbox", "start", "cli-box").stdout == f"{box}\n"
    assert corral("sandbox", "exec", "cli-box", "cat file").stdout == "kept\n"
    assert corral("sandbox", "snapshots", "--delete", "cli-snapshot").returncode == 0


def test_fresh_sandbox_ends_with_its_command(corral: Corral) -> None:
    before = set(corral("sandbox", "list", "-q").stdout.split())
    ended = corral("run", "-c", "print(6 * 7)")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "42\n", "")
    assert set(corral("sandbox", "list", "-q").stdout.split()) <= before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sandbox", "list"), "CORRAL_API_KEY"),
        (("sandbox", "list", "--backend", "memory"), "can't be combined"),
    ],
)
def test_what_is_missing_is_said(corral: Corral, words: tuple[str, ...], said: str) -> None:
    ended = corral(*words, key=None if len(words) == 2 else "key-of-somebody-else")
    assert ended.returncode != 0
    assert said in ended.stderr


def test_wrong_key_and_wrong_address_are_said(corral: Corral) -> None:
    assert "rejected the API key" in corral("sandbox", "list", key="a-wrong-key-0123456789").stderr
    assert "can't reach the service" in corral("sandbox", "list", url="http://127.0.0.1:1/api").stderr
    assert "not a URL" in corral("sandbox", "list", url="somewhere").stderr
