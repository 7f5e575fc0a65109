"""The tests run in the same environment, however they are started."""

import json
import os
import subprocess
import sys

from support.project import ROOT

PROGRAM = """
import json, os, signal, subprocess, sys
from support.surroundings import make_neutral
make_neutral()
status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
signals = [line.split()[1] for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn"))]
print(json.dumps({"umask": os.umask(0), "signals": signals, "environment": dict(os.environ)}))
"""
ODD = {
    "COLUMNS": "7",
    "CORRAL_API_KEY": "mine",
    "DAYTONA_API_URL": "http://127.0.0.1:1",
    "FORCE_COLOR": "1",
    "GIT_DIR": "/nowhere",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "LC_ALL": "C",
    "LC_TIME": "de_DE",
    "NO_PROXY": "example.org",
    "PYTEST_ADDOPTS": "--nonsense",
}


def test_odd_surroundings_become_the_usual_ones() -> None:
    ended = subprocess.run(
        ["sh", "-c", "umask 077; trap '' INT HUP QUIT CHLD; exec \"$@\"", "-", sys.executable, "-c", PROGRAM],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "tests"), **ODD},
        capture_output=True,
        text=True,
    )
    assert ended.stderr == ""
    found = json.loads(ended.stdout)
    assert found["umask"] == 0o022
    ordinary = (1 << 31) - 1  # 32 and 33 are the C library's own: below threads they may be blocked
    assert [int(mask, 16) & ordinary for mask in found["signals"]] == [0, 0], "a program would ignore a signal"
    environment = found["environment"]
    assert environment.keys() & ODD.keys() == {"HTTP_PROXY", "LC_ALL", "NO_PROXY"}
    assert (environment["HTTP_PROXY"], environment["LC_ALL"]) == ("http://127.0.0.1:1", "C.UTF-8")
    assert environment["NO_PROXY"] == "example.org,localhost,127.0.0.1,::1"
