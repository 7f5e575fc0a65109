"""The command itself: help everywhere, versions, completion, failures without a traceback."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import corral as package
from corral.cli import failure, main
from corral.cli.failure import Failed
from corral.cli.root import root
from corral.errors import EngineFaultError, SandboxGoneError, SpecError, UnknownBackendError
from corral_bench.peer import find_peers

Corral = Callable[..., Any]


def list_commands(command: click.Command = root, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(root)):
            child = command.get_command(click.Context(root), name)
            assert child is not None
            yield from list_commands(child, (*path, name))


def test_every_command_has_help_that_fits(corral: Corral) -> None:
    for path in list_commands():
        ended = corral(*path, "--help")
        assert (ended.code, ended.stderr) == (0, ""), path
        assert ended.stdout.startswith(f"Usage: corral {' '.join(path)}".rstrip())
        assert [line for line in ended.stdout.splitlines() if len(line) > 100] == [], path
        assert corral(*path, "-h") == ended, path


def test_version(corral: Corral) -> None:
    assert corral("--version").stdout == f"corral {package.__version__}\n"


def test_nothing_given_shows_help(corral: Corral) -> None:
    ended = corral()
    assert "Usage: corral" in ended.stdout + ended.stderr


def test_unknown_command_is_one_line_and_a_hint(corral: Corral) -> None:
    ended = corral("rnu")
    assert ended.code == 2
    assert ended.stderr.startswith("corral: error: no such command 'rnu'")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(corral: Corral, shell: str) -> None:
    ended = corral("completion", shell)
    assert ended.code == 0
    assert f"_CORRAL_COMPLETE={shell}_complete" in ended.stdout


@pytest.mark.needs_zsh
def test_zsh_takes_the_completion_script_without_other_settings(corral: Corral, tmp_path: Path) -> None:
    script = f"{corral('completion', 'zsh').stdout}\nprint -r -- $_comps[corral]"
    env = {"HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(["zsh", "-f", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("_corral_completion\n", "")


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "corral", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"corral {package.__version__}\n"


@pytest.mark.parametrize("module", ["corral", "corral.cli"])
def test_modules_of_the_working_folder_are_not_run(module: str, tmp_path: Path) -> None:
    """They may be what a sandbox wrote into a folder that came back."""
    for name in ("click", "json", "logging", "shlex"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')")
    argv = [sys.executable, "-m", module, "run", "--backend", "memory", "--json", "-l", "sh", "-c", "echo here"]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"here\\n"' in done.stdout
    # Asked for by name it is no accident, and what -P left out is not taken away from another place.
    env["PYTHONPATH"] = str(tmp_path)
    for flags in ([], ["-P"]):
        argv = [sys.executable, *flags, "-m", module, "--version"]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert done.stderr == "not ours\n"


def test_peers_of_the_benchmark_import_nothing_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without the other peers, which take seconds to find
    (plain,), _ = find_peers()
    plain.tasks["Python snippet"]()


def test_the_command_runs_from_its_own_source_folder() -> None:
    # Without site (-S), Corral is found in the working folder alone.
    env = {**os.environ, "PYTHONPATH": str(Path(click.__file__).parents[1])}
    argv = [sys.executable, "-S", "-m", "corral", "run", "--backend", "memory", "-l", "sh", "-c", "echo here"]
    folder = Path(package.__file__).parents[1]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("here\n", "")


def ask_for_completion(words: str) -> list[str]:
    env = {**os.environ, "_CORRAL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    argv = [sys.executable, "-m", "corral.cli"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines()


def complete(words: str) -> list[str]:
    return [line.partition(",")[2] for line in ask_for_completion(words)]


def test_completion_knows_commands_options_and_values() -> None:
    assert complete("corral sand") == ["sandbox"]
    assert complete("corral sandbox e") == ["exec"]
    assert "--timeout" in complete("corral run --t")
    assert "typescript" in complete("corral run --language t")
    assert "memory" in complete("corral run --backend ")


@pytest.mark.parametrize(
    "words",
    ["run scr", "run --copy-in x", "run --venv ", "forge run c", "forge report a", "sandbox cp ", "sandbox cp ./a"],
)
def test_completion_leaves_file_names_to_the_shell(words: str) -> None:
    *_, incomplete = words.split(" ")
    assert ask_for_completion(f"corral {words}") in ([f"file,{incomplete}"], [f"dir,{incomplete}"])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SpecError("wrong", hint="right"), 2, "corral: error: wrong\nhint: right\n"),
        (
            Failed(SandboxGoneError("gone", hint="packages=[…] or venv="), exit_code=125),
            125,
            "corral: error: gone\nhint: --package or --venv\n",
        ),
        (Failed(SpecError("wrong"), exit_code=125), 2, "corral: error: wrong\n"),
        (Failed(UnknownBackendError("wrong"), exit_code=125), 2, "corral: error: wrong\n"),
        (Failed(SandboxGoneError("gone"), exit_code=125), 125, "corral: error: gone\n"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "corral: error: x: No such file or directory\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (SpecError("two\nlines \x1b[31m"), 2, "corral: error: two lines ?[31m\n"),
    ],
)
def test_failures_are_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    assert failure.report(error) == code
    assert capsys.readouterr().err == said


def test_a_bug_of_ours_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure.report(ZeroDivisionError("division by zero")) == 70
    assert "unexpected ZeroDivisionError" in (said := capsys.readouterr().err)
    assert "Traceback" not in said
    assert failure.report(EngineFaultError("broken")) == 1
    assert "please report it" in capsys.readouterr().err


def test_debug_shows_where(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_DEBUG", "1")
    assert failure.report(SpecError("wrong")) == 2
    assert "SpecError" in capsys.readouterr().err


def test_a_reader_who_leaves_is_no_error() -> None:
    run = f"{sys.executable} -m corral.cli run --backend memory -l sh -c cat"
    script = f"head -c 5000000 /dev/zero | {run} | head -c 1 | wc -c; echo ${{PIPESTATUS[1]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.split() == ["1", "141"]


def test_main_gives_an_exit_code() -> None:
    assert main(["--version"]) == 0


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("password-hashes", "did you mean read-the-hosts-password-hashes?"),
        ("?", "the probes are adopt-ones-own-orphans, "),
    ],
)
def test_an_unknown_probe_is_refused_with_the_names_that_exist(corral: Corral, name: str, shown: str) -> None:
    ended = corral("doctor", "--probe", name)
    assert (ended.code, ended.stdout) == (failure.USAGE, "")
    assert shown in ended.stderr
