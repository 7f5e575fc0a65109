"""The rest of the page: the objective, each candidate, its logs and artifacts, and how to repeat the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from corral.forge.outcome import ArtifactFile, Attempt, Refused
from corral.forge.overview import CandidateRow, Overview
from corral.forge.pages.text import escape, show_seconds, show_size
from corral.forge.report.charts import Mark, draw_rounds, draw_scatter
from corral.forge.report.embed import Embedded
from corral.forge.report.leaderboard import chip
from corral.forge.report.parts import bar, block, facts, flatten, line, name, table

_MAX_MANIFEST_ROWS = 2000
_MAX_DETAILS = 40


def write_header(overview: Overview) -> str:
    """The objective, the time and the settings."""
    versions = overview.run.definition.get("versions")
    versions = versions if isinstance(versions, Mapping) else {}
    settings, started = overview.settings, str(overview.run.definition.get("started", ""))
    pairs = [
        ("Run", f"<code>{line(overview.run.run_id)}</code>"),
        ("Started", f'<time datetime="{line(started)}">{line(_moment(started))}</time>'),
        ("Took", show_seconds(overview.seconds)),
        ("State", line(overview.run.state)),
        ("Candidates", str(len(overview.rows))),
        ("Rounds", line(settings.get("repeat", 1))),
        ("Jobs", line(overview.run.definition.get("jobs", "–"))),
        ("Seed", f"<code>{line(settings.get('seed', 0))}</code>"),
        ("Backend", line(versions.get("backend") or settings.get("backend", "–"))),
        ("Corral", line(versions.get("corral", "–"))),
        ("Python", line(versions.get("python", "–"))),
        ("Kernel", line(versions.get("kernel", "–"))),
    ]
    return f'<p class="objective" dir="auto">{block(overview.run.objective)}</p>{facts(pairs)}'


def _moment(text: str) -> str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{found:%Y-%m-%d %H:%M:%S} {found.tzname() or ''}".strip()


def write_charts(overview: Overview) -> str:
    """Score against time and against memory, and each round's time; no chart without points."""
    times = _list_marks(overview, lambda row: row.median_seconds)
    memories = _list_marks(overview, lambda row: row.peak_memory_bytes)
    charts = []
    for chart_id, title, marks, label, show, binary in (
        ("chart-time", "Score against time", times, "time of the run", show_seconds, False),
        ("chart-memory", "Score against memory", memories, "peak memory", show_size, True),
    ):
        if marks:
            points = draw_scatter(
                marks, chart_id=chart_id, title=title, x_label=label, y_label="total score", show=show, binary=binary
            )
            charts.append(f"<figure><figcaption>{title}</figcaption>{points}</figure>")
    rows = [row for row in overview.rows if row.times] if overview.repeated else []
    if rows:
        strips = draw_rounds(rows, chart_id="chart-rounds", title="Times by round", show=show_seconds)
        charts.append(f'<figure class="rounds"><figcaption>Times by round</figcaption>{strips}</figure>')
    if not charts:
        return '<p class="remark">There are no measurements to draw.</p>'
    legend = (
        '<p class="legend"><span class="winner">★ winner</span><span class="ranked">● ranked</span>'
        '<span class="out">✕ not ranked</span><span>The best place is at the upper left.</span></p>'
    )
    return f'<div class="charts">{"".join(charts)}</div>{legend}'


def _list_marks(overview: Overview, cost_of: Callable[[CandidateRow], float | None]) -> list[Mark]:
    """The candidates that have both a total and a cost."""
    return [
        Mark(row, cost, row.total)
        for row in overview.rows
        if row.total is not None and (cost := cost_of(row)) is not None
    ]


def write_candidates(overview: Overview) -> str:
    """For each candidate: its source, the verdicts of the judge, and its attempts."""
    return "".join(_candidate(row) for row in overview.rows)


def _candidate(row: CandidateRow) -> str:
    source = row.definition.get("source")
    pairs = [("Id", f"<code>{escape(row.id)}</code>")]
    if isinstance(source, Mapping):
        pairs += [(f"Source: {key}", f"<code>{line(value)}</code>") for key, value in flatten(source)]
    for key in ("packages", "resources", "image", "network", "env"):
        if row.definition.get(key):
            pairs += [(found, line(value)) for found, value in flatten({key: row.definition[key]})]
    said = f'<p dir="auto">{line(row.description, limit=1000)}</p>' if row.description else ""
    reason = f'<p class="reason" dir="auto">{line(row.reason, limit=1000)}</p>' if row.reason else ""
    return (
        f'<details class="card {row.kind}" id="candidate-{escape(row.id)}"><summary>'
        f'<span class="place">{row.place}</span>'
        f'<span class="title">{name(row.name)}</span>{chip(row.outcome)}</summary><div class="inner">'
        f"{said}{reason}{_verdicts(row)}{_attempts(row)}{facts(pairs)}</div></details>"
    )


def _verdicts(row: CandidateRow) -> str:
    gates = "".join(
        f'<li class="{"passed" if gate.passed else "failed"}">{"✓" if gate.passed else "✗"} {name(gate.gate)}'
        f'<span class="sub" dir="auto">{line(gate.reason)}</span></li>'
        for gate in row.standing.gates
    )
    scores = "".join(
        f"<li>{name(key)} <b>{points.points:.1f}</b>{bar(points.points, kind='score')}"
        f'<span class="sub" dir="auto">{_details(points.details)}</span></li>'
        for key, points in row.standing.scores.items()
    )
    return (f'<h4>Gates</h4><ul class="verdicts">{gates}</ul>' if gates else "") + (
        f'<h4>Scores</h4><ul class="verdicts">{scores}</ul>' if scores else ""
    )


def _details(details: Mapping[str, Any]) -> str:
    pairs = list(flatten(details))
    said = " · ".join(f"{line(key, limit=60)}: {line(value, limit=300)}" for key, value in pairs[:_MAX_DETAILS])
    return said + (" · …" if len(pairs) > _MAX_DETAILS else "")


def _attempts(row: CandidateRow) -> str:
    if not row.attempts:
        return ""
    rows = "".join(
        f'<tr><td class="number">{attempt.round}</td><td>{chip(attempt.outcome)}<span class="sub" dir="auto">'
        f"{line('; '.join(filter(None, (attempt.reason, *attempt.notes))))}</span></td>"
        f'<td class="number">{"–" if attempt.exit_code is None else attempt.exit_code}</td>'
        f'<td class="number">{show_seconds(attempt.seconds)}</td>'
        f'<td class="number">{show_seconds(attempt.cpu_seconds)}</td>'
        f'<td class="number">{show_size(attempt.peak_memory_bytes)}</td><td class="number">{attempt.retries}</td>'
        f"<td>{line(', '.join(f'{key} {show_seconds(value)}' for key, value in attempt.phases.items()))}</td></tr>"
        for attempt in row.attempts
    )
    heads = [
        ("Round", "number"), ("Outcome", ""), ("Exit code", "number"), ("Time", "number"), ("CPU", "number"),
        ("Memory", "number"), ("Retries", "number"), ("Phases", ""),
    ]  # fmt: skip
    return "<h4>Attempts</h4>" + table("Attempts", heads, rows)


def write_logs(overview: Overview, logs: Mapping[tuple[str, int], str]) -> str:
    """The logs, folded."""
    found, nothing = [], '<p class="inner">It printed nothing.</p>'
    for row in overview.rows:
        for attempt in row.attempts:
            text = logs.get((row.id, attempt.round), "")
            printed = f"{show_size(attempt.log_bytes or len(attempt.log))} printed"
            shown = f'<pre class="inner" tabindex="0">{escape(text)}</pre>' if text else nothing
            found.append(
                f'<details class="card log" data-log><summary><span class="title">{name(row.name)}'
                f'{_round(row, attempt)}</span><span class="hits" data-hits></span>'
                f'<span class="sub">{printed}</span></summary>{shown}</details>'
            )
    return "".join(found) or '<p class="remark">No attempt has ended.</p>'


def _round(row: CandidateRow, attempt: Attempt) -> str:
    return f" <small>round {attempt.round}</small>" if len(row.attempts) > 1 or attempt.round > 1 else ""


def write_manifest(overview: Overview, embedded: Embedded) -> str:
    """Every file that was taken out with its hash, and what was not taken."""
    files: list[tuple[CandidateRow, Attempt, ArtifactFile | Refused]] = []
    for row in overview.rows:
        for attempt in row.attempts:
            files += [(row, attempt, file) for file in attempt.artifacts]
            files += [(row, attempt, file) for file in attempt.refused]
    if not files:
        return '<p class="remark">No artifacts were taken.</p>'
    rows = "".join(_manifest_row(row, attempt, file) for row, attempt, file in files[:_MAX_MANIFEST_ROWS])
    hidden = len(files) - _MAX_MANIFEST_ROWS
    more = f'<p class="remark">… and {hidden} more.</p>' if hidden > 0 else ""
    if embedded.left_out:
        more += (
            f'<p class="remark">{embedded.left_out} files are not in this page; they are in the folder of the run.</p>'
        )
    heads = [("Candidate", ""), ("File", ""), ("Size", "number"), ("SHA-256", "")]
    return table("Manifest", heads, rows, more=' class="manifest"') + more


def _manifest_row(row: CandidateRow, attempt: Attempt, file: ArtifactFile | Refused) -> str:
    who = f"<td>{name(row.name, limit=40)}{_round(row, attempt)}</td>"
    path = f"<td><code>{name(file.path, limit=300)}</code></td>"
    if isinstance(file, Refused):
        return f'<tr class="refused">{who}{path}<td colspan="2">not taken: {line(file.reason)}</td></tr>'
    size = f'<td class="number">{show_size(file.size)}</td>'
    return f'<tr>{who}{path}{size}<td><code class="hash">{line(file.sha256)}</code></td></tr>'


def write_repeat(overview: Overview, command: str) -> str:
    """How to repeat the run, and its settings."""
    judge = overview.run.definition.get("judge")
    return (
        f'<pre class="command" tabindex="0">{block(command)}</pre>'
        f"<h4>Settings</h4>{facts((key, line(value)) for key, value in flatten(overview.settings))}"
        + (_judge(judge) if isinstance(judge, Mapping) else "")
    )


def _judge(judge: Mapping[str, Any]) -> str:
    """Its gates and scores as lists; the rest of its description as names and values."""
    lists, rest = [], {}
    for key, value in judge.items():
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            items = "".join(_judge_item(item) for item in value[:_MAX_DETAILS])
            lists.append(f'<h4>Judge: {line(key)}</h4><ul class="verdicts">{items}</ul>')
        else:
            rest[key] = value
    return "".join(lists) + (
        f"<h4>Judge</h4>{facts((key, line(value)) for key, value in flatten(rest))}" if rest else ""
    )


def _judge_item(item: Mapping[str, Any]) -> str:
    said = {key: value for key, value in item.items() if key != "name" and value is not None}
    return f'<li>{name(item.get("name", "–"))}<span class="sub">{_details(said)}</span></li>'


def write_warnings(overview: Overview) -> str:
    """The warnings of the contest."""
    said = "".join(f'<li dir="auto">{line(warning, limit=600)}</li>' for warning in overview.warnings)
    return f'<section class="warnings" aria-label="Warnings"><h2>Warnings</h2><ul>{said}</ul></section>' if said else ""
