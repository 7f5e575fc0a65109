"""Feeding a program its input and passing its output on, while waiting for its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from corral.base.process import ProcessBase, as_bytes
from corral.errors import CorralError, InvalidCommandError, SandboxGoneError
from corral.protocol import OnOutput, Stdin
from corral.results import ExecResult

_STDIN_CHUNK_BYTES = 256 * 1024

B = TypeVar("B", bound="_Ending")
P = ParamSpec("P")
T = TypeVar("T")


def check_input(stdin: object) -> None:
    """Raises: InvalidCommandError for what can't be fed to a program."""
    if stdin is not None and not isinstance(stdin, bytes | bytearray | memoryview | str | AsyncIterable):
        kind = type(stdin).__name__
        raise InvalidCommandError(f"stdin is {kind}", hint="pass bytes, a string, or an async iterable of bytes")


async def _wait(process: ProcessBase, on_output: OnOutput | None) -> ExecResult:
    if on_output is not None:
        async for chunk in process.output():
            answer = on_output(chunk)
            if inspect.isawaitable(answer):
                await answer
    return await process.wait()


async def wait_for(process: ProcessBase, *, stdin: Stdin, on_output: OnOutput | None) -> ExecResult:
    """Wait for a program's end, feeding it and passing its output on meanwhile."""
    working = _wait(process, on_output)
    return await (working if stdin is None else _with_input(process, stdin, working))


async def _with_input(process: ProcessBase, stdin: Stdin, working: Coroutine[object, object, ExecResult]) -> ExecResult:
    """Feed a program while waiting for it. If the input itself fails, that is the caller's to know."""
    tasks = asyncio.ensure_future(_feed(process, stdin)), asyncio.ensure_future(working)
    feeding, waiting = tasks
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if feeding.done():
            feeding.result()
        return await waiting
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(process: ProcessBase, stdin: Stdin) -> None:
    """Write all input, then close it. A program that does not want it all is no error."""
    if isinstance(stdin, AsyncIterable):
        async for piece in stdin:
            if not await _offer(process, as_bytes(piece)):
                return
    elif stdin is not None:
        data = as_bytes(stdin)
        for offset in range(0, len(data), _STDIN_CHUNK_BYTES):
            if not await _offer(process, data[offset : offset + _STDIN_CHUNK_BYTES]):
                return
    with contextlib.suppress(CorralError):
        await process.close_stdin()


async def _offer(process: ProcessBase, data: bytes) -> bool:
    try:
        await process.write(data)
    except CorralError:
        return False  # it has closed its input, or has ended
    return True


class _Ending(Protocol):
    ended: SandboxGoneError | None

    @property
    def id(self) -> str:
        """Its name."""


def notes_end(run: Callable[Concatenate[B, P], Awaitable[T]]) -> Callable[Concatenate[B, P], Coroutine[Any, Any, T]]:
    """A method of a sandbox that runs programs: if it finds the sandbox gone, the sandbox knows so from then on."""

    @functools.wraps(run)
    async def noting(box: B, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return await run(box, *args, **options)
        except SandboxGoneError as error:
            if error.sandbox_id == box.id:
                box.ended = error
            raise

    return noting
