"""Which artifacts and logs go into the page, and how much of them, so that a browser can open it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corral.forge.outcome import ArtifactFile, Attempt
from corral.forge.overview import CandidateRow, Overview
from corral.forge.pages.artifact import show_file
from corral.forge.pages.text import clean, clean_line, cut_middle

KIB = 1024
MIB = 1024 * KIB
_ARTIFACTS_BYTES = 16 * MIB
_TEXT_BYTES = 256 * KIB
_IMAGE_BYTES = 2 * MIB
_FILES = 500
_LOGS_CHARACTERS = 12 * MIB
_LOG_CHARACTERS = 512 * KIB
_LEAST_LOG_CHARACTERS = 8 * KIB


@dataclass(frozen=True, slots=True)
class Embedded:
    """The artifacts in the page, for its script, and how many are not."""

    files: tuple[dict[str, Any], ...]
    left_out: int


def embed_artifacts(overview: Overview) -> Embedded:
    """First the requested artifact of every candidate, the best first; then other files, while there is room."""
    wanted = str(overview.settings.get("output", ""))
    order = sorted(
        ((row, attempt, file) for row in overview.rows for attempt in row.attempts for file in attempt.artifacts),
        key=lambda found: (found[2].path != wanted, found[1].round),  # sorting keeps the order of the rows
    )
    room = _ARTIFACTS_BYTES
    text_bytes = min(_TEXT_BYTES, max(4 * KIB, _ARTIFACTS_BYTES // max(1, len(order))))
    files: list[dict[str, Any]] = []
    for row, attempt, file in order[:_FILES]:
        shown = show_file(
            overview.run.artifacts(row.id, attempt.round), file.path,
            text_bytes=min(text_bytes, room), image_bytes=min(_IMAGE_BYTES, room * 3 // 4),
        )  # fmt: skip
        found = _describe(row, attempt, file) | {"kind": shown.kind, "text": shown.text, "note": shown.note}
        if shown.kind == "image":
            found["image"] = f"data:{shown.image_type};base64,{base64.b64encode(shown.data).decode('ascii')}"
        files.append(found)
        room = max(0, room - len(shown.text.encode()) - len(found.get("image", "")))
    return Embedded(tuple(files), len(order) - len(files))


def _describe(row: CandidateRow, attempt: Attempt, file: ArtifactFile) -> dict[str, Any]:
    return {
        "candidate": row.id, "name": clean_line(row.name, limit=80), "round": attempt.round,
        "rounds": len(row.attempts), "path": clean_line(file.path), "size": file.size, "sha256": file.sha256,
    }  # fmt: skip


def embed_logs(rows: Sequence[CandidateRow]) -> dict[tuple[str, int], str]:
    """The log of each attempt, cleaned, and no longer than its share."""
    count = sum(bool(attempt.log) for row in rows for attempt in row.attempts)
    share = min(_LOG_CHARACTERS, max(_LEAST_LOG_CHARACTERS, _LOGS_CHARACTERS // max(1, count)))
    return {
        (row.id, attempt.round): _show_log(attempt.log, share)
        for row in rows
        for attempt in row.attempts
        if attempt.log
    }


def _show_log(log: str, share: int) -> str:
    """Cut first: cleaning takes time. Characters that are made visible take more room, so it may be cut once more."""
    shown = clean(cut_middle(log, limit=share))
    return shown if len(shown) <= 2 * share else cut_middle(shown, limit=share)
