"""The way of a request through the server is short, as ARCHITECTURE.md draws it."""

import re
import subprocess
import sys

from support.project import ROOT

MOST = 9


def test_one_exec_over_http_crosses_few_modules() -> None:
    command = (sys.executable, ROOT / "tools" / "walk", "http")
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"'exitCode': 0.*in the server: (\d+) modules", shown)
    assert found is not None, shown
    assert int(found[1]) <= MOST, shown
