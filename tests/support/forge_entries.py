"""Entries as a contest gives them to its judge, made from plain values."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.backends.memory import MemoryBackend
from corral.forge.judge.model import Entry
from corral.forge.judge.sandboxes import SandboxBench
from corral.forge.outcome import ArtifactFile, Attempt
from corral.forge.settings import Settings
from corral.spec import Spec

OUTPUT = "artifact.md"
GUARD_SECONDS = 60.0
"""A guard against hanging, never something that is waited for."""


def make_round(
    folder: Path, candidate: str, number: int = 1, files: Mapping[str, str | bytes] | None = None, **values: Any
) -> Attempt:
    """One attempt, with its artifacts laid down where `make_entry` says that they are."""
    taken: list[ArtifactFile] = []
    for name, content in (files or {}).items():
        data = content.encode() if isinstance(content, str) else content
        path = folder / candidate / str(number) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        taken.append(ArtifactFile(name, len(data), hashlib.sha256(data).hexdigest()))
    values.setdefault("outcome", "ok" if taken else "no-artifact")
    values.setdefault("exit_code", 0)
    return Attempt(candidate=candidate, round=number, artifacts=tuple(taken), **values)


def make_entry(
    folder: Path,
    candidate: str,
    text: str | bytes | None = "some text",
    *,
    rounds: Sequence[Attempt] = (),
    objective: str = "an objective",
    files: Mapping[str, str | bytes] | None = None,
    **values: Any,
) -> Entry:
    """A candidate with one round whose artifact is that text (None: it has none), or with these rounds."""
    every = dict(files or {}) | ({OUTPUT: text} if text is not None else {})
    attempts = tuple(rounds) or (make_round(folder, candidate, 1, every, **values),)
    return Entry(
        candidate=candidate,
        objective=objective,
        settings=Settings(output=OUTPUT),
        attempts=attempts,
        folders={attempt.round: folder / candidate / str(attempt.round) for attempt in attempts},
    )


def make_bench(backend: MemoryBackend | None = None, **options: Any) -> SandboxBench:
    """A bench on sandboxes in memory."""
    return SandboxBench(backend or MemoryBackend(), Spec(), **({"timeout": GUARD_SECONDS} | options))
