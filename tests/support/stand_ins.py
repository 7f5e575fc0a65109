"""Servers that stand for those of the internet, each on a socket that listens already. They run in threads.

Standard library only: programs of an ordinary user import this on the test ground.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import json
import socket
import ssl
import struct
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

__all__ = [
    "Index", "StandIn", "banner", "count", "drip", "fetch", "flood", "git", "make_npm_package", "npm_registry",
    "pip_index", "sink", "start", "web",
]  # fmt: skip


@dataclass(slots=True)
class StandIn:
    """A running server: what it has seen."""

    listener: socket.socket
    connections: int = 0
    received: bytearray = field(default_factory=bytearray)
    """What came, for the kinds that keep it."""
    sent: int = 0
    """How many bytes, for the kinds that count them."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """For `web`: method, path, headers and body of each request."""
    options: dict[str, Any] = field(default_factory=dict)


Kind = Callable[[socket.socket, StandIn], None]


def start(listener: socket.socket, kind: Kind, *, tls: tuple[str, str] | None = None, **options: Any) -> StandIn:
    """Serve one kind of connections; with `tls`, a certificate and its key as texts."""
    server = StandIn(listener, options=options)
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile("w") as chain:  # the ssl module reads files only
            chain.write("".join(tls))
            chain.flush()
            context.load_cert_chain(chain.name)

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            if context is None:
                kind(connection, server)
                return
            with context.wrap_socket(connection, server_side=True) as wrapped:
                kind(wrapped, server)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                server.connections += 1
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server


# Kinds that need no HTTP.


def count(connection: socket.socket, server: StandIn) -> None:
    """Only counts: for addresses that must never be reached. Keeps what comes, and says nothing."""
    while piece := connection.recv(65536):
        server.received += piece


def banner(connection: socket.socket, server: StandIn) -> None:
    """Speaks first, as mail servers and databases do, and then says each line again."""
    connection.sendall(server.options.get("greeting", b"220 ready\r\n"))
    while piece := connection.recv(65536):
        server.received += piece
        connection.sendall(piece)


def sink(connection: socket.socket, server: StandIn) -> None:
    """Takes the first byte and never another."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server.received += connection.recv(1)
    time.sleep(server.options.get("seconds", 600))


def drip(connection: socket.socket, server: StandIn) -> None:
    """Sends a byte at a time, with pauses."""
    while True:
        connection.sendall(b".")
        time.sleep(server.options.get("pause", 0.05))


def flood(connection: socket.socket, server: StandIn) -> None:
    """Sends as much as is taken, and counts it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    zeros = bytes(65536)
    while True:
        server.sent += connection.send(zeros)


# HTTP.


class _Handler(http.server.BaseHTTPRequestHandler):
    """Tells each request back as JSON. Other paths: /redirect?to=…, /bytes?n=…, /ws (says again what comes)."""

    protocol_version = "HTTP/1.1"
    server_of: ClassVar[StandIn]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        chunked = headers.get("transfer-encoding") == "chunked"
        body = self._read_chunks() if chunked else self.rfile.read(int(headers.get("content-length") or 0))
        seen = {"method": self.command, "path": self.path, "headers": headers, "body": body.decode("latin-1")}
        self.server_of.requests.append(seen)
        if headers.get("upgrade", "").lower() == "websocket":
            self._websocket(headers["sec-websocket-key"])
        elif url.path == "/redirect":
            self.answer(302, b"", Location=asked["to"])
        elif url.path == "/bytes":
            self.answer(200, bytes(int(asked["n"])))
        else:
            self.answer(200, json.dumps(seen).encode(), **{"Content-Type": "application/json"})

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815 - the names are those of http.server

    def answer(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _websocket(self, key: str) -> None:
        accepted = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
        self.send_response(101)
        for name, value in {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": accepted.decode(),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        while len(head := self.rfile.read(2)) == 2 and head[0] & 0xF == 1:
            mask, data = self.rfile.read(4), self.rfile.read(head[1] & 0x7F)
            plain = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
            self.wfile.write(struct.pack("!BB", 0x81, len(plain)) + plain)

    def log_message(self, *_: object) -> None:
        pass


def web(connection: socket.socket, server: StandIn, handler: type[_Handler] = _Handler) -> None:
    """HTTP: see `_Handler`."""
    kind = type("Handler", (handler,), {"server_of": server})
    kind(connection, ("client", 0), None)


class Index(_Handler):
    """The simple index of pip, over a folder of wheels and sources: options `folder`, `login` as "name:password", and
    `files` for the URL that its links begin with, if that is another host's."""

    def do_GET(self) -> None:
        folder = Path(self.server_of.options["folder"])
        login = self.server_of.options.get("login")
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server_of.requests.append({"method": self.command, "path": self.path, "headers": headers})
        if login and headers.get("authorization") != "Basic " + base64.b64encode(login.encode()).decode():
            self.answer(401, b"", **{"WWW-Authenticate": 'Basic realm="index"'})
            return
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[0] == "simple" and len(parts) == 2:
            name = parts[1].replace("-", "_")
            found = sorted(path for path in folder.glob("*-*") if path.name.split("-")[0].lower() == name)
            files = self.server_of.options.get("files", "/files")
            links = "".join(
                f'<a href="{files}/{path.name}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}">{path.name}</a>'
                for path in found
            )
            page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
            self.answer(200 if found else 404, page, **{"Content-Type": "text/html"})
        elif parts[0] == "files" and (folder / parts[-1]).is_file():
            self.answer(200, (folder / parts[-1]).read_bytes(), **{"Content-Type": "application/octet-stream"})
        else:
            self.answer(404, b"")

    do_HEAD = do_GET  # noqa: N815 - as above


def pip_index(connection: socket.socket, server: StandIn) -> None:
    """See `Index`."""
    web(connection, server, Index)


class _Registry(_Handler):
    """A registry of npm packages, in a folder of tarballs NAME-VERSION.tgz: options `folder`, `url`."""

    def do_GET(self) -> None:
        folder, url = Path(self.server_of.options["folder"]), self.server_of.options["url"]
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server_of.requests.append({"method": self.command, "path": self.path, "headers": headers})
        name = urlsplit(self.path).path.strip("/")
        if name.endswith(".tgz") and (folder / name).is_file():
            self.answer(200, (folder / name).read_bytes(), **{"Content-Type": "application/octet-stream"})
            return
        versions = {}
        for path in folder.glob(f"{name}-*.tgz"):
            version = path.stem.removeprefix(f"{name}-")
            digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
            dist = {"tarball": f"{url}/{path.name}", "integrity": f"sha512-{digest}"}
            versions[version] = {"name": name, "version": version, "dist": dist}
        page = {"name": name, "dist-tags": {"latest": max(versions, default="")}, "versions": versions}
        body = json.dumps(page if versions else {"error": "not found"}).encode()
        self.answer(200 if versions else 404, body, **{"Content-Type": "application/json"})

    def do_POST(self) -> None:  # npm asks for advisories
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(200, b"{}", **{"Content-Type": "application/json"})


def npm_registry(connection: socket.socket, server: StandIn) -> None:
    """See `_Registry`."""
    web(connection, server, _Registry)


def make_npm_package(folder: Path, name: str, version: str = "1.0.0") -> Path:
    """A tarball of a package whose module gives its version."""
    path = folder / f"{name}-{version}.tgz"
    files = {
        "package.json": json.dumps({"name": name, "version": version, "main": "index.js"}),
        "index.js": f"module.exports = {version!r};\n",
    }
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            member = tarfile.TarInfo(f"package/{file}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def git(connection: socket.socket, server: StandIn) -> None:
    """Repositories below the option `folder`, by git's own CGI program."""
    from support import githttp

    class Handler(githttp.Handler):
        folder = str(server.options["folder"])

        def log_message(self, *_: object) -> None:
            pass

    Handler(connection, ("client", 0), None)  # type: ignore[arg-type]


def fetch(host: str, port: int, data: bytes = b"", *, seconds: float = 5.0) -> bytes:
    """Connect, send, and read until the other side ends or is silent for so long."""
    with socket.create_connection((host, port), timeout=30.0) as connection:
        connection.settimeout(seconds)
        connection.sendall(data)
        answer = b""
        with contextlib.suppress(TimeoutError):
            while piece := connection.recv(65536):
                answer += piece
        return answer
