"""`corral serve` at a terminal: what it shows, and what a Ctrl-C does."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.serving import served

_PATIENCE_SECONDS = 60.0


class AtTerminal:
    """A server with a terminal, of which we are the other side. Its sandboxes are in its memory, and go with it."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 200) -> None:
        self.screen = ""
        self._read = 0
        self.terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        unwanted = {"CORRAL_API_KEY", "COLUMNS", "PYTHONUNBUFFERED"}
        environment = {name: value for name, value in os.environ.items() if name not in unwanted}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "corral.cli", "serve", "--port", "0", "--backend", "memory", "--data-dir", folder,
             *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**environment, "TERM": "xterm", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
        os.close(theirs)

    def read_until(self, wanted: str) -> str:
        """What came since the last time, up to and with this text."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        over = False
        while (found := re.search(wanted, self.screen[self._read :])) is None:
            assert not over, f"{wanted!r} did not come: {self.screen[self._read :]!r}"
            over = time.monotonic() > deadline
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    self.screen += os.read(self.terminal, 65536).decode()
                except OSError:
                    over = True  # the server has gone
        begin, self._read = self._read, self._read + found.end()
        return self.screen[begin : self._read]

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def make_sandbox(self) -> None:
        url = re.search(r"listening on (http://\S+)", self.screen)
        key = re.search(r"corral_[0-9a-f]{64}", self.screen)
        assert url is not None
        assert key is not None
        request = urllib.request.Request(
            f"{url[1]}/sandbox", data=json.dumps({}).encode(), method="POST",
            headers={"Authorization": f"Bearer {key[0]}", "Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS) as answer:
            assert answer.status == 200

    def wait(self) -> int:
        return self.process.wait(timeout=_PATIENCE_SECONDS)


@contextlib.contextmanager
def at_terminal(folder: Path, *arguments: str, columns: int = 200) -> Iterator[AtTerminal]:
    shown = AtTerminal(folder, *arguments, columns=columns)
    try:
        yield shown
    finally:
        shown.process.kill()
        shown.process.wait()
        with contextlib.suppress(OSError):
            os.close(shown.terminal)


def test_it_shows_where_it_is_and_the_key_once(tmp_path: Path) -> None:
    with at_terminal(tmp_path) as server:
        shown = server.read_until("no sandboxes · 0 requests · 0 listeners")
        (key,) = set(re.findall(r"corral_[0-9a-f]{64}", shown))
        assert re.search(
            rf"^export DAYTONA_API_URL=http://127.0.0.1:\d+/api DAYTONA_API_KEY={key}\r$", shown, re.MULTILINE
        )
        assert re.search(r"address  (http://127\.0\.0\.1:\d+/api)\r\n", shown)
        assert re.search(r"\nlistening on http://127\.0\.0\.1:\d+/api\r\n", shown)
        for name in ("key", "backend", "tier", "data"):
            assert f"{name}  " in shown
        server.make_sandbox()
        server.read_until("1 started · 0 requests")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    with at_terminal(tmp_path) as server:
        shown = server.read_until("listening on")
        assert "corral_" not in shown, "never again"


def test_the_counts_stay_on_one_line(tmp_path: Path) -> None:
    with at_terminal(tmp_path, columns=30) as server:
        server.read_until("no sandboxes · 0 requests · …")
        server.make_sandbox()
        server.read_until("1 started · 0 requests.*…")
        assert max(len(line) for line in server.screen.rpartition("\n")[2].split("\r\x1b[K")) < 30


@pytest.mark.parametrize(
    ("answer", "said"),
    [("y\n", "ended  1 sandboxes"), ("n\n", "left  1 started"), ("\n", "left  1 started"), ("\x04", "left  1 started")],
    ids=["yes", "no", "nothing", "end-of-input"],
)
def test_ctrl_c_asks(tmp_path: Path, answer: str, said: str) -> None:
    with at_terminal(tmp_path) as server:
        server.read_until("no sandboxes")
        server.make_sandbox()
        server.process.send_signal(signal.SIGINT)
        server.read_until(r"end 1 sandboxes\? \[y/N\] ")
        server.type(answer)
        server.read_until(said)
        assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_another_signal_is_a_no(tmp_path: Path, number: signal.Signals) -> None:
    with at_terminal(tmp_path) as server:
        server.read_until("no sandboxes")
        server.make_sandbox()
        server.process.send_signal(signal.SIGINT)
        server.read_until(r"end 1 sandboxes\?")
        server.process.send_signal(number)
        server.read_until("left  1 started")
        assert server.wait() == 0


def test_with_keep_there_is_no_question(tmp_path: Path) -> None:
    with at_terminal(tmp_path, "--keep") as server:
        server.read_until("no sandboxes")
        server.make_sandbox()
        server.process.send_signal(signal.SIGINT)
        assert "end 1" not in server.read_until("left  1 started")
        assert server.wait() == 0


def test_a_terminal_that_is_closed_ends_it_well(tmp_path: Path) -> None:
    with at_terminal(tmp_path) as server:
        server.read_until("no sandboxes")
        server.make_sandbox()
        os.close(server.terminal)
        server.process.send_signal(signal.SIGHUP)
        assert server.wait() == 0


def test_a_port_that_is_taken_costs_no_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with at_terminal(tmp_path, "--port", port) as server:
            shown = server.read_until("hint: .*--port")
            assert f"port {port} of 127.0.0.1 is in use" in shown
            assert server.wait() == 1
    with at_terminal(tmp_path) as server:
        server.read_until("key  corral_[0-9a-f]{64}")
        server.read_until("no sandboxes")
        server.make_sandbox()


def test_without_a_terminal_the_key_is_in_a_file_and_not_in_the_log(tmp_path: Path) -> None:
    with served(tmp_path / "data", arguments=("--backend", "memory"), env={"CORRAL_API_KEY": ""}) as running:
        file = tmp_path / "data" / "server" / "first-key"
        key = file.read_text().strip()
        assert file.stat().st_mode & 0o777 == 0o600
        assert str(file) in "".join(running.lines)
        assert key not in "".join(running.lines) + running.log
        assert httpx.get(f"{running.url}/sandbox", headers={"Authorization": f"Bearer {key}"}).status_code == 200
