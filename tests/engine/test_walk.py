"""A newcomer's walk: how many modules one call crosses on the host side."""

import re
import subprocess
import sys

from support.project import ROOT

MOST_MODULES = 13


def test_a_snippet_crosses_few_modules() -> None:
    shown = subprocess.run([sys.executable, ROOT / "tools/walk", "run"], capture_output=True, text=True, check=True)
    counted = re.match(r"box\.run_code\(.*\): (\d+) modules\n", shown.stdout)
    assert counted is not None
    assert int(counted[1]) <= MOST_MODULES, shown.stdout


def test_any_python_shows_it() -> None:
    if not (ROOT / ".venv").exists():
        return  # the tests run in an environment of another place
    bare = [f"{sys.base_prefix}/bin/python3", "-S", ROOT / "tools/walk", "run"]
    assert "modules" in subprocess.run(bare, capture_output=True, text=True, check=True).stdout
