"""`corral forge`: what is shown, what is written, and the exit codes."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from corral.backends.embedded import EmbeddedBackend
from corral.cli.root import root
from corral.client import registry
from corral.errors import BackendUnavailableError
from corral.forge.runfolder import read_run
from corral.spec import Spec

pytestmark = pytest.mark.needs_userns

WRITES = 'import sys\nprint("said by {0}")\nopen(sys.argv[2], "w").write("made by {0}")\n'


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("DAYTONA_", "CORRAL_"))]:
        if name != "CORRAL_DATA_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def corral(*arguments: str) -> Result:
    """In this process; errors come out as they are raised."""
    return CliRunner().invoke(root, ["forge", *arguments], standalone_mode=False)


def code_of(result: Result) -> Any:
    """What the command gave."""
    assert result.exception is None, result.exception
    return result.return_value


def message_of(result: Result) -> str:
    """Of the error that the command ended with: the words, and the hint."""
    assert result.exception is not None, result.output
    return str(result.exception)


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def only_run(folder: str = "artifacts") -> Path:
    (path,) = Path(folder).iterdir()
    return path


def test_shipped_contest_shows_lines_leaderboard_and_the_winners_artifact() -> None:
    result = corral("run", "--report", "report.html")
    assert code_of(result) == 0, result.output
    assert "[gamma] gamma: 5 events, a hackathon among them" in result.output
    assert re.search(r"\[delta\] crashed in .*: exit code 1: ZeroDivisionError: division by zero", result.output)
    assert re.search(r"^ +1 +gamma +\d", result.output, re.MULTILINE)
    assert re.search(r"delta: exit-code: exit code 1: ZeroDivisionError", result.output)
    assert re.search(r"epsilon: events: 0 events, less than 3", result.output)
    assert "Winner: gamma" in result.output
    assert str(only_run() / "gamma" / "artifact.md") in result.output
    assert "AI for Good Hackathon" in result.output
    assert Path("report.html").read_text().startswith("<!doctype html>")


def test_json_is_the_result_and_nothing_else() -> None:
    result = corral("run", write("a.py", WRITES.format("a")), "-o", "goal", "--repeat", "2", "--seed", "7", "--json")
    found = json.loads(result.stdout)
    assert code_of(result) == 0
    assert not re.search(r"\.\d{7}", result.stdout), "a number with noise"
    assert (found["winners"], found["state"], found["complete"]) == (["a"], "finished", True)
    definition = read_run(only_run()).definition
    assert definition["settings"]["repeat"] == 2
    assert definition["settings"]["seed"] == 7
    assert (only_run() / "a" / "2" / "artifact.md").read_text() == "made by a"


def test_options_reach_the_contest() -> None:
    write("setup.sh", "echo ready > ready")
    text = (
        "import os, sys\n"
        "print(open('../ready').read().strip(), os.environ['NAME'], os.environ['OTHER'])\n"
        "open(sys.argv[2], 'w')\n"
    )
    write("vars", "OTHER='of a file' # said here\n")
    result = corral(
        "run", write("a.py", text), "-o", "goal", "--setup", "@setup.sh", "-e", "NAME=ours", "--env-file", "vars",
        "--output", "out.bin", "--timeout", "20", "--memory", "128MiB", "--jobs", "1", "--artifacts", "kept",
    )  # fmt: skip
    assert code_of(result) == 0, result.output
    assert "[a] ready ours of a file" in result.output
    settings = read_run(only_run("kept")).definition["settings"]
    assert settings["output"] == "out.bin"
    assert settings["timeouts"]["run"] == 20
    assert settings["resources"]["memory_bytes"] == 128 * 1024 * 1024
    assert settings["resources"]["cpus"] == 1
    written = (only_run("kept") / "run.json").read_text()
    assert "NAME" in written
    assert "ours" not in written


def test_nobody_passing_is_exit_code_1() -> None:
    result = corral("run", write("a.py", "1 / 0"), "-o", "goal")
    assert code_of(result) == 1
    assert "No candidate passed." in result.output


def test_tie_is_said_to_be_one() -> None:
    write("judge.py", "from corral.forge import Judge\ndef judge():\n    return Judge()\n")
    names = [write(f"{name}.py", WRITES.format(name)) for name in ("a", "b")]
    result = corral("run", *names, "-o", "goal", "--judge", "judge.py:judge", "--quiet")
    assert code_of(result) == 0, result.output
    assert re.search(r"A tie: (a, b|b, a)", result.output)
    assert "said by" not in result.output


def test_what_a_candidate_prints_and_writes_is_harmless_on_a_terminal() -> None:
    text = 'import sys\nprint("\\x1b]0;owned\\x07\\x1b[2J")\nopen(sys.argv[2], "w").write("\\x1b[31mred\\u202e")\n'
    result = corral("run", write("a.py", text), "-o", "goal")
    assert code_of(result) == 0, result.output
    assert "\x1b" not in result.output
    assert "\u202e" not in result.output
    assert "?[31mred?" in result.output


def test_broken_off_run_is_resumed_by_its_folder_alone() -> None:
    write("judge.py", "from corral.forge import default_judge\njudge = default_judge()\n")
    names = [write(f"{name}.py", WRITES.format(name)) for name in ("a", "b")]
    assert code_of(corral("run", *names, "-o", "goal", "--judge", "judge.py:judge", "-e", "X=secret")) == 0
    run = only_run()
    # As if it had been killed before b was done.
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"kind":"judg' not in line and '"kind":"run-ended"' not in line]
    ended = [line for line in kept if '"attempt-ended"' in line and '"candidate":"b"' in line]
    (run / "events.jsonl").write_text("".join(line for line in kept if line not in ended))
    assert "--env X=…" in message_of(corral("run", "--resume", run.name))
    result = corral("run", "--resume", run.name, "--env", "X=secret")
    assert code_of(result) == 0, result.output
    assert "[b] ok" in result.output
    assert "[a] ok" not in result.output, "it was done already"
    assert "differ" in message_of(corral("run", "--resume", str(run), "--env", "X=other"))


def test_resumed_run_with_a_judge_of_its_own_wants_it_again() -> None:
    judge = (
        "from corral.forge import Judge\nfrom corral.forge.judge import ExitCode\njudge = Judge(gates=[ExitCode()])\n"
    )
    write("judge.py", judge)
    assert code_of(corral("run", write("a.py", WRITES.format("a")), "-o", "goal", "--judge", "judge.py:judge")) == 0
    assert "--judge FILE.py:NAME" in message_of(corral("run", "--resume", only_run().name))
    assert code_of(corral("run", "--resume", only_run().name, "--judge", "judge.py:judge")) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sort the numbers"], "--objective 'sort the numbers'"),
        (["missing.py", "-o", "x"], "no such candidate: 'missing.py'"),
        (["hackathons", "--daytona"], "--objective 'hackathons'"),
        (["a.py"], "missing --objective"),
        (["a.py", "contest/", "-o", "x"], "is a whole contest"),
        (["a.py", "-o", "x", "--judge", "rubrik"], "did you mean 'rubric'?"),
        (["a.py", "-o", "x", "--judge", "no.py:judge"], "no such file: 'no.py'"),
        (["a.py", "-o", "x", "--backend", "unsafe-subprocess"], "does not isolate"),
        (["a.py", "-o", "x", "-d", "--backend", "docker"], "either --daytona or --backend"),
        (["--resume", "nothing"], "is not the folder of a run"),
    ],
)
def test_what_can_not_be_is_said_with_its_remedy(arguments: list[str], words: str) -> None:
    write("a.py", WRITES.format("a"))
    write("contest/contest.toml", "objective = 'x'")
    assert words in message_of(corral("run", *arguments))
    assert not Path("artifacts").exists()


def test_daytona_without_a_key_falls_back_and_says_so() -> None:
    Path(".env").write_text("DAYTONA_API_KEY=your_key_here\n")
    result = corral("run", write("a.py", WRITES.format("a")), "-o", "goal", "--daytona")
    assert code_of(result) == 0
    assert "Daytona not configured, falling back to local" in result.output
    assert read_run(only_run()).definition["settings"]["backend"] == "embedded"


def test_init_writes_a_contest_that_runs_and_writes_over_nothing() -> None:
    assert code_of(corral("init", "mine")) == 0
    assert "--judge mine/judge.py:judge" in message_of(corral("run", "mine"))
    result = corral("run", "mine", "--trust")
    assert code_of(result) == 0, result.output
    assert "hasty: are_sorted: not sorted: 5 3 8 1" in result.output
    assert re.search(r"Winner: (plain|shell)", result.output)
    assert "already exists" in message_of(corral("init", "mine"))


def test_contest_file_in_the_working_folder_is_the_default_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    write("scripts/a.py", WRITES.format("a"))
    write(
        "contest.toml",
        'objective = "of the file"\nrepeat = 2\noutput = "out.md"\nartifacts = "runs"\n'
        '[timeouts]\nrun = 9\n[[candidates]]\nscript = "scripts/a.py"\nid = "first"\nenv = { A = "1" }\n',
    )
    monkeypatch.setenv("CORRAL_TIMEOUT", "33")  # a contest that is written down is not changed by it
    assert code_of(corral("run", "--repeat", "1")) == 0
    run = read_run(only_run("runs"))
    assert run.objective == "of the file"
    assert run.repeat == 1
    assert run.definition["settings"]["timeouts"]["run"] == 9
    assert [each["id"] for each in run.definition["candidates"]] == ["first"]


def test_list_replay_compare_and_report_look_at_runs() -> None:
    write("a.py", WRITES.format("a"))
    assert code_of(corral("run", "a.py", "-o", "goal", "--seed", "1")) == 0
    (first,) = (path.name for path in Path("artifacts").iterdir())
    assert code_of(corral("run", "a.py", "-o", "goal", "--seed", "2")) == 0
    (second,) = (path.name for path in Path("artifacts").iterdir() if path.name != first)
    listed = corral("list")
    assert code_of(listed) == 0
    assert first in listed.output
    assert second in listed.output
    assert [each["winners"] for each in json.loads(corral("list", "--json").stdout)] == [["a"], ["a"]]
    again = corral("replay", first, "--speed", "0")
    assert code_of(again) == 0
    assert "[a] said by a" in again.output
    assert "Winner: a" in again.output
    compared = corral("compare", first, second)
    assert code_of(compared) == 0
    assert "settings.seed: 1 → 2" in compared.output
    compared = corral("compare", first, second, "--json").stdout
    assert json.loads(compared)["same_winners"] is True
    assert not re.search(r"\.\d{7}", compared), "a number with noise"
    assert code_of(corral("report", first)) == 0
    assert (Path("artifacts") / first / "report.html").is_file()
    assert "no runs in 'elsewhere'" in message_of(corral("watch", "--artifacts", "elsewhere"))


# At a terminal.


def at_terminal(*arguments: str, interrupt_when: bytes | None = None) -> tuple[int, bytes]:
    """In a process of its own with a terminal of its own; Ctrl-C is pressed once the words are there."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "corral.cli", "forge", *arguments],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, "TERM": "xterm"},
        preexec_fn=lambda: _take_terminal(slave),
    )  # fmt: skip
    os.close(slave)
    shown = b""
    try:
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the last who had it open has gone
                break
            if not piece:
                break
            shown += piece
            if interrupt_when is not None and interrupt_when in shown:
                os.write(master, b"\x03")
                interrupt_when = None
        return process.wait(timeout=60), shown
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _take_terminal(descriptor: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def test_terminal_shows_a_table_and_then_the_leaderboard() -> None:
    code, shown = at_terminal("run", write("a.py", WRITES.format("a")), "-o", "goal")
    assert code == 0, shown
    assert b"last line" in shown  # which phases it shows is chance: it is drawn now and then
    after = shown.rpartition(b"\x1b[J")[2]
    assert b"Winner: a" in after
    assert b"last line" not in after, "the table has made room"


def test_interrupt_keeps_what_there_is_and_says_how_to_go_on() -> None:
    write("a.py", "import sys, time\nprint('under way')\ntime.sleep(1000)\n")
    code, shown = at_terminal("run", "a.py", "-o", "goal", "--timeout", "1h", interrupt_when=b"under way")
    assert code == 130, shown
    text = shown.decode()
    assert "interrupted: 0 of 1 runs are done and kept" in text
    assert f"corral forge run --resume artifacts/{only_run().name}" in text.replace("\r\n", " ")
    assert read_run(only_run()).state == "interrupted"


def test_page_is_served_until_ctrl_c_and_its_secret_is_in_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code_of(corral("run", write("a.py", WRITES.format("a")), "-o", "goal")) == 0
    browser = tmp_path / "browser"
    browser.write_text(
        '#!/bin/sh\npath=${1#file://}\necho "given: $*"\nstat -c "mode: %a" "$path" "${path%/*}"\ncat "$path"\n'
        "echo all is shown\n"
    )
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    code, shown = at_terminal("watch", "--open", interrupt_when=b"all is shown")
    assert code == 0, shown
    assert only_run().name.encode() in shown
    lines = shown.decode().splitlines()
    address = next(word for line in lines for word in line.split() if word.startswith("http://127.0.0.1:"))
    given = next(line for line in lines if line.startswith("given: "))
    assert address.split("/")[3] not in given
    assert [line for line in lines if line.startswith("mode: ")] == ["mode: 600", "mode: 700"]
    assert f"0;url={address}" in shown.decode()
    assert not Path(given.removeprefix("given: file://")).exists()


# When sandboxes can't be had, and beside the page.


class Failing(EmbeddedBackend):
    """Makes one sandbox, the base; then no more."""

    left = 1

    async def create(self, spec: Spec, **more: Any) -> Any:
        if self.left <= 0:
            raise BackendUnavailableError("no room")
        self.left -= 1
        return await super().create(spec, **more)


def test_want_of_sandboxes_is_nobodys_loss_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._opened, "embedded", Failing())
    result = corral("run", write("a.py", WRITES.format("a")), "-o", "goal")
    assert code_of(result) == 1
    assert "[a] infrastructure: could not create sandbox: no room" in result.output
    assert "No candidate could be run." in result.output
    assert f"to resume: corral forge run --resume {only_run()}" in result.output
    monkeypatch.setitem(registry._opened, "embedded", EmbeddedBackend())
    again = corral("run", "--resume", str(only_run()))
    assert code_of(again) == 0, again.output
    assert "Winner: a" in again.output


def test_judge_that_fails_loses_nothing_and_is_asked_again() -> None:
    imports = "from corral.forge import Judge\nfrom corral.forge.judge import PythonScore\n"
    write("judge.py", f"{imports}def rate(work):\n    return 1 / 0\njudge = Judge(scores=[PythonScore(rate)])\n")
    result = corral("run", write("a.py", WRITES.format("a")), "-o", "goal", "--judge", "judge.py:judge")
    assert "division by zero" in message_of(result)
    assert f"to resume: corral forge run --resume {only_run()} --judge judge.py:judge" in result.output


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="int"),
        pytest.param(signal.SIGTERM, 143, id="term", marks=pytest.mark.check),
    ],
)
def test_page_is_there_while_it_runs_and_what_there_is_is_kept(number: int, code: int) -> None:
    """The candidate never ends; the page's address is said on stderr."""
    write("a.py", "import sys, time\nprint('under way')\ntime.sleep(1000)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "corral.cli", "forge", "run", "a.py", "-o", "goal", "--watch", "--timeout", "1h"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = next(line.split()[-1] for line in process.stderr if "to watch: " in line)
        with urllib.request.urlopen(address, timeout=60) as page:
            assert page.status == 200
        while not any("under way" in log.read_text() for log in Path("artifacts").glob("*/events.jsonl")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(timeout=60) == code
        assert read_run(only_run()).state == "interrupted"
    finally:
        process.kill()
        process.communicate()
