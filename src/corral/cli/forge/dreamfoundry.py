"""`corral forge run --daytona` without candidates is the command that users of Dream Foundry know.

So it prints the lines of that command, saves artifacts where it did, and falls back to this machine as it did.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from corral.cli.forge.live import View
from corral.cli.run import note
from corral.forge.artifacts import read_artifact
from corral.forge.dreamfoundry import (
    ScoreLine,
    candidate_lines,
    explain,
    forget_artifact,
    heading,
    keep_artifact,
    scoring,
    write_lines,
)
from corral.forge.events import ForgeEvent
from corral.forge.judge.rubric import assess_quality
from corral.forge.outcome import Attempt

if TYPE_CHECKING:
    from corral.cli.forge.gather import Gathered
    from corral.forge.judge.model import Standing
    from corral.forge.result import ContestResult

_MAX_BYTES = 64 * 1024 * 1024


class DreamFoundryLines(View):
    """Shows each candidate when it has ended."""

    def __init__(self, stream: TextIO, names: Mapping[str, str]) -> None:
        super().__init__(stream)
        self._names = names

    def __call__(self, event: ForgeEvent) -> None:
        lines = []
        if event.kind == "warning":
            lines = [f"warning: {event.data.get('text', '')}"]
        elif event.kind == "attempt-ended" and event.candidate is not None:
            attempt = Attempt.from_json(event.data)
            lines = candidate_lines(
                self._names.get(event.candidate, event.candidate), error=explain(attempt),
                has_artifact=bool(attempt.artifacts), seconds=attempt.seconds or 0.0,
            )  # fmt: skip
        with contextlib.suppress(OSError, ValueError):  # the reader may be gone; the contest goes on
            write_lines(self._stream, lines)


def begin(request: Gathered, stream: TextIO | None) -> None:
    """Print the banner, or only the remarks about the service, and remove artifacts of an earlier run."""
    if stream is None:
        for text in request.remarks:
            note(text)
    else:
        lines = heading(request.objective, len(request.candidates), remote=request.is_remote, remarks=request.remarks)
        write_lines(stream, lines)
    for candidate in request.candidates:
        if not _is_run(request.artifacts / candidate.id):
            forget_artifact(request.artifacts, candidate.id)


def conclude(request: Gathered, result: ContestResult, stream: TextIO | None) -> list[str]:
    """Save the artifacts and print the table. Returns messages about artifacts that could not be saved."""
    contents = {candidate.id: _read(result, candidate.id) for candidate in request.candidates}
    unsaved = []
    for candidate_id, content in contents.items():
        if content is None:
            continue
        try:
            if _is_run(request.artifacts / candidate_id):
                raise FileExistsError(None, "a run is kept in its folder")
            keep_artifact(request.artifacts, candidate_id, content)
        except OSError as error:
            unsaved.append(f"{candidate_id}: Could not save artifact: {error.strerror or error}")
    standings = {standing.candidate: standing for standing in result.standings}
    table = [
        _line(candidate.id, standings.get(candidate.id), contents[candidate.id]) for candidate in request.candidates
    ]
    best = max((line.total for line in table), default=0.0)
    write_lines(stream, scoring(table, result.winners, best, request.artifacts))
    return unsaved


def had_no_sandbox(result: ContestResult) -> str | None:
    """The reason, if no candidate got a sandbox; None if one did."""
    if result.attempts and all(attempt.outcome == "infrastructure" for attempt in result.attempts):
        return result.attempts[0].reason
    return None


def _line(candidate_id: str, standing: Standing | None, content: bytes | None) -> ScoreLine:
    if standing is not None and standing.rank is not None:
        points = {name: found.points for name, found in standing.scores.items()}
        return ScoreLine(
            candidate_id=candidate_id, word="PASS", quality=points.get("quality", 0.0),
            speed=points.get("speed", 0.0), total=standing.total,
        )  # fmt: skip
    quality = assess_quality(content.decode("utf-8", "replace")).score if content and content.strip() else 0.0
    failed = standing is not None and standing.disqualified
    return ScoreLine(candidate_id=candidate_id, word="FAIL" if failed else "VOID", quality=quality)


def _read(result: ContestResult, candidate_id: str) -> bytes | None:
    """The artifact, also of a candidate that failed."""
    for (candidate, _), folder in sorted(result.artifact_folders.items()):
        if candidate == candidate_id:
            with contextlib.suppress(OSError):
                return read_artifact(folder, result.output, max_bytes=_MAX_BYTES)[0]
    return None


def _is_run(folder: Path) -> bool:
    return (folder / "run.json").exists()
