"""Events of a contest: for callbacks, the terminal, the live page, and the log in the run's folder.

| kind | of | data |
|---|---|---|
| `run-started` | | run, objective, candidates (id, name, description), order, jobs, repeat, seed, backend, resumed |
| `packages` | | doing: packages of candidates are resolved |
| `base-ready` | | how, seconds |
| `phase` | attempt | phase, and for `place` sandbox_id |
| `output` | attempt | stream, text |
| `output-cut` | attempt | bytes: output beyond these is not passed on |
| `meter` | attempt | seconds, cpu_seconds, memory_bytes, processes |
| `retry` | attempt | reason |
| `attempt-ended` | attempt | everything in `Attempt` |
| `judging` | | |
| `judged` | candidate | everything in `Standing` |
| `warning` | | text |
| `run-ended` | | state, winners, seconds |
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

_MAX_SECONDS = 1e9
NUMBER = (int, float, type(None))
"""A number or None."""
_KINDS: dict[str, dict[str, tuple[type, ...]]] = {
    "run-started": {
        "run": (str,), "objective": (str,), "candidates": (list,), "order": (list,), "jobs": (int,), "repeat": (int,),
        "seed": (int,), "backend": (str,), "resumed": (bool,), "done": (list,),
    },
    "packages": {"doing": (str,)},
    "base-ready": {"how": (str,), "seconds": NUMBER},
    "phase": {"phase": (str,)},
    "output": {"stream": (str,), "text": (str,)},
    "output-cut": {"bytes": (int,)},
    "meter": {"seconds": NUMBER, "cpu_seconds": NUMBER, "memory_bytes": NUMBER, "processes": NUMBER},
    "retry": {"reason": (str,)},
    "warning": {"text": (str,)},
    "run-ended": {"state": (str,), "winners": (list,), "seconds": NUMBER},
}  # fmt: skip
"""The types that readers may rely on. `Attempt` and `Standing` check the two kinds that are not here."""


@dataclass(frozen=True, slots=True)
class ForgeEvent:
    """One event. `at` is seconds since the run began (of a resumed run: over all its parts)."""

    kind: str
    at: float
    candidate: str | None = None
    round: int | None = None
    data: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        """As one line of JSON, in plain ASCII."""
        found: dict[str, Any] = {"at": round(self.at, 6), "kind": self.kind}
        if self.candidate is not None:
            found |= {"candidate": self.candidate, "round": self.round}
        return json.dumps(found | {"data": self.data}, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> ForgeEvent:
        """From one line of the log. Raises: ValueError, TypeError or KeyError for a malformed one."""
        found = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("data"), dict):
            raise ValueError("not an event")  # noqa: TRY004 - a text of the wrong kind, not a wrong call
        if not 0 <= found["at"] <= _MAX_SECONDS:
            raise ValueError("not a time")
        event = cls(str(found["kind"]), float(found["at"]), found.get("candidate"), found.get("round"), found["data"])
        check_kinds(found, {"candidate": (str, type(None)), "round": (int, type(None))})
        check_kinds(event.data, _KINDS.get(event.kind, {}))
        return event


Listener = Callable[[ForgeEvent], None]
"""Called on the contest's event loop, in order. One that raises is reported in a warning and not called again."""


class Teller:
    """Writes the events of one run to its log and calls the listeners. `offset`: seconds before a resumed run."""

    def __init__(
        self, append: Callable[[ForgeEvent], object], listeners: Sequence[Listener], *, offset: float = 0.0
    ) -> None:
        self._append = append
        self._listeners = list(listeners)
        self._begun = time.monotonic() - offset

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._begun

    def tell(self, kind: str, candidate: str | None = None, number: int | None = None, /, **data: object) -> None:
        """Add an event."""
        event = ForgeEvent(kind, self.seconds, candidate, number, data)
        self._append(event)
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception as error:  # a listener's bug must not end the contest
                log.exception("a listener of the contest failed, and is not called again")
                self._listeners.remove(listener)
                self.tell("warning", text=f"a listener failed: {type(error).__name__}")


def check_kinds(values: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Check the types of values that are present. Raises: TypeError, and ValueError for NaN and infinity."""
    for name, allowed in kinds.items():
        if name not in values:
            continue
        value = values[name]
        if not isinstance(value, allowed):
            raise TypeError(f"{name} is {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")


def check_all(values: Mapping[Any, Any], *allowed: type) -> None:
    """The same for all values of a mapping. Raises: as `check_kinds`."""
    check_kinds(values, dict.fromkeys(values, allowed))
