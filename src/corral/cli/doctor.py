"""`corral doctor`: tests what this machine supports."""

from __future__ import annotations

import asyncio
import difflib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TypeVar

import click

from corral.cli.checkup import Finding, Mark, examine
from corral.cli.display import Progress, Style, columns, paint, plain, print_table, unicode_wanted
from corral.cli.options import json_option
from corral.cli.run import to_json
from corral.testing.hostile import Outcome, Probe, Report, Verdict

T = TypeVar("T")

_SIGNS: dict[Mark, tuple[str, str, tuple[Style, ...]]] = {
    "good": ("✓", "+", ("green",)),
    "soft": ("~", "~", ("magenta",)),
    "bad": ("✗", "x", ("red", "bold")),
    "note": ("·", "-", ("dim",)),
}
"""The sign of each mark, with and without Unicode, and its styles."""
_MARKS: dict[Verdict, Mark] = {
    Verdict.HELD: "good",
    Verdict.BREACHED: "bad",
    Verdict.UNPROVEN: "bad",
    Verdict.UNPROMISED: "soft",
}


@click.command()
@click.option("--prove", is_flag=True, help="Attack a sandbox with every hostile probe, and show which were stopped.")
@click.option("--probe", "names", multiple=True, metavar="NAME", help="With --prove: only these probes.")
@click.option("--plan", is_flag=True, help="Print the kernel operations step by step, without doing them.")
@json_option
def doctor(prove: bool, names: tuple[str, ...], plan: bool, as_json: bool) -> int:
    """Report what this machine supports, and how to get the rest.

    Exits with 1 if sandboxes can't be created, or with --prove if a probe was not stopped.

    \b
    corral doctor
    corral doctor --prove                 attacks its own sandbox: about two minutes
    corral doctor --plan
    """
    if plan:
        return _show_plan()
    if prove or names:
        return _prove(names, as_json=as_json)
    with Progress() as progress:
        progress.show("looking around …")
        findings, works = asyncio.run(examine(progress.show))
    if as_json:
        click.echo(to_json({"works": works, "findings": [asdict(finding) for finding in findings]}))
    else:
        _show(findings, works=works)
    return 0 if works else 1


def sign(mark: Mark) -> str:
    """The symbol of a mark."""
    fancy, simple, styles = _SIGNS[mark]
    return paint(fancy if unicode_wanted() else simple, *styles)


def _show(findings: list[Finding], *, works: bool) -> None:
    size = max(len(finding.subject) for finding in findings)
    margin = " " * (size + 6)
    told: set[str] = set()
    for finding in _under_headings(findings, lambda finding: finding.area):
        first, *others = _wrap(plain(finding.text), columns() - len(margin))
        click.echo(f"  {sign(finding.mark)} {finding.subject:<{size}}  {first}")
        for line in others:
            click.echo(margin + line)
        if finding.remedy and finding.remedy not in told:
            told.add(finding.remedy)
            for number, line in enumerate(_wrap(plain(finding.remedy), columns() - len(margin) - 2)):
                arrow = "→ " if unicode_wanted() else "> "
                click.echo(margin + paint((arrow if number == 0 else "  ") + line, "cyan"))
    click.echo()
    if works:
        click.echo(paint("Sandboxes work here.", "bold", "green"))
    else:
        click.echo(paint("Sandboxes can't be created here.", "bold", "red"))


def _under_headings(items: Iterable[T], area_of: Callable[[T], str]) -> Iterator[T]:
    """The same items; prints the name of each area before its first item."""
    for number, (area, found) in enumerate(itertools.groupby(items, key=area_of)):
        click.echo(("\n" if number else "") + paint(area, "bold"))
        yield from found


def _wrap(text: str, room: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(20, room), break_on_hyphens=False, break_long_words=True) or [""]


def _show_plan() -> int:
    from corral.backends.embedded import EmbeddedBackend, report
    from corral.spec import Spec

    click.echo(asyncio.run(report.describe_plan(EmbeddedBackend(), Spec())), nl=False)
    return 0


# --prove.


def _prove(names: tuple[str, ...], *, as_json: bool) -> int:
    from corral.testing.hostile import ALL, WINDOW

    every = (*ALL, *WINDOW)
    unknown = set(names) - {probe.name for probe in every}
    if unknown:
        known = [probe.name for probe in every]
        within = [name for name in known if min(unknown) in name]
        near = within[:3] or difflib.get_close_matches(min(unknown), known, n=3)
        remedy = f"did you mean {', '.join(near)}?" if near else f"the probes are {', '.join(sorted(known))}"
        raise click.UsageError(f"no such probe: {', '.join(sorted(unknown))}; {remedy}")
    probes = [probe for probe in every if not names or probe.name in names]
    progress = Progress()
    seen: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        seen.append(outcome)
        done = f"{len(seen)}/{len(probes)}"
        if sys.stderr.isatty():
            progress.show(f"{done}  {outcome.probe.area}: {outcome.probe.name}  {outcome.finding.verdict}")

    with progress:
        progress.show("opening a sandbox to attack …")
        report = asyncio.run(_attack(probes, tell))
    if as_json:
        click.echo(to_json({"ok": report.ok, "probes": [outcome.to_json() for outcome in report.outcomes]}))
    else:
        _show_report(report)
    return 0 if report.ok else 1


async def _attack(probes: list[Probe], tell: Callable[[Outcome], None]) -> Report:
    """Attack a sandbox here, and then windows on the test ground, where nothing leads out."""
    from corral.backends.embedded.settings import default_data_folder
    from corral.client.registry import get_backend
    from corral.client.sandbox import AsyncSandbox
    from corral.testing.hostile import RESOURCES, plant, prove, soft_limits
    from corral.testing.hostile.onground import besiege_on_ground

    here = [probe for probe in probes if probe.area != "window"]
    outcomes: list[Outcome] = []
    if here:
        soft = soft_limits(await get_backend("embedded").capabilities())
        with await asyncio.to_thread(plant, data_folder=str(default_data_folder())) as canaries:
            report = await prove(
                lambda: AsyncSandbox(resources=RESOURCES), canaries=canaries, probes=here, on_progress=tell, soft=soft
            )
            outcomes += report.outcomes
    async with besiege_on_ground(default_data_folder()) as siege:
        for probe in probes:
            if probe.area == "window":
                outcomes.append(await siege.try_probe(probe))
                tell(outcomes[-1])
    return Report(tuple(outcomes))


def _show_report(report: Report) -> None:
    size = max(len(outcome.probe.name) for outcome in report.outcomes)
    for outcome in _under_headings(report.outcomes, lambda outcome: outcome.probe.area):
        mark = _MARKS[outcome.finding.verdict]
        line = f"  {sign(mark)} {outcome.probe.name:<{size}}"
        why = plain(outcome.probe.what_stops_it)
        if mark == "good" and len(why) + size + 6 <= columns():
            click.echo(f"{line}  {paint(why, 'dim')}")
            continue
        click.echo(line.rstrip())
        style: Style = "dim" if mark == "good" else _SIGNS[mark][2][0]
        for piece in _wrap(why if mark == "good" else plain(outcome.finding.evidence), columns() - 6)[:6]:
            click.echo(paint(f"      {piece}", style))
    click.echo()
    counts = Counter((outcome.probe.area, outcome.finding.verdict) for outcome in report.outcomes)
    rows = [
        [area, *(str(counts[area, verdict]) for verdict in Verdict)]
        for area in dict.fromkeys(outcome.probe.area for outcome in report.outcomes)
    ]
    rows.append(["all", *(str(report.count(verdict)) for verdict in Verdict)])
    headers = ["AREA", *(verdict.upper() for verdict in Verdict)]
    print_table(rows, headers=headers, align=["left", "right", "right", "right", "right"], indent=2)
    click.echo()
    if report.ok:
        unpromised = report.count(Verdict.UNPROMISED)
        rest = f" but {unpromised}, which only a hard limit stops, and the limits here are soft" if unpromised else ""
        click.echo(paint(f"All {len(report.outcomes)} probes were stopped{rest}.", "bold", "green"))
    else:
        wrong = report.count(Verdict.BREACHED) + report.count(Verdict.UNPROVEN)
        click.echo(paint(f"{wrong} of {len(report.outcomes)} probes were not provably stopped.", "bold", "red"))
