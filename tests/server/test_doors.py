"""Attacks on the server, without a key and with a valid one: no other tenant may be affected."""

import asyncio
import contextlib
import io
import json
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from corral.errors import BackendUnavailableError, SpecError
from corral.server.auth import Keyring
from corral.server.settings import ServerLimits
from corral.server.signing import sign
from corral.server.store.database import Database
from server.conftest import InProcess, OpenInProcess
from support.serving import ServedProcess, make_client

EVENTS = "/socket.io/?transport=websocket&EIO=4"


async def say(running: InProcess, data: bytes) -> bytes:
    """Send bytes as they are; gives what comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.url).port)
    try:
        writer.write(data)
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


def head(running: InProcess, line: str, *more: str, key: bool = False) -> bytes:
    """The head of a request, after which the connection is closed."""
    lines = [line, "Host: 127.0.0.1", "Connection: close", *more]
    if key:
        lines.append(f"Authorization: Bearer {running.key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def listen(running: InProcess, key: str | None = None) -> aiohttp.ClientWebSocketResponse:
    """A listener to events that was let in."""
    listener = await running.session.ws_connect(running.url + EVENTS)
    await listener.receive_str(timeout=10)
    await listener.send_str("40" + json.dumps({"token": key or running.key}))
    assert (await listener.receive_str(timeout=10)).startswith("40")
    return listener


async def still_hears(listener: aiohttp.ClientWebSocketResponse) -> bool:
    with contextlib.suppress(ConnectionError, TypeError):
        await listener.send_str("2")
        return await listener.receive_str(timeout=10) == "3"
    return False


async def is_closed(listener: aiohttp.ClientWebSocketResponse) -> int | None:
    """Wait for its end; gives the code."""
    async with asyncio.timeout(30):
        while not listener.closed:
            await listener.receive()
    return listener.close_code


# ------------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize("target", ["http://evil.example/api/config", "https://127.0.0.1@evil.example/api/config"])
async def test_a_request_line_names_no_other_host(in_process: InProcess, target: str) -> None:
    answer = await say(in_process, head(in_process, f"GET {target} HTTP/1.1"))
    assert answer.startswith(b"HTTP/1.1 421")
    assert b"evil" not in answer


@pytest.mark.parametrize("line", ["OPTIONS * HTTP/1.1", "CONNECT 127.0.0.1:22 HTTP/1.1", "TRACE /health HTTP/1.1"])
async def test_whatever_the_method_every_check_is_made(in_process: InProcess, line: str) -> None:
    answer = await say(in_process, head(in_process, line))
    assert answer.split(b" ", 2)[1] in (b"404", b"405"), answer
    assert b"X-Request-Id" in answer
    foreign = head(in_process, line).replace(b"Host: 127.0.0.1", b"Host: evil.example")
    assert (await say(in_process, foreign)).startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize(
    "junk",
    [b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"NO-HTTP secret-of-mine\r\n\r\n",
     b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET /health HTTP/1.1\nHost: 127.0.0.1\n\n",
     b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\r\n b\r\n\r\n",
     b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(500)) + b"\r\n"],
)  # fmt: skip
async def test_what_is_no_http_learns_nothing(in_process: InProcess, junk: bytes) -> None:
    answer = await say(in_process, junk)
    assert answer.split(b" ", 2)[1] == b"400"
    assert b"Server: corral\r\n" in answer
    assert not any(word in answer for word in (b"aiohttp", b"Python", b"secret-of-mine"))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["statusCode"] == 400


async def test_two_keys_in_one_request_open_nothing(in_process: InProcess) -> None:
    request = head(in_process, "GET /api/sandbox HTTP/1.1", "Authorization: Bearer other", key=True)
    assert (await say(in_process, request)).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("packing", ["gzip", "deflate", "br", "gzip, identity"])
async def test_packed_bodies_are_not_unpacked(in_process: InProcess, packing: str) -> None:
    body = zlib.compress(b" " * 1_000_000)
    lines = (f"Content-Encoding: {packing}", f"Content-Length: {len(body)}", "Content-Type: application/json")
    answer = await say(in_process, head(in_process, "POST /api/sandbox HTTP/1.1", *lines, key=True) + body)
    assert answer.startswith(b"HTTP/1.1 415")


def test_a_body_is_looked_through_once() -> None:
    """A million quotes, and no end to the text: a parser that starts again at each of them would not return."""
    program = """
from corral.server.faults import Fault
from corral.server.dispatch import parse_body
for body in (b"[" * 65 + b'"' + b'\\\\"' * 1_000_000, b"[" * 64 + b"]" * 30_000_000, b'{"x": [' + b"[]," * 9_000_000):
    try:
        parse_body(dict, body, max_depth=64, max_items=1000)
    except Fault as fault:
        print(fault.status)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["400"] * 3


async def test_a_body_has_so_many_things_in_it(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(json_items=100)) as running:
        for labels, status in (({str(n): "x" for n in range(20)}, 200), ({str(n): "x" for n in range(60)}, 400)):
            async with running.session.post(
                running.url + "/sandbox", json={"labels": labels}, headers=running.headers()
            ) as response:
                assert response.status == status, await response.text()


async def test_an_upload_that_stalls_is_let_go(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(request_seconds=0.3)) as running:
        async with running.session.post(running.url + "/sandbox", json={}, headers=running.headers()) as response:
            made = (await response.json())["id"]
        lines = ("Content-Type: multipart/form-data; boundary=x", "Content-Length: 1000")
        request = head(running, f"POST /toolbox/{made}/files/bulk-upload HTTP/1.1", *lines, key=True)
        assert (await say(running, request + b"--x\r\n")).startswith(b"HTTP/1.1 408")


async def test_an_error_of_the_backend_tells_no_path(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise BackendUnavailableError("mount lowerdir=/srv/host/base:/srv/host/layer at '/srv/host/x': no space")

    monkeypatch.setattr(in_process.server.lifecycle.backend, "create", fail)
    with caplog.at_level("INFO", logger="corral.server"):
        async with in_process.session.post(
            in_process.url + "/sandbox", json={}, headers=in_process.headers()
        ) as response:
            text = await response.text()
    assert (response.status, "no space" in text, "/srv" in text) == (503, True, False)
    told = [str(getattr(record, "fields", "")) for record in caplog.records]
    assert any("no space" in line for line in told)
    assert not any("/srv" in line for line in told)


# -------------------------------------------------------------------------------------------------------------- floods


async def test_wrong_keys_keep_no_good_key_out(open_in_process: OpenInProcess) -> None:
    """All have the same address behind a proxy, and on one machine."""
    async with open_in_process(limits=ServerLimits(bad_keys_per_minute=3)) as running:
        for _ in range(10):
            async with running.session.get(running.url + "/sandbox", headers=running.headers("wrong")) as response:
                last = response.status
        assert last == 429
        async with running.session.get(running.url + "/sandbox", headers=running.headers()) as response:
            assert response.status == 200
        assert await still_hears(await listen(running))


async def test_idle_connections_make_room(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(connections=8)) as running:
        listener = await listen(running)
        port = urlsplit(running.url).port
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for _, writer in idle[::2]:
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await say(running, head(running, "GET /api/sandbox HTTP/1.1", key=True))).startswith(b"HTTP/1.1 200")
        assert await still_hears(listener)
        for _, writer in idle:
            writer.close()


async def test_connections_in_use_make_no_room(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(connections=3)) as running:
        listeners = [await listen(running) for _ in range(3)]
        with contextlib.suppress(ConnectionError):
            assert await say(running, head(running, "GET /health HTTP/1.1")) == b""
        for listener in listeners:
            assert await still_hears(listener)


async def test_listeners_count_for_their_key_alone(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(calls_per_key=2)) as running:
        listeners = [await listen(running) for _ in range(2)]
        async with running.session.get(running.url + "/sandbox", headers=running.headers()) as response:
            assert response.status == 429
        third = await running.session.ws_connect(running.url + EVENTS)
        await third.send_str("40" + json.dumps({"token": running.key}))
        await is_closed(third)
        # Others, and those who need no key, don't notice.
        other = running.new_key("others")
        async with running.session.get(running.url + "/sandbox", headers=running.headers(other)) as response:
            assert response.status == 200
        async with running.session.get(running.url + "/config") as response:
            assert response.status == 200
        assert all([await still_hears(each) for each in listeners])


@contextlib.asynccontextmanager
async def deaf(running: InProcess) -> AsyncIterator[socket.socket]:
    """A connection whose other end never reads, with room for very little on the way."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect(("127.0.0.1", urlsplit(running.url).port))
    plain.setblocking(False)
    try:
        yield plain
    finally:
        plain.close()


async def is_cut_off(plain: socket.socket) -> None:
    async with asyncio.timeout(30):
        while plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            await asyncio.sleep(0.02)


async def test_an_answer_that_nobody_takes_is_given_up(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(request_seconds=0.2)) as running, deaf(running) as plain:
        await asyncio.get_running_loop().sock_sendall(
            plain, b"GET /api/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200
        )
        await is_cut_off(plain)


async def test_a_listener_that_never_reads_is_gone(in_process: InProcess) -> None:
    loop = asyncio.get_running_loop()
    async with deaf(in_process) as plain:
        upgrade = (
            "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        )  # fmt: skip
        request = head(in_process, f"GET /api{EVENTS} HTTP/1.1", *upgrade).replace(b"Connection: close\r\n", b"")
        hello = b"40" + json.dumps({"token": in_process.key}).encode()
        await loop.sock_sendall(plain, request + bytes([0x81, 0x80 | len(hello), 0, 0, 0, 0]) + hello)
        events = in_process.server.events
        async with asyncio.timeout(20):
            while len(events) == 0:
                await asyncio.sleep(0.01)
        organisation = in_process.server.keyring.organisation_named("default").id
        for _ in range(3000):
            events.publish(organisation, "sandbox.created", lambda _: {"x": "y" * 10_000})
            await asyncio.sleep(0)
        await is_cut_off(plain)
        async with asyncio.timeout(20):
            while in_process.server.metrics.in_flight:
                await asyncio.sleep(0.01)


# ---------------------------------------------------------------------------------------------------------------- keys


async def test_a_key_that_ends_ends_what_it_opened(in_process: InProcess) -> None:
    revoked = in_process.new_key("default")
    number = in_process.server.keyring.keys[-1].id
    listeners = [await listen(in_process, revoked), await listen(in_process, in_process.new_key("default"))]
    expiring = await listen(in_process, in_process.new_key("default", lifetime_seconds=3.0))
    in_process.server.keyring.revoke(number)
    # Not a single event more, however soon.
    in_process.server.events.publish(in_process.server.keyring.organisation_named("default").id, "x", lambda _: {})
    assert (await listeners[1].receive_str(timeout=10)).startswith("42")
    message = await listeners[0].receive(timeout=30)
    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1008)
    assert await is_closed(expiring) == 1008
    assert await still_hears(listeners[1])


def key_command(server: ServedProcess, *words: str) -> str:
    """`corral key …`, as its operator would."""
    command = [sys.executable, "-m", "corral.cli", "key", *words, "--data-dir", str(server.data_folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


async def test_a_revoked_key_ends_terminals_and_calls_at_once(server: ServedProcess) -> None:
    key = await asyncio.to_thread(key_command, server, "create", "--name", "short-lived")
    box = await asyncio.to_thread(make_client(server).create)
    base = server.url.removesuffix("/api") + f"/toolbox/{box.id}"
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        terminal = await session.ws_connect(base + "/process/pty/create-connect?id=one")
        assert "connected" in await terminal.receive_str(timeout=30)

        async def run() -> int:
            body = {"command": "touch /tmp/begun; sleep 300; touch /tmp/ended"}
            async with session.post(base + "/process/execute", json=body) as response:
                return response.status

        running = asyncio.create_task(run())
        async with asyncio.timeout(60):
            while (await asyncio.to_thread(box.process.exec, "ls /tmp/begun")).exit_code != 0:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(key_command, server, "revoke", "short-lived")
        async with asyncio.timeout(60):
            assert await running == 401
        assert await is_closed(terminal) == 1008
        async with session.get(base + "/work-dir") as response:
            assert response.status == 401
        left = await asyncio.to_thread(box.process.exec, "ps -eo args | grep -c '[s]leep 300' || true")
        assert left.result.strip() == "0"
    await asyncio.to_thread(box.delete)


async def test_a_wrong_signature_tells_nothing(in_process: InProcess) -> None:
    async with in_process.session.post(in_process.url + "/sandbox", json={}, headers=in_process.headers()) as response:
        made = (await response.json())["id"]
    row = in_process.server.sandboxes.find(made, organisation_id=None).row
    row.active_at = before = time.time() - 1000
    base = in_process.url.removesuffix("/api") + "/toolbox"
    answers = []
    for wanted in (made, "11111111-2222-3333-4444-555555555555"):
        for method, call in (("GET", "download"), ("POST", "upload-v2")):
            query = {"path": "/tmp/x", "expires": "0", "signature": "v1_wrong"}
            async with in_process.session.request(method, f"{base}/{wanted}/files/{call}", params=query) as response:
                body = await response.json()
                answers.append((response.status, body["message"], body["code"]))
    assert set(answers) == {(401, answers[0][1], "UNAUTHORIZED")}
    assert row.active_at == before, "a request that is refused does not count as activity"


async def test_a_signed_url_ends_with_the_key_that_made_it(in_process: InProcess) -> None:
    """Else the holder of a key could go on creating them for ever."""
    async with in_process.session.post(in_process.url + "/sandbox", json={}, headers=in_process.headers()) as response:
        made = (await response.json())["id"]
    upload = in_process.url.removesuffix("/api") + f"/toolbox/{made}/files/upload-v2"
    queries = []
    for key in (in_process.key, in_process.new_key("default")):
        async with in_process.session.get(
            f"{in_process.url}/sandbox/{made}/signing-key", headers=in_process.headers(key)
        ) as response:
            signing = await response.json()
        signature = sign(signing, method="POST", path="/tmp/x", expires="0")
        queries.append({"path": "/tmp/x", "expires": "0", "signature": signature})

    async def statuses() -> list[int]:
        found = []
        for query in queries:
            async with in_process.session.post(upload, params=query, data={"file": io.BytesIO(b"x")}) as response:
                found.append(response.status)
        return found

    assert await statuses() == [200, 200]
    in_process.server.keyring.revoke(in_process.server.keyring.keys[-1].id)
    assert await statuses() == [200, 401]
    async with in_process.session.post(
        f"{in_process.url}/sandbox/{made}/signing-key/rotate", headers=in_process.headers()
    ) as response:
        assert response.status == 200
    assert await statuses() == [401, 401]


async def test_an_id_of_another_hides_no_name(in_process: InProcess) -> None:
    async with in_process.session.post(in_process.url + "/sandbox", json={}, headers=in_process.headers()) as response:
        theirs = (await response.json())["id"]
    mine = in_process.headers(in_process.new_key("others"))
    async with in_process.session.post(in_process.url + "/sandbox", json={"name": theirs}, headers=mine) as response:
        own = (await response.json())["id"]
    async with in_process.session.get(in_process.url + f"/sandbox/{theirs}", headers=mine) as response:
        assert (await response.json())["id"] == own


@pytest.mark.parametrize("name", [".", "..", "a/b", "a\nb", " a", "\u202ea", "\x7f"])
async def test_names_can_be_put_into_a_path(in_process: InProcess, name: str) -> None:
    async with in_process.session.post(
        in_process.url + "/sandbox", json={"name": name}, headers=in_process.headers()
    ) as response:
        assert response.status == 400


def test_the_data_folder_is_closed_to_others(server: ServedProcess) -> None:
    folder = server.data_folder / "server"
    assert folder.stat().st_mode & 0o077 == 0
    assert {path.name for path in folder.iterdir() if path.stat().st_mode & 0o077} == set()
    assert not any(server.key.encode() in path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_a_data_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "server"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    Database(folder, serving=False).close()
    assert folder.stat().st_mode & 0o077 == folder.parent.stat().st_mode & 0o077 == 0


def test_a_database_that_others_could_have_put_there_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "server"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(BackendUnavailableError, match="others can write to server"):
        Database(folder, serving=False)
    assert list(folder.iterdir()) == []


def test_a_data_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "server"
    folder.mkdir(parents=True)
    monkeypatch.setattr("os.geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(BackendUnavailableError, match="another user"):
        Database(folder, serving=True)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["", " a", "a\nb", "\x1b[31m", "x" * 201])
def test_keys_and_organisations_have_names_that_can_be_shown(tmp_path: Path, name: str) -> None:
    database = Database(tmp_path, serving=False)
    try:
        keyring = Keyring(database)
        with pytest.raises(SpecError):
            keyring.organisation_named(name)
        with pytest.raises(SpecError):
            keyring.create(organisation=keyring.organisation_named("team"), name=name)
        assert keyring.keys == []
    finally:
        database.close()


def test_the_key_of_the_server_is_not_to_be_found_inside(server: ServedProcess) -> None:
    """It came in by a variable, and every process of a sandbox descends from the server."""
    box = make_client(server).create()
    try:
        found = box.process.exec("cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep ^CORRAL_API || true")
        assert found.result == ""
    finally:
        box.delete()


def test_nothing_beyond_this_machine_without_tls(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        command = [sys.executable, "-m", "corral.cli", "serve", "--host", host, "--port", "0", "--data-dir", tmp_path]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ran.returncode != 0
        assert "TLS" in ran.stderr
        assert not (tmp_path / "server").exists()


@pytest.mark.parametrize("path", ["/", "/docs", "/api", "/api/", "/api/docs", "/api/docs/", "/api/redoc", "/swagger"])
async def test_somebody_with_a_browser_is_told_what_this_is(in_process: InProcess, path: str) -> None:
    base = in_process.url.removesuffix("/api")
    async with in_process.session.get(base + path) as response:
        text = await response.text()
    assert (response.status, response.content_type) == (200, "text/plain")
    assert f"DAYTONA_API_URL={in_process.url} " in text
