"""The tools for commands in the background, for agents: execute, read, write, kill, list."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Never

from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.exceptions import ToolFailed

from corral.adapters.pydantic_ai.permissions import Gate
from corral.adapters.pydantic_ai.results import MAX_OUTPUT_CHARS
from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.errors import ExecError
from corral.tools.background import kill_shell, list_shells, read_shell, start_shell, write_shell
from corral.tools.render import make_harmless, quote
from corral.tools.shells import MAX_WAIT_SECONDS, fit_bytes, render_output, render_shells

OpenSandbox = Callable[[RunContext[Any]], AbstractAsyncContextManager[AsyncCorralSandbox]]


class BackgroundCalls:
    """The five tools. What is typed into a command is judged like a command: a shell would obey it."""

    def __init__(self, open_sandbox: OpenSandbox, gate: Gate) -> None:
        self._open = open_sandbox
        self._gate = gate

    async def execute_background(self, ctx: RunContext[Any], command: str) -> str:
        """Start a command.

        Args:
            command: The command, for a shell.
        """
        async with self._open(ctx) as sandbox:
            await self._gate.check_command(ctx, command)
            try:
                handle = await start_shell(await sandbox.get_box(), command, cwd=sandbox.work_dir)
            except ExecError as error:
                _let_mend(ctx, error)
            return f"Started {handle.shell_id}. Read what it prints with read_background."

    async def read_background(
        self,
        ctx: RunContext[Any],
        shell_id: str,
        wait_seconds: float = 0,
        newest: bool = False,  # noqa: FBT001, FBT002 - a tool's parameter
    ) -> str:
        """Read a background command.

        Args:
            shell_id: The id that execute_background gave.
            wait_seconds: Wait so long for something new, at most 60.
            newest: Skip to the newest output.
        """
        async with self._open(ctx) as sandbox:
            seconds = min(max(0.0, wait_seconds), MAX_WAIT_SECONDS) if wait_seconds == wait_seconds else 0.0
            try:
                output = await read_shell(
                    await sandbox.get_box(),
                    shell_id,
                    wait_seconds=seconds,
                    newest=newest,
                    max_bytes=fit_bytes(MAX_OUTPUT_CHARS),
                )
            except ExecError as error:
                _let_mend(ctx, error)
            return str(render_output(output, max_chars=MAX_OUTPUT_CHARS))

    async def write_background(
        self,
        ctx: RunContext[Any],
        shell_id: str,
        text: str,
        close: bool = False,  # noqa: FBT001, FBT002 - a tool's parameter
    ) -> str:
        """Type into a background command.

        Args:
            shell_id: The id that execute_background gave.
            text: What to type; a line needs its newline.
            close: End the input afterwards.
        """
        async with self._open(ctx) as sandbox:
            await self._gate.check_command(ctx, text)
            try:
                await write_shell(await sandbox.get_box(), shell_id, text, close=close)
            except ExecError as error:
                _let_mend(ctx, error)
            return f"Wrote {len(text)} characters to {quote(shell_id)}"

    async def kill_background(self, ctx: RunContext[Any], shell_id: str) -> str:
        """End a background command.

        Args:
            shell_id: The id that execute_background gave.
        """
        async with self._open(ctx) as sandbox:
            try:
                was_running = await kill_shell(await sandbox.get_box(), shell_id)
            except ExecError as error:
                _let_mend(ctx, error)
            return f"{quote(shell_id)} {'was ended' if was_running else 'had ended already'}"

    async def list_background(self, ctx: RunContext[Any]) -> str:
        """List the background commands."""
        async with self._open(ctx) as sandbox:
            return str(render_shells(await list_shells(await sandbox.get_box())))


def _let_mend(ctx: RunContext[Any], error: ExecError) -> Never:
    text = make_harmless(f"Error: {error}")
    if ctx.last_attempt:
        raise ToolFailed(text) from error
    raise ModelRetry(text) from error
