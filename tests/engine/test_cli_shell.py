"""`corral shell` and `exec --tty` in a real terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from support.tiers import further

pytestmark = [pytest.mark.needs_userns, pytest.mark.needs_root]

SECONDS = 30


def read_until(fd: int, mark: str) -> str:
    """What is shown up to a mark; to the end of everything if the mark is empty."""
    shown = b""
    deadline = time.monotonic() + SECONDS
    while not mark or mark.encode() not in shown:
        if not select.select([fd], [], [], max(0, deadline - time.monotonic()))[0]:
            raise AssertionError(f"{mark!r} was not shown: {shown!r}")
        try:
            shown += os.read(fd, 65536)
        except OSError:  # everybody has left the terminal
            break
    return shown.decode(errors="replace")


class Terminal:
    """A command line with its own terminal, and a user in front of it."""

    def __init__(self, *arguments: str, rows: int = 30, columns: int = 100) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "corral.cli", *arguments])
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def read_until(self, mark: str) -> str:
        return read_until(self.fd, mark)

    def wait(self) -> int:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        raise AssertionError("it does not end")

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.fixture
def box() -> Iterator[str]:
    argv = [sys.executable, "-m", "corral.cli", "sandbox"]
    made = subprocess.run([*argv, "create", "--lifetime", "5m"], capture_output=True, text=True, check=True, timeout=60)
    yield made.stdout.strip()
    subprocess.run([*argv, "rm", made.stdout.strip()], capture_output=True, check=True, timeout=60)


def test_a_shell_is_a_real_terminal(terminals: list[Terminal]) -> None:
    terminal = Terminal("shell")
    terminals.append(terminal)
    terminal.read_until("$ ")
    terminal.type("tty; stty size; whoami; echo m''ark\n")
    shown = terminal.read_until("mark\r\n")
    assert "/dev/pts/" in shown
    assert "30 100" in shown
    assert "daytona" in shown
    terminal.resize(40, 132)
    terminal.type("until stty size | grep '40 132'; do sleep 0.02; done; echo m''ark\n")
    terminal.read_until("mark\r\n")
    terminal.type("exit 7\n")
    terminal.read_until("exit")
    assert terminal.wait() == 7


def test_ctrl_c_is_for_the_program_inside(terminals: list[Terminal]) -> None:
    terminal = Terminal("shell")
    terminals.append(terminal)
    terminal.read_until("$ ")
    terminal.type("PS1='fir''st> '\n")
    terminal.read_until("first> ")
    terminal.type("sh -c \"echo beg''un; exec sleep 1000\"; echo st''ill here\n")
    terminal.read_until("begun\r\n")  # said by the program itself: between two of them Ctrl-C would be for bash
    terminal.type("\x03")
    terminal.read_until("first> ")  # what is typed before the prompt may be lost with the line that was interrupted
    terminal.type("echo st''ill here; PS1='rea''dy> '\n")
    assert "still here" in terminal.read_until("ready> ")  # an end of file before the prompt is not taken for one
    terminal.type("\x04")
    assert terminal.wait() in (0, 130)


@pytest.mark.parametrize("number", [signal.SIGTERM, further(signal.SIGHUP)])
def test_the_terminal_is_restored_whatever_happens(number: int) -> None:
    # Our own terminal outlives the command: its settings can be checked afterwards.
    ours, theirs = pty.openpty()
    try:
        before = termios.tcgetattr(theirs)
        argv = [sys.executable, "-m", "corral.cli", "shell"]
        with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
            try:
                read_until(ours, "$ ")
                assert termios.tcgetattr(theirs) != before, "raw while it runs"
                process.send_signal(number)
                shown = read_until(ours, "\x1b[?25h")  # the cursor is shown again
                assert process.wait(SECONDS) != 0
            finally:
                process.kill()
        assert termios.tcgetattr(theirs) == before
        assert "Traceback" not in shown
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_command_in_a_terminal_gives_its_code_and_last_words(terminals: list[Terminal]) -> None:
    for _ in range(5):
        terminal = Terminal("shell", "-c", "echo last words; exit 3")
        terminals.append(terminal)
        assert "last words" in terminal.read_until("")
        assert terminal.wait() == 3


def test_a_shell_in_a_sandbox_that_is_there(terminals: list[Terminal], box: str) -> None:
    for command in (
        ("shell", box, "-c", "echo here >> file; cat file"),
        ("sandbox", "exec", "-t", box, "tty; cat file"),
    ):
        terminal = Terminal(*command)
        terminals.append(terminal)
        assert "here" in terminal.read_until("")
        assert terminal.wait() == 0


def test_what_run_prints_on_a_terminal_is_only_text(terminals: list[Terminal]) -> None:
    terminal = Terminal("run", "-c", r"print('\x1b]52;c;AAAA\x07\x1b[31mred\x1b[0m \x07end')")
    terminals.append(terminal)
    shown = terminal.read_until("")
    assert "red end" in shown
    assert "\x1b" not in shown
    assert terminal.wait() == 0


def test_the_clipboard_can_not_be_set_from_a_shell(terminals: list[Terminal]) -> None:
    terminal = Terminal("shell", "-c", r"printf '\033]52;c;AAAA\007\033[31mred\033[0m\n'")
    terminals.append(terminal)
    shown = terminal.read_until("")
    assert "\x1b[31mred" in shown
    assert "\x1b]52" not in shown


def test_a_shell_without_a_terminal_reads_a_script() -> None:
    argv = [sys.executable, "-m", "corral.cli", "shell"]
    done = subprocess.run(argv, input="echo $((1 + 2)); exit 5\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (5, "3\n")


def test_wishes_are_refused_for_a_sandbox_that_is_there() -> None:
    argv = [sys.executable, "-m", "corral.cli", "shell", "some-box", "--memory", "1GiB"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--memory only applies to a new sandbox" in done.stderr
