"""Texts for a shell: run by bash, or by sh where there is no bash, and shown as they were written."""

import os
import subprocess
from pathlib import Path

import pytest

from corral.base.command import (
    MAX_SHELL_TEXT_BYTES,
    bash_text,
    in_file,
    long_text,
    script_argv,
    show_command,
    with_bash,
)
from corral.errors import InvalidCommandError


def run(argv: list[str], **env: str) -> str:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_text_is_run_by_bash_and_changes_no_variable() -> None:
    text = 'echo "${BASH_VERSION:+bash}" {1..2} "$shell" "$0"'
    assert run(bash_text(text), PATH=os.environ["PATH"], shell="mine") == "bash 1 2 mine bash\n"


def test_without_bash_a_text_is_run_by_sh(tmp_path: Path) -> None:
    assert run(bash_text('echo "$0" "$HOME"'), PATH=str(tmp_path), HOME="there") == "/bin/sh there\n"


def test_a_text_that_begins_with_a_dash_is_no_option() -> None:
    done = subprocess.run(bash_text("-c 'echo no'"), capture_output=True, check=False)
    assert done.returncode == 127


@pytest.mark.parametrize("text", ["", " \n", None, 3])
def test_an_empty_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidCommandError):
        bash_text(text)


def test_a_long_text_goes_into_a_file_for_the_same_shell() -> None:
    text = "echo " + "x" * MAX_SHELL_TEXT_BYTES
    assert long_text(text) == long_text(bash_text(text)) == text
    assert script_argv(text, "/s") == ["/bin/sh", "/s"]
    assert script_argv(bash_text(text), "/s") == with_bash("/s")
    assert long_text(b"echo") is long_text(7) is long_text([]) is None  # type: ignore[arg-type]  # told by `check_argv`
    assert long_text("echo") is long_text(["cat", text]) is long_text(["bash", "-c", "--", text]) is None


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        ("[ -e {folder} ] || echo $0 $# $LINENO; cat\nno-\nexit 7", 7, "{path}: line 2: no-: command not found\n"),
        ("if then\n", 2, "{path}: line 1: syntax error near unexpected token `then'\n{path}: line 1: `... if then'\n"),
    ],
)
async def test_a_long_text_removes_its_folder_and_runs_as_any_script(
    tmp_path: Path, text: str, code: int, error: str
) -> None:
    folder = tmp_path / "folder"
    path = folder / "script.sh"

    async def write(name: str, data: bytes) -> None:
        folder.mkdir()
        Path(name).write_bytes(data)

    async def drop(name: str) -> None:
        raise AssertionError(name)

    text = text.format(folder=folder) + "\n#" + "x" * MAX_SHELL_TEXT_BYTES
    async with in_file(bash_text(text), str(folder), write=write, drop=drop, background=True) as argv:
        assert show_command(argv) == f"bash {path}"
        done = subprocess.run([*argv], input="input", capture_output=True, text=True, check=False)
    removal = f"rm -rf -- {folder} 2>/dev/null;"
    assert (done.returncode, done.stderr.replace(removal, "...")) == (code, error.format(path=path))
    assert done.stdout == (f"{path} 0 1\ninput" if code == 7 else "")
    assert not folder.exists()


def test_commands_are_shown_as_they_were_written() -> None:
    assert show_command(["/bin/sh", "-c", "echo a  b"]) == show_command(bash_text("echo a  b")) == "echo a  b"
    assert show_command(with_bash("-l", "-i")) == "bash -l -i"
    assert show_command(["echo", "a b"]) == "echo 'a b'"
