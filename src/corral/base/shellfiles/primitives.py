"""What a backend lends to `ShellFiles`: one way to run a fixed script inside."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

STDERR_LIMIT_BYTES = 1024 * 1024
"""How much of what a script says on its standard error is kept."""


@dataclass(frozen=True, slots=True)
class ScriptEnd:
    """How a script ended."""

    exit_code: int
    stderr: bytes
    """What it said, at most `STDERR_LIMIT_BYTES` of it."""


class ScriptRun(Protocol):
    """A script that runs inside."""

    def stdout(self) -> AsyncIterator[bytes]:
        """What it prints, piece by piece, until it has closed its output or ended. Asked for once.

        Whoever stops reading makes the script wait: nothing is dropped, and nothing is heaped up.
        """

    async def end(self) -> ScriptEnd:
        """Wait for its end; after `stdout()` was read, or given up. Raises: SandboxGoneError."""

    async def stop(self) -> None:
        """End it with all that it started, if it still runs, and wait for that. Idempotent."""


class Shell(Protocol):
    """Runs `/bin/sh -c script sh *args` as the code's user, in the root folder, with LC_ALL=C and a usual PATH.

    The scripts are POSIX sh with coreutils or busybox, fixed texts of at most a few KiB. The arguments are paths,
    numbers and words, never content: content goes in by `stdin`, and by nothing else.
    """

    async def run(
        self, script: str, args: Sequence[str] = (), *, stdin: AsyncIterable[bytes] | None = None
    ) -> ScriptRun:
        """Start a script. With `stdin`, all of it is fed, and then ended; without, its input is empty.

        If the stream raises, its input ends there: the scripts compare sizes, and give up by themselves.

        Raises:
            SandboxGoneError, SandboxClosedError, SandboxPausedError
        """


Guard = Callable[[], None]
"""Raises what an operation on a sandbox that was closed or has ended must raise."""
