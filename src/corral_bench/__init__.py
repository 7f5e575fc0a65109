"""`corral bench`: latency and density here, beside the peers that are installed."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

import corral
from corral.cli.display import Alignment, Progress, Style, paint, plain, print_table, show_seconds, show_size
from corral.cli.options import json_option
from corral.cli.run import to_json
from corral_bench.attacks import ATTACKS
from corral_bench.contest import Row, hold_contest
from corral_bench.figure import measure_figures
from corral_bench.measuring import Figure
from corral_bench.peer import Peer, find_peers

_QUICK_SCALE = 0.05
"""The scale of the attacks with `--quick`."""


@click.command()
@click.option("--runs", "-n", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
              help="Repetitions of each measurement; the median is shown.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=200, show_default=True, metavar="N",
              help="How many sandboxes are created and closed before leaks are counted.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Five runs, twenty rounds, less output.")
@click.option("--server", "of_server", is_flag=True,
              help="Measure `corral serve` instead, through the official SDK.")  # fmt: skip
@click.option("--restart", type=click.IntRange(min=0), default=200, show_default=True, metavar="N",
              help="With --server: the number of sandboxes when it is killed and restarted.")  # fmt: skip
@click.option("--forge", "of_forge", is_flag=True, help="Measure the overhead of a contest instead.")
@click.option("--candidates", type=click.IntRange(min=2), default=200, show_default=True, metavar="N",
              help="With --forge: the number of candidates.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0.01), default=1.0, show_default=True, metavar="S",
              help="With --forge: how long each of them sleeps.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, metavar="N",
              help="With --forge: how many run at once.")  # fmt: skip
@click.option("--tenants", "of_tenants", is_flag=True,
              help="Attack `corral serve` with one key, and measure how long a second one waits.")  # fmt: skip
@click.option("--window", "of_window", is_flag=True,
              help="Measure what a network policy costs, and throughput beside a plain relay.")  # fmt: skip
@click.option("--attack", "attacks", multiple=True, type=click.Choice(tuple(ATTACKS)),
              help="With --tenants: only this attack; may be repeated.")  # fmt: skip
@json_option
def bench(
    runs: int, rounds: int, quick: bool, of_server: bool, restart: int, of_forge: bool, candidates: int,
    seconds: float, jobs: int, of_tenants: bool, of_window: bool, attacks: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    """Benchmark sandboxes against plain subprocesses, and against bubblewrap, firejail and Docker
    where they are installed.

    All contestants take turns in one run, so that ratios hold on a busy machine too. Every defence is on.

    \b
    corral bench
    corral bench --runs 100 --json
    corral bench --server --restart 200
    corral bench --forge --candidates 200 --jobs 2
    corral bench --tenants
    corral bench --window
    """
    if quick:
        runs, rounds, restart, candidates = min(runs, 5), min(rounds, 20), min(restart, 20), min(candidates, 20)
    if of_server + of_forge + of_tenants + of_window > 1:
        raise click.UsageError("--server, --forge, --tenants and --window can't be combined")
    if of_window:
        return _bench_window(runs=runs, as_json=as_json)
    if of_tenants:
        return _bench_tenants(attacks, scale=_QUICK_SCALE if quick else 1.0, as_json=as_json)
    if of_forge:
        return _bench_forge(candidates=candidates, seconds=seconds, jobs=jobs, as_json=as_json)
    if of_server:
        return _bench_server(runs=runs, restart=restart, as_json=as_json)
    with Progress() as progress:
        progress.show("looking for peers …")
        peers, notes = find_peers()
        rows = asyncio.run(hold_contest(peers, runs=runs, tell=progress.show))
        figures = asyncio.run(measure_figures(rounds=rounds, tell=progress.show))
    if as_json:
        contest = [{"task": row.task, "median_seconds": row.medians, "ratio_to_plain": row.ratios} for row in rows]
        click.echo(to_json({**_describe(figures, runs=runs), "contest": contest, "notes": notes}))
    else:
        _show(rows, figures, peers, runs=runs, notes=notes)
    return 0 if all(figure.good for figure in figures) else 1


def _bench_server(*, runs: int, restart: int, as_json: bool) -> int:
    from corral.cli.serve import need_server

    need_server()
    from corral_bench import server

    with Progress() as progress:
        calls, figures = asyncio.run(server.measure(runs=runs, restart=restart, tell=progress.show))
    if as_json:
        contest = [{**asdict(call), "ratio": call.ratio} for call in calls]
        click.echo(to_json({**_describe(figures, runs=runs), "calls": contest}))
        return 0
    click.echo(paint(f"Calls through the official SDK, medians of {runs}, all taking turns", "bold"))
    headers = ["", "our server", "constant", "engine alone", "ratio"]
    lines = [
        [call.task, *map(show_seconds, (call.ours, call.constant, call.engine)), f"×{call.ratio:.2f}"] for call in calls
    ]
    print_table(lines, headers=headers, align=["left", "right", "right", "right", "right"], indent=2)
    click.echo(paint("  constant: the same call to a server that always gives the same answer", "dim"))
    click.echo(paint("  ratio: (our server − engine alone) ÷ constant", "dim"))
    click.echo()
    _show_figures(figures)
    click.echo(paint("  plain copy ×: how many times as long as copying the file on the host", "dim"))
    if restart:
        click.echo(paint("  ready again: from the start of the process until it listens", "dim"))
    return 0


def _bench_tenants(attacks: tuple[str, ...], *, scale: float, as_json: bool) -> int:
    from corral.cli.serve import need_server

    need_server()
    from corral_bench import tenants

    with Progress() as progress:
        endured = asyncio.run(tenants.measure(names=attacks, scale=scale, tell=progress.show))
    if as_json:
        told = [{**asdict(each), "good": each.good} for each in endured]
        click.echo(to_json({**_describe(), "scale": scale, "attacks": told}))
    else:
        click.echo(paint("While one tenant attacks, a second one makes cheap calls", "bold"))
        headers = ["", "longest wait", "the server grew", "took", "answers"]
        lines = [
            [
                each.what,
                paint(show_seconds(each.longest_wait_seconds), _good(each.longest_wait_seconds, tenants.WAIT_SECONDS)),
                paint(show_size(each.grown_bytes), _good(each.grown_bytes, tenants.GROWTH_BYTES)),
                show_seconds(each.seconds),
                " ".join(f"{status}×{count}" for status, count in each.answers.items())
                + (f"; {each.failed} of the second tenant's calls failed" if each.failed else ""),
            ]
            for each in endured
        ]
        print_table(lines, headers=headers, align=["left", "right", "right", "right"], indent=2)
        aims = f"at most {show_seconds(tenants.WAIT_SECONDS)} and {show_size(tenants.GROWTH_BYTES)}"
        click.echo(paint(f"  aim, on an idle machine: {aims}; an answer of 0 is a connection that was cut", "dim"))
    return 0 if all(each.good for each in endured) else 1


def _good(value: float, most: float) -> Style:
    return "green" if value <= most else "red"


def _bench_window(*, runs: int, as_json: bool) -> int:
    from corral_bench import network

    with Progress() as progress:
        costs = asyncio.run(network.measure(runs=runs, tell=progress.show))
    if as_json:
        click.echo(to_json({**_describe(costs.figures, runs=runs), "medians": costs.medians}))
    else:
        click.echo(paint(f"A window, medians of {runs}, with and without taking turns", "bold"))
        _show_figures(costs.figures)
        click.echo(paint("  relay: a process that copies bytes between two connections, and nothing else", "dim"))
    return 0 if all(figure.good for figure in costs.figures) else 1


def _bench_forge(*, candidates: int, seconds: float, jobs: int, as_json: bool) -> int:
    from corral_bench import forge

    with Progress() as progress:
        figures = asyncio.run(forge.measure(candidates=candidates, seconds=seconds, jobs=jobs, tell=progress.show))
    if as_json:
        click.echo(to_json(_describe(figures)))
    else:
        click.echo(paint("A contest beside its candidates' own time", "bold"))
        _show_figures(figures)
    return 0 if all(figure.good for figure in figures) else 1


def _describe(figures: Sequence[Figure] = (), *, runs: int = 1) -> dict[str, Any]:
    about = {
        "version": corral.__version__,
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "runs": runs,
    }
    return about | ({"figures": [figure.to_json() for figure in figures]} if figures else {})


def _show(rows: list[Row], figures: list[Figure], peers: list[Peer], *, runs: int, notes: list[str]) -> None:
    click.echo(paint(f"Latency, medians of {runs}, contestants taking turns", "bold"))
    names = ["corral", *(peer.name for peer in peers)]
    lines = []
    for row in rows:
        cells = [row.task]
        for name in names:
            ratio = row.ratios.get(name)
            cells.append(show_seconds(row.medians[name]) if name in row.medians else "-")
            if name != "plain":
                cells.append(f"×{ratio:.1f}" if ratio is not None else "")
        lines.append(cells)
    headers = [""]
    for name in names:
        headers += [name] if name == "plain" else [name, ""]
    sides: list[Alignment] = ["left" if index == 0 else "right" for index in range(len(headers))]
    print_table(lines, headers=headers, align=sides, indent=2)
    click.echo(paint("  × is the ratio to the plain subprocess", "dim"))
    for note in notes:
        click.echo(paint(f"  {plain(note)}", "dim"))
    click.echo()
    click.echo(paint("Promises", "bold"))
    _show_figures(figures)


def _show_figures(figures: Sequence[Figure]) -> None:
    lines = [[each.what, paint(each.text, "green" if each.good else "red"), each.detail] for each in figures]
    print_table(lines, align=["left", "right"], indent=2)
