"""The blocks of the docs that need a framework run, and print what is shown. Those that need a server too have one."""

import os
import re
from pathlib import Path

import pytest

from support.project import ROOT, Block, read_blocks
from support.serving import ServedProcess
from support.warm import run_program

MARK = re.compile(r"<!-- needs: a framework(?P<server>, a server)? -->")
BLOCKS = [block for page in sorted((ROOT / "docs").glob("*.md")) for block in read_blocks(page)]


def find_mark(block: Block) -> re.Match[str] | None:
    above = block.file.read_text(encoding="utf-8").splitlines()[: block.line - 1]
    return MARK.fullmatch(above[-1].strip()) if above else None


CHOSEN = [block for block in BLOCKS if block.language == "python" and find_mark(block)]


def find_shown(block: Block) -> str | None:
    later = [other for other in BLOCKS if other.file == block.file and other.line > block.line]
    return later[0].text if later and later[0].language == "output" else None


def test_there_are_some() -> None:
    assert CHOSEN


@pytest.mark.needs_userns
@pytest.mark.parametrize("block", CHOSEN, ids=str)
def test_block_runs_and_prints_what_is_shown(block: Block, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    environment = dict(os.environ)
    mark = find_mark(block)
    assert mark is not None
    if mark["server"]:
        server: ServedProcess = request.getfixturevalue("server")
        environment |= {"DAYTONA_API_URL": server.url, "DAYTONA_API_KEY": server.key}
    file = tmp_path / "snippet.py"
    file.write_text(block.text, encoding="utf-8")
    done = run_program(file, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    shown = find_shown(block)
    if shown is not None:
        assert done.stdout.strip() == shown.strip()
    else:
        assert done.stdout
