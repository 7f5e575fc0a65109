"""Previews of real sandboxes by the official client: in a plain program, in a browser, after a crash of the server."""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import aiohttp
import pytest
from daytona import Daytona, Sandbox, SessionExecuteRequest

from support.browser import open_browser
from support.serving import ServedProcess, make_client

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_userns]

TOKEN = "X-Daytona-Preview-Token"
# A page that loads a script, keeps a cookie and talks to a websocket; standard library only, as sandboxes have it.
PROGRAM = r"""
import base64, hashlib, http.server
PAGE = b'''<!doctype html><title>inside</title><script src="/app.js"></script>'''
SCRIPT = b'''
document.cookie = "mine=1; path=/";
const socket = new WebSocket(location.origin.replace("http", "ws") + "/ws");
socket.binaryType = "arraybuffer";
socket.onopen = () => socket.send(new Uint8Array([1, 2, 3]));
socket.onmessage = event => { document.title = "got " + new Uint8Array(event.data).join(); };
'''
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args):
        pass
    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.talk()
        body, kind = {"/": (PAGE, "text/html"), "/app.js": (SCRIPT, "text/javascript"),
                      "/worker.js": (b"", "text/javascript")}.get(
            self.path.partition("?")[0], (f"{self.path}\n{self.headers}".encode(), "text/plain"))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def talk(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while len(head := self.rfile.read(2)) == 2:
            size = head[1] & 127
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
            self.wfile.write(bytes([head[0], size]) + data)
            if head[0] & 15 == 8:
                break
        self.close_connection = True
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def fetch(url: str, **headers: str) -> tuple[int, str]:
    """As a plain program would, without a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with opener.open(urllib.request.Request(url, headers=given), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def start_program(box: Sandbox) -> None:
    box.fs.upload_file(PROGRAM.encode(), "program.py")
    box.process.create_session("web")
    command = SessionExecuteRequest(command="python3 program.py", run_async=True)
    box.process.execute_session_command("web", command)
    link = box.get_preview_link(8000)
    deadline = time.monotonic() + 60
    while (found := fetch(link.url, **{TOKEN: link.token}))[0] != 200:
        assert found[0] == 502, found
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def box(daytona: Daytona) -> Iterator[Sandbox]:
    made = daytona.create()
    start_program(made)
    yield made
    daytona.delete(made)


def test_links_open_in_a_plain_program(box: Sandbox, server: ServedProcess) -> None:
    link = box.get_preview_link(8000)
    assert link.sandbox_id == box.id
    assert fetch(link.url)[0] == 401
    status, text = fetch(f"{link.url}/x?y=1", **{TOKEN: link.token})
    assert (status, text.partition("\n")[0]) == (200, "/x?y=1")
    assert link.token not in text
    assert fetch(link.url, Authorization=f"Bearer {server.key}")[0] == 200
    signed = box.create_signed_preview_url(8000, expires_in_seconds=300)
    assert fetch(f"{signed.url}/y") == (200, fetch(f"{signed.url}/y")[1])
    box.expire_signed_preview_url(8000, signed.token)
    assert fetch(signed.url)[0] == 401
    box.set_public(True)
    assert fetch(link.url)[0] == 200
    box.stop()
    assert fetch(link.url)[0] == 503


async def test_websocket_passes(box: Sandbox) -> None:
    signed = box.create_signed_preview_url(8000)
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{signed.url}/ws") as socket:
        await socket.send_bytes(b"hello")
        assert await socket.receive_bytes() == b"hello"
        await socket.close()
        assert socket.close_code == 1000


@pytest.mark.needs_browser
async def test_signed_link_opens_in_a_browser(box: Sandbox, server: ServedProcess) -> None:
    signed = await asyncio.to_thread(box.create_signed_preview_url, 8000)
    link = await asyncio.to_thread(box.get_preview_link, 8000)
    await asyncio.to_thread(box.expire_signed_preview_url, 8000, signed.token)
    base = server.url.removesuffix("/api")
    port = base.rpartition(":")[2]
    key = f"?DAYTONA_SANDBOX_AUTH_KEY={link.token}"
    again = await asyncio.to_thread(box.create_signed_preview_url, 8000)
    async with open_browser() as browser:
        for url, origin in (
            (f"{link.url}/{key}", link.url),  # a cookie
            (again.url, again.url),  # the user of this machine
            (f"http://8000-{again.token}.localhost:{port}/", None),  # the token in the name
        ):
            tab = await browser.open_tab()
            await tab.go(url)
            await tab.wait_for("document.title === 'got 1,2,3'")
            assert await tab.get("document.cookie") == "mine=1"
            assert "AUTH_KEY" not in await tab.get("location.href")
            assert origin is None or await tab.get("location.origin") == origin
            assert tab.complaints == []
        for url in (f"{base}/preview/{again.token}/8000", f"http://8000-{again.token}.localhost:{port}"):
            await tab.go(f"{url}/")
            for what, attempt in attempts(base=base, preview=again.url).items():
                got = await tab.get(f"(async () => {attempt})().then(() => 'done', () => 'refused')")
                assert got == ("done" if what in OF_ITS_OWN and "localhost" in url else "refused"), (url, what)
        await tab.go(f"{base}/preview/{again.token}/8000")
        assert await tab.get("self.origin") == "null", "at the API's own origin a page has none"
        assert await tab.get("location.pathname") == f"/preview/{again.token}/8000/"


OF_ITS_OWN = ("storage", "a cookie", "a service worker")


def attempts(*, base: str, preview: str) -> dict[str, str]:
    """What a page of one preview tries: in JavaScript, as bodies of functions that fail if they are refused."""
    socket = preview.replace("http", "ws")
    return {
        "storage": "{ localStorage.x = 1 }",
        "a cookie": "{ document.cookie = 'x=1'; if (!document.cookie.includes('x=1')) throw 1 }",
        "a service worker": "{ await navigator.serviceWorker.register('worker.js') }",
        "the API": f"{{ await fetch('{base}/api/sandbox', {{headers: {{Authorization: 'Bearer x'}}}}) }}",
        "a form of the API": f"{{ const got = await fetch('{base}/api/health'); await got.text() }}",
        "another preview": f"{{ const got = await fetch('{preview}/'); await got.text() }}",
        "its websocket": f"new Promise((done, fail) => {{ const it = new WebSocket('{socket}/ws'); "
                         "it.onopen = done; it.onerror = fail })",
    }  # fmt: skip


def test_links_survive_a_crash_of_the_server(own_server: ServedProcess) -> None:
    client = make_client(own_server)
    box = client.create()
    start_program(box)
    link, signed = box.get_preview_link(8000), box.create_signed_preview_url(8000, expires_in_seconds=3600)
    expired = box.create_signed_preview_url(8000, expires_in_seconds=1)
    own_server.kill()
    own_server.start()
    assert fetch(link.url, **{TOKEN: link.token})[0] == 200
    assert fetch(signed.url)[0] == 200
    base = own_server.url.removesuffix("/api")
    assert fetch(f"{base}/preview/{signed.token}/8000/")[0] == 200
    time.sleep(1)
    assert fetch(f"{base}/preview/{expired.token}/8000/")[0] == 401
    assert box.get_preview_link(8000) == link
