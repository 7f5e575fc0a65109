"""Previews: who sees a port of a sandbox, by which link, and what neither side can do to the other."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from corral.backends.memory.sandbox import MemorySandbox
from corral.base.dialling import dial_loopback, port_closed
from corral.client import peers
from corral.server.preview import addresses, exchange, links
from corral.server.preview.links import make_token
from corral.server.settings import ServerLimits
from server.conftest import InProcess, OpenInProcess

TOKEN = "X-Daytona-Preview-Token"
QUERY = "DAYTONA_SANDBOX_AUTH_KEY"
FORMS = ("address", "host", "path")


@dataclass(slots=True)
class Shown:
    """A server with one sandbox, on whose port 8000 a program listens that the test has written."""

    running: InProcess
    sandbox: dict[str, Any]
    port: int = 0

    @property
    def id(self) -> str:
        return str(self.sandbox["id"])

    @property
    def base(self) -> str:
        return self.running.url.removesuffix("/api")

    async def call(self, method: str, path: str, *, key: str | None = None, **options: Any) -> tuple[int, Any]:
        headers = self.running.headers(key)
        async with self.running.session.request(
            method, self.running.url + path, headers=headers, **options
        ) as response:
            return response.status, await response.json() if "json" in response.content_type else await response.text()

    async def link(self, port: int = 8000, *, key: str | None = None) -> dict[str, Any]:
        status, link = await self.call("GET", f"/sandbox/{self.id}/ports/{port}/preview-url", key=key)
        assert status == 200, link
        return dict(link)

    async def sign(self, port: int = 8000, *, seconds: int = 60) -> dict[str, Any]:
        query = {"expiresInSeconds": seconds}
        status, link = await self.call("GET", f"/sandbox/{self.id}/ports/{port}/signed-preview-url", params=query)
        assert status == 200, link
        return dict(link)

    async def place(self, form: str, *, port: str = "8000", name: str = "") -> tuple[str, dict[str, str]]:
        """Where to ask for a port in one of the forms, and the Host to give."""
        name = name or self.id
        if form == "address":
            return (await self.link(int(port)))["url"], {}
        if form == "host":
            return self.base, {"Host": f"{port}-{name}.localhost:{urlsplit(self.base).port}"}
        return f"{self.base}/preview/{name}/{port}", {}

    async def get(
        self, form: str, headers: dict[str, str] | None = None, *, path: str = "/", port: str = "8000", name: str = ""
    ) -> tuple[int, str, aiohttp.ClientResponse]:
        url, host = await self.place(form, port=port, name=name)
        given = {**host, **(headers or {})}
        exact = URL(url + path, encoded=True)
        async with self.running.session.get(exact, headers=given, allow_redirects=False) as response:
            return response.status, await response.text(), response


async def echo(request: web.Request) -> web.StreamResponse:
    """What the program is told, or a websocket that says the same again."""
    if request.headers.get("Upgrade") == "websocket":
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(message.data.encode() if isinstance(message.data, str) else message.data)
        return socket
    lines = [f"{request.method} {request.raw_path}", *(f"{name}: {value}" for name, value in request.headers.items())]
    body = await request.read()
    return web.Response(text="\n".join([*lines, f"{len(body)} bytes"]), headers={"Set-Cookie": "app=1; Domain=x.org"})


@pytest.fixture
async def program() -> AsyncIterator[int]:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{rest:.*}", echo)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    await runner.cleanup()


@contextlib.asynccontextmanager
async def showing(
    open_in_process: OpenInProcess, monkeypatch: pytest.MonkeyPatch, port: int, **options: Any
) -> AsyncIterator[Shown]:
    async def dial(self: MemorySandbox, wanted: int) -> socket.socket:
        if wanted != 8000:
            raise port_closed(wanted, sandbox_id=self.id)
        return await dial_loopback(shown.port, sandbox_id=self.id)

    monkeypatch.setattr(MemorySandbox, "dial", dial)
    async with open_in_process(**options) as running:
        headers = running.headers()
        async with running.session.post(running.url + "/sandbox", json={}, headers=headers) as response:
            shown = Shown(running, await response.json(), port)
        yield shown


@pytest.fixture
async def shown(open_in_process: OpenInProcess, monkeypatch: pytest.MonkeyPatch, program: int) -> AsyncIterator[Shown]:
    async with showing(open_in_process, monkeypatch, program) as made:
        yield made


# Who may see it.


@pytest.mark.parametrize("form", FORMS)
async def test_only_those_with_access_see_it(form: str, shown: Shown) -> None:
    running = shown.running
    other = Shown(running, (await shown.call("POST", "/sandbox", json={}))[1])
    token = (await shown.link())["token"]
    bearer = running.headers
    expected = {
        "nothing": ({}, 401),
        "an invalid token": ({TOKEN: "x"}, 401),
        "a token": ({TOKEN: token}, 200),
        "a token of another port": ({TOKEN: (await shown.link(8001))["token"]}, 401),
        "a token of another sandbox": ({TOKEN: (await other.link())["token"]}, 401),
        "its number changed": ({TOKEN: token.replace("8000.", "8001.")}, 401),
        "two tokens": ({TOKEN: token, "Cookie": f"corral_preview={token}"}, 200),
        "a cookie": ({"Cookie": f"a=b; corral_preview={token}"}, 200),
        "an invalid cookie": ({"Cookie": "corral_preview=x"}, 401),
        "a key": (bearer(), 200),
        "an invalid key": ({"Authorization": "Bearer corral_0"}, 401),
        "a key of another organisation": (bearer(running.new_key("others")), 404),
        "a key without the scope": (bearer(running.new_key("default", scopes=["read"])), 403),
        "a program's own password": ({"Authorization": "Basic eDp5", TOKEN: token}, 200),
    }
    got = {what: (await shown.get(form, headers))[0] for what, (headers, _) in expected.items()}
    assert got == {what: status for what, (_, status) in expected.items()}


@pytest.mark.parametrize("form", ["host", "path"])
@pytest.mark.parametrize("port", ["08000", "008000", "0", "65536", "99999999"])
async def test_port_has_one_spelling(form: str, port: str, shown: Shown) -> None:
    status, text, _ = await shown.get(form, shown.running.headers(), port=port)
    assert status == 400, text


@pytest.mark.parametrize("form", ["host", "path"])
async def test_sandbox_that_is_not_there_looks_as_a_private_one(form: str, shown: Shown) -> None:
    missing = "00000000-0000-4000-8000-000000000000"
    assert (await shown.get(form, name=missing))[0] == 401
    assert (await shown.get(form, {TOKEN: (await shown.link())["token"]}, name=missing))[0] == 401
    assert (await shown.get(form, shown.running.headers(), name=missing))[0] == 404
    assert (await shown.get(form, name="a" * 32))[0] == 401  # the form of a signed link


async def test_tokens_end_with_their_key_and_with_the_signing_key(shown: Shown) -> None:
    key = shown.running.new_key("default")
    token = (await shown.link(key=key))["token"]
    ours = (await shown.link())["token"]
    assert token != ours
    assert (await shown.get("path", {TOKEN: token}))[0] == 200
    keyring = shown.running.server.keyring
    keyring.revoke(next(each.id for each in keyring.keys if key.startswith(each.prefix.rstrip("…"))))
    assert (await shown.get("path", {TOKEN: token}))[0] == 401
    assert (await shown.get("path", {TOKEN: ours}))[0] == 200
    signed = (await shown.sign())["token"]
    assert (await shown.get("path", name=signed))[0] == 200
    await shown.call("POST", f"/sandbox/{shown.id}/signing-key/rotate")
    assert (await shown.get("path", {TOKEN: ours}))[0] == 401
    assert (await shown.get("path", name=signed))[0] == 401
    assert shown.running.server.database.rows("SELECT id FROM preview_links") == []


async def test_public_sandbox_needs_no_token(shown: Shown) -> None:
    for flag, status in (("true", 200), ("false", 401)):
        await shown.call("POST", f"/sandbox/{shown.id}/public/{flag}")
        assert [(await shown.get(form))[0] for form in FORMS] == [status] * 3
    assert (await shown.call("GET", f"/preview/{shown.id}/public")) == (200, False)


@pytest.mark.parametrize("form", FORMS)
async def test_signed_link_ends(form: str, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    link = await shown.sign(seconds=30)
    assert (link["sandboxId"], link["port"]) == (shown.id, 8000)

    async def ask() -> int:
        name = "" if form == "address" else link["token"]
        return (await shown.get(form, name=name))[0]

    assert await ask() == 200
    assert (await shown.get(form, {TOKEN: link["token"]}))[0] == 200
    assert (await shown.get(form, {TOKEN: link["token"]}, port="8001"))[0] == 401
    if form != "address":
        assert (await shown.get(form, port="8001", name=link["token"]))[0] == 401
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(links.time, "time", lambda: now + 31)
        assert await ask() == 401
    passed = time.monotonic()
    with monkeypatch.context() as patch:  # the wall clock was set back
        patch.setattr(links.time, "monotonic", lambda: passed + 31)
        assert await ask() == 401
    assert await ask() == 200
    status, _ = await shown.call("POST", f"/sandbox/{shown.id}/ports/8001/signed-preview-url/{link['token']}/expire")
    assert status == 404
    for _ in range(2):
        path = f"/sandbox/{shown.id}/ports/8000/signed-preview-url/{link['token']}/expire"
        assert (await shown.call("POST", path))[0] == 200
        assert await ask() == 401


async def test_ended_links_make_room(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_LINKS", 2)
    for _ in range(2):
        await shown.sign()
    status, _ = await shown.call("GET", f"/sandbox/{shown.id}/ports/8000/signed-preview-url")
    assert status == 429
    now = time.time()
    monkeypatch.setattr(links.time, "time", lambda: now + 61)
    kept = (await shown.sign())["token"]
    assert len(shown.running.server.database.rows("SELECT id FROM preview_links")) == 1
    await shown.call("DELETE", f"/sandbox/{shown.id}")
    assert shown.running.server.previews.links.find(kept) is None


@pytest.mark.parametrize("seconds", [0, 86401, "x"])
async def test_signed_link_lasts_a_day_at_most(seconds: int | str, shown: Shown) -> None:
    query = {"expiresInSeconds": str(seconds)}
    assert (await shown.call("GET", f"/sandbox/{shown.id}/ports/8000/signed-preview-url", params=query))[0] == 400


# The link of a browser.


@pytest.mark.parametrize("form", FORMS)
async def test_token_of_the_query_becomes_a_cookie(form: str, shown: Shown) -> None:
    token = (await shown.link())["token"]
    html = {"Accept": "text/html,*/*"}
    status, text, response = await shown.get(form, html, path=f"/x/y?a=1&{QUERY}={token}&b=%2F")
    url, _ = await shown.place(form)
    assert (status, response.headers["Location"]) == (303, f"{urlsplit(url).path}/x/y?a=1&b=%2F"), text
    cookie = response.headers["Set-Cookie"]
    assert f"corral_preview={token}" in cookie
    assert f"Path={urlsplit(url).path}/" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    kept = cookie.partition(";")[0]
    status, text, _ = await shown.get(form, {"Cookie": f"{kept}; mine=1"}, path="/x/y")
    assert status == 200
    assert token not in text
    assert ("mine=1" in text) == (form != "path"), "where the origin is shared, no cookies are passed on"
    status, text, _ = await shown.get(form, path=f"/?{QUERY}={token}")  # a program, which keeps no cookies
    assert (status, text.partition("\n")[0]) == (200, "GET /")


async def test_visit_with_a_token_is_not_sent_to_another_host(shown: Shown) -> None:
    token = (await shown.link())["token"]
    _, _, response = await shown.get("host", {"Accept": "text/html"}, path=f"//example.org/?{QUERY}={token}")
    assert urljoin("http://h/", response.headers["Location"]) in ("http://h//example.org/", "http://h/.//example.org/")


async def test_key_of_the_query_does_not_become_a_cookie(shown: Shown) -> None:
    _, _, response = await shown.get("host", {"Accept": "text/html"}, path=f"/?{QUERY}={shown.running.key}")
    assert response.status == 303
    assert shown.running.key not in response.headers["Set-Cookie"]
    assert (await shown.link())["token"] in response.headers["Set-Cookie"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 401),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 401),
        ({"Origin": "http://127.0.0.1"}, 401),
        ({"Origin": "null"}, 401),
        ({"Host": "rebound.example.org"}, 421),
        ({"Host": "127.0.0.1"}, 421),
    ],
)
async def test_signed_address_is_for_its_own_page(headers: dict[str, str], status: int, shown: Shown) -> None:
    await shown.sign()
    assert (await shown.get("address", headers))[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "websocket"}, 401),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 401),
        ({"Origin": "http://8000-other.localhost"}, 401),
    ],
)
@pytest.mark.parametrize("form", FORMS)
async def test_cookie_is_for_its_own_page(form: str, headers: dict[str, str], status: int, shown: Shown) -> None:
    """Below one domain, browsers send it for the requests of other previews' pages, too."""
    cookie = {"Cookie": f"corral_preview={(await shown.link())['token']}"}
    assert (await shown.get(form, {**cookie, **headers}))[0] == status


async def test_signed_address_is_for_the_user_who_asked(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    link = await shown.sign()
    monkeypatch.setattr(peers, "find_user", lambda *_: 54321)
    async with aiohttp.ClientSession() as other:
        async with other.get(link["url"]) as response:
            assert response.status == 401
        async with other.get(link["url"], headers={TOKEN: link["token"]}) as response:
            assert response.status == 200


async def test_signed_address_of_root_is_for_the_user_behind_sudo(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "permitted_users", lambda: {0, 1000})
    for who, visitor, status in ((0, 1000, 200), (0, 1001, 401), (1001, 1000, 401), (1001, 0, 401)):
        monkeypatch.setattr(peers, "find_user", lambda *_, who=who: who)
        async with aiohttp.ClientSession(headers=shown.running.headers()) as session:
            path = f"{shown.running.url}/sandbox/{shown.id}/ports/8000/signed-preview-url"
            async with session.get(path) as response:
                link = await response.json()
        monkeypatch.setattr(peers, "find_user", lambda *_, visitor=visitor: visitor)
        async with aiohttp.ClientSession() as session, session.get(link["url"]) as response:
            assert response.status == status, (who, visitor)
        await shown.call("POST", f"/sandbox/{shown.id}/ports/8000/signed-preview-url/{link['token']}/expire")


async def test_tenant_can_not_take_all_addresses(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "MAX_OF_ORGANISATION", 3)
    urls = [(await shown.link(port))["url"] for port in range(1, 6)]
    assert [url.startswith("http://127.0.0.1") for url in urls] == [False] * 3 + [True] * 2, "the path form"
    assert (await shown.link(1))["url"] == urls[0]
    foreign = shown.running.new_key("others")
    other = Shown(shown.running, (await shown.call("POST", "/sandbox", json={}, key=foreign))[1])
    assert not (await other.link(key=foreign))["url"].startswith("http://127.0.0.1")


async def test_visit_without_the_last_slash_is_sent_on(shown: Shown) -> None:
    """What the page loads is relative to the folder of its address."""
    headers = {**shown.running.headers(), "Accept": "text/html"}
    status, _, response = await shown.get("path", headers, path="?a=%2F")
    assert (status, response.headers["Location"]) == (307, f"/preview/{shown.id}/8000/?a=%2F")
    assert (await shown.get("path", headers))[0] == 200
    assert (await shown.get("path", shown.running.headers(), path=""))[0] == 200  # a program's own request


async def test_token_in_the_host_is_not_told_to_other_sites(shown: Shown) -> None:
    _, _, response = await shown.get("host", name=(await shown.sign())["token"])
    assert response.headers["Referrer-Policy"] == "same-origin"
    _, _, response = await shown.get("host", shown.running.headers())
    assert "Referrer-Policy" not in response.headers


async def test_link_has_the_form_that_its_caller_can_use(shown: Shown) -> None:
    port = urlsplit(shown.base).port
    first = (await shown.link())["url"]
    assert first.startswith("http://127.")
    assert first.endswith(f":{port}")
    assert (await shown.link())["url"] == first
    assert urlsplit((await shown.link(8001))["url"]).hostname != urlsplit(first).hostname
    # Behind a tunnel, on another port, other addresses of this machine can't be reached.
    headers = {**shown.running.headers(), "Host": "localhost:4000"}
    path = f"{shown.running.url}/sandbox/{shown.id}/ports/8000/preview-url"
    async with shown.running.session.get(path, headers=headers) as response:
        assert (await response.json())["url"] == f"http://localhost:4000/preview/{shown.id}/8000"


async def test_previews_have_a_domain_if_there_is_one(
    open_in_process: OpenInProcess, monkeypatch: pytest.MonkeyPatch, program: int
) -> None:
    async with showing(open_in_process, monkeypatch, program, preview_domain="Preview.example.org",
                       public_url="https://api.example.org:8443") as shown:  # fmt: skip
        assert (await shown.link())["url"] == f"https://8000-{shown.id}.preview.example.org:8443"
        link = await shown.sign()
        assert link["url"] == f"https://8000-{link['token']}.preview.example.org:8443"
        for name, status in ((link["token"], 200), (shown.id, 401)):
            host = {"Host": f"8000-{name}.PREVIEW.example.org:8443"}
            async with shown.running.session.get(shown.base, headers=host) as response:
                assert response.status == status
        async with shown.running.session.get(shown.base, headers={"Host": "x.preview.example.org"}) as response:
            assert response.status == 421


# What passes.


@pytest.mark.parametrize("form", FORMS)
async def test_program_sees_the_request_and_nothing_of_ours(form: str, shown: Shown) -> None:
    token = (await shown.link())["token"]
    headers = {**shown.running.headers(), "Cookie": f"corral_preview={token}", "X-Mine": "1",
               "X-Daytona-Skip-Last-Activity-Update": "true"}  # fmt: skip
    status, text, response = await shown.get(form, headers, path="/a//b/%2e%2E/c%20d?q=%41&q=2")
    assert (status, text.partition("\n")[0]) == (200, "GET /a//b/%2e%2E/c%20d?q=%41&q=2")
    assert "X-Mine: 1" in text
    assert "X-Forwarded-For: 127.0.0.1" in text
    for secret in (token, shown.running.key, "Skip-Last", "corral_preview"):
        assert secret not in text
    assert ("Set-Cookie" in response.headers) == (form != "path")
    assert "Domain" not in response.headers.get("Set-Cookie", "")
    assert ("sandbox" in response.headers.get("Content-Security-Policy", "")) == (form == "path")


@pytest.mark.parametrize(
    "head",
    [
        "GET /a#b?c HTTP/1.1\r\nHost: {host}",
        "GET /a HTTP/1.1\r\nHost: 8000-{id}.local\thost",
        "GET /a HTTP/1.1\r\nHost: 8000-{id}.localhost.",
        "GET /a HTTP/1.1\r\nHost: {host}\r\nHost: {host}",
        "GET http://other.localhost/a HTTP/1.1\r\nHost: {host}",
        "POST /a HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: gzip, chunked",
        "POST /a HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
        "GET /a HTTP/1.1\r\nHost: {host}\r\nX: a\r\n folded",
        "GET /a HTTP/1.1\r\nHost : {host}",
    ],
)
async def test_odd_request_does_not_reach_the_program(head: str, shown: Shown) -> None:
    body = "0\r\n\r\n" if head.startswith("POST") else ""
    got = await send_raw(shown, head.format(host=f"8000-{shown.id}.localhost", id=shown.id), body)
    assert got.split(b" ", 2)[1] in (b"400", b"421"), got


async def test_client_can_not_have_its_host_left_out(shown: Shown) -> None:
    host = f"Host: 8000-{shown.id}.localhost"
    got = await send_raw(shown, f"GET /a HTTP/1.1\r\n{host}\r\nConnection: X, Host\r\nX: 1")
    assert got.startswith(b"HTTP/1.1 200")
    assert host.encode() in got
    assert b"X: 1" not in got


async def send_raw(shown: Shown, head: str, body: str = "") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(shown.base).port)
    key = f"Authorization: Bearer {shown.running.key}\r\nConnection: close"
    writer.write(f"{head}\r\n{key}\r\n\r\n{body}".encode())
    got = await reader.read()
    writer.close()
    return got


@pytest.mark.parametrize("location", ["/api/sandbox", "../../../../api/sandbox", "{base}/api/sandbox"])
@pytest.mark.parametrize("form", ["address", "path"])
async def test_redirect_does_not_lead_a_key_to_the_api(form: str, location: str, shown: Shown) -> None:
    """A client follows it with its method, its body and, at the same host, its key."""
    asked: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
        where = location.format(base=shown.base)
        status = f"307 x\r\nLocation: {where}" if len(asked) == 1 else "204 x"
        writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())

    async with program_of(shown, handle):
        url, host = await shown.place(form)
        headers = {**shown.running.headers(), **host}
        async with shown.running.session.post(f"{url}/a/b", headers=headers) as response:
            status = response.status
    if form == "path" or not location.startswith("{"):
        assert (status, asked) == (204, [b"/a/b", b"/api/sandbox"]), "the program itself is asked again"
    else:
        assert status in (401, 421), "another host gets no key"


@pytest.mark.parametrize("form", ["address", "host"])
async def test_api_is_not_at_the_origin_of_a_preview(form: str, shown: Shown) -> None:
    status, text, _ = await shown.get(form, shown.running.headers(), path="/api/sandbox")
    assert (status, text.partition("\n")[0]) == (200, "GET /api/sandbox"), "the program answers"
    assert (await shown.get(form, path="/api/config"))[0] == 401
    status, text, _ = await shown.get(form, shown.running.headers(), path=f"/preview/{shown.id}/8001/")
    assert text.startswith("GET /preview/"), "nor is another preview"


@pytest.mark.parametrize("form", FORMS)
async def test_websockets_pass(form: str, shown: Shown) -> None:
    url, host = await shown.place(form)
    token = (await shown.link())["token"]
    session = shown.running.session
    async with session.ws_connect(f"{url}/ws?{QUERY}={token}", headers=host, max_msg_size=0) as socket:
        for message in (b"hello", b"x" * 300_000, b""):
            await socket.send_bytes(message)
            assert await socket.receive_bytes() == message
    with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
        await session.ws_connect(url, headers=host)


async def test_websocket_ends_with_its_access(shown: Shown) -> None:
    link = await shown.sign()
    async with shown.running.session.ws_connect(link["url"]) as socket:
        await socket.send_bytes(b"hello")
        assert await socket.receive_bytes() == b"hello"
        previews = shown.running.server.previews
        found = previews.links.find(link["token"])
        assert found is not None
        previews.links.end(found)
        shown.running.server.admission.look()
        assert (await socket.receive(timeout=10)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
async def test_methods_and_bodies_pass(method: str, shown: Shown) -> None:
    url, _ = await shown.place("address")
    session = shown.running.session
    headers = {**shown.running.headers(), "Expect": "100-continue"}

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield bytes(20_000)

    for data in (None, b"x" * 1_000_000, pieces()):
        if method in ("HEAD", "OPTIONS") and data is not None:
            continue
        async with session.request(method, url, headers=headers, data=data) as response:
            assert response.status == 200
            if method != "HEAD":
                text = await response.text()
                assert text.endswith("0 bytes" if data is None else "1000000 bytes")


@pytest.mark.parametrize("method", ["TRACE", "CONNECT"])
async def test_other_methods_are_refused(method: str, shown: Shown) -> None:
    host, port = urlsplit((await shown.link())["url"]).netloc.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    target = "/" if method == "TRACE" else f"{host}:{port}"
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.read())[:12] in (b"HTTP/1.1 405", b"HTTP/1.1 400")
    writer.close()


async def test_closed_port_and_stopped_sandbox_are_said(shown: Shown) -> None:
    headers = shown.running.headers()
    status, text, response = await shown.get("address", headers, port="8001")
    assert (status, response.content_type) == (502, "text/plain")
    assert "nothing listens on port 8001" in text
    row = shown.running.server.sandboxes.find(shown.id, organisation_id=None).row
    row.state = "stopped"
    status, text, _ = await shown.get("address", headers)
    assert status == 503
    assert "stopped" in text
    assert (await shown.get("address"))[0] == 401, "not said to everybody"


async def test_it_counts_as_activity_unless_it_says_not_to(shown: Shown) -> None:
    row = shown.running.server.sandboxes.find(shown.id, organisation_id=None).row
    for more, counts in (({}, True), ({"X-Daytona-Skip-Last-Activity-Update": "true"}, False)):
        row.active_at = 1.0
        await shown.get("path", {**shown.running.headers(), **more})
        assert (row.active_at > 1.0) == counts


async def test_address_ends_with_the_sandbox(shown: Shown) -> None:
    url = (await shown.link())["url"]
    await shown.call("DELETE", f"/sandbox/{shown.id}")
    with pytest.raises(aiohttp.ClientConnectorError):
        await shown.running.session.get(url)
    assert shown.running.server.database.rows("SELECT id FROM previews") == []


# Hostile programs, and slow clients.

Program = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def program_of(shown: Shown, handle: Program) -> AsyncIterator[None]:
    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handle(reader, writer)
        writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    before, shown.port = shown.port, server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        shown.port = before
        server.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 9\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw",
        b"HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: corral_preview=x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_no_response_of_a_program_is_believed(sent: bytes, shown: Shown) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)

    async with program_of(shown, handle):
        status, text, response = await shown.get("address", shown.running.headers())
        assert (status, response.content_type) == (502, "text/plain"), text
        assert "Set-Cookie" not in response.headers
    assert (await shown.get("address", shown.running.headers()))[0] == 200


@pytest.mark.parametrize(
    ("method", "sent", "status", "body"),
    [
        ("GET", b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, "to the end"),
        ("GET", b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nokEXTRA", 200, "ok"),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 204, ""),
        ("GET", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 204, ""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n", 304, ""),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, ""),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, ""),
        (
            "GET",
            b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            200,
            "ok",
        ),
        ("POST", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", 201, ""),
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nT: x\r\n\r\n", 200, "ok"),
        ("GET", b"HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n", 599, ""),
    ],
)
async def test_usual_responses_pass(method: str, sent: bytes, status: int, body: str, shown: Shown) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)

    url, _ = await shown.place("address")
    session, headers = shown.running.session, shown.running.headers()
    async with program_of(shown, handle):
        for _ in range(2):  # the second on the same connection, if it was kept
            async with session.request(method, url, headers=headers) as response:
                assert (response.status, await response.text()) == (status, body)


@pytest.mark.parametrize(
    "head", [b"Content-Length: 100\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"]
)
async def test_part_of_a_response_is_not_taken_for_the_whole(head: bytes, shown: Shown) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + head)

    async with program_of(shown, handle):
        with pytest.raises(aiohttp.ClientPayloadError):
            await shown.get("address", shown.running.headers())


async def test_second_response_of_a_program_reaches_nobody(shown: Shown) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(2 * b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")

    url, _ = await shown.place("address")
    host, port = urlsplit(url).netloc.split(":")
    async with program_of(shown, handle):
        reader, writer = await asyncio.open_connection(host, int(port))
        ask = f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {shown.running.key}\r\n"
        writer.write(f"{ask}\r\n{ask}Connection: close\r\n\r\n".encode())
        got = await reader.read()
        writer.close()
    assert got.count(b"HTTP/1.1 200") == 2
    assert got.count(b"first") == 2


async def test_response_that_comes_before_the_upload_ends_it(shown: Shown) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!")
        await writer.drain()
        await reader.read()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(65536)

    async with program_of(shown, handle):
        url, _ = await shown.place("address")
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            async with shown.running.session.post(url, headers=shown.running.headers(), data=endless()) as response:
                assert response.status == 413
    assert (await shown.get("address", shown.running.headers()))[0] == 200


async def test_event_comes_when_it_is_sent(shown: Shown) -> None:
    more = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await more.wait()
        writer.write(b"data: 2\n\n")

    async with program_of(shown, handle):
        url, _ = await shown.place("address")
        async with shown.running.session.get(url, headers=shown.running.headers()) as response:
            assert await response.content.readany() == b"data: 1\n\n"
            more.set()
            assert await response.content.read() == b"data: 2\n\n"


async def test_client_that_does_not_read_makes_the_program_wait(shown: Shown) -> None:
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(65536))
            await writer.drain()
            sent += 65536

    url, _ = await shown.place("address")
    headers = shown.running.headers()
    async with program_of(shown, handle), shown.running.session.get(url, headers=headers):
        before = -1
        while before != sent:  # the buffers of the kernel are full, and nothing moves
            before = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < 64 << 20
    assert (await shown.get("address", shown.running.headers()))[0] == 200


async def test_client_that_never_reads_is_cut_off(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "STALL_SECONDS", 0.2)
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        finally:
            ended.set()

    url, _ = await shown.place("address")
    async with program_of(shown, handle), shown.running.session.get(url, headers=shown.running.headers()):
        async with asyncio.timeout(30):
            await ended.wait()


async def test_previews_are_part_of_what_a_key_may_hold(
    open_in_process: OpenInProcess, monkeypatch: pytest.MonkeyPatch, program: int
) -> None:
    monkeypatch.setattr("corral.server.fairness.PATIENCE_SECONDS", 0.1)
    more = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await more.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    limits = ServerLimits(memory_per_key_bytes=1 << 20, calls_per_key=3)
    async with showing(open_in_process, monkeypatch, program, limits=limits) as shown, program_of(shown, handle):
        session, headers = shown.running.session, shown.running.headers()
        other = shown.running.headers(shown.running.new_key("default"))
        url, _ = await shown.place("address")
        waiting = [asyncio.create_task(session.get(url, headers=headers)) for _ in range(3)]
        while sum(map(len, shown.running.server.admission._inside.values())) < 3:
            await asyncio.sleep(0.01)
        async with session.get(url, headers=headers) as response:
            assert response.status == 429
        more.set()
        async with session.get(url, headers=other) as response:
            assert response.status == 204
        for task in waiting:
            (await task).close()


async def test_those_with_a_link_do_not_delay_its_key(
    open_in_process: OpenInProcess, monkeypatch: pytest.MonkeyPatch, program: int
) -> None:
    async with showing(open_in_process, monkeypatch, program, limits=ServerLimits(calls_per_key=2)) as shown:
        link = await shown.link()
        session = shown.running.session
        async with (
            session.ws_connect(link["url"], headers={TOKEN: link["token"]}),
            session.ws_connect((await shown.sign())["url"]),
        ):
            async with session.get(link["url"], headers={TOKEN: link["token"]}) as response:
                assert response.status == 429
            assert (await shown.call("GET", f"/sandbox/{shown.id}"))[0] == 200
            async with session.get(link["url"], headers=shown.running.headers()) as response:
                assert response.status == 200


# What a proxy of others asks.


async def test_proxy_can_ask_about_tokens_of_its_organisation(shown: Shown) -> None:
    token, signed = (await shown.link())["token"], (await shown.sign())["token"]
    for given, valid in ((token, True), (signed, True), ("x", False), (token[:-1], False)):
        assert await shown.call("GET", f"/preview/{shown.id}/validate/{given}") == (200, valid)
    assert await shown.call("GET", f"/preview/{shown.id}/access") == (200, True)
    assert await shown.call("GET", f"/preview/{shown.id}/preview-warning") == (200, False)
    assert await shown.call("GET", f"/preview/{signed}/8000/sandbox-id") == (200, shown.id)
    foreign = shown.running.new_key("others")
    for path in ("public", "access", "preview-warning", f"validate/{token}"):
        assert (await shown.call("GET", f"/preview/{shown.id}/{path}", key=foreign))[0] == 404
    assert (await shown.call("GET", f"/preview/{signed}/8000/sandbox-id", key=foreign))[0] == 404
    assert (await shown.call("GET", f"/preview/{signed}/8001/sandbox-id"))[0] == 404


def test_token_says_nothing_of_the_key() -> None:
    class Row:
        signing_key = b"secret"

    tokens = {make_token(Row(), key_id=key, port=port) for key in "ab" for port in (1, 2)}  # type: ignore[arg-type]
    assert len(tokens) == 4
