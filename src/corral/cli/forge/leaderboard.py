"""What is shown at the end of a contest: the ranking, the winner, and the winner's artifact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral.cli.display import Alignment, columns, cut, paint, plain, show_seconds, show_size, table, unicode_wanted

if TYPE_CHECKING:
    from corral.forge.judge.model import Standing
    from corral.forge.outcome import Attempt

_MAX_LINES = 30
_MAX_BYTES = 64 * 1024
_MAX_REASON_CHARACTERS = 300


def show_standings(standings: Sequence[Standing], attempts: Iterable[Attempt]) -> None:
    """The table, and below it the candidates without a rank, with the reason."""
    ranked = [standing for standing in standings if standing.rank is not None]
    names = list(dict.fromkeys(name for standing in ranked for name in standing.scores))
    rows = [
        [
            f"{standing.rank}{'=' if standing.tied else ''}",
            standing.candidate,
            f"{standing.total:.1f}",
            *(f"{standing.scores[name].points:.0f}" if name in standing.scores else "" for name in names),
            _seconds(standing),
            show_seconds(standing.cpu_seconds) if standing.cpu_seconds is not None else "",
            show_size(standing.peak_memory_bytes) if standing.peak_memory_bytes is not None else "",
        ]
        for standing in ranked
    ]
    headers = ["", "candidate", "total", *map(plain, names), "time", "CPU", "memory"]
    sides: list[Alignment] = ["right", "left", *(["right"] * (len(headers) - 2))]  # type: ignore[list-item] # both are literals
    for line in table(rows, headers=headers, align=sides, indent=2):
        click.echo(line)
    others = [standing for standing in standings if standing.rank is None]
    for standing in others:
        mark = paint("✗" if unicode_wanted() else "x", "red") if standing.disqualified else "-"
        click.echo(f"  {mark} {standing.candidate}: {plain(_reason(standing))[:_MAX_REASON_CHARACTERS]}")
    again = {attempt.candidate: attempt.retries for attempt in attempts if attempt.retries}
    for candidate, count in sorted(again.items()):
        times = "once" if count == 1 else f"{count} times"
        click.echo(paint(f"  {candidate} was started again {times}, because its sandbox could not be created", "dim"))


def show_winner(standings: Sequence[Standing], artifact: Path | None) -> None:
    """The winner, or a tie."""
    winners = [standing for standing in standings if standing.rank == 1]
    click.echo()
    if not winners:
        tried = any(standing.disqualified for standing in standings)
        click.echo(paint("No candidate passed." if tried else "No candidate could be run.", "bold"))
        return
    names = ", ".join(standing.candidate for standing in winners)
    if len(winners) > 1:
        click.echo(paint(f"A tie: {names} ({winners[0].total:.1f})", "bold"))
        return
    click.echo(paint(f"Winner: {names} ({winners[0].total:.1f})", "bold", "green"))
    if artifact is not None:
        click.echo()
        show_artifact(artifact)


def show_artifact(path: Path) -> None:
    """The beginning of an artifact, which is hostile: bounded, and without control characters."""
    from corral.forge.artifacts import read_artifact

    click.echo(paint(plain(str(path)), "cyan"))
    try:
        content, whole = read_artifact(path.parent, path.name, max_bytes=_MAX_BYTES)
    except OSError as error:
        click.echo(f"  can't be read: {error.strerror or error}")
        return
    bar = paint("│" if unicode_wanted() else "|", "dim")
    if b"\0" in content:
        click.echo(f"{bar} {show_size(path.stat().st_size)}, not text")
        return
    lines = content.decode("utf-8", "replace").splitlines()
    for line in lines[:_MAX_LINES]:
        click.echo(f"{bar} {cut(plain(line), columns() - 3)}".rstrip())
    if len(lines) > _MAX_LINES or not whole:
        more = f"{len(lines) - _MAX_LINES} more lines" if whole else "more"
        click.echo(paint(f"{'…' if unicode_wanted() else '...'} {more}", "dim"))


def _seconds(standing: Standing) -> str:
    if "median" not in standing.seconds:
        return ""
    median = show_seconds(standing.seconds["median"])
    if "low" in standing.seconds and "high" in standing.seconds:
        return f"{median} ({show_seconds(standing.seconds['low'])} to {show_seconds(standing.seconds['high'])})"
    return median


def _reason(standing: Standing) -> str:
    failed = [verdict for verdict in standing.gates if not verdict.passed]
    if not failed:
        return standing.reason or "not ranked"
    # What fails one gate often fails the next ones too: the first says why.
    first = f"{failed[0].gate}: {failed[0].reason}" if failed[0].reason else failed[0].gate
    return first if len(failed) == 1 else f"{first} ({len(failed)} gates)"
