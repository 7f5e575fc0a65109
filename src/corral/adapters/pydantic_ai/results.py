"""The results of the sandbox classes: the known names and fields, and ours in further attributes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NotRequired, TypedDict, TypeVar

from corral.base.needs import describe_needs
from corral.errors import EditError, SandboxClosedError, SandboxGoneError
from corral.results import Denial, EndReason, ExecResult
from corral.results import FileInfo as CoreFileInfo
from corral.spec import NetworkPolicy
from corral.tools.reading import Window

MAX_OUTPUT_CHARS = 100_000
T = TypeVar("T")


class FileInfo(TypedDict):
    """One entry of a folder. A link is described by its target."""

    name: str
    path: str
    is_dir: bool
    size: int | None
    modified_at: NotRequired[str]


class GrepMatch(TypedDict):
    """One matching line."""

    path: str
    line_number: int
    line: str


class Found(list[T]):
    """The matches of a search: a list, as in the protocol; `truncated` if there are more."""

    def __init__(self, items: Iterable[T] = (), *, truncated: bool = False) -> None:
        super().__init__(items)
        self.truncated = truncated


@dataclass(frozen=True, slots=True)
class ExecuteResponse:
    """The result of a command. `output` has both streams in order, at most 100 000 characters.

    Only the three known fields count when two responses are compared.
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
    """Why no program was run, or its end is unknown: then `output` is not a program's."""
    denied: tuple[Denial, ...] = field(default=(), compare=False)
    """What the network of the sandbox refused while the program ran."""
    remark: str = field(default="", compare=False)
    """The same in one line for a model; it is not in `output`, which is the program's."""

    @property
    def timed_out(self) -> bool:
        """True if the command timed out."""
        return self.reason == "timeout"

    @property
    def gone(self) -> bool:
        """True if the sandbox has ended, so that no further command can run."""
        return isinstance(self.error, SandboxGoneError | SandboxClosedError)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write; `error` is None on success."""

    path: str | None = None
    error: str | None = None
    cause: Exception | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EditResult:
    """The result of an edit; `error` is None on success, `occurrences` the number of replacements."""

    path: str | None = None
    error: str | None = None
    occurrences: int | None = None
    cause: Exception | None = field(default=None, compare=False)
    sha256: str | None = field(default=None, compare=False)
    """Of the new content."""


@dataclass(frozen=True, slots=True)
class BackgroundOutput:
    """The output of a background command since the last reading, and whether it still runs."""

    shell_id: str
    stdout: str
    stderr: str
    running: bool
    exit_code: int | None = None
    output: str = field(default="", compare=False)
    """Both streams, in order."""
    waiting: bool = field(default=False, compare=False)
    """True if more output can be read at once."""
    lost_bytes: int = field(default=0, compare=False)
    """About how much was dropped because it was not read in time."""
    error: Exception | None = field(default=None, compare=False)
    """Why nothing could be read; `stderr` has its text."""


def is_truncated(found: object) -> bool:
    """True if a search found more than it returned."""
    return isinstance(found, Found) and found.truncated


def narrow_result(result: ExecResult, *, timeout: float, network: NetworkPolicy) -> ExecuteResponse:
    """An `ExecResult` as the known type. After a timeout, the exit code is 124 and the output has what was printed."""
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
        denied=result.denied,
        remark=describe_needs(result, network, door="model"),
    )


def describe_file(info: CoreFileInfo, real: CoreFileInfo) -> FileInfo:
    """An entry as the known type; `real` is the target of a link, otherwise the entry."""
    return FileInfo(
        name=info.name,
        path=info.path,
        is_dir=real.is_folder,
        size=None if real.is_folder else real.size,
        modified_at=datetime.fromtimestamp(real.modified, UTC).isoformat(),
    )


def describe_window_error(window: Window, path: str, offset: int) -> str | None:
    """The known message for a file without lines to show; None if there are some."""
    if window.binary:
        return f"File '{path}' is not a text"
    if not window.lines and offset > 0:
        return f"Offset {offset} exceeds file length ({window.total} lines)"
    return None


def as_text(line: str) -> str:
    """Text in which invalid UTF-8 becomes U+FFFD."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def describe_edit_error(error: EditError, old: str) -> str:
    """The known message for a failed edit."""
    if not old:
        return "Failed to edit file: the text to replace is empty"
    if not error.count:
        return "String not found in file"
    return (
        f"String found {error.count} times. Use replace_all=True to replace all, or provide more context."
    )  # fmt: skip
