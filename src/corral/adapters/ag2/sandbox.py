"""A Corral sandbox as AG2's `Sandbox`: argv in, output and exit code out.

`SandboxView` is what an environment opens. `corral.adapters.ag2.owned` has those that need no environment.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from corral.adapters.ag2 import framework
from corral.adapters.ag2.words import Words
from corral.base.needs import describe_needs
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.closing import AsyncClosing
from corral.errors import BackendUnavailableError, CorralError, PolicyError, SandboxClosedError, SandboxError
from corral.results import NOT_FOUND_EXIT_CODE, ExecResult
from corral.tools.tool import MENDABLE

_USAGE_EXIT_CODE = 2


class ClosedError(RuntimeError):
    """It was closed. AG2 raises a RuntimeError, which its programs catch."""


class Closing(AsyncClosing):
    """A deep copy, which frameworks make, is the same object."""

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class Ran:
    """The output and exit code for AG2, and the complete result if the program ran."""

    output: str
    exit_code: int
    result: ExecResult | None = None
    remark: str = ""
    """What the network refused, in one line for a model."""


class Adapted(Closing):
    """Runs programs for AG2, with the messages of one of its classes."""

    words: Words
    timeout: float
    max_output: int | None

    @abstractmethod
    def open_box(self, context: Any = None) -> AbstractAsyncContextManager[AsyncSandbox]:
        """The Corral sandbox, for the duration of the block."""

    async def run_in_box(
        self, run: Callable[[AsyncSandbox], Awaitable[ExecResult]], *, context: Any = None, seconds: float | None = None
    ) -> Ran:
        """Run something; returns its result or its failure in AG2's words.

        Raises:
            PolicyError: a rule forbids it.
            SandboxError: the sandbox is gone; that is not output for a model.
        """
        async with self.open_box(context) as box:
            try:
                result = await run(box)
            except PolicyError:
                raise
            except CorralError as error:
                if is_not_installed(error):
                    return Ran(str(error), NOT_FOUND_EXIT_CODE)
                return Ran(describe_failure(error, self.words), 1)
        output = read_output(result, self.words, self.timeout if seconds is None else seconds, self.max_output)
        remark = describe_needs(result, box.spec.network, door="model")
        return Ran(output, result.exit_code, result, remark)


class AdaptedSandbox(Adapted):
    """AG2's protocol, on a sandbox that may be created later.

    `result` is the last call's complete `corral.ExecResult`, for what AG2's result leaves out.
    """

    def __init__(self, environment: Adapted) -> None:
        self.timeout, self.words, self.max_output = environment.timeout, environment.words, environment.max_output
        self.result: ExecResult | None = None
        framework.get("tools.sandbox", "SandboxBase").register(AdaptedSandbox)  # AG2 uses isinstance

    @abstractmethod
    async def _get(self) -> AsyncSandbox:
        """The Corral sandbox, created if needed. Raises: ClosedError."""

    @property
    @abstractmethod
    def workdir(self) -> PurePosixPath:
        """The working folder, which relative paths start from."""

    @property
    def host_workdir(self) -> Path | None:
        """None: no folder of the host is inside."""
        return None

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True if it was closed."""

    async def exec(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> Any:
        """Run a program to its end; returns AG2's `ExecResult`. Raises: ClosedError."""
        if not argv:
            return framework.ExecResult(output="", exit_code=_USAGE_EXIT_CODE)
        seconds = timeout if timeout is not None else self.timeout
        ran = await self.run_in_box(lambda box: box.exec(list(argv), env=env, timeout=seconds), seconds=seconds)
        self.result = ran.result or self.result
        return framework.ExecResult(output=ran.output, exit_code=ran.exit_code)

    @contextlib.asynccontextmanager
    async def open_box(self, context: Any = None) -> AsyncIterator[AsyncSandbox]:
        """The Corral sandbox, the same for every context. Raises: ClosedError."""
        yield await self._get()

    async def put_file(self, path: PurePosixPath | str, content: bytes) -> None:
        """Write a file in the working folder. Raises: ValueError for a path outside it; ClosedError."""
        target = self._below(path, "put_file/get_file")
        await (await self._get()).files.write(target, content)

    async def get_file(self, path: PurePosixPath | str) -> bytes:
        """Read a file in the working folder. Raises: ValueError; SandboxFileNotFoundError; ClosedError."""
        target = self._below(path, "put_file/get_file")
        return await (await self._get()).files.read(target)

    async def remove_file(self, path: PurePosixPath | str) -> None:
        """Remove a file in the working folder; a missing one is ignored. Raises: ValueError; ClosedError."""
        target = self._below(path, "remove_file")
        await (await self._get()).files.remove(target, missing_ok=True)

    def _below(self, path: PurePosixPath | str, where: str) -> PurePosixPath:
        wanted = PurePosixPath(path)
        if wanted.is_absolute():
            raise ValueError(f"Absolute paths are not allowed in {where}: {wanted}")
        if ".." in wanted.parts:
            raise ValueError(f"Path escapes sandbox workdir: {wanted}")
        return self.workdir / wanted

    async def __aenter__(self) -> Self:
        await self._get()
        return self


class SandboxView(AdaptedSandbox):
    """A sandbox that its environment owns: closing the view does not end it."""

    def __init__(self, box: AsyncSandbox, environment: Adapted) -> None:
        super().__init__(environment)
        self._box = box

    async def _get(self) -> AsyncSandbox:
        if self._box.closed:
            raise closed_error(self.words)
        return self._box

    @property
    def box(self) -> AsyncSandbox:
        """The Corral sandbox."""
        return self._box

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self._box.id

    @property
    def workdir(self) -> PurePosixPath:
        """The working folder, which relative paths start from."""
        return PurePosixPath(self._box.spec.workdir)

    @property
    def closed(self) -> bool:
        """True if the sandbox was closed."""
        return self._box.closed

    async def aclose(self) -> None:
        """Does nothing: the environment deletes the sandbox."""


def read_output(result: ExecResult, words: Words, seconds: float, most: int | None) -> str:
    """What was printed, at most `most` characters of it, with a remark if the program timed out."""
    output = words.printed(result)
    if most is not None and len(output) > most:
        total = result.stdout_total_bytes + result.stderr_total_bytes if result.truncated else 0
        output = f"{output[:most]}\n[truncated: showing first {most} of {max(total, len(output))} chars]"
    return describe_timeout(words.late.format(seconds=seconds), output) if result.timed_out else output


def with_remark(output: str, remark: str) -> str:
    """The output for a model, with a remark of ours on a line of its own, if there is one."""
    return "\n".join(filter(None, (output.rstrip("\n"), f"[{remark}]"))) if remark else output


def describe_timeout(remark: str, output: str) -> str:
    """The remark, by which AG2's programs recognise a timeout, and what was printed before it."""
    return f"{remark}; it had printed:\n{output}" if output.strip() else remark


def describe_failure(error: CorralError, words: Words) -> str:
    """A failure as output. Raises: the error itself, if a model can do nothing about it."""
    if isinstance(error, SandboxClosedError):
        raise closed_error(words) from error
    # That a sandbox is gone is never output for a model.
    output = None if isinstance(error, SandboxError) else words.failed(error)
    if output is None and isinstance(error, MENDABLE):
        output = str(error)
    if output is None:
        raise error
    return output


def closed_error(words: Words) -> ClosedError:
    """The error that AG2 raises for a closed sandbox."""
    return ClosedError(f"{words.sandbox} has been closed.")


def is_not_installed(error: Exception) -> bool:
    """True if the sandbox has no runtime for the language, which a model must know."""
    return isinstance(error, BackendUnavailableError) and error.op == "run_code"
