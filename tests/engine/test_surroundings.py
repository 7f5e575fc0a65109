"""Sandboxes are the same wherever Corral is started: with another umask, as a background job, in unusual folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.user import OrdinaryUser

# Every signal below 32 is heeded: the C library has that one for itself, and may block it.
# Packages are left out: they are fetched, and tests/engine/test_interpreters.py does that.
PROGRAM = """
import asyncio, sys
from corral import AsyncSandbox

async def main():
    async with AsyncSandbox() as box:
        await box.files.write("made/by us.txt", "höher\\n")
        seen = await box.exec("id -un; umask; stat -c %a /etc/passwd made made/*; cat made/*", check=True)
        print(seen.stdout, end="")
        print((await box.exec("grep -E 'Sig(Blk|Ign):.{9}[08]0{7}$' /proc/self/status | wc -l")).stdout, end="")
        result = await box.interpreter.execute("print('begun')\\nwhile True: pass", timeout=3)
        print(result.status, result.stdout, result.fresh)
        box_id = await box.detach(lifetime_seconds=60)
    async with await AsyncSandbox.connect(box_id) as box:
        print((await box.run_code("print('ä')")).stdout, end="")
        await box.kill()

asyncio.run(main())
"""
EXPECTED = "daytona\n0022\n644\n755\n644\nhöher\n2\ntimeout begun\n False\nä\n"
ODDLY = ["sh", "-c", "umask 077; trap '' INT HUP QUIT; exec \"$@\"", "-"]


def make_environment(folder: Path) -> dict[str, str]:
    """Spaces in every path, a locale with ASCII alone, and colours without a terminal."""
    for name in ("a tmp", "a home"):
        (folder / name).mkdir()
    return {
        "COLUMNS": "20",
        "FORCE_COLOR": "1",
        "HOME": str(folder / "a home"),
        "LC_ALL": "C",
        "PATH": os.environ["PATH"],
        "PYTHONIOENCODING": "utf-8",  # of what this test reads, not of what Corral does
        "SHELL": "/usr/bin/fish",
        "TERM": "dumb",
        "TMPDIR": str(folder / "a tmp"),
        "XDG_DATA_HOME": str(folder / "a home" / ("far away " * 15)),  # a socket's address has 107 bytes
    }


@pytest.mark.needs_root
def test_odd_surroundings_as_root(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*ODDLY, sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=make_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    assert (ended.stdout, ended.stderr) == (EXPECTED, "")


@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_odd_surroundings_as_an_ordinary_user(ordinary_user: OrdinaryUser) -> None:
    environment = make_environment(ordinary_user.home)
    for path in ordinary_user.home.glob("a *"):
        os.chown(path, ordinary_user.uid, -1)
    argv = [*ODDLY, str(ordinary_user.python), "-c", PROGRAM]
    ended = ordinary_user.run_argv(argv, env=environment, timeout=100)
    assert (ended.stdout, ended.stderr) == (EXPECTED, "")
