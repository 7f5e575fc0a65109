"""`corral doctor`: tests what this machine supports."""

from __future__ import annotations

import asyncio
import difflib
import sys
from dataclasses import asdict
from typing import Any

import click

from corral.cli.checkup import Finding, Mark, examine
from corral.cli.display import Progress, Style, columns, paint, plain, table, unicode_wanted
from corral.cli.options import json_option
from corral.cli.run import to_json
from corral.testing.hostile import Outcome, Report, Verdict

_SIGNS: dict[Mark, tuple[str, str]] = {"good": ("✓", "+"), "soft": ("~", "~"), "bad": ("✗", "x"), "note": ("·", "-")}


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
    fancy, simple = _SIGNS[mark]
    text = fancy if unicode_wanted() else simple
    if mark == "good":
        return paint(text, "green")
    if mark == "bad":
        return paint(text, "red", "bold")
    return paint(text, "magenta" if mark == "soft" else "dim")


def _show(findings: list[Finding], *, works: bool) -> None:
    size = max(len(finding.subject) for finding in findings)
    area = ""
    told: set[str] = set()
    for finding in findings:
        if finding.area != area:
            area = finding.area
            click.echo(("\n" if finding is not findings[0] else "") + paint(area, "bold"))
        room = columns() - size - 6
        lines = _wrap(plain(finding.text), room)
        click.echo(f"  {sign(finding.mark)} {finding.subject:<{size}}  {lines[0]}")
        for line in lines[1:]:
            click.echo(" " * (size + 6) + line)
        if finding.remedy and finding.remedy not in told:
            told.add(finding.remedy)
            for number, line in enumerate(_wrap(plain(finding.remedy), room - 2)):
                arrow = "→ " if unicode_wanted() else "> "
                click.echo(" " * (size + 6) + paint((arrow if number == 0 else "  ") + line, "cyan"))
    click.echo()
    if works:
        click.echo(paint("Sandboxes work here.", "bold", "green"))
    else:
        click.echo(paint("Sandboxes can't be made here.", "bold", "red"))


def _wrap(text: str, room: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(20, room), break_on_hyphens=False, break_long_words=True) or [""]


def _show_plan() -> int:
    from corral.backends.embedded import EmbeddedBackend, report
    from corral.spec import Spec

    text = asyncio.run(report.describe_plan(EmbeddedBackend(), Spec()))
    click.echo(text, nl=False)
    return 0


# --prove.


def _prove(names: tuple[str, ...], *, as_json: bool) -> int:
    from corral.testing.hostile import ALL

    unknown = set(names) - {probe.name for probe in ALL}
    if unknown:
        near = difflib.get_close_matches(min(unknown), [probe.name for probe in ALL], n=3, cutoff=0.4)
        remedy = f"did you mean {', '.join(near)}?" if near else "`corral doctor --prove` names them all"
        raise click.UsageError(f"no such probe: {', '.join(sorted(unknown))}; {remedy}")
    probes = [probe for probe in ALL if not names or probe.name in names]
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


async def _attack(probes: list[Any], tell: Any) -> Report:
    from corral.backends.embedded.settings import default_data_folder
    from corral.client.registry import get_backend
    from corral.client.sandbox import AsyncSandbox
    from corral.testing.hostile import RESOURCES, plant, prove, soft_limits

    soft = soft_limits(await get_backend("embedded").capabilities())
    with await asyncio.to_thread(plant, data_folder=str(default_data_folder())) as canaries:
        return await prove(
            lambda: AsyncSandbox(resources=RESOURCES), canaries=canaries, probes=probes, on_progress=tell, soft=soft
        )


def _show_report(report: Report) -> None:
    marks: dict[Verdict, Mark] = {
        Verdict.HELD: "good",
        Verdict.BREACHED: "bad",
        Verdict.UNPROVEN: "bad",
        Verdict.UNPROMISED: "soft",
    }
    area = ""
    size = max(len(outcome.probe.name) for outcome in report.outcomes)
    for outcome in report.outcomes:
        if outcome.probe.area != area:
            area = outcome.probe.area
            click.echo(("\n" if outcome is not report.outcomes[0] else "") + paint(area, "bold"))
        mark = marks[outcome.finding.verdict]
        line = f"  {sign(mark)} {outcome.probe.name:<{size}}"
        why = plain(outcome.probe.what_stops_it)
        if mark != "good":
            click.echo(line.rstrip())
            _say_below(outcome.finding.evidence, "red" if mark == "bad" else "magenta")
        elif len(why) + size + 6 <= columns():
            click.echo(f"{line}  {paint(why, 'dim')}")
        else:
            click.echo(line.rstrip())
            _say_below(why, "dim")
    click.echo()
    rows = []
    for area in dict.fromkeys(outcome.probe.area for outcome in report.outcomes):
        mine = [outcome for outcome in report.outcomes if outcome.probe.area == area]
        counts = [sum(outcome.finding.verdict is verdict for outcome in mine) for verdict in Verdict]
        rows.append([area, *(str(count) for count in counts)])
    rows.append(["all", *(str(report.count(verdict)) for verdict in Verdict)])
    headers = ["AREA", *(verdict.upper() for verdict in Verdict)]
    click.echo("\n".join(table(rows, headers=headers, align=["left", "right", "right", "right", "right"], indent=2)))
    click.echo()
    if report.ok:
        unpromised = report.count(Verdict.UNPROMISED)
        rest = f" but {unpromised}, which only a hard limit stops, and the limits here are soft" if unpromised else ""
        click.echo(paint(f"All {len(report.outcomes)} probes were stopped{rest}.", "bold", "green"))
    else:
        wrong = report.count(Verdict.BREACHED) + report.count(Verdict.UNPROVEN)
        click.echo(paint(f"{wrong} of {len(report.outcomes)} probes were not provably stopped.", "bold", "red"))


def _say_below(text: str, style: Style) -> None:
    for piece in _wrap(plain(text), columns() - 6)[:6]:
        click.echo(paint(f"      {piece}", style))
