"""Ports of a sandbox: connections to them, and the URLs that lead there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.request
from collections.abc import AsyncIterator

from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from corral.errors import CapabilityError, CorralError, PortClosedError, SpecError
from corral.testing.check import Context, check, equal, raises, true, until

SERVED = "python processes"
_LARGE_BYTES = 3 << 20
_ECHO = """
import socket, sys, threading
def serve(connection):
    with connection:
        while piece := connection.recv(65536):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
try:
    listener = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
except OSError:
    print(0, flush=True)
    raise SystemExit from None
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
_WEB = """
import http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextlib.asynccontextmanager
async def serving(box: AsyncSandbox, source: str, argument: str) -> AsyncIterator[int]:
    """A server inside, for the block; gives its port, or 0 if it can't listen on such an address."""
    await box.files.write("server.py", source.encode())
    process = await box.start(["python3", "server.py", argument])
    try:
        yield int(await _first_line(process))
    finally:
        await process.kill()


async def _first_line(process: AsyncProcess) -> str:
    said = ""
    async for piece in process.output():
        said += piece.data.decode()
        if "\n" in said:
            return said
    raise AssertionError(f"the server ended: {said}")


async def echo(sock: socket.socket, content: bytes) -> bytes:
    """What an echo server sends back, to its end."""
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        writing = asyncio.ensure_future(_send(writer, content))
        got = await reader.read()
        await writing
    finally:
        writer.close()
        await writer.wait_closed()
    return got


async def _send(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(content)
    await writer.drain()
    writer.write_eof()


async def fetch(url: str) -> bytes | None:
    """What a URL gives; None for any failure."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def load() -> bytes | None:
        try:
            with opener.open(url, timeout=10) as answer:
                return bytes(answer.read())
        except OSError:
            return None

    return await asyncio.to_thread(load)


@check("dial", "A port inside can be connected to, also one on ::1; a closed one is PortClosedError",
       needs=f"dial {SERVED}", raises="PortClosedError dial:SpecError")  # fmt: skip
async def open_port_is_dialled(box: AsyncSandbox) -> None:
    for address in ("127.0.0.1", "::1"):
        async with serving(box, _ECHO, address) as port:
            if not port:
                continue  # no IPv6 inside
            content = bytes(range(256)) * (_LARGE_BYTES // 256)
            sockets = [await box.dial(port) for _ in range(3)]
            answers = await asyncio.gather(*(echo(sock, content + b"%d" % n) for n, sock in enumerate(sockets)))
            equal([answer[-1:] for answer in answers], [b"0", b"1", b"2"])
            true(all(answer[:-1] == content for answer in answers), "what was sent comes back")
        error = await raises(PortClosedError, box.dial(port))
        true(isinstance(error, ConnectionRefusedError) and str(port) in str(error), f"{error!r} names the port")
    for wrong in (0, 65536, -1, True, "80"):
        await raises(SpecError, box.dial(wrong))  # type: ignore[arg-type]


@check("dial", "The ports of one sandbox are not those of another, nor those of this machine",
       needs=f"dial network_none {SERVED}")  # fmt: skip
async def ports_are_apart(context: Context, box: AsyncSandbox) -> None:
    other = await context.open()
    async with serving(box, _ECHO, "127.0.0.1") as port:
        await raises(PortClosedError, other.dial(port))
    with socket.create_server(("127.0.0.1", 0)) as ours:
        await raises(PortClosedError, box.dial(ours.getsockname()[1]))


@check("expose", "An exposed port is a URL, before its server starts and after a restart, until the sandbox is closed",
       needs=f"expose {SERVED}", raises="SpecError")  # fmt: skip
async def exposed_port_is_a_url(box: AsyncSandbox) -> None:
    await box.files.write("page", b"first")
    async with serving(box, _WEB, "0") as port:
        pass
    url = await box.expose(port)
    true(url.startswith(("http://", "https://")), f"{url} is a URL")
    equal(await fetch(_join(url, "page")), None)
    for content in (b"first", b"second"):
        await box.files.write("page", content)
        async with serving(box, _WEB, str(port)):
            pages = await asyncio.gather(*(fetch(_join(url, "page")) for _ in range(5)))
            equal(pages, [content] * 5)
    for wrong in (0, 65536, True):
        await raises(SpecError, box.expose(wrong))
    await box.aclose()
    await until(lambda: fetch(_join(url, "page")), None, "the URL still leads somewhere")
    await raises(CorralError, box.expose(port))


def _join(url: str, name: str) -> str:
    """The address of a file below a URL, which may have a query of its own."""
    path, mark, query = url.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


@check("dial", "A backend without ports says so", raises="dial:CapabilityError expose:CapabilityError")
async def missing_port_is_said(context: Context, box: AsyncSandbox) -> None:
    if "dial" not in context.powers:
        await raises(CapabilityError, box.dial(8000))
    if "expose" not in context.powers:
        await raises(CapabilityError, box.expose(8000))
