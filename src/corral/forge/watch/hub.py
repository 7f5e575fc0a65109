"""What there is to show: the last events with their numbers, and the state that they led to.

Nobody has a queue of his own. Each reader has a place in the one ring; whoever falls out of it gets the state as it
stands and goes on from there. So a slow reader costs nothing, and memory is bounded whatever a candidate prints.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from corral.forge.events import ForgeEvent
from corral.forge.pages.text import Cleaner, clean_line

RING_EVENTS = 4096
RING_CHARACTERS = 4 * 1024 * 1024
LANE_CHARACTERS = 24 * 1024
"""Of each candidate's log, so much of the end is in the state. The whole is in the run's folder."""
_MAX_ARTIFACTS = 200
_MAX_WARNINGS = 20
_MAX_OUTPUT = 64 * 1024


@dataclass(slots=True)
class Lane:
    """One candidate as it is at the moment."""

    id: str
    name: str
    description: str
    phase: str = "waiting"
    round: int = 1
    begun_at: float | None = None
    """When its run phase began, by the run's clock."""
    meter: dict[str, Any] = field(default_factory=dict)
    attempts: dict[int, dict[str, Any]] = field(default_factory=dict)
    files: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Round → the paths of its artifacts. A page asks by number, so no path ever comes from there."""
    standing: dict[str, Any] | None = None
    log: deque[tuple[str, str]] = field(default_factory=deque)
    log_characters: int = 0
    cleaner: Cleaner = field(default_factory=Cleaner)

    def keep(self, stream: str, text: str) -> None:
        """The end of the log; whole pieces are dropped."""
        self.log.append((stream, text))
        self.log_characters += len(text)
        while self.log_characters > LANE_CHARACTERS and len(self.log) > 1:
            self.log_characters -= len(self.log.popleft()[1])

    def to_json(self) -> dict[str, Any]:
        """For a page that begins now."""
        return {
            "id": self.id, "name": self.name, "description": self.description, "phase": self.phase, "round": self.round,
            "begun_at": self.begun_at, "meter": self.meter, "attempts": list(self.attempts.values()),
            "standing": self.standing, "log": [list(piece) for piece in self.log],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """One event as it goes over the wire."""

    number: int
    kind: str
    text: str


class Hub:
    """Takes events, and lets any number of readers follow. For one event loop."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(4)
        """Numbers of another hub, before a restart, mean nothing here."""
        self.run: dict[str, Any] = {}
        self.state = "waiting"
        self.at = 0.0
        self.lanes: dict[str, Lane] = {}
        self.warnings: deque[str] = deque(maxlen=_MAX_WARNINGS)
        self._ring: deque[Message] = deque()
        self._ring_characters = 0
        self._number = 0
        self._news = asyncio.Event()

    @property
    def number(self) -> int:
        """Of the last event."""
        return self._number

    @property
    def repeat(self) -> int:
        """How many rounds, as far as it is known."""
        found = self.run.get("repeat", 1)
        return found if isinstance(found, int) else 1

    def add(self, event: ForgeEvent) -> None:
        """One thing that happened. What is not known here is passed over."""
        self.at = max(self.at, event.at)
        data = self._take(event)
        if data is None:
            return
        self._number += 1
        if event.kind == "run-started":
            self._begin_anew()
            return
        found = {"at": event.at, "candidate": event.candidate, "round": event.round, "data": data}
        message = Message(self._number, event.kind, _write_json(found))
        self._ring.append(message)
        self._ring_characters += len(message.text)
        while len(self._ring) > RING_EVENTS or (self._ring_characters > RING_CHARACTERS and len(self._ring) > 1):
            self._ring_characters -= len(self._ring.popleft().text)
        self._wake()

    def lose(self) -> None:
        """Nobody is at the run any more, and it never said that it ended."""
        if self.state in ("running", "judging"):
            self.state = "broken off"
            self._number += 1
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing that was sent leads to this: everybody gets the state."""
        self._ring.clear()
        self._ring_characters = 0
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def since(self, number: int) -> list[Message] | None:
        """What came after that number; None when that is no longer known."""
        if number > self._number or number < 0:
            return None
        missing = self._number - number
        if missing > len(self._ring):
            return None
        return list(self._ring)[len(self._ring) - missing :] if missing else []

    async def wait(self) -> None:
        """Until something comes."""
        await self._news.wait()

    def snapshot(self) -> str:
        """Everything as it is, for a page that begins now."""
        state = {
            "run": self.run, "state": self.state, "at": self.at, "warnings": list(self.warnings),
            "lanes": [lane.to_json() for lane in self.lanes.values()],
        }  # fmt: skip
        return _write_json(state)

    def find_artifact(self, candidate: str, number: int, index: int) -> str | None:
        """The path of an artifact below its attempt's folder; None if no attempt that has ended left such a one."""
        lane = self.lanes.get(candidate)
        files = lane.files.get(number, ()) if lane is not None else ()
        return files[index] if 0 <= index < len(files) else None

    def _take(self, event: ForgeEvent) -> dict[str, Any] | None:
        if event.candidate is None:
            return self._take_run(event)
        lane = self.lanes.get(event.candidate)
        return None if lane is None else self._take_lane(lane, event)

    def _take_run(self, event: ForgeEvent) -> dict[str, Any] | None:
        data = event.data
        if event.kind == "run-started":
            self._start(data)
            return {}
        if event.kind == "warning":
            self.warnings.append(clean_line(str(data.get("text", "")), limit=600))
            return {"text": self.warnings[-1]}
        if event.kind == "judging":
            self.state = "judging"
            for lane in self.lanes.values():
                lane.standing = None
            return {}
        if event.kind == "run-ended":
            self.state = str(data.get("state", "finished"))
            return {key: data.get(key) for key in ("state", "winners", "seconds")}
        return {"how": str(data.get("how", ""))} if event.kind == "base-ready" else None

    def _start(self, data: dict[str, Any]) -> None:
        self.state = "running"
        self.run = {key: data.get(key) for key in ("run", "jobs", "repeat", "seed", "backend")}
        self.run["objective"] = clean_line(str(data.get("objective", "")), limit=2000)
        for found in data.get("candidates", ()):
            id_ = str(found.get("id", ""))
            if id_ not in self.lanes:  # a resumed run begins again with what it has
                self.lanes[id_] = Lane(
                    id_, clean_line(str(found.get("name", "") or id_), limit=80),
                    clean_line(str(found.get("description", "")), limit=300),
                )  # fmt: skip

    def _take_lane(self, lane: Lane, event: ForgeEvent) -> dict[str, Any] | None:
        data, number = event.data, event.round or 1
        if event.kind == "phase":
            return self._take_phase(lane, event)
        if event.kind == "judged":
            lane.standing = _describe_standing(data)
            return lane.standing
        if event.kind == "attempt-ended":
            return self._take_end(lane, number, data)
        if number != lane.round:
            return None  # a lane shows the round that began last; the log in the folder has both
        if event.kind == "output":
            stream = "stderr" if data.get("stream") == "stderr" else "stdout"
            text = lane.cleaner.feed(str(data.get("text", "")))[-_MAX_OUTPUT:]
            if text:
                lane.keep(stream, text)
            return {"stream": stream, "text": text} if text else None
        if event.kind == "meter":
            lane.meter = {key: data.get(key) for key in ("seconds", "cpu_seconds", "memory_bytes", "processes")}
            return lane.meter
        if event.kind in ("retry", "output-cut"):
            said = (
                f"begun again: {data.get('reason', '')}" if event.kind == "retry" else "its further output is not shown"
            )
            lane.keep("note", f"\n[{clean_line(said)}]\n")
            return {"stream": "note", "text": lane.log[-1][1]}
        return None

    def _take_phase(self, lane: Lane, event: ForgeEvent) -> dict[str, Any] | None:
        number, phase = event.round or 1, clean_line(str(event.data.get("phase", "")), limit=30)
        if number != lane.round and phase != "run" and lane.phase not in ("waiting", "ended"):
            return None  # the next round is being made ready while this one runs
        cleared = number != lane.round or phase == "create"
        if cleared:
            lane.meter, lane.cleaner, lane.log_characters = {}, Cleaner(), 0
            lane.log.clear()
        lane.phase, lane.round = phase, number
        lane.begun_at = event.at if phase == "run" else None
        return {"phase": phase, "round": number, "begun_at": lane.begun_at, "cleared": cleared}

    def _take_end(self, lane: Lane, number: int, data: dict[str, Any]) -> dict[str, Any]:
        if number == lane.round:
            lane.phase, lane.begun_at = "ended", None
        lane.files[number] = tuple(str(file["path"]) for file in data.get("artifacts") or ())[:_MAX_ARTIFACTS]
        lane.attempts[number] = _describe_attempt(data)
        return {"phase": lane.phase, "attempt": lane.attempts[number]}


def _describe_attempt(data: dict[str, Any]) -> dict[str, Any]:
    """All but the log, which was passed on while it was printed."""
    kept = ("round", "outcome", "exit_code", "seconds", "cpu_seconds", "peak_memory_bytes", "log_bytes", "retries")
    files = data.get("artifacts") or ()
    return {key: data.get(key) for key in kept} | {
        "reason": clean_line(str(data.get("reason") or ""), limit=300),
        "artifacts": [
            {"path": clean_line(str(file["path"])), "size": file.get("size")} for file in files[:_MAX_ARTIFACTS]
        ],
        "more_artifacts": max(0, len(files) - _MAX_ARTIFACTS),
    }


def _describe_standing(data: dict[str, Any]) -> dict[str, Any]:
    kept = ("rank", "total", "tied", "disqualified", "cpu_seconds", "peak_memory_bytes", "seconds")
    gates = data.get("gates") or ()
    return {key: data.get(key) for key in kept} | {
        "reason": clean_line(str(data.get("reason") or ""), limit=300),
        "failed": [clean_line(str(gate.get("gate", "")), limit=60) for gate in gates if not gate.get("passed")][:20],
        "scores": {
            clean_line(str(name), limit=40): points.get("points") for name, points in (data.get("scores") or {}).items()
        },
    }


def _write_json(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a number that JSON hasn't got
        return json.dumps(_without_nan(value), separators=(",", ":"))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(found) for key, found in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(found) for found in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
