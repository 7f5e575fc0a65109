"""The winner, and the table of all candidates."""

from __future__ import annotations

from corral.forge.outcome import UNFINISHED
from corral.forge.overview import CandidateRow, Overview
from corral.forge.pages.text import escape, show_seconds, show_size
from corral.forge.report.parts import bar, line, name, table


def write_banner(overview: Overview) -> str:
    """The winner, a tie, or why there is no winner."""
    winners = overview.winners
    if len(winners) == 1:
        return _banner("won", "Winner", name(winners[0].name), _why_won(overview, winners[0]))
    if winners:
        names = " and ".join(name(row.name) for row in winners)
        points = "" if winners[0].total is None else f" with {winners[0].total:.1f} points"
        return _banner("tie", "Tie", names, f"{len(winners)} candidates share the first place{points}")
    if overview.run.state != "finished" and not overview.run.standings:
        word = "was interrupted" if overview.run.state == "interrupted" else "has not ended"
        return _banner(
            "open", "No result yet", f"The run {word}", "No candidate was judged. The results so far are below."
        )
    reasons = "No candidate passed every gate." if overview.rows else "There were no candidates."
    return _banner("nobody", "No winner", "No candidate won", reasons)


def _banner(kind: str, over: str, headline: str, below: str) -> str:
    return (
        f'<section class="banner {kind}" aria-label="Result"><p class="over">{over}</p>'
        f'<p class="headline">{headline}</p><p class="below">{below}</p></section>'
    )


def _why_won(overview: Overview, row: CandidateRow) -> str:
    said = [] if row.total is None else [f"{row.total:.1f} of 100 points"]
    others = [other for other in overview.rows if other.kind == "ranked" and other.total is not None]
    if others and row.total is not None and others[0].total is not None:
        said.append(f"{row.total - others[0].total:.1f} ahead of {name(others[0].name, limit=60)}")
    if row.median_seconds is not None:
        said.append(show_seconds(row.median_seconds))
    return " · ".join(said)


def write_leaderboard(overview: Overview) -> str:
    """The table of all candidates."""
    heads = [
        ("Rank", "rank"), ("Candidate", "who"), ("Total", "number"),
        *((_score_head(overview, score), "number") for score in overview.score_names),
        ("Gates", ""), ("Time", "number"), ("CPU", "number"), ("Memory", "number"), ("Outcome", ""),
    ]  # fmt: skip
    rows = "".join(_write_row(overview, row) for row in overview.rows)
    interval = (
        "; below it the interval of the median over the rounds (95 %, where there are six or more)"
        if overview.repeated
        else ""
    )
    remark = f"Time is that of the run alone{interval}. CPU and memory are the kernel’s counts."
    board = table("Leaderboard", heads, rows, more=' class="board" id="leaderboard"')
    return f'{board}<p class="remark">{remark}</p>'


def _score_head(overview: Overview, score: str) -> str:
    weight = overview.weights.get(score)
    part = f'<span class="weight">{weight * 100:.0f} %</span>' if weight is not None else ""
    return f"{name(score, limit=30)}{part}"


def _write_row(overview: Overview, row: CandidateRow) -> str:
    cells = [
        f'<td class="rank"><span class="place">{escape(row.place)}</span></td>',
        f'<th scope="row" class="who"><a href="#candidate-{escape(row.id)}">{name(row.name)}</a>{_sub(row)}</th>',
        f'<td class="number total">{_points(row.total, row.kind)}</td>',
    ]
    scores = row.standing.scores
    cells += [
        f'<td class="number">{_points(scores[key].points if key in scores else None, "score")}</td>'
        for key in overview.score_names
    ]
    cells += [
        f'<td class="gates">{_gates(row)}</td>',
        f'<td class="number">{_time(row)}</td>',
        f'<td class="number">{show_seconds(row.cpu_seconds)}</td>',
        f'<td class="number">{show_size(row.peak_memory_bytes)}</td>',
        f"<td>{chip(row.outcome)}</td>",
    ]
    return f'<tr class="{row.kind}" data-candidate="{escape(row.id)}">{"".join(cells)}</tr>'


def _sub(row: CandidateRow) -> str:
    gates = row.standing.gates
    # Reasons of failed gates are in the column of the gates.
    text = row.description if any(not gate.passed and gate.reason for gate in gates) else row.reason or row.description
    return f'<span class="sub" dir="auto">{line(text, limit=160)}</span>' if text else ""


def _points(points: float | None, kind: str) -> str:
    return "–" if points is None else f"{points:.1f}{bar(points, kind=kind)}"


def _gates(row: CandidateRow) -> str:
    gates = row.standing.gates
    if not gates:
        return "–"
    failed = [gate for gate in gates if not gate.passed]
    if not failed:
        return (
            f'<span class="passed" title="{line(", ".join(gate.gate for gate in gates))}">✓ {len(gates)} passed</span>'
        )
    return "".join(
        f'<span class="failed">✗ {name(gate.gate, limit=40)}'
        f'<span class="sub" dir="auto">{line(gate.reason, limit=160)}</span></span>'
        for gate in failed
    )


def _time(row: CandidateRow) -> str:
    text = show_seconds(row.median_seconds)
    if row.interval is not None:
        low, high = row.interval
        text += f'<span class="sub">{show_seconds(low)} – {show_seconds(high)}</span>'
    return text


def chip(outcome: str) -> str:
    """The outcome as a coloured label."""
    kind = "good" if outcome == "ok" else "none" if outcome in {"not run", *UNFINISHED} else "bad"
    return f'<span class="chip {kind}">{escape(outcome)}</span>'
