"""The peers: plain subprocess, bubblewrap, firejail and Docker, each doing the same tasks as a sandbox."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Tasks = dict[str, Callable[[], None]]
"""Task → how to do it once."""
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""Run with -P: a `json.py` in the working folder is not ours."""
SNIPPET = "import json; print(json.dumps({'sum': sum(range(1000))}))"
JS_SNIPPET = "console.log(JSON.stringify({sum: [...Array(1000).keys()].reduce((a, b) => a + b)}))"
BLOB_BYTES = 8 * 1024 * 1024
SMALL_WRITES_BYTES = 4_000_000
# One system call for each line, as unbuffered Python does: what a killed program has printed must not be lost.
SMALL_WRITES = f"import os\nfor _ in range({SMALL_WRITES_BYTES // 50}): os.write(1, b'x' * 49 + b'\\n')"
_DOCKER_IMAGES = ("busybox", "alpine", "debian", "ubuntu", "python")
_DOCKER_FLAGS = ("--network", "none", "--cap-drop", "ALL", "--memory", "1g", "--pids-limit", "256")


@dataclass(frozen=True, slots=True)
class Peer:
    """One contestant beside Corral."""

    name: str
    tasks: Tasks
    close: Callable[[], None] = lambda: None


def _do(*argv: str) -> None:
    subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120
    )


def find_peers() -> tuple[list[Peer], list[str]]:
    """The peers that work here, and remarks on them and on the others."""
    peers, notes = [_plain()], []
    for name, program, make, remark in (
        ("bubblewrap", "bwrap", _bubblewrap, "namespaces and no capabilities, but no seccomp filter,"),
        ("firejail", "firejail", _firejail, "its seccomp list, no network, an empty home, no capabilities;"),
    ):
        path = shutil.which(program)
        if path is None:
            notes.append(f"{name} is not installed" + (f" ({program})" if program != name else ""))
            continue
        try:
            peers.append(make(path))
            notes.append(f"{program}: {remark} no cgroups, no quota")
        except (OSError, subprocess.SubprocessError):
            notes.append(f"{name} is installed, but can't make namespaces here")
    docker = shutil.which("docker")
    if docker is None:
        notes.append("Docker is not installed")
    elif (image := _docker_image(docker)) is None:
        notes.append("Docker: no daemon answers, or it has no small image (docker pull busybox)")
    else:
        peers.append(_docker(docker, image))
    return peers, notes


def _snippets() -> dict[str, list[str]]:
    """Task → the argv that runs its snippet on this machine."""
    found = {"Python snippet": [PYTHON, "-P", "-c", SNIPPET]}
    if node := shutil.which("node"):
        found["JavaScript snippet"] = [node, "-e", JS_SNIPPET]
    return found


def _plain() -> Peer:
    tasks: Tasks = {
        "open, true, close": lambda: _do("true"),
        "exec true": lambda: _do("true"),
        "8 MB there and back": _round_trip,
        "4 MB in small writes": _read_small_writes,
        "4 MB in small writes, heard": _read_small_writes,
    }
    return Peer("plain", tasks | {task: functools.partial(_do, *argv) for task, argv in _snippets().items()})


def _make_jail(name: str, prefix: list[str], *, folders: tuple[str, ...]) -> Peer:
    """A peer that runs programs with these words before them; only those in `folders` are seen inside."""
    _do(*prefix, "true")
    tasks: Tasks = {"open, true, close": lambda: _do(*prefix, "true")}
    for task, argv in _snippets().items():
        if os.path.realpath(argv[0]).startswith(folders):
            tasks[task] = functools.partial(_do, *prefix, *argv)
    return Peer(name, tasks)


def _round_trip() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "blob"
        file.write_bytes(bytes(BLOB_BYTES))
        assert len(file.read_bytes()) == BLOB_BYTES


def _read_small_writes() -> None:
    read = subprocess.run([PYTHON, "-P", "-c", SMALL_WRITES], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert len(read.stdout) == SMALL_WRITES_BYTES


def _bubblewrap(bwrap: str) -> Peer:
    prefix = [
        bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
        "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--ro-bind", "/usr", "/usr", "--proc", "/proc",
        "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/home", "--hostname", "bench", "--chdir", "/tmp",
    ]  # fmt: skip
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/") / name
        if path.is_symlink():
            prefix += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            prefix += ["--ro-bind", str(path), str(path)]
    base = os.path.realpath(sys.base_prefix)
    if not base.startswith("/usr"):
        prefix += ["--ro-bind", base, base]
    return _make_jail("bwrap", prefix, folders=("/usr", base))


def _firejail(firejail: str) -> Peer:
    prefix = [
        firejail, "--quiet", "--noprofile", "--net=none", "--private", "--private-tmp", "--private-dev",
        "--caps.drop=all", "--nonewprivs", "--seccomp",
    ]  # fmt: skip
    return _make_jail("firejail", prefix, folders=("/usr",))  # homes are empty inside


def _docker_image(docker: str) -> str | None:
    try:
        answer = subprocess.run(
            [docker, "images", "--format", "{{.Repository}}:{{.Tag}}"], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    images = answer.stdout.split()
    return next((image for name in _DOCKER_IMAGES for image in images if image.partition(":")[0].endswith(name)), None)


def _docker(docker: str, image: str) -> Peer:
    run = [docker, "run", *_DOCKER_FLAGS]
    name = f"corral-bench-{os.getpid()}"
    _do(*run, "--detach", "--name", name, image, "sleep", "3600")
    tasks: Tasks = {
        "open, true, close": lambda: _do(*run, "--rm", image, "true"),
        "exec true": lambda: _do(docker, "exec", name, "true"),
    }
    if image.partition(":")[0].endswith("python"):
        tasks["Python snippet"] = lambda: _do(*run, "--rm", image, "python3", "-c", SNIPPET)
    return Peer("docker", tasks, close=lambda: _do(docker, "rm", "--force", name))


@contextlib.contextmanager
def closing(peers: list[Peer]) -> Iterator[None]:
    """Close the peers at the end of the block."""
    try:
        yield
    finally:
        for peer in peers:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                peer.close()
