"""`corral forge list`, `report`, `replay`, `compare` and `watch`: showing runs, during and after them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corral.cli import options
from corral.cli.display import paint, plain, print_table, show_seconds, show_size, unicode_wanted
from corral.cli.run import to_json
from corral.errors import CorralError, RunFolderError

if TYPE_CHECKING:
    from corral.forge.compare import CandidateChange, Change, Comparison
    from corral.forge.runfolder import Run

_MAX_DIFFERENCES = 30
_LEADS_ON = """\
<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>Corral</title>
<meta http-equiv="refresh" content="0;url={url}"><p><a href="{url}">The live page</a></p>
"""
_MAX_VALUE_CHARACTERS = 60

_artifacts = click.option(
    "--artifacts", type=click.Path(path_type=Path, file_okay=False), default="artifacts", metavar="DIR",
    help="Where runs are kept. Default: artifacts.",
)  # fmt: skip


def find_run(name: Path | str, artifacts: Path) -> Run:
    """A run by its folder, or by its id below the artifacts' folder. Raises: RunFolderError."""
    from corral.forge.runfolder import read_run

    path = Path(name)
    if not path.exists() and (artifacts / path).is_dir():
        path = artifacts / path
    return read_run(path)


def list_run_folders(artifacts: Path) -> list[Path]:
    """Folders of runs, the newest last: an id begins with its time."""
    if not artifacts.is_dir():
        return []
    return sorted(path.parent for path in artifacts.glob("*/run.json"))


def newest_run(artifacts: Path) -> Run:
    """The newest run. Raises: RunFolderError if the folder has no run."""
    from corral.forge.runfolder import read_run

    found = list_run_folders(artifacts)
    if not found:
        raise RunFolderError(f"no runs in {str(artifacts)!r}", hint="start one: corral forge run")
    newest = max(found, key=lambda path: ((path / "run.json").stat().st_mtime, path.name))
    return read_run(newest)


@click.command("list")
@_artifacts
@options.json_option
def list_runs(artifacts: Path, as_json: bool) -> int:
    """List the runs in a folder, the newest last."""
    from corral.forge.runfolder import read_run

    found: list[dict[str, Any]] = []
    for folder in list_run_folders(artifacts):
        try:
            run = read_run(folder)
        except CorralError as error:
            click.echo(f"corral: {plain(error.message)}", err=True)
            continue
        state = "broken off" if run.state == "running" and not run.is_held() else run.state
        found.append({
            "run": run.run_id, "state": state, "seconds": round(run.seconds, 3), "winners": run.winners,
            "candidates": len(run.definition["candidates"]), "objective": run.objective, "folder": str(folder),
        })  # fmt: skip
    if as_json:
        click.echo(to_json(found))
        return 0
    rows = [
        [
            row["run"], plain(row["state"]), show_seconds(row["seconds"]), str(row["candidates"]),
            plain(", ".join(row["winners"]) or "-"), plain(row["objective"]),
        ]
        for row in found
    ]  # fmt: skip
    headers = ["run", "state", "took", "candidates", "winner", "objective"]
    print_table(rows, headers=headers, align=["left", "left", "right", "right"])
    return 0


@click.command()
@click.argument("run", metavar="RUN", shell_complete=options.complete_file)
@click.option("--out", "-o", "target", type=click.Path(path_type=Path), metavar="FILE",
              help="The page. Default: report.html in the run's folder.")  # fmt: skip
@_artifacts
def report(run: str, target: Path | None, artifacts: Path) -> int:
    """Write a run as one self-contained HTML page, to share."""
    from corral.forge.report import write_report

    found = find_run(run, artifacts)
    click.echo(str(write_report(found, target if target is not None else found.path / "report.html")))
    return 0


@click.command()
@click.argument("run", metavar="RUN", shell_complete=options.complete_file)
@click.option("--speed", type=click.FloatRange(min=0), default=1.0, metavar="N",
              help="2 is twice as fast, 0 is without pauses. Default: 1.")  # fmt: skip
@_artifacts
def replay(run: str, speed: float, artifacts: Path) -> int:
    """Show a run again, as it happened."""
    from corral.cli.forge.leaderboard import show_standings, show_winner
    from corral.cli.forge.live import choose_view
    from corral.forge.replay import replay as tell_again

    found = find_run(run, artifacts)
    view = choose_view(sys.stdout, speed=speed)

    async def work() -> None:
        async with view.shown():
            async for event in tell_again(found, speed=speed):
                view(event)

    asyncio.run(work())
    click.echo(f"{paint(plain(found.objective), 'bold')}\n")
    show_standings(found.standings, found.attempts.values())
    show_winner(found.standings, _winner_artifact(found))
    return 0


def _winner_artifact(run: Run) -> Path | None:
    output = str(run.definition.get("settings", {}).get("output", "artifact.md"))
    for (candidate, number), attempt in sorted(run.attempts.items()):
        if [candidate] == run.winners and attempt.ok:
            return run.artifacts(candidate, number) / output
    return None


@click.command()
@click.argument("first", metavar="A", shell_complete=options.complete_file)
@click.argument("second", metavar="B", shell_complete=options.complete_file)
@_artifacts
@options.json_option
def compare(first: str, second: str, artifacts: Path, as_json: bool) -> int:
    """Compare two runs: their settings, candidates and results."""
    from corral.forge.compare import compare_runs

    found = compare_runs(find_run(first, artifacts), find_run(second, artifacts))
    if as_json:
        click.echo(to_json(found.to_json()))
    else:
        _show_comparison(found)
    return 0


def _show_comparison(found: Comparison) -> None:
    arrow = "→" if unicode_wanted() else "->"
    click.echo(f"{found.run_a} {arrow} {found.run_b}")
    click.echo(f"winner: {plain(', '.join(found.winners_a) or '-')} {arrow} {plain(', '.join(found.winners_b) or '-')}")
    for each in found.settings[:_MAX_DIFFERENCES]:
        click.echo(f"  {plain(each.name)}: {_value(each.a)} {arrow} {_value(each.b)}")
    if len(found.settings) > _MAX_DIFFERENCES:
        click.echo(f"  and {len(found.settings) - _MAX_DIFFERENCES} more differences")
    for names, where in ((found.only_a, found.run_a), (found.only_b, found.run_b)):
        if names:
            click.echo(f"  only in {where}: {plain(', '.join(names))}")
    rows = [_row(each, arrow) for each in found.candidates]
    headers = ["candidate", "rank", "total", "time", "memory", "outcome", "artifacts"]
    click.echo()
    print_table(rows, headers=headers, indent=2)


def _row(each: CandidateChange, arrow: str) -> list[str]:
    def both(change: Change, show: str = "") -> str:
        words = [
            "-" if value is None else show_seconds(value) if show == "s" else show_size(value) if show == "B" else
            f"{value:{show}}" for value in (change.a, change.b)
        ]  # fmt: skip
        return words[0] if words[0] == words[1] else f"{words[0]} {arrow} {words[1]}"

    seconds = both(each.seconds, "s")
    if each.intervals_overlap:
        seconds += " (may be chance)"
    artifacts = "same" if each.artifacts_same else "changed"
    return [
        each.id if each.source_same else f"{each.id} (changed)", both(each.rank), both(each.total, ".1f"), seconds,
        both(each.memory_bytes, "B"),
        each.outcome_a if each.outcome_a == each.outcome_b else f"{each.outcome_a} {arrow} {each.outcome_b}", artifacts,
    ]  # fmt: skip


def _value(value: object) -> str:
    text = plain(str(value))
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"


@contextlib.contextmanager
def _opened(url: str) -> Iterator[None]:
    """Open the address in a browser. Every user of the machine can read the arguments of a program, so the browser gets
    a file with a redirect, which only this user can read."""
    import tempfile
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="corral-watch-") as folder:  # of mode 0700
        page = Path(folder) / "open.html"
        descriptor = os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_LEADS_ON.format(url=url))
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()  # some wait for its end
        yield


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=options.complete_file)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Default: any free port.")
@click.option("--open", "open_page", is_flag=True, help="Open it in the browser.")
@_artifacts
def watch(run: str | None, port: int, open_page: bool, artifacts: Path) -> int:
    """Serve a run as a live page, on this machine only, until Ctrl-C. Without RUN: the newest."""
    from corral.forge.watch import WatchServer

    found = find_run(run, artifacts) if run is not None else newest_run(artifacts)

    async def work() -> None:
        async with WatchServer(found.path, port=port) as server:
            click.echo(f"{found.run_id}: {server.url}")
            with _opened(server.url) if open_page else contextlib.nullcontext():
                await asyncio.get_running_loop().create_future()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(work())
    return 0
