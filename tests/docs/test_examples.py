"""Each example runs by itself, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_examples_are_numbered_from_one_without_a_gap() -> None:
    numbers = [int(found[1]) for path in EXAMPLES if (found := re.match(r"(\d\d)_[a-z_]+\.py$", path.name))]
    assert EXAMPLES
    assert len(numbers) == len(EXAMPLES), "an example is named NN_what_it_shows.py"
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_says_what_it_shows_and_runs(path: Path, tmp_path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith('"""')
    done = subprocess.run(
        [sys.executable, path],
        cwd=tmp_path,
        env=os.environ | {"NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example shows something"
