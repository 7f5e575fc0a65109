"""What the sandbox classes give back: the known names and fields, and everything more in further attributes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NotRequired, TypedDict, TypeVar

from corral.errors import EditError, SandboxClosedError, SandboxGoneError
from corral.results import EndReason, ExecResult
from corral.results import FileInfo as CoreFileInfo
from corral.tools.background import BackgroundHandle, BackgroundProcessInfo

__all__ = [
    "BackgroundHandle",
    "BackgroundOutput",
    "BackgroundProcessInfo",
    "EditResult",
    "ExecuteResponse",
    "FileInfo",
    "GrepMatch",
    "WriteResult",
]

MAX_OUTPUT_CHARS = 100_000
T = TypeVar("T")


class FileInfo(TypedDict):
    """One entry of a folder. A link is told by what it leads to."""

    name: str
    path: str
    is_dir: bool
    size: int | None
    modified_at: NotRequired[str]


class GrepMatch(TypedDict):
    """One line that matches."""

    path: str
    line_number: int
    line: str


class Found(list[T]):
    """What a search found: a list, as the protocol wants it, that also knows whether it is all there is."""

    def __init__(self, items: Iterable[T] = (), *, truncated: bool = False) -> None:
        super().__init__(items)
        self.truncated = truncated


@dataclass(frozen=True, slots=True)
class ExecuteResponse:
    """How a command ended. `output` has both streams in order, at most 100 000 characters of them.

    What is beyond the three known fields does not count when two responses are compared.
    """

    output: str
    exit_code: int | None = None
    truncated: bool = False
    stdout: str = field(default="", compare=False)
    stderr: str = field(default="", compare=False)
    reason: EndReason | None = field(default=None, compare=False)
    """Why the program ended; None if no program was run."""
    duration_seconds: float = field(default=0.0, compare=False)
    error: Exception | None = field(default=None, compare=False)
    """Why no program was run, or its end is not known: then `output` is not a program's."""

    @property
    def timed_out(self) -> bool:
        """Whether time ran out."""
        return self.reason == "timeout"

    @property
    def gone(self) -> bool:
        """Whether the sandbox has ended, so that no further command can run."""
        return is_gone(self.error)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of a write: `error` says why not."""

    path: str | None = None
    error: str | None = None
    cause: Exception | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EditResult:
    """What became of an edit: `error` says why not, `occurrences` how often the text was replaced."""

    path: str | None = None
    error: str | None = None
    occurrences: int | None = None
    cause: Exception | None = field(default=None, compare=False)
    sha256: str | None = field(default=None, compare=False)
    """Of the new content."""


@dataclass(frozen=True, slots=True)
class BackgroundOutput:
    """What a background command has printed since the last reading, and whether it still runs."""

    shell_id: str
    stdout: str
    stderr: str
    running: bool
    exit_code: int | None = None
    output: str = field(default="", compare=False)
    """Both streams, in order."""
    waiting: bool = field(default=False, compare=False)
    """Whether there is more to read already."""
    lost_bytes: int = field(default=0, compare=False)
    """About how much was dropped because it was not read in time."""
    error: Exception | None = field(default=None, compare=False)
    """Why nothing could be read; then `stderr` says it."""


def is_truncated(found: object) -> bool:
    """Whether a search found more than it gives."""
    return isinstance(found, Found) and found.truncated


def is_gone(error: Exception | None) -> bool:
    """Whether an error means that the sandbox has ended."""
    return isinstance(error, SandboxGoneError | SandboxClosedError)


def narrow_result(result: ExecResult, *, timeout: float) -> ExecuteResponse:
    """The known type from all that is known of a program's end. Out of time is 124, with what was printed till then."""
    output = result.output
    cut = len(output) > MAX_OUTPUT_CHARS
    output = output[:MAX_OUTPUT_CHARS]
    if result.timed_out:
        gap = "\n" if output and not output.endswith("\n") else ""
        output = f"{output}{gap}Error: Command timed out after {timeout:g} seconds"
    return ExecuteResponse(
        output,
        result.exit_code,
        cut or result.truncated,
        stdout=result.stdout,
        stderr=result.stderr,
        reason=result.reason,
        duration_seconds=result.usage.wall_seconds,
    )


def describe_file(info: CoreFileInfo, real: CoreFileInfo) -> FileInfo:
    """The known type for an entry, and what it leads to if it is a link."""
    return FileInfo(
        name=info.name,
        path=info.path,
        is_dir=real.is_folder,
        size=None if real.is_folder else real.size,
        modified_at=datetime.fromtimestamp(real.modified, UTC).isoformat(),
    )


def as_text(line: str) -> str:
    """What is not UTF-8 becomes U+FFFD."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def describe_edit_error(error: EditError, old: str) -> str:
    """The known text for an edit that failed."""
    if not old:
        return "Failed to edit file: the text to replace is empty"
    if not error.count:
        return "String not found in file"
    return (
        f"String found {error.count} times. Use replace_all=True to replace all, or provide more context."
    )  # fmt: skip
