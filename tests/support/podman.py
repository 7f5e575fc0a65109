"""A podman service of the tests' own: its own socket, data, network and mount namespace, and the same image."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.dockerd import IMAGE, PATH, Daemon, list_missing_capabilities, write_rootfs

_READY_SECONDS = 60.0


def find_lack() -> str | None:
    """Why no service can be started here, None if one can."""
    for program in ("podman", "runc", "docker", "unshare"):
        if shutil.which(program, path=PATH) is None:
            return f"{program} is not on PATH"
    return None if os.geteuid() == 0 else "started by root"


@contextmanager
def open_podman() -> Iterator[Daemon]:
    """Start one, put the image into it, and end it, by its number."""
    folder = Path(tempfile.mkdtemp(prefix="corral-podman-", dir="/tmp"))  # a socket's path must be short
    process: subprocess.Popen[bytes] | None = None
    try:
        process = _start(folder)
        host = f"unix://{folder}/podman.sock"
        rootfs = folder / "rootfs.tar"
        write_rootfs(rootfs)
        daemon = Daemon(host, IMAGE, process.pid)
        daemon.run("import", "--change", "USER daytona", str(rootfs), IMAGE)
        yield daemon
    finally:
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver="overlay"\ngraphroot="{folder}/root"\nrunroot="{folder}/run"\n'
    )
    (folder / "containers.conf").write_text(
        '[engine]\ncgroup_manager="cgroupfs"\nevents_logger="none"\nruntime="tests"\n'
        f'[engine.runtimes]\ntests=["{_write_runtime(folder)}"]\n'
    )
    argv = [
        "unshare", "--mount", "--net", "--propagation", "slave",
        "podman", "--log-level", "warn", "system", "service", "--time", "0", f"unix://{folder}/podman.sock",
    ]  # fmt: skip
    env = {
        **os.environ, "PATH": PATH, "CONTAINERS_CONF": f"{folder}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
    }  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=env
        )
    guard = time.monotonic() + _READY_SECONDS
    while not (folder / "podman.sock").exists():
        if process.poll() is not None or time.monotonic() > guard:
            raise RuntimeError(f"podman does not answer:\n{(folder / 'log').read_text()[-3000:]}")
        time.sleep(0.1)
    return process


def _write_runtime(folder: Path) -> Path:
    """runc, by a script. Where root has not got every capability, it takes from a container what podman can't give."""
    missing = list_missing_capabilities()
    edits = " ".join(f'-e \'s/"CAP_{name}",//g; s/,"CAP_{name}"//g\'' for name in missing)
    if "SYS_RESOURCE" in missing:  # then no limit can be raised, which podman tries
        edits += """ -e 's/\\("RLIMIT_NPROC","hard":\\)[0-9]*,"soft":[0-9]*/\\19000,"soft":9000/g'"""
    script = folder / "runc"
    script.write_text(
        f"""#!/bin/sh
fix() {{ {f'sed -i {edits} "$1"' if edits else ":"}; }}
for word; do
  case $last in --process) fix "$word" ;; --bundle|-b) fix "$word/config.json" ;; esac
  last=$word
done
exec {shutil.which("runc", path=PATH)} "$@"
"""
    )
    script.chmod(0o755)
    return script
