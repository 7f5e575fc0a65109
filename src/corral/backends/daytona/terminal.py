"""The transport to the agent: a terminal of the sandbox in raw mode.

The service's own calls can't keep our contract: `exec` merges the streams and waits for background children, and a
session's command has no end of input and takes only text. Only a terminal's websocket carries bytes both ways. So one
is opened per sandbox and process, and all programs share it. If a program kills the agent inside, or stops it so that
it does not answer, the terminal is deleted, which ends everything that ran on it; the next call opens another.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any

from corral.backends.daytona.seam import reading
from corral.base.agent.channel import Take, agent_text
from corral.errors import BackendUnavailableError, ExecError
from corral.inside.frames import PIECE_BYTES

if TYPE_CHECKING:
    from daytona import AsyncSandbox as SdkSandbox

_NOISE_BYTES = 256 * 1024
_WAKE_SECONDS = 5
_USUAL_PATH = "/opt/corral/bin:/opt/corral/python/bin:/usr/local/bin:/usr/bin:/bin"


def _boot_line(token: str, size: int) -> str:
    # The marks are assembled inside, so that the echo of this line does not look like them. One line, well below the
    # limit of a terminal; the agent's text follows when the terminal is raw.
    code = (
        f'import sys,tty;tty.setraw(0);sys.stdout.write("<"+"{token}>");sys.stdout.flush();'
        f'exec(compile(sys.stdin.buffer.read({size}),"corral","exec"),{{"__name__":"__main__"}})'
    )
    lacking = f'printf "<%s-no-python>" {token}; exit 9'
    # The terminal runs a login shell, whose profile may have set another PATH than the service's own calls have. The
    # original one is read from /proc; without /proc, the profile's is used. Our Python may be on either, or in a usual
    # place if the sandbox was created with a PATH without it.
    given = '{ tr "\\n\\0" " \\n" </proc/$$/environ | sed -n "/^PATH=/{s///p;q;}"; } 2>/dev/null'
    find = f"$(command -v python3 || {{ PATH=$q:{_USUAL_PATH}; command -v python3; }})"
    words = (
        "unset HISTFILE",
        f"q=$PATH p=$({given})",
        f"PATH=${{p:-$q}} x={find}",
        f'[ -n "$x" ] || {{ {lacking}; }}',
        f"exec \"$x\" -I -S -c '{code}'",
    )
    return f" {'; '.join(words)}\n"


class TerminalTransport:
    """A `corral.base.agent.channel.Transport` over the service's terminal."""

    slow = True

    def __init__(self, box: SdkSandbox) -> None:
        self._box = box
        self._name = f"corral-{secrets.token_hex(8)}"
        self._token = secrets.token_hex(8)
        self._noise: bytearray | None = bytearray()
        self._lacks_python = False
        self._handle: Any = None
        self._take: Take | None = None

    async def open(self, take: Take) -> None:
        """Raises: ServiceError."""
        from daytona.common.pty import PtySize

        self._take = take
        with reading():
            self._handle = await self._box.process.create_pty_session(
                id=self._name, on_data=self._hear, pty_size=PtySize(rows=24, cols=80)
            )
            await self._handle.send_input(_boot_line(self._token, len(agent_text())))

    async def _hear(self, data: bytes) -> None:
        assert self._take is not None, "it was opened"
        if self._noise is None:
            self._take(data)
            return
        self._noise += data
        before, mark, after = bytes(self._noise).partition(f"<{self._token}>".encode())
        if mark:
            self._noise = None
            text = agent_text()
            for offset in range(0, len(text), PIECE_BYTES):
                await self.send(text[offset : offset + PIECE_BYTES])
            if after:
                self._take(after)
        elif f"<{self._token}-no-python>".encode() in before:
            self._lacks_python = True
        elif len(self._noise) > _NOISE_BYTES:
            del self._noise[: len(self._noise) - 1024]

    async def send(self, data: bytes) -> None:
        await self._handle.send_input(data)

    async def wait(self) -> None:
        """Raises: BackendUnavailableError without a Python inside."""
        await self._handle.wait()
        if self._lacks_python:
            raise BackendUnavailableError(
                "the sandbox has no python3, which is needed to run programs",
                hint="use an image or a snapshot that has it",
            )

    async def wake(self, agent: int) -> None:
        await self._box.process.exec(f"kill -CONT {agent}", timeout=_WAKE_SECONDS)

    async def end(self) -> None:
        with contextlib.suppress(Exception):
            await self._box.process.kill_pty_session(self._name)
        await self.disconnect()

    async def disconnect(self) -> None:
        if self._handle is not None:
            await self._handle.disconnect()


def lost_inside() -> ExecError:
    """The error for a sandbox that runs, but whose agent does not."""
    return ExecError(
        "the process supervisor inside the sandbox was killed, and its programs with it",
        op="exec",
        hint="a program in the sandbox may have killed it; the next call restarts it",
    )
