"""What is shown while a contest runs: a live table on a terminal, elsewhere plain lines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator
from typing import TextIO

from corral.cli.display import colour_wanted, cut, paint, plain, show_seconds, show_size, table
from corral.cli.words import in_cli_words
from corral.forge.events import ForgeEvent
from corral.forge.lanes import Lane, Lanes
from corral.forge.outcome import UNFINISHED
from corral.forge.output import LineSplitter

_LOOK_SECONDS = 0.125
_MAX_LAST_CHARACTERS = 400
_LAST_PIECES = 20


class View:
    """A listener that shows a contest on a stream. The base class shows nothing, for `--quiet`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: ForgeEvent) -> None:
        """Show an event."""

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show the contest during the block."""
        yield

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader may be gone; the contest goes on
            self._stream.write(text)
            self._stream.flush()


class LiveTable(View):
    """For a terminal."""

    def __init__(self, stream: TextIO, *, speed: float = 1.0) -> None:
        super().__init__(stream)
        self._speed = speed
        self._state = Lanes()
        self._seen = time.monotonic()
        self._height = 0
        self._warnings: list[str] = []

    def __call__(self, event: ForgeEvent) -> None:
        self._seen = time.monotonic()
        self._state.take(event)
        if event.kind == "warning":
            self._warnings.append(str(event.data.get("text", "")))

    @property
    def _now(self) -> float:
        """Now by the clock of the run, which goes faster in a faster replay."""
        return self._state.at + (time.monotonic() - self._seen) * self._speed

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        drawing = asyncio.ensure_future(self._keep_drawing())
        try:
            yield
        finally:
            drawing.cancel()
            self._clear()
            for text in self._warnings:
                self._write(f"warning: {plain(in_cli_words(text))}\n")

    async def _keep_drawing(self) -> None:
        while True:
            self.draw()
            await asyncio.sleep(_LOOK_SECONDS)

    def draw(self) -> None:
        """Draw the table over the last one."""
        lines = self.lines()
        up = f"\x1b[{self._height}F" if self._height else ""
        self._write(up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        self._height = len(lines)

    def lines(self) -> list[str]:
        """The table as it is now, no higher and no wider than the terminal."""
        size = shutil.get_terminal_size((80, 24))
        room = max(3, size.lines - 4)
        every = list(self._state.lanes.values())
        over = [lane for lane in every if not lane.is_busy and (lane.attempts or lane.done_before)]
        # Those that are busy first, if there is no room for all.
        lanes = every if len(every) <= room else sorted(every, key=lambda lane: (not lane.is_busy, lane in over))[:room]
        headers = ["candidate", "phase", "time", "CPU", "memory", "last line"]
        found = table(
            [self._row(lane) for lane in lanes], headers=headers,
            align=["left", "left", "right", "right", "right", "left"], limit=size.columns - 1,
        )  # fmt: skip
        foot = f"{len(over)} of {len(every)} done, {show_seconds(self._now)}"
        foot += f", {len(every) - len(lanes)} not shown" if len(lanes) < len(every) else ""
        remark = "judging" if self._state.state == "judging" else self._state.base
        foot += f"; {plain(remark)}" if remark else ""
        # A line that the terminal breaks in two would spoil the count of lines.
        return [cut(line, size.columns - 1) for line in [*found, paint(foot, "dim", stream=self._stream)]]

    def _row(self, lane: Lane) -> list[str]:
        ended = lane.attempts.get(lane.round, {}) if lane.phase == "ended" else {}
        phase = str(ended.get("outcome") or lane.phase)
        if lane.done_before and not lane.is_busy and not lane.attempts:
            phase = "kept"
        seconds = self._now - lane.begun_at if lane.begun_at is not None else ended.get("seconds")
        cpu = ended.get("cpu_seconds") if ended else lane.meter.get("cpu_seconds")
        memory = ended.get("peak_memory_bytes") if ended else lane.meter.get("memory_bytes")
        rounds = f" {lane.done_before + len(lane.attempts)}/{self._state.repeat}" if self._state.repeat > 1 else ""
        return [
            lane.id,
            _paint_phase(phase + rounds, phase, self._stream) if not lane.is_busy else phase + rounds,
            show_seconds(seconds) if seconds is not None else "",
            show_seconds(cpu) if cpu is not None else "",
            show_size(memory) if memory is not None else "",
            plain(ended.get("reason") or _find_last_line(lane)),
        ]

    def _clear(self) -> None:
        if self._height:
            self._write(f"\x1b[{self._height}F\x1b[J")
            self._height = 0


class PlainLines(View):
    """For pipes and files: lines, each with the candidate's id."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._splitters: dict[str, LineSplitter] = {}
        self._repeat = 1

    def __call__(self, event: ForgeEvent) -> None:
        data = event.data
        if event.kind == "run-started":
            self._repeat = int(data.get("repeat", 1))
        elif event.kind == "warning":
            self._write(f"warning: {plain(in_cli_words(str(data.get('text', ''))))}\n")
        if event.candidate is None:
            return
        name = event.candidate if self._repeat == 1 else f"{event.candidate} {event.round}"
        if event.kind == "output":
            splitter = self._splitters.setdefault(name, LineSplitter())
            self._say(name, splitter.feed(str(data.get("stream")), str(data.get("text", ""))))
        elif event.kind == "output-cut":
            self._write(f"[{name}] … further output is not shown\n")
        elif event.kind == "retry":
            self._write(f"[{name}] retrying: {plain(str(data.get('reason')))}\n")
        elif event.kind == "attempt-ended":
            if name in self._splitters:
                self._say(name, self._splitters.pop(name).finish())
            how = str(data.get("outcome"))
            if data.get("seconds") is not None:
                how += f" in {show_seconds(data['seconds'])}"
            how += f": {plain(str(data['reason']))}" if data.get("reason") else ""
            self._write(f"[{name}] {how}\n")

    def _say(self, name: str, lines: list[str]) -> None:
        for line in lines:
            self._write(f"[{name}] {plain(line.rstrip())}\n")


def _find_last_line(lane: Lane) -> str:
    """The last line that a candidate printed, from its last few pieces of output."""
    pieces = [text for _, text in list(lane.log)[-_LAST_PIECES:]]
    lines = "".join(pieces)[-_MAX_LAST_CHARACTERS:].split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")


def _paint_phase(text: str, phase: str, stream: TextIO) -> str:
    if not colour_wanted(stream):
        return text
    if phase == "ok":
        return paint(text, "green", stream=stream)
    dim = phase in UNFINISHED or phase in ("waiting", "kept")
    return paint(text, "dim" if dim else "red", stream=stream)


def choose_view(stream: TextIO, *, quiet: bool = False, speed: float = 1.0) -> View:
    """The view for a stream."""
    if quiet:
        return View(stream)
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return LiveTable(stream, speed=speed)
    return PlainLines(stream)
