"""One page that needs nothing else: it sends no request, and nothing of a candidate can run in it.

The policy in its head allows exactly our own script and style, by their hashes. Texts of candidates are escaped, or are
data in a block for our script, which shows them as text.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from corral.forge.overview import make_overview
from corral.forge.pages import read_asset
from corral.forge.pages.text import clean_line, escape
from corral.forge.report.embed import embed_artifacts, embed_logs
from corral.forge.report.leaderboard import write_banner, write_leaderboard
from corral.forge.report.parts import data_block
from corral.forge.report.repeat import make_command
from corral.forge.report.sections import (
    write_candidates,
    write_charts,
    write_header,
    write_logs,
    write_manifest,
    write_repeat,
    write_warnings,
)

if TYPE_CHECKING:
    from corral.forge.runfolder import Run

_HERE = "corral.forge.report"
_SHARED = "corral.forge.pages"


def write_report(run: Run, target: Path, *, command: str | None = None) -> Path:
    """Write the run's report, whole or not at all. Returns the path of the file.

    Args:
        run: A run read from its folder, also an interrupted one.
        target: The file, which is replaced if it exists; in a folder `report.html` is written.
        command: The command that repeats the contest, if the caller knows it.

    Raises:
        OSError: it can't be written there.
    """
    file = target / "report.html" if target.is_dir() else target
    page = render_report(run, command=command)
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(page)
        umask = os.umask(0)
        os.umask(umask)
        Path(unfinished).chmod(0o666 & ~umask)  # mkstemp makes it private, but a report is meant to be shared
        Path(unfinished).replace(file)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    return file


def render_report(run: Run, *, command: str | None = None) -> str:
    """The page as text."""
    overview = make_overview(run)
    embedded = embed_artifacts(overview)
    style = read_asset(_SHARED, "page.css") + read_asset(_HERE, "report.css")
    script = read_asset(_HERE, "diff.js") + read_asset(_HERE, "report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(read_asset(_HERE, "report.html")).substitute(
        policy=escape(policy),
        title=escape(f"{clean_line(run.objective, limit=60) or 'Contest'} · {clean_line(run.run_id)}"),
        style=style,
        script=script,
        header=write_header(overview),
        banner=write_banner(overview),
        warnings=write_warnings(overview),
        leaderboard=write_leaderboard(overview),
        charts=write_charts(overview),
        candidates=write_candidates(overview),
        logs=write_logs(overview, embed_logs(overview.rows)),
        manifest=write_manifest(overview, embedded),
        repeat=write_repeat(overview, command or make_command(overview)),
        data=data_block("artifact-data", embedded.files),
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
