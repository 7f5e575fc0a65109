"""Canaries: files, ports and processes of the host that no sandbox may see or reach, and a check of whether one did."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.inside.nolinks import on_error

ENV_NAME = "CORRAL_CANARY_TOKEN"
_PREFIX = "corral-canary-"


@dataclass(slots=True)
class Canaries:
    """The planted canaries. Probes get the targets, never the secrets: a secret that a sandbox prints has leaked."""

    files: dict[Path, str]
    env_secret: str
    listeners: list[socket.socket]
    datagrams: socket.socket
    abstract: str
    process: subprocess.Popen[bytes]
    mark: str
    words: tuple[str, ...]
    folders: tuple[str, ...]
    """Folders of this host that must not be in a sandbox, among them the data folder."""
    more_targets: dict[str, Any] = field(default_factory=dict)
    """What probes on the test ground attack besides."""
    heard: dict[str, bytearray] = field(default_factory=dict)
    """What the permitted servers of the test ground received since the probe began, by "name:port"."""
    more_secrets: list[str] = field(default_factory=list)
    """Values that a gate has, and no sandbox."""
    more_checks: list[Callable[[], list[str]]] = field(default_factory=list)
    """Each describes what else was touched since its last call."""
    _reported: set[str] = field(default_factory=set)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that must never be in any output."""
        return (*self.files.values(), self.env_secret, *self.more_secrets)

    @property
    def paths(self) -> tuple[str, ...]:
        """The planted files."""
        return tuple(str(path) for path in self.files)

    def targets(self) -> dict[str, Any]:
        """The addresses, paths and numbers that a probe attacks."""
        return {
            "canary_paths": list(self.paths),
            "canary_pid": self.process.pid,
            "canary_mark": self.mark,
            "host_folders": list(self.folders),
            "tcp_port": self.listeners[0].getsockname()[1],
            "udp_port": self.datagrams.getsockname()[1],
            "abstract": self.abstract,
            **self.more_targets,
        }

    def find_touched(self) -> list[str]:
        """Describe what was touched since the last call, as the host sees it."""
        found = [f"{count} connections to the host's {name}" for name, count in self._count_connections() if count]
        for path, content in self.files.items():
            try:
                if path.read_text() != content or sorted(p.name for p in path.parent.iterdir()) != [path.name]:
                    found.append(f"{path.name} or its folder was changed")
            except OSError as error:
                found.append(f"{path.name}: {error.strerror}")
        if self.process.poll() is not None:
            found.append("the host's process was ended")
        for check in self.more_checks:
            found += check()
        news = [text for text in found if text not in self._reported]
        self._reported.update(text for text in news if "connections" not in text)
        return news

    def _count_connections(self) -> Iterator[tuple[str, int]]:
        for listener in self.listeners:
            count = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    listener.accept()[0].close()
                    count += 1
            yield _name(listener), count
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.datagrams.recv(100)
                count += 1
        yield "datagram port", count


@contextlib.contextmanager
def plant(*, data_folder: Path | str | None = None) -> Iterator[Canaries]:
    """Plant canaries. Do so before the first sandbox is created, which might inherit the environment."""
    with contextlib.ExitStack() as stack:
        files: dict[Path, str] = {}
        for parent in dict.fromkeys((tempfile.gettempdir(), str(Path.home()))):
            try:
                folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            except OSError:
                continue  # no canary in a home folder that can't be written
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.chmod(0o755)
            path = folder / "canary"
            files[path] = _secret("file")
            path.write_text(files[path])
            path.chmod(0o666)
        env_secret = _secret("env")
        previous = os.environ.get(ENV_NAME)
        os.environ[ENV_NAME] = env_secret
        stack.callback(_restore, previous)
        port_socket = stack.enter_context(_listen(socket.AF_INET, ("127.0.0.1", 0)))
        listeners = [port_socket]
        with contextlib.suppress(OSError):  # no IPv6 here
            listeners.append(stack.enter_context(_listen(socket.AF_INET6, ("::1", port_socket.getsockname()[1]))))
        abstract = _PREFIX + secrets.token_hex(8)
        listeners.append(stack.enter_context(_listen(socket.AF_UNIX, "\0" + abstract)))
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        mark = _PREFIX + secrets.token_hex(8)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)", mark], stdin=subprocess.DEVNULL
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        words, folders = _describe_host(data_folder)
        yield Canaries(files, env_secret, listeners, datagrams, abstract, process, mark, words, folders)


def check_host_works() -> str | None:
    """Check the resources of the host that bombs use up: None if they are available, otherwise what is missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(0o2000000)
    if watcher < 0:
        return f"no inotify instance on the host: {os.strerror(ctypes.get_errno())}"
    os.close(watcher)
    try:
        for descriptor in os.openpty():
            os.close(descriptor)
        done = subprocess.run(["/bin/sh", "-c", "exit 42"], stdin=subprocess.DEVNULL, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the host is hampered: {error}"
    return None if done.returncode == 42 else f"a shell on the host gave {done.returncode}"


def find_processes(token: str) -> tuple[int, ...]:
    """Find the live processes of this host with a token in their arguments, in any namespace.

    The arguments of a process whose first thread has ended can only be read from another thread of it.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            arguments = (entry / "cmdline").read_bytes()
            if not arguments:
                arguments = b"".join((thread / "cmdline").read_bytes() for thread in (entry / "task").iterdir())
            if token.encode() in arguments:
                found.append(int(entry.name))
    return tuple(found)


def _describe_host(data_folder: Path | str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give names that are unique to this host, and its folders that must not be in a sandbox."""
    package = Path(__file__).resolve().parents[3]
    folders = {str(package), os.path.realpath(tempfile.gettempdir())} if package.parts[1:2] != ("usr",) else set()
    if data_folder is not None:
        folders |= {str(data_folder), os.path.realpath(data_folder)}
    home = str(Path.home())
    words = {folder for folder in folders if folder.count("/") > 1} | {_PREFIX}
    if home.count("/") > 1 and not home.startswith("/home/daytona"):
        words.add(home)
    if os.path.realpath(sys.base_prefix).count("/") > 1 and not sys.base_prefix.startswith("/usr"):
        words.add(os.path.realpath(sys.base_prefix))
    with contextlib.suppress(OSError):
        words.add(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    name = socket.gethostname()
    if len(name) > 3 and name not in ("corral", "localhost"):
        words.add(name)
    return tuple(sorted(words)), tuple(sorted(folder for folder in folders if folder.count("/") > 1))


def _name(listener: socket.socket) -> str:
    if listener.family == socket.AF_UNIX:
        return "abstract socket"
    host, port = listener.getsockname()[:2]
    return "loopback port" if host in ("127.0.0.1", "::1") else f"forbidden address {host}:{port}"


def _listen(family: int, address: tuple[str, int] | str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    with on_error(listener.close):
        listener.bind(address)
        listener.listen(64)
    listener.setblocking(False)
    return listener


def _restore(previous: str | None) -> None:
    if previous is None:
        os.environ.pop(ENV_NAME, None)
    else:
        os.environ[ENV_NAME] = previous


def _secret(kind: str) -> str:
    return f"{kind}-secret-{secrets.token_hex(16)}"
