"""A real `corral serve`, as a process, for tests."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from corral.backends.embedded.backend import EmbeddedBackend

if TYPE_CHECKING:
    from daytona import Daytona, Sandbox
    from daytona_api_client import SandboxState

KEY = "a-key-for-tests-0123456789"
_READY_SECONDS = 60.0


_clients: list[Daytona] = []


def make_client(server: ServedProcess) -> Daytona:
    """The official client of a server. It is kept: it has no way to close its connections, and the collector warns."""
    from daytona import Daytona, DaytonaConfig

    _clients.append(Daytona(DaytonaConfig(api_url=server.url, api_key=server.key)))
    return _clients[-1]


def stored_state(client: Daytona, sandbox: Sandbox) -> SandboxState | None:
    """What the server says of a sandbox.

    The client's own objects listen to events as well, and one that comes late puts them back by a state.
    """
    return client._sandbox_api.get_sandbox(sandbox.id).state


class ServedProcess:
    """`corral serve` on a free port, with a data folder of its own."""

    def __init__(self, folder: Path, *, arguments: tuple[str, ...] = (), env: Mapping[str, str] | None = None) -> None:
        self.data_folder = folder
        self.key = KEY
        self.url = ""
        self.lines: list[str] = []
        self._arguments = arguments
        self._env = dict(env or {})
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None, "started"
        return self._process.pid

    @property
    def log(self) -> str:
        """What it wrote to stderr, all starts together."""
        return (self.data_folder / "stderr.log").read_text()

    def start(self, *, env: Mapping[str, str] | None = None) -> None:
        """Start it, and wait until it listens; after the first time on the same port. `env` is for this start only."""
        self.data_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        port = self.url.rpartition(":")[2].partition("/")[0] or "0"
        with (self.data_folder / "stderr.log").open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "corral.cli", "serve", "--port", port, "--data-dir", str(self.data_folder),
                 *self._arguments],
                stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, start_new_session=True,
                env={**os.environ, "CORRAL_API_KEY": KEY, **self._env, **(env or {})},
            )  # fmt: skip
        self.url = _wait_until_listening(self._process, self.lines)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """A signal, and its end; gives the exit code."""
        assert self._process is not None, "started"
        if self._process.poll() is None:
            self._process.send_signal(number)
        code = self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def wait(self) -> int:
        """Until it has ended by itself; gives the exit code."""
        assert self._process is not None, "started"
        code = self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill(self) -> None:
        """As if the power of this one process had gone."""
        self.stop(signal.SIGKILL)

    async def end_sandboxes(self) -> None:
        """Those that outlive the server must not outlive the test."""
        backend = EmbeddedBackend(self.data_folder)
        for info in await backend.list():
            await backend.delete(info.sandbox_id)


def _wait_until_listening(process: subprocess.Popen[str], lines: list[str]) -> str:
    found: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if line.startswith("listening on "):
                    found.put(line.split()[-1])
        except ValueError:
            pass  # closed at the end
        found.put("")

    threading.Thread(target=read, daemon=True).start()
    url = found.get(timeout=_READY_SECONDS)
    assert url, f"corral serve ended with {process.wait(timeout=10)}: {''.join(lines)}"
    return url


@contextmanager
def served(
    folder: Path, *, arguments: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> Iterator[ServedProcess]:
    """A started one; at the end it is stopped, and its sandboxes are ended."""
    import asyncio

    server = ServedProcess(folder, arguments=arguments, env=env)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        asyncio.run(server.end_sandboxes())
