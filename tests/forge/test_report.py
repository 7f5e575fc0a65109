"""The report: what it tells, that it needs nothing else, and that nothing of candidates runs in it."""

import base64
import hashlib
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from corral.forge.judge.model import Standing
from corral.forge.outcome import Attempt
from corral.forge.overview import CandidateRow
from corral.forge.report import render_report, write_report
from corral.forge.report.charts import Mark, draw_rounds, draw_scatter, make_axis
from corral.forge.report.parts import data_block, flatten
from corral.forge.runfolder import Run, read_run
from support.browser import open_browser
from support.forge_runs import HOSTILE_FILE, HOSTILE_LINE, HOSTILE_NAME, NEEDLE, OBJECTIVE, write_run


class Page(HTMLParser):
    """What a browser would make of the text, as far as it matters here."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.blocks: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._inside = tag if tag in self.blocks else ""
        if self._inside:
            self.blocks[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.blocks[self._inside][-1] += data
        else:
            self.text += data

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for found, attributes in self.tags if found == tag]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read_run(write_run(tmp_path / "run"))


def test_numbers_are_told_as_people_read_them() -> None:
    details = {"seconds": 0.24830307399997764, "points": [98.0, 1e-05, -2.5004], "rounds": 3}
    assert dict(flatten(details)) == {"seconds": "0.248", "points": "98, 1e-05, -2.5", "rounds": "3"}
    attempt = Attempt(candidate="a", outcome="ok", seconds=0.24830307399997764, phases={"run": 1 / 3})
    assert (attempt.to_json()["seconds"], attempt.phases) == (0.248303, {"run": 0.333333})


def test_page_needs_nothing_else_and_allows_only_our_own_script(run: Run) -> None:
    page = Page(render_report(run))
    addresses = [
        value
        for _, found in page.tags
        for name, value in found.items()
        if name in ("src", "href", "srcset", "data", "action")
    ]
    assert {address[:1] for address in addresses} == {"#"}
    assert {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "base", "form", "img"} == set()
    assert [name for _, found in page.tags for name in found if name.startswith("on") or name == "style"] == []
    (policy,) = [
        found["content"] for found in page.named("meta") if found.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    data, script = page.blocks["script"]
    assert f"script-src '{_hash(script)}'" in policy
    assert f"style-src '{_hash(page.blocks['style'][0])}'" in policy
    assert [found.get("type") for found in page.named("script")] == ["application/json", None]
    assert len(json.loads(data)) == 9


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def test_everything_of_candidates_is_text(run: Run) -> None:
    text = render_report(run)
    page = Page(text)
    assert HOSTILE_NAME[:70] in page.text
    assert HOSTILE_LINE in page.text
    assert "<script>window" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "title␇␀bell" not in page.text
    assert "␇␀bell" in page.text
    files = {(file["candidate"], file["path"]): file for file in json.loads(page.blocks["script"][0])}
    assert files["rubbish", HOSTILE_FILE]["text"] == "a hostile name\n"
    assert files["thorough", "notes/page.svg"]["kind"] == "text"
    assert files["thorough", "sketch.png"]["image"].startswith("data:image/png;base64,")
    assert files["thorough", "notes/numbers.bin"]["text"].startswith("00000000  00 01 02")


def test_a_block_of_data_can_not_be_ended_from_inside() -> None:
    value = {"text": "</script><!--<script>&\u2028"}
    text = data_block("x", value)
    assert text.count("<") == 2
    assert json.loads(text[text.index(">") + 1 : text.rindex("<")]) == value


def test_page_tells_the_run(run: Run) -> None:
    page = Page(render_report(run))
    for wanted in (OBJECTIVE, "2026-03-01 12:00:00 UTC", "Linux 6.8 x86_64", "0.1.0", "embedded", "Winner",
                   "exit code 1", NEEDLE, "not taken: a link (to /etc/passwd)", "--seed 7", "--jobs 2",
                   "corral forge replay run"):  # fmt: skip
        assert wanted in page.text, wanted
    hashes = [file.sha256 for attempt in run.attempts.values() for file in attempt.artifacts]
    assert len(hashes) == 9
    assert [found for found in hashes if found not in page.text] == []
    assert len([found for found in page.named("tr") if "data-candidate" in found]) == 5
    assert [found["data-candidate"] for found in page.named("tr") if "data-candidate" in found][:3] == [
        "thorough",
        "balanced",
        "fast",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tie": True}, "Tie"),
        ({"nobody": True}, "No candidate won"),
        ({"state": "interrupted", "judged": False}, "The run was interrupted"),
        ({"state": "running", "judged": False}, "The run has not ended"),
    ],
)
def test_banner_says_how_it_ended(tmp_path: Path, options: dict[str, object], said: str) -> None:
    page = Page(render_report(read_run(write_run(tmp_path / "run", **options))))  # type: ignore[arg-type]
    assert said in page.text
    assert "★" not in page.text.partition("Leaderboard")[0]


def test_rounds_have_a_chart_and_an_interval(tmp_path: Path) -> None:
    page = Page(render_report(read_run(write_run(tmp_path / "run", repeat=5))))
    assert "Times by round" in page.text
    assert "interval of the median" in page.text
    assert len([found for found in page.named("circle") if found["class"].startswith("dot")]) == 25
    one = Page(render_report(read_run(write_run(tmp_path / "one"))))
    assert "Times by round" not in one.text


def test_a_run_without_anything_is_a_page_too(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", state="interrupted", judged=False)
    (folder / "events.jsonl").write_text("")
    page = Page(render_report(read_run(folder)))
    assert "No attempt has ended" in page.text
    assert "not run" in page.text


def test_artifacts_that_were_replaced_by_links_are_not_followed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret of the host")
    artifact = run.artifacts("fast") / "artifact.md"
    artifact.unlink()
    artifact.symlink_to(tmp_path / "secret")
    text = render_report(run)
    assert "a secret of the host" not in text
    assert "could not be read" in text


def test_page_stays_small_whatever_there_is(run: Run, tmp_path: Path) -> None:
    log = "x" * 99 + "\n"
    attempts: dict[tuple[str, int], Attempt] = {}
    for number in range(300):
        attempt = replace(run.attempts["thorough", 1], round=number, log=log * 10_000, log_bytes=1_000_000)
        attempts["thorough", number] = attempt
    text = render_report(replace(run, attempts=attempts))
    assert len(text) < 40_000_000
    assert "characters left out" in text
    assert "files are not in this page" in text


def test_report_is_written_whole_or_not_at_all(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "new" / "report.html"
    assert write_report(run, target) == target
    assert write_report(run, run.path) == run.path / "report.html"
    old = target.read_text()
    monkeypatch.setattr(Path, "replace", _refuse)
    with pytest.raises(OSError, match="refused"):
        write_report(run, target)
    assert target.read_text() == old
    assert list(target.parent.iterdir()) == [target]
    assert target.stat().st_mode & 0o444


def _refuse(*arguments: object) -> None:
    raise OSError("refused")


def test_names_that_are_no_text_do_no_harm(run: Run) -> None:
    odd = [candidate | {"name": "half \udc80 \ud83d"} for candidate in run.definition["candidates"]]
    text = render_report(
        replace(run, definition=run.definition | {"candidates": odd, "objective": "\udcff $style $nothing"})
    )
    text.encode()
    assert "⟨U+DC80⟩" in text
    assert "⟨U+DCFF⟩ $style $nothing" in text


def make_row(candidate: str, name: str, *, rank: int, times: tuple[float, ...] = ()) -> CandidateRow:
    attempts = tuple(
        Attempt(candidate=candidate, round=number, outcome="ok", seconds=seconds)
        for number, seconds in enumerate(times, start=1)
    )
    seconds = {"median": 2.0, "low": 1.0, "high": 3.0} if times else {}
    standing = Standing(candidate=candidate, rank=rank, seconds=seconds)
    return CandidateRow(id=candidate, name=name, description="", definition={}, standing=standing, attempts=attempts)


def test_charts_are_well_formed_and_everything_is_on_the_paper() -> None:
    marks = [
        Mark(make_row(f"c{number}", HOSTILE_NAME, rank=2), x=10.0**number, y=number * 40.0 - 20)
        for number in range(-3, 4)
    ]  # fmt: skip
    drawing = draw_scatter(marks, chart_id="c", title="T", x_label="x", y_label="y", show=str)
    root = ET.fromstring(drawing)
    assert root.attrib["role"] == "img"
    circles = list(root.iter("circle"))
    assert len(circles) == 7
    assert all(52 <= float(one.attrib["cx"]) <= 540 and 14 <= float(one.attrib["cy"]) <= 294 for one in circles)
    rows = [make_row("a", "A<", rank=1, times=(1.0, 2.0, 3.0))]
    assert len(list(ET.fromstring(draw_rounds(rows, chart_id="r", title="R", show=str)).iter("circle"))) == 3


@pytest.mark.parametrize(
    "values", [[], [0.0], [0.0, 0.0], [1e-9], [1e12, 1e12], [0.001, 5000.0], [3.0, 4.0, 90.0], [7 * 1024.0**2]]
)
@pytest.mark.parametrize("binary", [False, True])
def test_axis_holds_every_value(values: list[float], binary: bool) -> None:
    axis = make_axis(values, start=0.0, end=100.0, binary=binary)
    assert 2 <= len(axis.ticks) <= 9
    assert list(axis.ticks) == sorted(axis.ticks)
    assert all(axis.low <= value <= axis.high * 1.0001 for value in values if value > 0)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 and math.isfinite(place) for place in places)


def test_command_to_repeat_names_candidates_and_what_is_not_usual(run: Run) -> None:
    text = Page(render_report(run)).text
    found = re.search(r"corral forge run .*?(?=\n#)", text, re.DOTALL)
    assert found is not None
    for wanted in ("candidates/fast.py", "--objective 'Write a short post", "--seed 7", "--jobs 2"):
        assert wanted in found[0]
    assert "--repeat" not in found[0]
    assert Page(render_report(run, command="make it so")).text.count("make it so") == 1


@pytest.mark.needs_browser
async def test_in_a_browser(tmp_path: Path) -> None:
    report = write_report(read_run(write_run(tmp_path / "run", repeat=2)), tmp_path / "report.html")
    async with open_browser() as browser:
        tab = await browser.open_tab()
        await tab.go(report.as_uri())

        # The leaderboard, as it was judged.
        rows = "[...document.querySelectorAll('#leaderboard tbody tr')]"
        assert await tab.get(f"{rows}.map(row => row.cells[0].innerText.trim())") == ["1", "2", "3", "–", "–"]
        names = await tab.get(f"{rows}.map(row => row.querySelector('a').innerText)")
        assert names[:4] == ["Thorough", "Balanced", "Fast", "Crash"]
        assert names[4].startswith("</script><script>")
        assert await tab.get("document.querySelectorAll('svg.chart').length") == 3

        # Searching all logs, by keyboard.
        await tab.press("/")
        assert await tab.get("document.activeElement.id") == "log-search"
        await tab.type_into("#log-search", NEEDLE.upper())
        await tab.wait_for("document.querySelector('#log-said').textContent === '2 lines in 2 logs'")
        hits = "[...document.querySelectorAll('[data-log][open] pre')].map(pre => pre.innerText.trim())"
        assert await tab.get(hits) == [f"4321  {NEEDLE}"] * 2
        await tab.get(
            "const box = document.querySelector('#log-search'); box.value = ''; box.dispatchEvent(new Event('input'))"
        )
        await tab.wait_for("document.querySelectorAll('[data-log][open]').length === 0")
        assert await tab.get("document.querySelector('[data-log] pre').textContent.split('\\n').length") == 5001

        # Two artifacts side by side, then their difference.
        shown = "[...document.querySelectorAll('.shown pre')].map(pre => pre.textContent)"
        left, right = await tab.get(shown)
        assert left == right + "\nFull notes are below.\n"
        await tab.click("#mode-diff")
        lines = "[...document.querySelectorAll('#diff tr:not(.fold)')]"
        changed = f"{lines}.map(row => row.className[0] + row.lastChild.textContent)"
        assert await tab.get(changed) == [
            "s- It has a live page.",
            "s",
            "sUpgrade today.",
            "r",
            "rFull notes are below.",
        ]
        assert await tab.get("document.querySelector('#diff-said').textContent") == "2 removed, 0 added"
        await tab.click("#diff .fold button")
        assert await tab.get("document.querySelectorAll('#diff tr').length") == 11

        # A picture is a picture, and what only looks like one is a text.
        for path, wanted in (("sketch.png", "IMG"), ("notes/page.svg", "PRE")):
            pick = f"[...picker.options].find(option => option.text.endsWith({path!r})).value"
            await tab.get(
                f"{{ const picker = document.querySelector('#pick-left'); picker.value = {pick};"
                " picker.dispatchEvent(new Event('change')) }"
            )
            assert await tab.get("document.querySelector('#show-left').firstChild.tagName") == wanted

        # A link in the table opens the candidate's own section.
        await tab.click("#leaderboard a[href='#candidate-rubbish']")
        await tab.wait_for("document.querySelector('#candidate-rubbish').open")

        # Narrow, nothing stands out at the side.
        await tab.show(width=390, height=800, dark=True)
        assert await tab.get("document.documentElement.scrollWidth") == 390
        assert await tab.get("typeof window.__hacked") == "undefined"
        assert tab.requests[0] == report.as_uri()
        assert [address for address in tab.requests[1:] if not address.startswith("data:image/png;base64,")] == []
        assert tab.complaints == []


@pytest.mark.needs_browser
async def test_differences_are_the_shortest_in_a_browser(tmp_path: Path) -> None:
    """Any two texts: taking the lines that stay and those that came gives the second, and the others give the first."""
    report = write_report(read_run(write_run(tmp_path / "run")), tmp_path / "report.html")
    script = """(() => {
      let seed = 1;
      const random = (limit) => (seed = (seed * 48271) % 2147483647) % limit;
      const lines = () => Array.from({ length: random(30) }, () => "abcd"[random(4)]);
      const common = (a, b) => {
        const table = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
        for (let i = a.length - 1; i >= 0; i--)
          for (let j = b.length - 1; j >= 0; j--)
            table[i][j] = a[i] === b[j] ? 1 + table[i + 1][j + 1] : Math.max(table[i + 1][j], table[i][j + 1]);
        return table[0][0];
      };
      for (let round = 0; round < 500; round++) {
        const a = lines().join("\\n").split("\\n"), b = lines().join("\\n").split("\\n");
        const found = diffLines(a.join("\\n"), b.join("\\n"));
        const left = found.filter((line) => line.op !== "+"), right = found.filter((line) => line.op !== "-");
        const texts = (lines) => lines.map((line) => line.text).join();
        const good = texts(left) === a.join() && texts(right) === b.join()
          && left.every((line, at) => line.left === at + 1) && right.every((line, at) => line.right === at + 1)
          && found.filter((line) => line.op === " ").length === common(a, b);
        if (!good) return JSON.stringify([a, b, found]);
      }
      const far = (letter) => Array.from({ length: 9000 }, (_, at) => letter + at).join("\\n");
      return diffLines(far("a"), far("b")) === null ? "good" : "unbounded";
    })()"""
    async with open_browser() as browser:
        tab = await browser.open_tab()
        await tab.go(report.as_uri())
        assert await tab.get(script) == "good"
