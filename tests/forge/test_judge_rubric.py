"""The recorded rubric: events out of Markdown of many shapes, its gates, its points, and texts made to be slow."""

import datetime
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import SpecError
from corral.forge.judge import EventRules, Judge, recorded_rubric, score_candidate
from corral.forge.judge.eventlist import MAX_EVENTS, find_date, find_events, is_good_url
from corral.forge.judge.rubric import assess_quality
from support.forge_entries import make_bench, make_entry

DAY = datetime.date
WEEK = (DAY(2026, 1, 19), DAY(2026, 1, 25))
EXPECTED = [
    ("AI Hackathon", DAY(2026, 1, 20), "https://lu.ma/hack"),
    ("LLM Meetup", DAY(2026, 1, 21), "https://lu.ma/llm"),
    ("Robotics Night", DAY(2026, 1, 22), "https://events.example.org/r?x=1"),
]
SHAPES = {
    "bullets": """
# AI Events in San Francisco, Jan 19 – Jan 25, 2026

- **AI Hackathon** — 2026-01-20 — https://lu.ma/hack
* [LLM Meetup](https://lu.ma/llm) - Wed, Jan 21, 2026 at 6 pm, SoMa
+ Robotics Night | January 22nd | https://events.example.org/r?x=1
""",
    "numbers": """
Hello everybody, here is the week:

1. AI Hackathon (Jan 20, 2026): https://lu.ma/hack.
2) **LLM Meetup**, 21 January 2026, <https://lu.ma/llm>
3. Robotics Night - 1/22/2026 - [RSVP](https://events.example.org/r?x=1)
""",
    "table": """
| Event | Date | Where | Link |
|:------|:----:|-------|-----:|
| AI Hackathon | Jan 20 | SF | [RSVP](https://lu.ma/hack) |
| LLM Meetup | 2026-01-21 | SF | https://lu.ma/llm |
| Robotics Night | 22 Jan | | <https://events.example.org/r?x=1> |
""",
    "table without edges": """
| Date | Title | URL |
|---|---|---|
2026-01-20 | AI Hackathon | https://lu.ma/hack
2026-01-21 | LLM Meetup | https://lu.ma/llm
2026-01-22 | Robotics Night | https://events.example.org/r?x=1
""",
    "headings": """
# Events

## 1. AI Hackathon
**Date:** January 20, 2026
**Where:** SF
**URL:** https://lu.ma/hack

## LLM Meetup
- Date: 21 Jan 2026
- Link: <https://lu.ma/llm>

A great night, they say.

### Robotics Night
When: Thursday, Jan. 22
More info: https://events.example.org/r?x=1
""",
    "days": """
## Tuesday, January 20
- **AI Hackathon** https://lu.ma/hack
## Wed, Jan 21
- [LLM Meetup](https://lu.ma/llm)
## 2026-01-22
- Robotics Night: https://events.example.org/r?x=1
""",
    "emoji": """
🚀 **AI Hackathon**
📅 Jan 20, 2026
🔗 https://lu.ma/hack

🤖 **LLM Meetup**
📅 Jan 21
🔗 https://lu.ma/llm

🦾 __Robotics Night__
📅 Jan 22
🔗 https://events.example.org/r?x=1
""",
    "points below": """
- AI Hackathon
  - Date: 2026-01-20
  - URL: https://lu.ma/hack
- LLM Meetup
    * When: Jan 21
    * RSVP: https://lu.ma/llm
- Robotics Night
\t- Date: Jan 22-23, 2026
\t- Link: https://events.example.org/r?x=1
""",
}
GOOD = SHAPES["bullets"]


@pytest.mark.parametrize("shape", SHAPES)
def test_events_are_found_in_many_shapes(shape: str) -> None:
    events = find_events(SHAPES[shape], year=2026)
    assert [(event.title, event.date, event.url) for event in events] == EXPECTED
    assert all(event.url_is_good for event in events)
    quality = assess_quality(SHAPES[shape], EventRules(window=WEEK))
    assert (quality.total_events, quality.valid_events, quality.passed) == (3, 3, True)


def test_windows_lines_are_lines() -> None:
    for shape, text in SHAPES.items():
        found = find_events(text.replace("\n", "\r\n"), year=2026)
        assert [event.title for event in found] == [title for title, _, _ in EXPECTED], shape


def test_prose_has_no_events() -> None:
    for text in ("", "   ", "Just words.\n- a point\n- another", "# Title 2026\n\nNothing on 2026-01-20."):
        assert find_events(text, year=2026) == []


def test_dates_as_people_write_them() -> None:
    written = [
        ("2026-01-20", DAY(2026, 1, 20)), ("2026/1/5", DAY(2026, 1, 5)), ("Jan 5", DAY(2030, 1, 5)),
        ("Sept. 9th, 2026", DAY(2026, 9, 9)), ("9 September 2026", DAY(2026, 9, 9)), ("9th of May", DAY(2030, 5, 9)),
        ("1/22/26", DAY(2026, 1, 22)), ("12/31", DAY(2030, 12, 31)), ("May 3–5, 2027", DAY(2027, 5, 3)),
        ("2026-02-30, no: 2026-02-28", DAY(2026, 2, 28)), ("2026-13-01", None), ("Maybe 5 people", None),
        ("24/7", None), ("room 12/131", None), ("version 1.2.3", None), ("", None),
    ]  # fmt: skip
    assert [(text, find_date(text, year=2030)) for text, _ in written] == written


def test_good_and_bad_urls() -> None:
    good = {"https://a.org", "http://a.b.co.uk:80/x?y#z", "https://münchen.de/ä", "https://A.ORG/"}
    bad = {
        "", "a.org", "ftp://a.org", "https://localhost/", "https://", "https://a..b", "https://1.2.3.4",
        "https://[::1", "https://a.org:x/", "https://-a.org", "javascript:alert(1)",
    }  # fmt: skip
    assert {url for url in good | bad if is_good_url(url)} == good


def test_what_is_wrong_with_each_event_is_told() -> None:
    quality = assess_quality(
        """
- AI Hackathon — 2026-01-20 — https://lu.ma/hack
- AI Hackathon — 2026-01-20 — https://lu.ma/other
- Too Late — 2026-02-20 — https://lu.ma/late
- No Address — 2026-01-21
- No Date — https://lu.ma/some
- Broken — 2026-01-21 — [link](htp:/nowhere)
""",
        EventRules(window=WEEK),
    )
    assert (quality.total_events, quality.complete_events, quality.valid_events) == (6, 4, 1)
    assert quality.duplicates == ("AI Hackathon",)
    assert quality.outside_window == ("Too Late",)
    assert quality.missing_fields == ("No Address (no url)", "No Date (no date)")
    assert quality.bad_urls == ("Broken",)
    assert quality.hackathon_found
    assert quality.score == pytest.approx(70 / 6 + 30 / 5)


def test_hackathon_is_required_unless_it_is_not() -> None:
    text = GOOD.replace("Hackathon", "Brunch")
    without, asked = assess_quality(text, EventRules(hackathon_required=False)), assess_quality(text)
    assert (without.passed, asked.passed) == (True, False)
    assert without.score - asked.score == pytest.approx(20)


@pytest.mark.parametrize(
    ("values", "success"),
    [
        ({}, True),
        ({"produced_output": False, "artifact_content": None}, False),
        ({"error_occurred": True, "error_message": "exit code 1"}, False),
        ({"artifact_content": "short"}, False),
        ({"artifact_content": "   \n"}, False),
        ({"artifact_content": "There are so many events in the city!"}, False),
        ({"artifact_content": "\n".join(GOOD.splitlines()[:-1])}, False),
        ({"artifact_content": GOOD.replace("https://", "see ")}, False),
        ({"artifact_content": GOOD.replace("Hackathon", "Brunch")}, True),
    ],
    ids=["good", "none", "error", "short", "white", "prose", "two events", "no urls", "no hackathon"],
)
def test_recorded_gates(values: dict[str, Any], success: bool) -> None:
    given_ = {
        "produced_output": True,
        "error_occurred": False,
        "artifact_content": GOOD,
        "runtime_seconds": 6.0,
    } | values
    result = score_candidate("alpha", **given_)
    assert result.success is success
    assert result.candidate_id == "alpha"
    assert result.error_message == values.get("error_message")
    if not success:
        assert (result.total_score, result.speed_score) == (0, 0)


def test_recorded_weights() -> None:
    result = score_candidate("alpha", True, False, GOOD, 6.0)
    assert result.quality is not None
    assert result.quality_score == result.quality.score == pytest.approx(70 + 30 * 3 / 5)
    assert result.speed_score == pytest.approx(90)
    assert result.total_score == pytest.approx(0.2 * 100 + 0.6 * result.quality_score + 0.2 * 90)
    json.dumps(result.quality.to_json())


def test_speed_is_never_out_of_bounds() -> None:
    for seconds, speed in ((0.0, 100), (-1.0, 100), (60.0, 0), (1e9, 0), (math.nan, 0), (math.inf, 0)):
        assert score_candidate("a", True, False, GOOD, seconds).speed_score == speed, seconds


async def test_rubric_as_a_judge_gives_the_same_total(tmp_path: Path) -> None:
    texts = {"alpha": GOOD, "beta": SHAPES["table"].replace("https://lu.ma/llm", "soon"), "epsilon": "so many events!"}
    entries = [make_entry(tmp_path, name, text, seconds=6.0) for name, text in texts.items()]
    entries.append(make_entry(tmp_path, "delta", None, exit_code=1, outcome="crashed", seconds=0.1))
    judge = recorded_rubric()
    assert isinstance(judge, Judge)
    standings = {standing.candidate: standing for standing in await judge.decide(entries, {}, make_bench())}
    assert [standings[name].rank for name in ("alpha", "beta", "epsilon", "delta")] == [1, 2, None, None]
    assert standings["epsilon"].reason == "events: 0 events, less than 3"
    assert standings["delta"].disqualified
    for name in ("alpha", "beta"):
        plain = score_candidate(name, True, False, texts[name], 6.0)
        assert standings[name].total == pytest.approx(plain.total_score)
        assert standings[name].scores["quality"].details["total_events"] == 3


def test_rules_that_do_not_fit_are_refused() -> None:
    for wrong in ({"min_events": 0}, {"target_events": 2}, {"window": WEEK[::-1]}, {"speed_limit": 0}):
        with pytest.raises(SpecError):
            EventRules(**wrong)  # type: ignore[arg-type]


HOSTILE = {
    "bullets": "- x\n" * 300_000,
    "rows": "|a|b|\n|-|-|\n" + "|x|y|\n" * 200_000,
    "brackets": "[" * 10**6,
    "stars": "**" * 500_000,
    "urls": "http://" * 150_000,
    "slashes": ("- " + "9/" * 2000 + "\n") * 300,
    "months": "- jan " * 200_000,
    "dashes": "|\n" + "-|" * 500_000,
    "one line": "a" * 4_000_000,
    "nothing": "\0" * 10**6,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_is_slow_to_read(text: str) -> None:
    """The guard is the timeout of every test; a pattern that backtracks would take years."""
    quality = assess_quality(text)
    assert quality.total_events <= MAX_EVENTS
    assert len(json.dumps(quality.to_json())) < 100_000


@given(st.text(alphabet="-*#|[]()_:/.,0129 \n\tJanhtps", max_size=400))
def test_any_text_is_read_to_its_end(text: str) -> None:
    quality = assess_quality(text)
    assert 0 <= quality.valid_events <= quality.complete_events <= quality.total_events
    assert 0 <= quality.score <= 100
