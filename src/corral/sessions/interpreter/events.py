"""Events and results of runs of the interpreter, and its contexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from corral.results import Denial, Pictures
from corral.sessions.interpreter.chartdata import check_chart

RunEventKind = Literal["stdout", "stderr", "result", "display", "error", "lost", "restart", "end"]
RunStatus = Literal["completed", "failed", "interrupted", "timeout", "died"]

CHART_TYPE = "application/vnd.corral.chart.v1+json"
"""The MIME type of a figure's data, next to its picture."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run. `kind` decides which fields are used; `end` is always the last."""

    kind: RunEventKind
    run: str = ""
    """The run's id."""
    text: str = ""
    """Of `stdout` and `stderr`: the output; bytes that are not UTF-8 show as U+FFFD. Of `end`: why, if not
    `completed`. Of `restart`, which comes first: why the process with the state ended."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Of `result` (the last expression's value) and `display`: by MIME type. Binary types are base64."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    """Of `error`: the exception's class."""
    value: str = ""
    """Of `error`: the exception as text."""
    traceback: str = ""
    lost_bytes: int = 0
    """Of `lost`: how many bytes were printed faster than they were read, and were dropped."""
    status: RunStatus | None = None
    """Of `end`: the status. `failed` and `interrupted` follow an `error`."""
    fresh: bool = False
    """Of `end`: the process was killed, and its state is lost. The next run starts in a new one."""

    @property
    def chart(self) -> dict[str, Any] | None:
        """A figure as data, with its picture under `png`."""
        chart, picture = self.data.get(CHART_TYPE), self.data.get("image/png")
        return check_chart({**chart, "png": picture}) if isinstance(chart, dict) else None


@dataclass(frozen=True, slots=True)
class RunResult(Pictures):
    """The result of a run. Output beyond the limit is cut in the middle, and `truncated` is true."""

    run: str
    status: RunStatus
    stdout: str = ""
    stderr: str = ""
    output: str = ""
    """Both streams, in order."""
    result: Mapping[str, Any] | None = None
    """The last expression's value, by MIME type."""
    displays: tuple[Mapping[str, Any], ...] = ()
    charts: tuple[Mapping[str, Any], ...] = ()
    """The figures as data, of the result and of displays."""
    error: RunEvent | None = None
    truncated: bool = False
    fresh: bool = False
    reason: str = ""
    """The reason, if it is not `completed` and there is no error."""
    denied: tuple[Denial, ...] = ()
    """What the sandbox tried to reach during the run, and was refused."""

    @property
    def ok(self) -> bool:
        """True if it completed."""
        return self.status == "completed"

    def _shown(self) -> Iterable[object]:
        return (shown.get("image/png") for shown in (*self.displays, *([self.result] if self.result else [])))

    @property
    def text(self) -> str | None:
        """The last expression's value as `repr` shows it."""
        shown = self.result.get("text/plain") if self.result else None
        return shown if isinstance(shown, str) else None


@dataclass(frozen=True, slots=True)
class ContextInfo:
    """A context in a list."""

    id: str
    cwd: str
    """The folder it started in; the code may have changed it."""
    language: str
    created: float
    """As Unix time."""
    active: bool
    """True if a run is in progress."""
