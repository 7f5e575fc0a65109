"""How probes of the window are made: functions for their programs, and the sandboxes that they attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from corral.client.sandbox import AsyncSandbox
from corral.secret import Secret
from corral.spec import NetworkLimits, NetworkPolicy, Resources
from corral.testing.hostile.probe import Finding, Probe, Scene, breached, held
from corral.testing.hostile.run import RESOURCES
from corral.testing.hostile.window.stage import POLICY

DIAL = r"""
import errno, socket


def tunnel(host, port):
    "A connection by the proxy."
    sock = socket.create_connection(PROXY, timeout=10)
    sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        head += piece
        if not piece:
            raise ConnectionResetError(head)
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise ConnectionRefusedError(head)
    return sock


def dial(host, port):
    "A connection as a program has it here: on a kernel that can't redirect, by the proxy."
    try:
        return socket.create_connection((host, port), timeout=10)
    except OSError as error:
        if error.errno != errno.ENETUNREACH:
            raise
    return tunnel(host, port)
"""

_TOOLS = (
    DIAL
    + r"""
import random, ssl, threading
PROXY, RESOLVER = tuple(T["proxy"]), tuple(T["resolver"])
GET = b"GET /%s HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n"


def talk(address, *pieces, seconds=0.5, pause=0.0):
    "What comes back until the other side ends or is silent; None if there is no connection."
    try:
        sock = socket.create_connection(address, timeout=seconds)
    except OSError:
        return None
    answer = b""
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(pause)
            while len(answer) < 1 << 20:
                piece = sock.recv(65536)
                if not piece:
                    break
                answer += piece
        except OSError:
            pass
    return answer


def connect(target, *pieces, **how):
    "Ask the proxy for a tunnel, and send something through it at once."
    return talk(PROXY, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("utf-8", "surrogateescape"),
        *pieces, **how)


def socks(host, port, *pieces, **how):
    "The same by SOCKS5; a host as text, or an address packed."
    if isinstance(host, bytes):
        where = bytes([1 if len(host) == 4 else 4]) + host
    else:
        name = host.encode("utf-8", "surrogateescape")
        where = b"\3" + bytes([len(name)]) + name
    return talk(PROXY, b"\5\1\0", b"\5\1\0" + where + struct.pack("!H", port), *pieces, **how)


def look_up(name, kind=1, seconds=3.0):
    "The code and the addresses that the resolver answers; labels as bytes, for those that no text has."
    labels = name if isinstance(name, list) else [part.encode() for part in name.rstrip(".").split(".")]
    query = struct.pack("!HHHHHH", random.getrandbits(16), 0x100, 1, 0, 0, 0)
    query += b"".join(bytes([len(label)]) + label for label in labels) + b"\0" + struct.pack("!HH", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(seconds)
        sock.connect(RESOLVER)
        sock.send(query)
        answer = sock.recv(2048)
    count = struct.unpack_from("!H", answer, 6)[0]
    return answer[3] & 15, [socket.inet_ntoa(answer[len(query) + 16 * n + 12:][:4]) for n in range(count if
        kind == 1 else 0)]


def hello(name):
    "What a client of TLS says first."
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def ask(path):
    "What good.test answers."
    answer = b""
    try:
        with dial("good.test", 80) as sock:
            sock.sendall(GET % path)
            while piece := sock.recv(65536):
                answer += piece
    except OSError:
        pass
    return answer


def works():
    "A probe that finds its window shut has shown nothing."
    answer = ask(b"works")
    if b"found" not in answer:
        say("unproven", f"nothing is reached through this window: {answer[:200]!r}")


def still_works():
    "The same after an attack, which must not have broken it."
    answer = ask(b"works")
    if b"found" not in answer:
        breached(f"nothing is reached any more: {answer[:200]!r}")


def passed(answer):
    "True for an answer that came from a server of the world."
    return answer is not None and (b"found" in answer or b"HTTP/1.1 200" in answer or answer.startswith(b"\5\0\5\0"))


def refused(answers):
    "Ends the probe: breached if one of the attempts was answered as if it had been permitted."
    through = {name: answer for name, answer in answers.items() if passed(answer)}
    if through:
        breached(f"went through: {dict(list(through.items())[:3])}")
    held(f"{len(answers)} attempts, all refused")
"""
)


def probe(name: str, why: str, code: str, **more: Any) -> Probe:
    """A probe of the window; its program has the tools above."""
    more.setdefault("severity", "escape")
    return Probe(name, more.pop("severity"), why, _TOOLS + code, area="window", **{"timeout": 30.0, **more})


def opening(
    *hosts: str,
    mode: str = "allow",
    limits: NetworkLimits | None = None,
    roomy: bool = False,
    secrets: Sequence[Secret] = (),
) -> Callable[[], AbstractAsyncContextManager[AsyncSandbox]]:
    """How to open a sandbox with a policy."""

    def make() -> AsyncSandbox:
        policy = NetworkPolicy(mode, hosts, limits or NetworkLimits(attempts_per_second=200.0))  # type: ignore[arg-type]
        return AsyncSandbox(resources=ROOMY if roomy else RESOURCES, network=policy, secrets=secrets)

    return make


ROOMY = Resources(
    cpus=1.0, memory_bytes=256 << 20, disk_bytes=96 << 20, processes=64, inodes=4000, open_files=4096
).as_usual()
"""For many connections at once."""

open_usual = opening(*POLICY)


def heard_nothing(*words: bytes) -> Callable[[Scene], Any]:
    """The host's part: breached if a permitted server was told one of these words."""

    async def judge(scene: Scene) -> Finding | None:
        for name, heard in scene.canaries.heard.items():
            told = bytes(heard)
            heard.clear()
            if word := next((word for word in words if word in told), None):
                at = told.index(word)
                return breached(f"{name} was told {told[max(0, at - 60) : at + 60]!r}")
        return held("no server was told so")

    return judge
