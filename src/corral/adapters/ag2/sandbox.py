"""A Corral sandbox as AG2's `Sandbox`: argv in, output and exit code out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, Self

from corral.adapters.ag2 import framework
from corral.errors import CorralError, ExecError, SandboxClosedError, SandboxError
from corral.results import ExecResult
from corral.sandbox import SandboxBase

_USAGE_EXIT_CODE = 2


class Words(Protocol):
    """What an environment says in AG2's results, in its own words."""

    def timed_out(self, seconds: float | None) -> str:
        """Instead of output, when the time was up."""

    def failed(self, error: CorralError) -> str | None:
        """What a failure reads like as a result with exit code 1; None lets it pass as an error."""


class SandboxView:
    """AG2's protocol on a sandbox that its environment owns: closing the view does not end it.

    `result` is the last call's whole `corral.ExecResult`, for what AG2's own leaves out.
    """

    def __init__(self, box: SandboxBase, *, timeout: float | None, words: Words, max_output: int | None = None) -> None:
        self._box = box
        self._timeout = timeout
        self._words = words
        self._max_output = max_output
        self.result: ExecResult | None = None

    @property
    def box(self) -> SandboxBase:
        """The sandbox itself."""
        return self._box

    @property
    def id(self) -> str:
        """Its id."""
        return self._box.id

    @property
    def workdir(self) -> PurePosixPath:
        """Where programs start, and relative paths begin."""
        return PurePosixPath(self._box.spec.workdir)

    @property
    def host_workdir(self) -> Path | None:
        """None: nothing of the host is inside."""
        return None

    @property
    def closed(self) -> bool:
        """Whether it was ended."""
        return self._box.closed

    async def exec(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> Any:
        """Run a program to its end; gives AG2's `ExecResult`."""
        if not argv:
            return make_result("", _USAGE_EXIT_CODE)
        seconds = timeout if timeout is not None else self._timeout
        try:
            result = await self._box.exec(list(argv), env=env, timeout=seconds)
        except CorralError as error:
            return self._answer(error)
        return self.narrow(result, seconds)

    def narrow(self, result: ExecResult, seconds: float | None) -> Any:
        """AG2's result of ours."""
        self.result = result
        if result.timed_out:
            return make_result(join(result.output, self._words.timed_out(seconds)), result.exit_code)
        return make_result(cut(result.output, self._max_output), result.exit_code)

    def _answer(self, error: CorralError) -> Any:
        # A sandbox that is gone is no answer to a model, whatever a service says about it.
        told = None if isinstance(error, SandboxError) else self._words.failed(error)
        if told is None and isinstance(error, ExecError):
            told = str(error)  # a command that can't be is the model's to mend
        if told is None:
            raise error
        return make_result(told, 1)

    async def put_file(self, path: PurePosixPath | str, content: bytes) -> None:
        """Write a file below the working folder. Raises: ValueError for a path that is not below it."""
        await self._box.files.write(self._below(path), content)

    async def get_file(self, path: PurePosixPath | str) -> bytes:
        """Read a file below the working folder. Raises: ValueError; SandboxFileNotFoundError."""
        return await self._box.files.read(self._below(path))

    async def remove_file(self, path: PurePosixPath | str) -> None:
        """Remove a file below the working folder; one that is not there is fine. Raises: ValueError."""
        await self._box.files.remove(self._below(path), missing_ok=True)

    def _below(self, path: PurePosixPath | str) -> PurePosixPath:
        wanted = PurePosixPath(path)
        if wanted.is_absolute():
            raise ValueError(f"Absolute paths are not allowed in put_file/get_file: {wanted}")
        if ".." in wanted.parts:
            raise ValueError(f"Path escapes sandbox workdir: {wanted}")
        return self.workdir / wanted

    async def aclose(self) -> None:
        """Nothing: its environment ends it."""

    async def __aenter__(self) -> Self:
        if self._box.closed:
            raise SandboxClosedError("the sandbox was closed", sandbox_id=self._box.id, hint="open the environment")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def make_result(output: str, exit_code: int) -> Any:
    """AG2's `ExecResult`."""
    return framework.get("tools.sandbox", "ExecResult")(output=output, exit_code=exit_code)


def join(output: str, remark: str) -> str:
    """What was printed until then is kept, before the remark."""
    return f"{output.rstrip()}\n{remark}" if output.strip() else remark


def cut(text: str, most: int | None) -> str:
    """At most so many characters, and a word about the rest."""
    if most is None or len(text) <= most:
        return text
    return f"{text[:most]}\n[truncated: showing first {most} of {len(text)} chars]"
