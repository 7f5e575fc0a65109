"""The blocks of the README and the docs that need a server run against one."""

import os
import re
from pathlib import Path

import pytest

from support.project import ROOT, Block, read_blocks
from support.serving import ServedProcess, make_client
from support.warm import run_program

PAGES = [ROOT / "README.md", ROOT / "docs/server.md"]
MARK = "<!-- needs: a server -->"


def choose_blocks() -> list[object]:
    chosen: list[object] = []
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        blocks = read_blocks(page)
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if lines[block.line - 2].strip() == MARK:
                usual = "42" if re.search(r"42|6 \* 7", block.text) else ""  # a placeholder is another each time
                said = after.text if after is not None and after.language == "output" else usual
                chosen.append(pytest.param(block, said, id=str(block)))
    return chosen


def test_readme_has_an_example_of_few_lines() -> None:
    blocks = [block for block in read_blocks(ROOT / "README.md") if "from daytona import" in block.text]
    assert len(blocks) == 1
    assert len([line for line in blocks[0].text.splitlines() if line.strip()]) == 5


@pytest.mark.parametrize(("block", "said"), choose_blocks())
def test_block_runs_against_a_server(block: Block, said: str, server: ServedProcess, tmp_path: Path) -> None:
    environment = os.environ | {"DAYTONA_API_URL": server.url, "DAYTONA_API_KEY": server.key}
    file = tmp_path / "snippet.py"
    file.write_text(block.text, encoding="utf-8")
    done = run_program(file, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(said), done.stdout
    snapshots = make_client(server).snapshot  # others use the same server
    for made in snapshots.list().items:
        if made.name == "with-matplotlib":
            snapshots.delete(made)
