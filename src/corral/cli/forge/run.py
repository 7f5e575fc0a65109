"""`corral forge run`: run a contest, and show it."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from corral.cli import options
from corral.cli.failure import INTERRUPTED, TERMINATED
from corral.cli.run import note, to_json
from corral.errors import CorralError, RunFolderError

if TYPE_CHECKING:
    from corral.cli.forge.gather import Gathered
    from corral.cli.forge.live import View
    from corral.forge.contest import Contest
    from corral.forge.result import ContestResult


_limit_options = options.together(
    options.setting_option("timeout", type=options.TIME, metavar="TIME",
                           help="How long one run may take. Default: 60."),
    options.setting_option("memory", metavar="SIZE"),
    options.setting_option("cpus", type=float, metavar="N",
                           help="Processors of a sandbox; 0.5 is half of one. Default: 1."),
    options.setting_option("disk", metavar="SIZE"),
    options.setting_option("processes", type=int, metavar="N"),
    options.network_option,
    options.setting_option("image", metavar="IMAGE"),
)  # fmt: skip


@click.command()
@click.argument("names", nargs=-1, metavar="[CANDIDATE…|CONTEST]", shell_complete=options.complete_file)
@click.option("--objective", "-o", metavar="TEXT", help="What all candidates are asked to do.")
@click.option("--judge", metavar="NAME", help="rubric, default, or FILE.py:NAME.")
@click.option("--repeat", type=click.IntRange(min=1), metavar="N", help="Rounds; times are then medians. Default: 1.")
@click.option("--jobs", "-j", type=click.IntRange(min=1), metavar="N",
              help="How many run at once. Default: as many as processors and memory allow.")  # fmt: skip
@click.option("--seed", type=int, metavar="N", help="Shuffles the order of starts. Default: 0.")
@click.option("--pin", is_flag=True, help="Give each run a processor of its own.")
@click.option("--output", metavar="NAME", help="The file that each candidate has to write. Default: artifact.md.")
@click.option(
    "--setup", metavar="TEXT|@FILE", help="A /bin/sh script, run once in the base that all candidates start from."
)
@options.backend_option
@click.option("--daytona", "-d", is_flag=True, help="Run on Daytona if an API key is configured, else on this machine.")
@_limit_options
@options.environment_options
@click.option("--package", "-p", "packages", multiple=True, metavar="NAME", help="A Python package for all candidates.")
@click.option("--artifacts", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Where runs are kept. Default: artifacts.")  # fmt: skip
@click.option("--resume", metavar="RUN", help="Resume an interrupted run: its folder or its id.")
@click.option("--trust", is_flag=True, help="Grant what a contest.toml, a run's folder or .env asks for: a backend, an "
              "address, packages, images, network, files elsewhere, a judge that runs on this machine.")  # fmt: skip
@click.option("--report", "report_file", type=click.Path(path_type=Path), metavar="FILE",
              help="Also write an HTML report.")  # fmt: skip
@click.option("--watch", "watched", is_flag=True, help="Serve a live page on loopback while it runs.")
@click.option("--quiet", "-q", is_flag=True, help="Print the leaderboard only.")
@options.json_option
@click.pass_context
def run(
    context: click.Context, /, names: tuple[str, ...], report_file: Path | None, watched: bool, quiet: bool,
    as_json: bool, **values: Any,
) -> int:  # fmt: skip
    """Run a contest: candidates on one objective, each in its own sandbox.

    A candidate is a script, a folder, or git+PATH@REF. It is run as `script "<objective>" <output file>`: exit code 0
    is success, what it prints is its log, the file is its artifact. CONTEST is a contest.toml or its folder. Without
    arguments: ./contest.toml, else ./candidates/*.py, else the five candidates that ship.

    Exit code 0: there is a winner, or a tie. 1: no candidate passed, or one could not be run
    because its sandbox could not be created. 130: Ctrl-C (143: SIGTERM); the results so far are kept and shown, and
    the run can be resumed.

    \b
    corral forge run
    corral forge run fast.py thorough.py -o 'Summarise the data' --repeat 5
    corral forge run my-contest/ --report report.html
    corral forge run --resume artifacts/20260101-120000-abcdef
    """
    from corral.cli.forge import dreamfoundry
    from corral.cli.forge.gather import Flags, gather
    from corral.forge.dreamfoundry import falls_back, write_lines

    request = gather(names, Flags(context, values))
    for text in request.notes:
        note(text)
    stream = sys.stderr if as_json else sys.stdout
    shown = not quiet and not (as_json and not stream.isatty())
    if request.is_dream_foundry:
        dreamfoundry.begin(request, stream if shown else None)
    else:
        _say_where(request, stream)
    done = _run_contest(request, stream, shown=shown, watched=watched, report_file=report_file, as_json=as_json)
    if (
        isinstance(done, _Finished)
        and request.is_dream_foundry
        and request.is_remote
        and (why := dreamfoundry.had_no_sandbox(done.result))
    ):
        # No candidate got a sandbox there. Times are comparable only if all run in one place, so all run here.
        write_lines(stream if shown else sys.stderr, falls_back(why))
        request = replace(request, backend="embedded")
        done = _run_contest(request, stream, shown=shown, watched=watched, report_file=report_file, as_json=as_json)
    if isinstance(done, int):
        return done
    result = done.result
    if request.is_dream_foundry:
        for text in dreamfoundry.conclude(request, result, None if as_json else stream):
            note(text)
    if as_json:
        click.echo(to_json(result.to_json()))
    else:
        _show(result, shown=request.is_dream_foundry)
        if not result.complete:
            note(f"some candidates could not be run; to resume: {done.resume}")
        if watched:
            note(f"to look at it again: {shlex.join(['corral', 'forge', 'watch', str(done.folder)])}")
    _write_report(done.folder, report_file, quiet=as_json)
    return 0 if result.winners and result.complete else 1


@dataclass(frozen=True, slots=True)
class _Finished:
    """A contest that ran to its end."""

    result: ContestResult
    folder: Path
    resume: str


def _run_contest(
    request: Gathered, stream: TextIO, *, shown: bool, watched: bool, report_file: Path | None, as_json: bool
) -> _Finished | int:
    """Run it, and show it. Returns an exit code if it was interrupted."""
    from corral.cli.forge.dreamfoundry import DreamFoundryLines
    from corral.cli.forge.live import choose_view
    from corral.forge.contest import Contest
    from corral.forge.ids import new_run_id

    view: View = choose_view(stream, quiet=not shown)
    if request.is_dream_foundry and shown:
        view = DreamFoundryLines(stream, {candidate.id: candidate.name for candidate in request.candidates})
    contest = Contest(
        request.candidates, request.objective, request.judge, backend=request.backend,
        artifacts_dir=request.artifacts, on_event=view, settings=request.settings,
    )  # fmt: skip
    run_id = new_run_id()
    folder = request.resumed.path if request.resumed is not None else request.artifacts / run_id
    resume = shlex.join(["corral", "forge", "run", "--resume", str(folder), *request.again])
    try:
        with _ended_as_by_hand() as terminated:
            result = asyncio.run(_run(contest, request, view, run_id, folder, watched=watched))
    except KeyboardInterrupt:
        _show_rest(folder, report_file, resume, as_json=as_json)
        return TERMINATED if terminated else INTERRUPTED
    except Exception as error:
        if not isinstance(error, BrokenPipeError | RunFolderError) and _was_begun(folder):
            note(f"the results so far are in {folder}; to resume: {resume}")
        raise
    return _Finished(result, folder, resume)


def _say_where(request: Gathered, stream: TextIO) -> None:
    for text in request.remarks:
        note(text)
    if request.says_where:
        from corral.forge.dreamfoundry import execution

        click.echo(execution(remote=request.is_remote), file=stream)


@contextlib.contextmanager
def _ended_as_by_hand() -> Iterator[list[int]]:
    """SIGTERM does what Ctrl-C does: a service manager's stop must not lose results. Yields the signals received."""
    seen: list[int] = []

    def end(number: int, frame: object) -> None:
        seen.append(number)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGTERM, before)


async def _run(
    contest: Contest, request: Gathered, view: View, run_id: str, folder: Path, *, watched: bool
) -> ContestResult:
    from corral.forge.watch import WatchServer

    async with contextlib.AsyncExitStack() as stack:
        if watched:
            server = await stack.enter_async_context(WatchServer(folder))
            note(f"to watch: {server.url}")
        await stack.enter_async_context(view.shown())
        if request.resumed is not None:
            return await contest.run(resume=request.resumed.path)
        return await contest.run(run_id=run_id)


def _was_begun(folder: Path) -> bool:
    """Whether there are results to continue from."""
    from corral.forge.runfolder import read_run

    try:
        return bool(read_run(folder).attempts)
    except CorralError:
        return False


def _show(result: ContestResult, *, shown: bool) -> None:
    """The winner. `shown`: the table is on the screen already."""
    from corral.cli.display import paint, plain, show_seconds
    from corral.cli.forge.leaderboard import show_standings, show_winner

    if not shown:
        click.echo(f"{paint(plain(result.objective), 'bold')}\n")
        show_standings(result.standings, result.attempts)
        show_winner(result.standings, result.winner_artifact)
    click.echo()
    click.echo(paint(f"{result.folder}  ({show_seconds(result.seconds)})", "dim"))


def _show_rest(folder: Path, report_file: Path | None, resume: str, *, as_json: bool) -> None:
    """After Ctrl-C: the results so far, and how to resume."""
    from corral.cli.display import show_seconds
    from corral.forge.runfolder import read_run

    try:
        found = read_run(folder)
    except CorralError:
        note("interrupted before the first run started")
        return
    _write_report(folder, report_file)
    if as_json:
        ended = [attempt.to_json() for attempt in found.attempts.values()]
        click.echo(to_json({"run": found.run_id, "state": "interrupted", "complete": False, "winners": [],
                            "standings": [], "attempts": ended}))  # fmt: skip
    else:
        for attempt in found.attempts.values():
            if attempt.finished:
                click.echo(
                    f"  {attempt.candidate} {attempt.round}: {attempt.outcome} in {show_seconds(attempt.seconds)}"
                )
    done = sum(1 for attempt in found.attempts.values() if attempt.finished)
    note(f"interrupted: {done} of {len(found.definition.get('order', ()))} runs are done and kept; to resume: {resume}")


def _write_report(folder: Path, report_file: Path | None, *, quiet: bool = True) -> None:
    if report_file is None:
        return
    from corral.forge.report import write_report
    from corral.forge.runfolder import read_run

    written = write_report(read_run(folder), report_file)
    if not quiet:
        click.echo(str(written))
