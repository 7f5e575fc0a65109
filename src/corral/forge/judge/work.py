"""The unit of judging: one round of one candidate, with safe reads of its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.forge.artifacts import MAX_BYTES, read_artifact
from corral.forge.judge.model import Entry
from corral.forge.numbers import round_all
from corral.forge.outcome import ArtifactFile, Attempt

_MAX_DETAILS_CHARACTERS = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One round of one candidate. Functions that judge get this."""

    candidate: str
    objective: str
    attempt: Attempt
    output: str
    """The name of the artifact itself."""
    folder: Path | None
    """The folder of the artifacts; None without artifacts. Read it by the methods here, which follow no link."""

    @property
    def round(self) -> int:
        """The number of the round."""
        return self.attempt.round

    @property
    def files(self) -> tuple[ArtifactFile, ...]:
        """All files that were taken out."""
        return self.attempt.artifacts

    @property
    def has_artifact(self) -> bool:
        """Whether the requested file exists."""
        return self.folder is not None and any(file.path == self.output for file in self.attempt.artifacts)

    def explain_lack(self, path: str | None = None) -> str:
        """Why a file (by default the artifact itself) is missing: it was not taken out, or never written."""
        name = self.output if path is None else path
        for item in self.attempt.refused:
            if item.path == name:
                return f"{name} was not taken: {item.reason}"
        return f"no {name}"

    def read_bytes(self, path: str | None = None, *, max_bytes: int = MAX_BYTES) -> bytes:
        """The content of a file, by default of the artifact itself, up to `max_bytes`.

        Raises:
            FileNotFoundError: it is not among the files.
        """
        return self.read_start(path, max_bytes=max_bytes)[0]

    def read_start(self, path: str | None = None, *, max_bytes: int = MAX_BYTES) -> tuple[bytes, bool]:
        """The same, and whether that is the whole file."""
        name = self.output if path is None else path
        if self.folder is None or not any(file.path == name for file in self.attempt.artifacts):
            raise FileNotFoundError(f"no artifact named {name!r}")
        return read_artifact(self.folder, name, max_bytes=max_bytes)

    def read_text(self, path: str | None = None, *, max_bytes: int = MAX_BYTES) -> str:
        """The same as text, with U+FFFD for bytes that are not UTF-8."""
        return self.read_bytes(path, max_bytes=max_bytes).decode("utf-8", "replace")


def list_work(entry: Entry) -> list[Work]:
    """Every finished round of a candidate."""
    return [
        Work(
            candidate=entry.candidate, objective=entry.objective, attempt=attempt, output=entry.settings.output,
            folder=entry.folders.get(attempt.round) if attempt.artifacts else None,
        )
        for attempt in entry.attempts
    ]  # fmt: skip


def make_printable(text: str, *, limit: int = 500) -> str:
    """A text that may quote an artifact, as one line without control characters."""
    line = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text[:limit])
    return line if len(text) <= limit else f"{line}…"


def make_plain(details: object) -> dict[str, Any]:
    """Details as plain JSON of bounded size."""
    if not isinstance(details, dict):
        details = {"details": details}
    try:
        text = json.dumps({str(key): value for key, value in details.items()}, default=str)
    except (ValueError, RecursionError, TypeError):  # a cycle, too deep, or keys that JSON does not have
        return {"cut": f"details that are not plain: {', '.join(map(str, details))[:1000]}"}
    if len(text) > _MAX_DETAILS_CHARACTERS:
        return {"cut": text[:1000]}
    found: dict[str, Any] = round_all(json.loads(text, parse_constant=str))  # NaN is no JSON
    return found
