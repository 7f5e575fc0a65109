"""The output of `corral serve`: a few lines at the start, and on a terminal a live line of counts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli.display import cut, paint, unicode_wanted
from corral.cli.failure import leave_quietly

if TYPE_CHECKING:
    from corral.server.app import Server

_LOOK_SECONDS = 0.5


class Board:
    """Writes to stdout. A closed terminal does not stop the server."""

    def __init__(self) -> None:
        self._live = ""
        """The live line as it is shown now."""

    def say(self, name: str, text: str) -> None:
        """Print a line with a name before it."""
        self.put(f"{paint(f'{name:>10}', 'cyan', stream=sys.stdout)}  {text}")

    def put(self, line: str) -> None:
        """Print a line."""
        self.clear()
        self._write(f"{line}\n")

    def clear(self) -> None:
        """Clear the live line for other output."""
        if self._live:
            self._live = ""
            self._write("\r\x1b[K")

    async def introduce(self, server: Server, *, url: str, key: str | None, key_file: Path | None) -> None:
        """Print the address, the backend, and the first key, which is not shown again, or the file with it."""
        able = await server.backend.capabilities()
        self.say("address", url)
        if key_file is not None:
            self.say("key", f"in {key_file}, which only its owner can read; delete it when you have the key")
        elif key is not None:
            self.say("key", key)
            self.say("", "shown only once; `corral key create` creates another")
        self.say("backend", server.backend.name)
        self.say("tier", f"{able.isolation}; memory {able.memory}, cpu {able.cpu}, disk {able.disk}")
        for note in able.notes:
            self.say("", note)
        defaults = server.settings.defaults
        if defaults.packages:
            self.say("packages", ", ".join(defaults.packages))
        if defaults.venv is not None:
            self.say("venv", str(defaults.venv))
        self.say("data", str(server.settings.data_folder))
        if list(server.sandboxes):
            self.say("sandboxes", states(server))
        if sys.stdout.isatty():
            # Alone on its line, so that a triple click takes it whole.
            self.say("use it", "")
            self.put(f"export DAYTONA_API_URL={url} DAYTONA_API_KEY={key or '…'}")

    async def keep_count(self, server: Server) -> None:
        """Show counts of sandboxes, requests and listeners until cancelled."""
        dot = "·" if unicode_wanted(sys.stdout) else "-"
        while True:
            counts = (
                states(server) or "no sandboxes",
                _count(server.metrics.in_flight, "request"),
                _count(len(server.events), "listener"),
            )
            # One column stays free: some terminals wrap when the last one is written.
            line = cut(f" {dot} ".join(counts), max(10, shutil.get_terminal_size((80, 24)).columns - 1))
            if line != self._live:
                self._live = line
                self._write(f"\r\x1b[K{line}")
            await asyncio.sleep(_LOOK_SECONDS)

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            leave_quietly()  # otherwise the failed write would be repeated at exit


def states(server: Server) -> str:
    """The number of sandboxes in each state."""
    return ", ".join(f"{number} {state}" for state, number in sorted(server.sandboxes.states().items()))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


async def ask(board: Board, question: str, *, interrupted: asyncio.Event) -> bool:
    """Ask yes or no at the terminal; another Ctrl-C, the end of input and anything unclear mean no."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        try:
            text = os.read(0, 1000).decode("utf-8", "replace")
        except OSError:
            text = ""
        if not answer.done():
            answer.set_result(text)

    board.clear()
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
    # Not input(): a thread that waits in it can't be stopped.
    loop.add_reader(0, read)
    waiting = asyncio.ensure_future(interrupted.wait())
    try:
        await asyncio.wait((answer, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(0)
        waiting.cancel()
    if answer.done() and answer.result().endswith("\n"):
        return answer.result().strip().lower() in ("y", "yes")
    board.put("")
    return False
