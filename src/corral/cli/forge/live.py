"""What is shown while a contest goes on: on a terminal a table that is kept up to date, elsewhere plain lines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from corral.cli.display import colour_wanted, cut, paint, plain, show_seconds, show_size, table
from corral.forge.events import ForgeEvent
from corral.forge.outcome import UNFINISHED

_LOOK_SECONDS = 0.125
_MAX_LAST_CHARACTERS = 400


class View(Protocol):
    """Listens to a contest."""

    def __call__(self, event: ForgeEvent) -> None:
        """Something happened."""

    def shown(self) -> contextlib.AbstractAsyncContextManager[None]:
        """While this is open, it is shown."""


@dataclass(slots=True)
class Lane:
    """What is known of one candidate."""

    candidate: str
    phase: str = "waiting"
    since: float = 0.0
    seconds: float | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    last: str = ""
    ended: list[str] = field(default_factory=list)
    running: set[int] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        """Whether it is doing nothing now, and has done something."""
        return not self.running and bool(self.ended)


class Lanes:
    """All candidates, as the events tell."""

    def __init__(self, *, speed: float = 1.0) -> None:
        self.by_id: dict[str, Lane] = {}
        self.repeat = 1
        self.remark = ""
        self._speed = speed
        self._at, self._seen = 0.0, time.monotonic()
        self._tails: dict[tuple[str, str], str] = {}

    @property
    def now(self) -> float:
        """On the clock of the run, which goes faster when it is replayed so."""
        return self._at + (time.monotonic() - self._seen) * self._speed

    def take(self, event: ForgeEvent) -> None:
        """Something happened."""
        self._at, self._seen = event.at, time.monotonic()
        if event.kind == "run-started":
            self.repeat = int(event.data.get("repeat", 1))
            for item in event.data.get("candidates", ()):
                self.by_id.setdefault(str(item["id"]), Lane(str(item["id"])))
            for candidate, _ in event.data.get("done", ()):
                self.lane(str(candidate)).ended.append("kept")
        elif event.kind == "judging":
            self.remark = "judging"
        elif event.kind == "base-ready":
            self.remark = str(event.data.get("how", ""))
        if event.candidate is not None and event.kind != "judged":
            self._take_own(self.lane(event.candidate), event)

    def lane(self, candidate: str) -> Lane:
        """That of a candidate."""
        return self.by_id.setdefault(candidate, Lane(candidate))

    def _take_own(self, lane: Lane, event: ForgeEvent) -> None:
        data, number = event.data, event.round or 1
        if event.kind == "phase":
            lane.phase, lane.since = str(data.get("phase")), event.at
            lane.running.add(number)
            if lane.phase == "run":
                lane.seconds = None
        elif event.kind == "output":
            self._take_output(lane, str(data.get("stream")), str(data.get("text", "")))
        elif event.kind == "meter":
            lane.cpu_seconds, lane.memory_bytes = data.get("cpu_seconds"), data.get("memory_bytes")
        elif event.kind == "retry":
            lane.last = f"trying again: {data.get('reason')}"
        elif event.kind == "attempt-ended":
            lane.running.discard(number)
            lane.ended.append(str(data.get("outcome")))
            lane.phase = str(data.get("outcome"))
            lane.seconds, lane.cpu_seconds = data.get("seconds"), data.get("cpu_seconds")
            lane.memory_bytes = data.get("peak_memory_bytes")
            if data.get("reason"):
                lane.last = str(data["reason"])

    def _take_output(self, lane: Lane, stream: str, text: str) -> None:
        whole = (self._tails.get((lane.candidate, stream), "") + text)[-_MAX_LAST_CHARACTERS:]
        lines = whole.split("\n")
        self._tails[lane.candidate, stream] = lines[-1]
        said = next((line for line in reversed(lines) if line.strip()), "")
        if said:
            lane.last = said


class LiveTable:
    """For a terminal."""

    def __init__(self, stream: TextIO, *, speed: float = 1.0) -> None:
        self._stream = stream
        self._lanes = Lanes(speed=speed)
        self._height = 0
        self._warnings: list[str] = []

    def __call__(self, event: ForgeEvent) -> None:
        self._lanes.take(event)
        if event.kind == "warning":
            self._warnings.append(str(event.data.get("text", "")))

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        drawing = asyncio.ensure_future(self._keep_drawing())
        try:
            yield
        finally:
            drawing.cancel()
            self._clear()
            for text in self._warnings:
                self._write(f"warning: {plain(text)}\n")

    async def _keep_drawing(self) -> None:
        while True:
            self.draw()
            await asyncio.sleep(_LOOK_SECONDS)

    def draw(self) -> None:
        """Write over what is there."""
        lines = self.lines()
        up = f"\x1b[{self._height}F" if self._height else ""
        self._write(up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        self._height = len(lines)

    def lines(self) -> list[str]:
        """The table as it is now, no higher and no wider than the terminal."""
        size = shutil.get_terminal_size((80, 24))
        room = max(3, size.lines - 4)
        lanes = list(self._lanes.by_id.values())
        hidden = 0
        if len(lanes) > room:
            # Those that do something first; of the others, as many as there is room for.
            lanes = sorted(lanes, key=lambda lane: (not lane.running, lane.is_over))[:room]
            hidden = len(self._lanes.by_id) - len(lanes)
        rows = [self._row(lane) for lane in lanes]
        headers = ["candidate", "phase", "time", "CPU", "memory", "last line"]
        found = table(
            rows, headers=headers, align=["left", "left", "right", "right", "right", "left"], limit=size.columns - 1
        )
        ended = sum(1 for lane in self._lanes.by_id.values() if lane.is_over)
        foot = f"{ended} of {len(self._lanes.by_id)} done, {show_seconds(self._lanes.now)}"
        foot += f", {hidden} not shown" if hidden else ""
        foot += f"; {plain(self._lanes.remark)}" if self._lanes.remark else ""
        # Whatever is in it: a line that the terminal broke in two would spoil the counting.
        return [cut(line, size.columns - 1) for line in [*found, paint(foot, "dim", stream=self._stream)]]

    def _row(self, lane: Lane) -> list[str]:
        phase = lane.phase if self._lanes.repeat == 1 else f"{lane.phase} {len(lane.ended)}/{self._lanes.repeat}"
        seconds = lane.seconds
        if lane.running and lane.phase == "run":
            seconds = self._lanes.now - lane.since
        return [
            lane.candidate,
            _paint_phase(phase, lane, self._stream),
            show_seconds(seconds) if seconds is not None else "",
            show_seconds(lane.cpu_seconds) if lane.cpu_seconds is not None else "",
            show_size(lane.memory_bytes) if lane.memory_bytes is not None else "",
            plain(lane.last[:_MAX_LAST_CHARACTERS]),
        ]

    def _clear(self) -> None:
        if self._height:
            self._write(f"\x1b[{self._height}F\x1b[J")
            self._height = 0

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a terminal that has gone is no reason to end a contest
            self._stream.write(text)
            self._stream.flush()


class PlainLines:
    """For pipes and files: a line for everything, with the candidate's id before it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tails: dict[tuple[str, int, str], str] = {}
        self._repeat = 1

    def __call__(self, event: ForgeEvent) -> None:
        data = event.data
        if event.kind == "run-started":
            self._repeat = int(data.get("repeat", 1))
        elif event.kind == "warning":
            self._write(f"warning: {plain(str(data.get('text', '')))}")
        if event.candidate is None:
            return
        name = event.candidate if self._repeat == 1 else f"{event.candidate} {event.round}"
        if event.kind == "output":
            self._take_output(name, event)
        elif event.kind == "output-cut":
            self._write(f"[{name}] … it prints more, which is not shown")
        elif event.kind == "retry":
            self._write(f"[{name}] trying again: {plain(str(data.get('reason')))}")
        elif event.kind == "attempt-ended":
            self._finish(name, event)
            how = str(data.get("outcome"))
            if data.get("seconds") is not None:
                how += f" in {show_seconds(data['seconds'])}"
            self._write(f"[{name}] {how}" + (f": {plain(str(data['reason']))}" if data.get("reason") else ""))

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        yield

    def _take_output(self, name: str, event: ForgeEvent) -> None:
        key = (str(event.candidate), event.round or 1, str(event.data.get("stream")))
        *lines, rest = (self._tails.get(key, "") + str(event.data.get("text", ""))).split("\n")
        if len(rest) > 8192:
            lines.append(rest)
            rest = ""
        self._tails[key] = rest
        for line in lines:
            self._write(f"[{name}] {plain(line.rstrip())}")

    def _finish(self, name: str, event: ForgeEvent) -> None:
        for key in [key for key in self._tails if key[:2] == (event.candidate, event.round or 1)]:
            if rest := self._tails.pop(key).rstrip():
                self._write(f"[{name}] {plain(rest)}")

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # whoever reads may leave; the contest goes on
            self._stream.write(f"{line}\n")
            self._stream.flush()


class Silence:
    """For `--quiet`."""

    def __call__(self, event: ForgeEvent) -> None:
        """Nothing."""

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        yield


def _paint_phase(text: str, lane: Lane, stream: TextIO) -> str:
    if not colour_wanted(stream) or lane.running:
        return text
    if lane.phase == "ok":
        return paint(text, "green", stream=stream)
    if lane.phase in UNFINISHED or lane.phase == "waiting":
        return paint(text, "dim", stream=stream)
    return paint(text, "red", stream=stream)


def choose_view(stream: TextIO, *, quiet: bool = False, speed: float = 1.0) -> View:
    """What fits to where it is shown."""
    if quiet:
        return Silence()
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return LiveTable(stream, speed=speed)
    return PlainLines(stream)
