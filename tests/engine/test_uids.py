"""Ranges of user ids, as users see them: root's sandboxes always get one, also with other users on the machine."""

import subprocess
import sys
from pathlib import Path

import pytest

SQUATTED = """
import asyncio, os, resource, signal, socket, sys
from pathlib import Path

resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
ready, tell = os.pipe()
squatter = os.fork()
if squatter == 0:
    os.setgid(65534)
    os.setuid(65534)
    held = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(4095)]
    for slot, each in enumerate(held):
        each.bind(f"\\0corral-uids-{slot}")
    os.write(tell, b"x")
    signal.pause()
os.read(ready, 1)

from corral.backends.embedded import EmbeddedBackend
from corral.spec import Spec

async def main():
    backend = EmbeddedBackend(Path(sys.argv[1]))
    try:
        box = await backend.create(Spec())
        print((await box.exec("echo made")).stdout, end="")
        await box.kill()
    finally:
        await backend.aclose()

try:
    asyncio.run(main())
finally:
    os.kill(squatter, signal.SIGKILL)
    os.waitpid(squatter, 0)
"""


@pytest.mark.needs_root
def test_user_who_has_bound_every_name_takes_no_range_from_root(tmp_path: Path) -> None:
    """In a network namespace of its own, which is where such names are: other tests bind some as well."""
    argv = ["unshare", "--net", sys.executable, "-c", SQUATTED, str(tmp_path / "data")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=90)
    assert (done.stdout, done.returncode) == ("made\n", 0), done.stderr
