"""What the known command prints, line by line: `run_forge` and `corral forge run --daytona` say the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

ARTIFACT = "discord_post.md"
"""What a candidate wrote lies at `<artifacts>/<candidate's id>/` under this name."""
_RULE, _THIN = "=" * 60, "-" * 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLine:
    """A candidate in the table."""

    candidate_id: str
    word: Literal["PASS", "FAIL", "VOID"]
    """VOID: it had no sandbox, so it has not lost either."""
    quality: float = 0.0
    speed: float = 0.0
    total: float = 0.0


def heading(objective: str, candidates: int, *, remote: bool, remarks: Iterable[str] = ()) -> list[str]:
    """The banner, and where candidates run. Remarks say what is special about that."""
    return [
        _RULE, "DREAM FOUNDRY - Forge Loop", _RULE, f"Objective: {objective}", f"Candidates: {candidates}",
        execution(remote=remote), *(f"({remark})" for remark in remarks), "", "PHASE: Running Candidates", _THIN,
    ]  # fmt: skip


def execution(*, remote: bool) -> str:
    """Where candidates run."""
    return f"Execution: {'DAYTONA' if remote else 'LOCAL'}"


def falls_back(reason: str) -> list[str]:
    """When nobody had a sandbox on the service."""
    return ["", f"({reason}: falling back to local)", execution(remote=False)]


def candidate_lines(name: str, *, error: str | None, has_artifact: bool, seconds: float) -> list[str]:
    """How one candidate went."""
    lines = ["", f"[{name}]", f"  [Run] Starting {name}..."]
    if error:
        lines.append(f"  [Error] {error}")
    elif has_artifact:
        lines.append("  [Done] Output produced")
    return [*lines, f"  [Done] {seconds:.1f}s"]


def scoring(table: Iterable[ScoreLine], winners: Sequence[str], best: float, artifacts: Path) -> list[str]:
    """The table, the winner, and where its artifact is."""
    lines = ["", _RULE, "PHASE: Scoring", _THIN]
    lines += [f"{'Candidate':<12} {'Success':>8} {'Quality':>8} {'Speed':>8} {'TOTAL':>8}", "-" * 46]
    lines += [
        f"{line.candidate_id:<12} {line.word:>8} {line.quality:8.1f} {line.speed:8.1f} {line.total:8.1f}"
        for line in table
    ]
    lines += ["", f"Winner: {winners[0]} ({best:.1f})" if winners else "Winner: none, nobody passed"]
    if len(winners) > 1:
        lines.append(f"A tie: {', '.join(winners)}")
    if winners:
        lines.append(f"Artifact: {artifacts / winners[0] / ARTIFACT}")
    return lines


def write_lines(out: TextIO | None, lines: Iterable[str]) -> None:
    """Lines for people. What candidates said has nothing in it that a terminal would obey."""
    if out is not None:
        for line in lines:
            out.write("".join(each if each.isprintable() else "?" for each in line) + "\n")
        out.flush()


def forget_artifact(folder: Path, candidate_id: str) -> None:
    """What an earlier run left must not look like this one's. Raises: OSError."""
    (folder / candidate_id / ARTIFACT).unlink(missing_ok=True)


def keep_artifact(folder: Path, candidate_id: str, content: bytes) -> None:
    """Lay down what a candidate wrote: whole, or not at all. Raises: OSError."""
    target = folder / candidate_id / ARTIFACT
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{ARTIFACT}.partial")
    partial.write_bytes(content)
    partial.replace(target)
