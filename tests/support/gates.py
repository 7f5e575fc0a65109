"""A gate of its own for tests on the test ground: no sandbox, only a network namespace with a window.

    with window() as inside, gate(inside, mode="allow", rules=("example.org",)) as running:
        inside.connect("example.org", 80)
        running.denied()

What `Inside` gives are sockets in that namespace, as programs of a sandbox have them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.engine import redirect
from corral.network import denials
from corral.network.booting import BOOT
from corral.network.inner import ADDRESS, ADDRESS_V6, DNS_PORT, PROXY_PORT
from corral.network.settings import GateSettings
from corral.testing.ground import links

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_A, _AAAA = 1, 28
_PACKAGE = str(Path(denials.__file__).resolve().parents[1])


class Inside:
    """A network namespace with a window, and sockets in it."""

    def __init__(self, asked: socket.socket, window: list[int]) -> None:
        self._asked = asked
        self.dns, self.tcp4, self.tcp6 = (socket.socket(fileno=descriptor) for descriptor in window)

    def make_socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """A new socket in the namespace."""
        self._asked.send(json.dumps([family, kind]).encode())
        _, (descriptor,), _, _ = socket.recv_fds(self._asked, 100, 1)
        made = socket.socket(fileno=descriptor)
        made.settimeout(10)
        return made

    def look_up(self, name: str, kind: int = _A) -> tuple[int, list[str]]:
        """What the window answers: a code, and addresses."""
        labels = b"".join(bytes([len(label)]) + label for label in name.encode("latin-1").split(b"."))
        question = labels + b"\0" + struct.pack("!HH", kind, 1)
        with self.make_socket(kind=socket.SOCK_DGRAM) as asking:
            asking.connect((ADDRESS, DNS_PORT))
            asking.send(struct.pack("!6H", 77, 0x100, 1, 0, 0, 0) + question)
            answer = asking.recv(2000)
        _, flags, _, count, _, _ = struct.unpack_from("!6H", answer)
        return flags & 0xF, [socket.inet_ntoa(answer[-4:])] if count else []

    def resolve(self, name: str) -> str:
        """The address that stands for a name. Raises: LookupError."""
        code, addresses = self.look_up(name)
        if not addresses:
            raise LookupError(f"code {code}")
        return addresses[0]

    def connect(self, host: str, port: int) -> socket.socket:
        """Connect as a program does that knows of no window. Raises: LookupError, OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        plain = host if family == socket.AF_INET6 or host.replace(".", "").isdigit() else self.resolve(host)
        made = self.make_socket(family)
        try:
            made.connect((plain, port))
        except OSError:
            made.close()
            raise
        return made

    def to_proxy(self) -> socket.socket:
        """Connect to the window as to a proxy."""
        made = self.make_socket()
        made.connect(self.tcp4.getsockname())
        return made

    def say(self, host: str, port: int, data: bytes) -> str:
        """Connect, send, and read all that comes; "reset" if the connection is."""
        try:
            with self.connect(host, port) as made:
                return tell(made, data)
        except (LookupError, ConnectionError) as error:
            return "no name" if isinstance(error, LookupError) else "reset"


def tell(made: socket.socket, data: bytes) -> str:
    """Send, and read all that comes; "reset" if the connection is reset before anything comes."""
    answer = b""
    try:
        made.sendall(data)
        while piece := made.recv(65536):
            answer += piece
    except ConnectionError:
        if not answer:
            return "reset"
    return answer.decode("latin-1")


@dataclass(slots=True)
class RunningGate:
    """A gate, and what it is asked."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    denials: Path

    def ask(self, **message: object) -> dict[str, Any]:
        """A request without descriptors."""
        self.control.send(json.dumps(message).encode())
        answer: dict[str, Any] = json.loads(self.control.recv(65536))
        return answer

    def change(self, **settings: Any) -> dict[str, Any]:
        """Other settings."""
        descriptor = GateSettings(**settings).to_memfd()
        socket.send_fds(self.control, [b'{"op": "settings"}'], [descriptor])
        os.close(descriptor)
        answer: dict[str, Any] = json.loads(self.control.recv(65536))
        return answer

    def count(self) -> int:
        """How many attempts were refused so far."""
        return denials.count(self.denials)

    def denied(self, since: int = 0) -> list[tuple[str, int | None, str, int]]:
        """What was refused: host, port, rule, count."""
        return [(each.host, each.port, each.rule, each.count) for each in denials.read_since(self.denials, since)]


@contextlib.contextmanager
def window() -> Iterator[Inside]:
    """A network namespace from which nothing leads but a window. To be used before there are threads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            _serve_inside(theirs)
        except BaseException as error:  # noqa: BLE001 - a forked child must end here, whatever happened
            sys.stderr.write(f"no window: {error!r}\n")
        finally:
            os._exit(0)
    theirs.close()
    _, descriptors, _, _ = socket.recv_fds(ours, 100, 3)
    inside = Inside(ours, descriptors)
    try:
        yield inside
    finally:
        for sock in (ours, inside.dns, inside.tcp4, inside.tcp6):
            sock.close()
        os.waitpid(pid, 0)


def _serve_inside(asked: socket.socket) -> None:
    kernel = ctypes.CDLL(None, use_errno=True)
    if kernel.unshare(_NEWNET | (_NEWUSER if os.geteuid() else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    links.bring_up("lo")
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        raise OSError("the namespace has more than loopback")
    dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    dns.bind((ADDRESS, DNS_PORT))
    tcp4, tcp6 = redirect.listen(ADDRESS, PROXY_PORT), redirect.listen(ADDRESS_V6, PROXY_PORT)
    redirect.install(tcp4, tcp6)
    socket.send_fds(asked, [b"{}"], [dns.fileno(), tcp4.fileno(), tcp6.fileno()])
    while request := asked.recv(100):
        with socket.socket(*json.loads(request)) as made:
            socket.send_fds(asked, [b"{}"], [made.fileno()])


@contextlib.contextmanager
def gate(inside: Inside, *, uid: int | None = None, **settings: Any) -> Iterator[RunningGate]:
    """Start a gate at a window, with `GateSettings(**settings)`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = GateSettings(**settings).to_memfd()
    sandbox = os.pidfd_open(os.getpid())
    with tempfile.TemporaryDirectory() as folder, ours:
        path = Path(folder, "denials")
        log = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        start = {
            "package": _PACKAGE, "uid": uid, "gid": uid,
            "dns": inside.dns.fileno(), "tcp4": inside.tcp4.fileno(), "tcp6": inside.tcp6.fileno(),
            "control": theirs.fileno(), "settings": memory, "denials": log, "sandbox": sandbox,
        }  # fmt: skip
        descriptors = [value for value in start.values() if isinstance(value, int) and value != uid]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BOOT],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/", env={}, pass_fds=descriptors,
        )  # fmt: skip
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(start).encode() + b"\n")
            process.stdin.close()
            theirs.close()
            for descriptor in (memory, log, sandbox):
                os.close(descriptor)
            ours.settimeout(20)
            ready = ours.recv(1000)
            assert b"ready" in ready, ready
            yield RunningGate(process, ours, path)
        finally:
            ours.close()
            process.wait(20)
