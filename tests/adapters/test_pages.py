"""The blocks of the docs that need a framework run, and print what is shown. Those that need a server too have one."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.project import ROOT, Block, read_blocks
from support.serving import ServedProcess

MARK = re.compile(r"<!-- needs: a framework(?P<server>, a server)? -->")
BLOCKS = [block for page in sorted((ROOT / "docs").glob("*.md")) for block in read_blocks(page)]


def find_mark(block: Block) -> re.Match[str] | None:
    above = block.file.read_text(encoding="utf-8").splitlines()[: block.line - 1]
    return MARK.fullmatch(above[-1].strip()) if above else None


CHOSEN = [block for block in BLOCKS if block.language == "python" and find_mark(block)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    served = ServedProcess(tmp_path_factory.mktemp("served") / "data")
    served.start()
    try:
        yield served
    finally:
        served.stop()


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
        service: ServedProcess = request.getfixturevalue("service")
        environment |= {"DAYTONA_API_URL": service.url, "DAYTONA_API_KEY": service.key}
    file = tmp_path / "snippet.py"
    file.write_text(block.text, encoding="utf-8")
    done = subprocess.run([sys.executable, file], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = find_shown(block)
    if shown is not None:
        assert done.stdout.strip() == shown.strip()
    else:
        assert done.stdout
