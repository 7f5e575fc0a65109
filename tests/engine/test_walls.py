"""What a gate can still do once it is confined: the calls of a program that has taken it over, made by a process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.user import ROOT, OrdinaryUser

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

PROGRAM = """
import ctypes, errno, json, os, resource, socket, sys
from corral.network.confine import confine
from corral.network.walls import find_version
told = json.loads(sys.argv[1])
log = os.open(told["log"], os.O_RDWR)
confine("corral-gate", uid=None, gid=None, readable=[told["readable"]])
def attempt(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
def listen():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
def abstract():
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(chr(0) + told["abstract"])
def connect():
    socket.create_connection(("127.0.0.1", told["port"]), timeout=5).close()
def memory():  # as certificates are read
    descriptor = os.memfd_create("leaf")
    os.write(descriptor, b"hi")
    assert open(f"/proc/self/fd/{descriptor}", "rb").read() == b"hi"
print(json.dumps({
    "version": find_version(ctypes.CDLL(None)),
    "lookups": attempt(lambda: open("/etc/hosts").close()),
    "names": attempt(lambda: socket.getaddrinfo("localhost", 80)),
    "memory": attempt(memory),
    "readable": attempt(lambda: open(told["readable"]).close()),
    "private": attempt(lambda: open(told["private"]).close()),
    "listing": attempt(lambda: os.listdir(os.path.dirname(told["private"]))),
    "new": attempt(lambda: open(told["private"] + ".new", "w").close()),
    "removed": attempt(lambda: os.unlink(told["private"])),
    "moved": attempt(lambda: os.rename(told["private"], told["private"] + ".moved")),
    "shortened": attempt(lambda: os.truncate(told["private"], 0)),
    "run": attempt(lambda: os.execv("/bin/true", ["true"])),
    "log": attempt(lambda: os.pwrite(log, b"x" * 512, 1 << 17)),
    "endless": attempt(lambda: os.pwrite(log, b"x", 1 << 30)),
    "connect": attempt(connect),
    "listen": attempt(listen),
    "signal": attempt(lambda: os.kill(os.getppid(), 0)),
    "abstract": attempt(abstract),
}))
"""


@pytest.mark.parametrize("who", ["ours", "another"])
def test_a_gate_that_is_taken_over_has_no_files_of_its_user(
    who: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    user: OrdinaryUser | None = request.getfixturevalue("ordinary_user") if who == "another" else None
    folder = user.home if user is not None else tmp_path
    for name in ("private", "log", "readable"):
        (folder / name).write_text(name)
        if user is not None:
            os.chown(folder / name, user.uid, user.uid)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0corral-walls-" + folder.name)
        abstract.listen()
        told = {name: str(folder / name) for name in ("private", "log", "readable")}
        about = json.dumps({**told, "port": server.getsockname()[1], "abstract": "corral-walls-" + folder.name})
        if user is not None:
            done = user.run(PROGRAM, args=[about])
        else:
            env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
            argv = [sys.executable, "-c", PROGRAM, about]
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    version = found.pop("version")
    if not version:
        pytest.skip("this kernel has no Landlock")
    works = ("lookups", "names", "memory", "readable", "log", "connect")
    assert [found.pop(name) for name in works] == ["done"] * len(works)
    assert found.pop("endless") == "EFBIG"
    later = {"listen": (4, "EACCES"), "signal": (6, "EPERM"), "abstract": (6, "EPERM"), "shortened": (3, "EACCES")}
    for name, (since, code) in later.items():
        said = found.pop(name)
        assert version < since or said == code, (name, said)
    assert set(found.values()) == {"EACCES"}, found
    assert (folder / "private").read_text() == "private"
