"""What one tenant may try against a server that others use as well. Run by `tenants` as a separate process.

Only the standard library: nothing here may share a thread, or a package's speed, with the measuring process.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

_SECONDS = 600.0
_PIECE_BYTES = 256 * 1024

# The snippet finds the file for its charts where the server has named it.
_CHARTS = """
words = open("/proc/self/cmdline", "rb").read().split(b"\\0")
(place,) = [word for word in words if word.endswith(b"charts.jsonl")]
with open(place, "w") as file:
    file.write('{"type":"line","elements":[' + "{}," * (COUNT // 3) + "{}]}")
"""
_MAKE_LINES = 'mkdir -p l && awk \'BEGIN {{ x = sprintf("%4090s", ""); for (i = 0; i < {n}; i++) print x }}\' > l/lines'
_MAKE_FILES = "mkdir -p f && cd f && seq -f f%06g {n} | xargs touch"
_PRINT_CONTROL = "head -c {n} /dev/zero | tr '\\0' '\\1'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A sandbox of the attacker, and how it is reached."""

    base: str
    """Of its toolbox."""
    api: str
    sandbox_id: str
    key: str
    scale: float
    """1 for the whole attack; less for a small one."""

    def ask(self, method: str, path: str, body: bytes | Iterable[bytes] | None = None, **headers: str) -> int:
        """The status of one request, 0 without an answer. The answer is read and thrown away."""
        parts = urlsplit(path if "://" in path else self.base + path)
        assert parts.hostname is not None, "an absolute address"
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_SECONDS)
        wanted = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        wanted |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            where = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request(method, where, body, wanted, encode_chunked=not isinstance(body, bytes | None))
            answer = connection.getresponse()
            while answer.read(_PIECE_BYTES):
                pass
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> int:
        """The status of a request with JSON."""
        return self.ask("POST", path, json.dumps(body).encode())

    def run(self, command: str) -> int:
        """Run a shell command; returns the status."""
        return self.post("/process/execute", command=command)

    def connect(self) -> socket.socket:
        """A connection to the server."""
        parts = urlsplit(self.base)
        return socket.create_connection((parts.hostname, parts.port), timeout=_SECONDS)

    def make_head(self, method: str, path: str, *headers: str) -> bytes:
        """The beginning of a request, for a connection of `connect`."""
        parts = urlsplit(self.base)
        first = f"{method} {parts.path}{path} HTTP/1.1"
        lines = [first, f"Host: {parts.netloc}", f"Authorization: Bearer {self.key}", *headers, "", ""]
        return "\r\n".join(lines).encode()

    def count(self, whole: int) -> int:
        """This number at this scale, but at least 1."""
        return max(1, int(whole * self.scale))


Statuses = list[int]


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack; `prepare` is not measured."""

    what: str
    act: Callable[[Target], Statuses]
    prepare: Callable[[Target], object] = lambda target: None


def _together(*works: Callable[[], int]) -> Statuses:
    statuses: Statuses = []
    threads = [threading.Thread(target=lambda work=work: statuses.append(work())) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def _fill_charts(target: Target) -> Statuses:
    code = _CHARTS.replace("COUNT", str(target.count(32_000_000)))
    return [target.post("/process/code-run", code=code, language="python")]


def _search(target: Target) -> Statuses:
    place = f"/files/find?path=l&pattern={quote(' ')}"
    return _together(*[lambda: target.ask("GET", place)] * 3)


def _print_control(target: Target) -> Statuses:
    return _together(*[lambda: target.run(_PRINT_CONTROL.format(n=target.count(33_000_000)))] * 4)


def _list(target: Target) -> Statuses:
    return _together(*[lambda: target.ask("GET", "/files?path=f")] * 2)


def _send_escapes(target: Target) -> Statuses:
    body = b'{"command": "true #' + b'\\"' * (target.count(32_000_000) // 2) + b'"}'
    return [target.ask("POST", "/process/execute", body)]


def _upload_frozen(target: Target) -> Statuses:
    """Uploads that start before the snapshot and continue while the disk is frozen."""
    boundary, over = secrets.token_hex(8), threading.Event()

    def content() -> Iterator[bytes]:
        yield f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'.encode()
        piece, left = os.urandom(_PIECE_BYTES), target.count(300_000_000)
        while left > 0 and not over.is_set():
            yield piece
            left -= len(piece)
        yield f"\r\n--{boundary}--\r\n".encode()

    def upload() -> int:
        kind = f"multipart/form-data; boundary={boundary}"
        return target.ask(
            "POST", "/files/upload-v2?path=big", content(), Content_Type=kind, Transfer_Encoding="chunked"
        )

    def snapshot() -> int:
        time.sleep(0.2)
        place = f"{target.api}/sandbox/{target.sandbox_id}/snapshot"
        status = target.post(place, name=f"bench-{secrets.token_hex(4)}")
        time.sleep(3 * target.scale)
        over.set()
        return status

    return _together(upload, upload, snapshot)


def _send_halves(target: Target) -> Statuses:
    """Frames of terminals and interpreters that are never finished, held for a while."""
    count, size = target.count(150), 4 * 1024 * 1024 - 1024
    target.post("/process/pty", id="bench")
    statuses: Statuses = []
    with contextlib.ExitStack() as stack:
        for number in range(count):
            place = "/process/pty/bench/connect" if number % 2 else "/process/interpreter/execute"
            sock = stack.enter_context(contextlib.closing(upgrade(target, place)))
            mask = os.urandom(4)
            sock.settimeout(2.0)
            try:
                sock.sendall(struct.pack("!BBQ", 0x82, 0x80 | 127, size) + mask + b"x" * (size - 1))
                statuses.append(101)
            except OSError:
                statuses.append(0)
        time.sleep(2 * target.scale)
    return statuses


def upgrade(target: Target, path: str) -> socket.socket:
    """A connection that has become a websocket."""
    sock = target.connect()
    token = base64.b64encode(os.urandom(16)).decode()
    wanted = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {token}")
    sock.sendall(target.make_head("GET", path, *wanted))
    head = b""
    while b"\r\n\r\n" not in head and (piece := sock.recv(4096)):
        head += piece
    return sock


def _burst(target: Target) -> Statuses:
    """Many cheap requests at the same moment, on connections that are already open."""
    statuses: Statuses = []
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(target.connect()) for _ in range(target.count(800))]
        for _ in range(3):
            for sock in opened:
                sock.sendall(target.make_head("GET", "/work-dir"))
            for sock in opened:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    statuses.append(int(sock.recv(65536).split()[1]))
    return statuses


def _send_tiny_frames(target: Target) -> Statuses:
    """Pings, each of which is a separate frame and is answered."""
    target.post("/process/pty", id="tiny")
    pings = b"\x89\x80mask" * 24_000

    def send() -> int:
        with contextlib.closing(upgrade(target, "/process/pty/tiny/connect")) as sock:
            return _send_all(sock, pings, status=101)

    return _together(*[send] * target.count(10))


def _send_tiny_chunks(target: Target) -> Statuses:
    """Uploads in chunks of one byte, which are never finished."""
    kind = ("Content-Type: multipart/form-data; boundary=b", "Transfer-Encoding: chunked")
    head = target.make_head("POST", "/files/upload?path=tiny", *kind)
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    body = b"%x\r\n%b\r\n" % (len(part), part) + b"1\r\nx\r\n" * 100_000

    def send() -> int:
        with target.connect() as sock:
            return _send_all(sock, head + body, status=100)

    return _together(*[send] * target.count(10))


def _send_all(sock: socket.socket, data: bytes, *, status: int) -> int:
    """Send, and read the answers meanwhile; returns the status, 0 if the connection broke."""

    def read() -> None:
        with contextlib.suppress(OSError):
            while sock.recv(_PIECE_BYTES):
                pass

    reading = threading.Thread(target=read)
    reading.start()
    try:
        sock.sendall(data)
        return status
    except OSError:
        return 0
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        reading.join()


_OWN_GIT = r"""
mkdir -p bin && printf '%s\n' '#!/usr/bin/env python3' 'import sys' \
  'sys.stdout.write("?\0" * COUNT)' > bin/git && chmod +x bin/git
"""


def _plant_git(target: Target) -> None:
    target.run(_OWN_GIT.replace("COUNT", str(target.count(500_000))))


def _ask_own_git(target: Target) -> Statuses:
    """A git that the sandbox wrote itself is asked for a repository's state."""
    target.post("/env", set={"PATH": "/home/daytona/bin:/usr/local/bin:/usr/bin:/bin"})
    return _together(*[lambda: target.ask("GET", "/git/status?path=.")] * 20)


def _send_paths(target: Target) -> Statuses:
    """Uploads that name many files with long paths, and never send one."""
    path = ("\U0001f600" + "x" * 4000).encode()  # with one such character, each takes four bytes of memory
    count = target.count(1900)

    def content() -> Iterator[bytes]:
        for number in range(count):
            yield f'--b\r\nContent-Disposition: form-data; name="files[{number}].path"\r\n\r\n'.encode()
            yield path + b"\r\n"
        time.sleep(2 * target.scale)

    kind = "multipart/form-data; boundary=b"
    return _together(*[
        lambda: target.ask(
            "POST", "/files/bulk-upload", content(), Content_Type=kind, Transfer_Encoding="chunked"
        )
    ] * 30)  # fmt: skip


ATTACKS: dict[str, Attack] = {
    "charts": Attack("a charts file of 32 MB of `{},{},…`", _fill_charts),
    "frozen": Attack(
        "uploads while the disk is frozen for a snapshot",
        _upload_frozen,
        lambda target: target.run(f"head -c {target.count(700_000_000)} /dev/urandom > filler"),
    ),
    "search": Attack(
        "three searches over 100,000 lines of 4 KB",
        _search,
        lambda target: target.run(_MAKE_LINES.format(n=target.count(100_000))),
    ),
    "control": Attack("four commands that print 33 MB of control characters", _print_control),
    "list": Attack(
        "two lists of 150,000 files", _list, lambda target: target.run(_MAKE_FILES.format(n=target.count(150_000)))
    ),
    "escapes": Attack("a 32 MB JSON text of escapes", _send_escapes),
    "halves": Attack("150 half-sent websocket frames of 4 MiB", _send_halves),
    "burst": Attack("800 cheap requests at once, three times", _burst),
    "frames": Attack("ten websockets that send 24,000 pings each", _send_tiny_frames),
    "chunks": Attack("ten uploads in 100,000 chunks of one byte each", _send_tiny_chunks),
    "git": Attack("twenty states of a repository with 500,000 files", _ask_own_git, _plant_git),
    "paths": Attack("thirty uploads that name 1,900 long paths each, and send no file", _send_paths),
}


def main() -> None:
    """Make one attack, given as JSON by standard input; prints `ready` when it is prepared, then the statuses."""
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    attack = ATTACKS[told.pop("attack")]
    target = Target(**told)
    attack.prepare(target)
    print("ready", flush=True)
    sys.stdin.readline()
    statuses = attack.act(target)
    print(json.dumps({str(status): number for status, number in sorted(Counter(statuses).items())}), flush=True)
