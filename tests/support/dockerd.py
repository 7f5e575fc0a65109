"""A Docker daemon of the tests' own: its own socket, data, network and mount namespace, and an image made of this host.

No registry is asked: the image holds a shell, the usual tools and the Python that runs the tests, each with its
libraries, and is handed over as a tar.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

IMAGE = "corral-test:1"
BUSYBOX_IMAGE = "corral-test-busybox:1"
_READY_SECONDS = 60.0
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_PROGRAMS = """
    sh bash [ basename base64 cat chmod chown cp cut date dd df dirname du echo env expr false find grep gzip head id
    kill ln ls mkdir mkfifo mktemp mv nohup nproc od printf ps pwd readlink realpath rm rmdir sed seq setsid sha256sum
    sleep sort stat stty sync tail tar tee test timeout touch tr true truncate tty uname uniq wc which whoami xargs yes
""".split()  # noqa: SIM905 - a list literal would be a page long
_CAPABILITIES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
""".split()  # noqa: SIM905 - by number
_LEFT_OUT = re.compile(r"/(__pycache__|test|tests|idlelib|tkinter|ensurepip|lib2to3|site-packages|dist-packages)(/|$)")
_FOLDERS = ("usr", "usr/bin", "usr/lib", "etc", "proc", "sys", "dev", "home", "srv", "var", "run", "root")


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon, and the image in it."""

    host: str
    image: str
    pid: int

    def run(self, *words: str) -> str:
        """`docker …` on this daemon; what it printed."""
        done = subprocess.run(["docker", "--host", self.host, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr}"
        return done.stdout

    def count(self) -> int:
        """How many containers there are, of whatever state."""
        return len(self.run("ps", "--all", "--quiet").split())


def find_lack() -> str | None:
    """Why no daemon can be started here, None if one can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    for program in ("docker", "dockerd", "containerd", "unshare"):
        if shutil.which(program, path=path) is None:
            return f"{program} is not on PATH"
    return None if os.geteuid() == 0 else "a Docker daemon is started by root"


@contextmanager
def open_daemon(*, bridge: bool = False) -> Iterator[Daemon]:
    """Start one, put the image into it, and end it, by its number, with all that it holds.

    With a bridge it has Docker's own network, inside its own namespace: it leads to the daemon's side and no further.
    """
    folder = Path(tempfile.mkdtemp(prefix="corral-dockerd-", dir="/tmp"))  # a socket's path must be short
    process: subprocess.Popen[bytes] | None = None
    try:
        host = f"unix://{folder}/docker.sock"
        process = _start(folder, host, bridge=bridge)
        _load_image(folder, host)
        yield Daemon(host, IMAGE, process.pid)
    finally:
        if process is not None:
            _stop(process)
        _remove(folder)


def _start(folder: Path, host: str, *, bridge: bool) -> subprocess.Popen[bytes]:
    # In a mount and a network namespace of its own, so that nothing of the machine's is touched; no bridge, no rules.
    argv = [
        "unshare", "--mount", "--net", "--propagation", "slave",
        "dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid",
        "--host", host, "--iptables=false", "--ip6tables=false", "--log-level", "warn",
        *([] if bridge else ["--bridge", "none"]), *_wrap_runtime(folder),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "PATH": PATH},
        )  # fmt: skip
    guard = time.monotonic() + _READY_SECONDS
    while not _answers(host):
        if process.poll() is not None or time.monotonic() > guard:
            _stop(process)
            raise RuntimeError(f"dockerd does not answer:\n{(folder / 'log').read_text()[-3000:]}")
        time.sleep(0.1)
    return process


def _wrap_runtime(folder: Path) -> list[str]:
    """A privileged exec asks for every capability there is, and fails where root itself has not got them all.

    There, and only there, the runtime is called by a script that strikes out the missing ones.
    """
    missing = list_missing_capabilities()
    runc = shutil.which("runc", path=PATH)
    if not missing or runc is None:
        return []
    edits = " ".join(f'-e \'s/"CAP_{name}",//g; s/,"CAP_{name}"//g\'' for name in missing)
    script = folder / "runtime"
    script.write_text(
        '#!/bin/sh\nfor word; do\n  [ "$last" != --process ] || sed -i ' + edits + ' "$word"\n  last=$word\ndone\n'
        f'exec {runc} "$@"\n'
    )
    script.chmod(0o755)
    return ["--add-runtime", f"lesser={script}", "--default-runtime", "lesser"]


def list_missing_capabilities() -> list[str]:
    """Of all that the kernel has, those that root has not got on this machine."""
    bounding = int(re.findall(r"^CapBnd:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 16)
    return [name for number, name in enumerate(_CAPABILITIES) if not bounding >> number & 1]


def _answers(host: str) -> bool:
    argv = ["docker", "--host", host, "version"]
    return subprocess.run(argv, capture_output=True, timeout=30, env={**os.environ, "PATH": PATH}).returncode == 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Containers end with their shims, which dockerd ends in order."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _remove(folder: Path) -> None:
    """The namespace went with the daemon, and its mounts with it."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


# The image.


def _load_image(folder: Path, host: str) -> None:
    rootfs = folder / "rootfs.tar"
    write_rootfs(rootfs)
    argv = ["docker", "--host", host, "import", "--change", "USER daytona", str(rootfs), IMAGE]
    subprocess.run(argv, check=True, capture_output=True, timeout=120, env={**os.environ, "PATH": PATH})
    rootfs.unlink()


def write_rootfs(target: Path) -> None:
    """A small root: programs, their libraries and a Python, of this host; an ordinary user; nothing else."""
    programs = {name: os.path.realpath(path) for name in _PROGRAMS if (path := shutil.which(name, path=PATH))}
    python, library = os.path.realpath(sys.executable), Path(os.__file__).parent
    modules = [str(path) for path in (library / "lib-dynload").glob("*.so") if "_tkinter" not in path.name]
    with tarfile.open(target, "w") as tar:
        for name in _FOLDERS:
            _add_folder(tar, name, 0o755)
        _add_folder(tar, "tmp", 0o1777)
        for name, goal in (("bin", "usr/bin"), ("sbin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib")):
            _add_link(tar, name, goal)
        for name, path in programs.items():
            _add_file(tar, f"usr/bin/{name}", path)
        for name, path in _find_libraries([*programs.values(), python, *modules]).items():
            _add_file(tar, f"usr/lib/{name}", path)
        _add_file(tar, python.lstrip("/"), python)
        if python != "/usr/bin/python3":
            _add_link(tar, "usr/bin/python3", python)
        tar.add(library, arcname=str(library).lstrip("/"), filter=_plain)
        _add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\ndaytona:x:1000:1000::/home/daytona:/bin/sh\n")
        _add_text(tar, "etc/group", "root:x:0:\ndaytona:x:1000:\n")


def find_busybox() -> str | None:
    """A busybox that needs no libraries, None if this machine has none."""
    found = shutil.which("busybox", path=PATH)
    if found is None or _find_libraries([found]):
        return None
    return found


def find_busybox_lack() -> str | None:
    """Why `find_busybox` finds none."""
    return None if find_busybox() else "there is no busybox without libraries on PATH (Debian's package busybox-static)"


def load_busybox(daemon: Daemon, busybox: str) -> str:
    """An image with busybox and nothing else; gives its name."""
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=30).stdout.split()
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(file.name, "w") as tar:
            for name in ("bin", "etc", "proc", "sys", "dev", "home", "root", "usr", "usr/bin", "var"):
                _add_folder(tar, name, 0o755)
            _add_folder(tar, "tmp", 0o1777)
            _add_file(tar, "bin/busybox", busybox)
            for name in applets:
                if name != "busybox":
                    _add_link(tar, f"bin/{name}", "busybox")
            _add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\ndaytona:x:1000:1000::/home/daytona:/bin/sh\n")
            _add_text(tar, "etc/group", "root:x:0:\ndaytona:x:1000:\n")
        daemon.run("import", "--change", "USER daytona", file.name, BUSYBOX_IMAGE)
    return BUSYBOX_IMAGE


def _find_libraries(paths: list[str]) -> dict[str, str]:
    listed = subprocess.run(["ldd", *paths], capture_output=True, text=True).stdout  # static ones make it grumble
    return {Path(path).name: os.path.realpath(path) for path in re.findall(r"(/\S+) \(0x", listed)}


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if _LEFT_OUT.search(f"/{info.name}") or "/config-" in info.name or "_tkinter" in info.name:
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _add_file(tar: tarfile.TarFile, name: str, path: str) -> None:
    info = tarfile.TarInfo(name)
    with Path(path).open("rb") as file:
        info.size, info.mode = os.fstat(file.fileno()).st_size, 0o755
        tar.addfile(info, file)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(text), 0o644
    tar.addfile(info, io.BytesIO(text.encode()))


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    tar.addfile(info)


def _add_link(tar: tarfile.TarFile, name: str, goal: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, goal
    tar.addfile(info)
