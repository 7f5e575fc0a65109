"""Texts for a shell: run by bash, or by sh where there is no bash, and shown as they were written."""

import os
import subprocess
from pathlib import Path

import pytest

from corral.command import MAX_SHELL_TEXT_BYTES, bash_text, long_text, script_argv, show_command, with_bash
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


def test_commands_are_shown_as_they_were_written() -> None:
    assert show_command(["/bin/sh", "-c", "echo a  b"]) == show_command(bash_text("echo a  b")) == "echo a  b"
    assert show_command(with_bash("-l", "-i")) == "bash -l -i"
    assert show_command(["echo", "a b"]) == "echo 'a b'"
