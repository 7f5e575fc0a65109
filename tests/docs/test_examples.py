"""Each example runs by itself, in an empty folder, as the current user and as an ordinary user.

An example that says `Needs: network` in its docstring has the marker needs_network. One that names other packages
(`Packages: corral[ag2]`) is not run as the ordinary user, who has Corral alone. One for an ag2 that can't be installed
beside ours is run by tests/adapters/ag2/test_older_ag2.py.
"""

import os
import re
from pathlib import Path

import pytest

from support.project import ROOT
from support.user import OrdinaryUser
from support.warm import run_program

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def list_examples(*, alone: bool = False) -> list[object]:
    chosen: list[object] = []
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        packages = re.search(r"^Packages: .*", text, re.MULTILINE)
        if packages and (alone or "ag2==0.14" in packages[0]):
            continue
        needs = re.search(r"^Needs: (\w+)", text, re.MULTILINE)
        marks = [getattr(pytest.mark, f"needs_{needs[1]}")] if needs else []
        chosen.append(pytest.param(path, marks=marks, id=path.name))
    return chosen


def test_examples_are_numbered_from_one_without_a_gap() -> None:
    numbers = [int(found[1]) for path in EXAMPLES if (found := re.match(r"(\d\d)_[a-z_]+\.py$", path.name))]
    assert EXAMPLES
    assert len(numbers) == len(EXAMPLES), "an example is named NN_what_it_shows.py"
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("path", list_examples())
def test_example_says_what_it_shows_and_runs(path: Path, tmp_path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith('"""')
    done = run_program(path, cwd=tmp_path, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example shows something"


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.parametrize("path", list_examples(alone=True))
def test_example_runs_for_an_ordinary_user(path: Path, ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(path.read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stderr
    assert done.stdout
