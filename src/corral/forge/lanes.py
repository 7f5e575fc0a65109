"""The state of a contest, folded from its events: for the live page and for the table on a terminal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from corral.base.cleaning import Cleaner
from corral.forge.events import ForgeEvent
from corral.forge.pages.text import clean_line, make_cleaner

LANE_CHARACTERS = 24 * 1024
"""How much of the end of each candidate's log is kept. The whole log is in the run's folder."""
_MAX_ARTIFACTS = 200
_MAX_WARNINGS = 20
_MAX_OUTPUT = 64 * 1024


@dataclass(slots=True)
class Lane:
    """One candidate, as the events have shown it so far."""

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
    done_before: int = 0
    """Rounds that a resumed run had already."""
    log: deque[tuple[str, str]] = field(default_factory=deque)
    log_characters: int = 0
    cleaners: dict[str, Cleaner[str]] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        """Whether an attempt is under way."""
        return self.phase not in ("waiting", "ended")

    def keep(self, stream: str, text: str) -> None:
        """Add to the log, and drop its oldest pieces."""
        self.log.append((stream, text))
        self.log_characters += len(text)
        while self.log_characters > LANE_CHARACTERS and len(self.log) > 1:
            self.log_characters -= len(self.log.popleft()[1])

    def finish_log(self) -> list[tuple[str, str]]:
        """Add what was held back of each stream, and give it."""
        found = [(stream, text) for stream, held in self.cleaners.items() if (text := held.clean("", final=True))]
        for stream, text in found:
            self.keep(stream, text)
        return found

    def to_json(self) -> dict[str, Any]:
        """For a page that connects now."""
        return {
            "id": self.id, "name": self.name, "description": self.description, "phase": self.phase, "round": self.round,
            "begun_at": self.begun_at, "meter": self.meter, "attempts": list(self.attempts.values()),
            "standing": self.standing, "log": [list(piece) for piece in self.log],
        }  # fmt: skip


class Lanes:
    """All candidates of a run, and the run itself."""

    def __init__(self) -> None:
        self.run: dict[str, Any] = {}
        self.state = "waiting"
        self.at = 0.0
        """Seconds since the run began, at the last event."""
        self.base = ""
        """How the base was created."""
        self.lanes: dict[str, Lane] = {}
        self.warnings: deque[str] = deque(maxlen=_MAX_WARNINGS)

    @property
    def repeat(self) -> int:
        """How many rounds, as far as it is known."""
        found = self.run.get("repeat", 1)
        return found if isinstance(found, int) else 1

    def to_json(self) -> dict[str, Any]:
        """For a page that connects now."""
        return {
            "run": self.run, "state": self.state, "at": self.at, "warnings": list(self.warnings),
            "lanes": [lane.to_json() for lane in self.lanes.values()],
        }  # fmt: skip

    def find_artifact(self, candidate: str, number: int, index: int) -> str | None:
        """The path of an artifact below its attempt's folder; None if no finished attempt has it."""
        lane = self.lanes.get(candidate)
        files = lane.files.get(number, ()) if lane is not None else ()
        return files[index] if 0 <= index < len(files) else None

    def take(self, event: ForgeEvent) -> dict[str, Any] | None:
        """Fold an event into the state. Gives what a page needs of it; None if the event changes nothing."""
        self.at = max(self.at, event.at)
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
        if event.kind == "packages":
            self.base = clean_line(f"packages: {data.get('doing', '')}", limit=200)
        if event.kind != "base-ready":
            return None
        self.base = str(data.get("how", ""))
        return {"how": self.base}

    def _start(self, data: dict[str, Any]) -> None:
        self.state = "running"
        self.run = {key: data.get(key) for key in ("run", "jobs", "repeat", "seed", "backend")}
        self.run["objective"] = clean_line(str(data.get("objective", "")), limit=2000)
        for found in data.get("candidates", ()):
            id_ = str(found.get("id", ""))
            if id_ not in self.lanes:  # a resumed run has a second start
                self.lanes[id_] = Lane(
                    id_, clean_line(str(found.get("name", "") or id_), limit=80),
                    clean_line(str(found.get("description", "")), limit=300),
                )  # fmt: skip
        for candidate, _ in data.get("done", ()):
            if (lane := self.lanes.get(str(candidate))) is not None and not lane.attempts:
                lane.done_before += 1

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
            return None  # a lane shows the latest round; the log in the folder has both
        if event.kind == "output":
            stream = "stderr" if data.get("stream") == "stderr" else "stdout"
            text = lane.cleaners.setdefault(stream, make_cleaner()).clean(str(data.get("text", "")))[-_MAX_OUTPUT:]
            if text:
                lane.keep(stream, text)
            return {"stream": stream, "text": text} if text else None
        if event.kind == "meter":
            lane.meter = {key: data.get(key) for key in ("seconds", "cpu_seconds", "memory_bytes", "processes")}
            return lane.meter
        if event.kind in ("retry", "output-cut"):
            said = f"retried: {data.get('reason', '')}" if event.kind == "retry" else "further output is not shown"
            lane.keep("note", f"\n[{clean_line(said)}]\n")
            return {"stream": "note", "text": lane.log[-1][1]}
        return None

    def _take_phase(self, lane: Lane, event: ForgeEvent) -> dict[str, Any] | None:
        number, phase = event.round or 1, clean_line(str(event.data.get("phase", "")), limit=30)
        if number != lane.round and phase != "run" and lane.phase not in ("waiting", "ended"):
            return None  # the next round is prepared while this one runs
        cleared = number != lane.round or phase == "create"
        if cleared:
            lane.meter, lane.cleaners, lane.log_characters = {}, {}, 0
            lane.log.clear()
        lane.phase, lane.round = phase, number
        lane.begun_at = event.at if phase == "run" else None
        return {"phase": phase, "round": number, "begun_at": lane.begun_at, "cleared": cleared}

    def _take_end(self, lane: Lane, number: int, data: dict[str, Any]) -> dict[str, Any]:
        log = lane.finish_log() if number == lane.round else []
        if number == lane.round:
            lane.phase, lane.begun_at = "ended", None
        lane.files[number] = tuple(str(file["path"]) for file in data.get("artifacts") or ())[:_MAX_ARTIFACTS]
        lane.attempts[number] = _describe_attempt(data)
        return {"phase": lane.phase, "attempt": lane.attempts[number], "log": log}


def _describe_attempt(data: dict[str, Any]) -> dict[str, Any]:
    """Everything but the log, which was sent while it was printed."""
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
