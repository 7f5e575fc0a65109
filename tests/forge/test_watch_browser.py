"""The live page, as a browser shows it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from corral.forge.candidate import Candidate
from corral.forge.contest import Contest
from corral.forge.watch import WatchServer
from support.browser import open_browser
from support.forge_runs import HOSTILE_LINE, HOSTILE_NAME, write_run

GUARD_SECONDS = 60.0


@pytest.mark.needs_browser
@pytest.mark.needs_userns
async def test_a_contest_in_a_browser(tmp_path: Path) -> None:
    """Output is on the page while the candidate that printed it is still running: it waits for us to have seen it."""
    release = asyncio.Event()

    async def patient(seat: Any) -> None:
        for number in range(3):
            seat.log(f"line {number} {HOSTILE_LINE}\n")
        await release.wait()
        await seat.sandbox.files.write(seat.output, "# thorough\n")

    candidates = [
        Candidate.agent(patient, id="patient", name=HOSTILE_NAME),
        Candidate.command("echo hello; echo '# quick' > $2", id="quick"),
        Candidate.command("echo falling >&2; exit 3", id="falls"),
    ]
    async with WatchServer(tmp_path / "run", follow=False) as server, open_browser() as browser:
        tab = await browser.open_tab()
        await tab.go(server.url)
        await tab.wait_for("document.querySelector('#state').textContent === 'waiting for the run'")
        contest = Contest(candidates, "Say <b>hello</b>", artifacts_dir=tmp_path, on_event=server.listener, jobs=3)
        running = asyncio.create_task(contest.run(run_id="run"))
        try:
            await tab.wait_for("document.querySelector('[data-lane=patient] .log')?.textContent.includes('line 2')")
            await tab.wait_for("document.querySelector('[data-lane=patient] .chip').textContent === 'running'")
            await tab.wait_for("document.querySelector('[data-row=falls]').textContent.includes('crashed')")
            await tab.wait_for("document.querySelector('[data-row=quick] .chip')?.textContent === 'ok'")
            assert await tab.get("document.querySelector('#objective').textContent") == "Say <b>hello</b>"
            assert (
                await tab.get("document.querySelector('[data-lane=patient] h3').textContent.slice(0, 70)")
                == HOSTILE_NAME[:70]
            )
            assert not running.done()
            release.set()
            async with asyncio.timeout(GUARD_SECONDS):
                result = await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert result.state == "finished"
        await tab.wait_for("document.querySelector('#state').textContent === 'finished'")
        rows = "[...document.querySelectorAll('#rows tr')]"
        assert await tab.get(f"{rows}.map(row => row.dataset.row)") == [one.candidate for one in result.standings]
        ranks = await tab.get(f"{rows}.map(row => row.cells[0].textContent)")
        assert ranks[0] == "1"
        assert ranks[2] == "–"
        await tab.click("[data-lane=quick] .files button")
        await tab.wait_for("document.querySelector('#viewer-body pre')?.textContent === '# quick\\n'")
        await tab.click("#viewer-close")
        await tab.click("[data-filter=failed]")
        await tab.wait_for(
            "[...document.querySelectorAll('.lane:not([hidden])')].map(lane => lane.dataset.lane).join() === 'falls'"
        )
        assert await tab.get("typeof window.__hacked") == "undefined"
        assert tab.complaints == []
        assert [address for address in tab.requests if not address.startswith((server.url, "data:,"))] == []


@pytest.mark.needs_browser
async def test_a_run_that_has_ended_in_a_browser(tmp_path: Path) -> None:
    async with WatchServer(write_run(tmp_path / "run")) as server, open_browser() as browser:
        tab = await browser.open_tab(width=390, dark=True)
        await tab.go(server.url)
        await tab.wait_for("document.querySelector('#state').textContent === 'finished'")
        await tab.wait_for("document.querySelectorAll('#rows tr.winner').length === 1")
        order = await tab.get("[...document.querySelectorAll('#rows tr')].map(row => row.dataset.row)")
        assert order[:3] == ["thorough", "balanced", "fast"]
        # A log of 5000 lines: its end is there, and not more than the page can bear.
        log = "document.querySelector('[data-lane=thorough] .log')"
        assert await tab.get(f"{log}.textContent.endsWith('step 5000: thinking\\n')")
        assert await tab.get(f"{log}.textContent.length") < 40_000
        assert await tab.get("document.querySelector('[data-lane=balanced] .log').textContent.includes('⟨U+202E⟩')")
        await tab.get(
            "[...document.querySelectorAll('[data-lane=thorough] .files button')]"
            ".find(button => button.textContent === 'sketch.png').click()"
        )
        await tab.wait_for("document.querySelector('#viewer-body img')?.naturalWidth === 24")
        assert await tab.get("document.documentElement.scrollWidth") == 390
        assert await tab.get("typeof window.__hacked") == "undefined"
        assert tab.complaints == []
