"""The known methods for commands in the background, and `write_background`, which the known ones lack."""

from __future__ import annotations

from abc import ABC, abstractmethod

from corral.adapters.pydantic_ai.results import BackgroundHandle, BackgroundOutput, BackgroundProcessInfo
from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError, NotRecordedError
from corral.tools.background import READ_BYTES, kill_shell, list_shells, read_shell, start_shell, write_shell


class BackgroundBase(ABC):
    """A part of `AsyncCorralSandbox`. A command that was started runs on, until it ends or the sandbox does."""

    work_dir: str

    @abstractmethod
    async def _open(self) -> AsyncSandbox: ...

    @abstractmethod
    def _note(self, error: CorralError, operation: str) -> None: ...

    async def execute_background(self, command: str) -> BackgroundHandle:
        """Start a command in bash (in sh, where there is none), in `work_dir`.

        Raises:
            ExecError: the command can't be, or as many as may be are running. There is no handle to say so.
            SandboxGoneError: there is no sandbox any more.
        """
        box = await self._open()
        handle = await start_shell(box, command, cwd=self.work_dir)
        return BackgroundHandle(handle.shell_id, handle.pid, handle.command)

    async def read_background(
        self, shell_id: str, *, wait_seconds: float = 0.0, newest: bool = False, max_bytes: int = READ_BYTES
    ) -> BackgroundOutput:
        """What it has printed since the last reading. See `corral.tools.background.read_shell`."""
        try:
            found = await read_shell(
                await self._open(), shell_id, wait_seconds=wait_seconds, newest=newest, max_bytes=max_bytes
            )
        except CorralError as error:
            self._note(error, "read_background")
            return BackgroundOutput(shell_id, "", f"Error: {error}", running=False, error=error)
        return BackgroundOutput(
            shell_id,
            found.stdout.decode("utf-8", "replace"),
            found.stderr.decode("utf-8", "replace"),
            running=found.running,
            exit_code=found.exit_code,
            output=found.output.decode("utf-8", "replace"),
            waiting=found.waiting,
            lost_bytes=found.lost_bytes,
        )

    async def write_background(self, shell_id: str, text: str | bytes, *, close: bool = False) -> bool:
        """Feed its standard input; with `close`, end that afterwards. Gives whether it took it."""
        try:
            await write_shell(await self._open(), shell_id, text, close=close)
        except CorralError as error:
            self._note(error, "write_background")
            return False
        return True

    async def kill_background(self, shell_id: str) -> bool:
        """End it with all that it started. Gives whether it was running."""
        try:
            return await kill_shell(await self._open(), shell_id)
        except CorralError as error:
            self._note(error, "kill_background")
            return False

    async def list_background(self) -> list[BackgroundProcessInfo]:
        """Those that run, and those that have ended."""
        try:
            found = await list_shells(await self._open())
        except CorralError as error:
            self._note(error, "list_background")
            return []
        return [
            BackgroundProcessInfo(shell.shell_id, shell.command, shell.running, shell.exit_code, shell.started)
            for shell in found
        ]

    async def kill_all_background(self) -> None:
        """End all that run."""
        try:
            box = await self._open()
            for shell in await list_shells(box):
                try:
                    await kill_shell(box, shell.shell_id)
                except NotRecordedError:
                    continue  # forgotten meanwhile
        except CorralError as error:
            self._note(error, "kill_all_background")
