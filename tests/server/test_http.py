"""Manners on the wire: exact codes, strict types, limits, and clients that behave badly."""

import asyncio
import functools
import json
import socket
import ssl
import subprocess
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from daytona import AsyncDaytona, Daytona, DaytonaNotFoundError, Sandbox

from corral.server.settings import ServerLimits
from server.conftest import InProcess, OpenInProcess
from support.serving import ServedProcess


async def test_a_refusal_has_the_wires_form(in_process: InProcess) -> None:
    async with in_process.session.get(in_process.url + "/sandbox/none", headers=in_process.headers()) as response:
        body = await response.json()
        assert response.status == 404
        assert response.content_type == "application/json"
        assert {"path", "timestamp", "statusCode", "error", "message", "method"} <= set(body)
        assert (body["statusCode"], body["path"], body["error"]) == (404, "/api/sandbox/none", "Not Found")
        assert response.headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "//sandbox", 200), ("GET", "/sandbox/", 200), ("PATCH", "/sandbox", 405), ("GET", "/none", 404),
     ("GET", "/sandbox/%2e%2e/config", 400), ("GET", "/sandbox/%00", 400), ("GET", "/sandbox/%ff", 400),
     ("GET", "/sandbox?limit=0", 400), ("GET", "/sandbox?limit=x", 400), ("GET", "/sandbox?isPublic=1", 400),
     ("GET", "/sandbox?isPublic=true&isPublic=true", 400), ("GET", "/sandbox?states=started&states=stopped", 200),
     ("GET", "/sandbox?cursor=zzz", 400), ("GET", "/sandbox?labels=[]", 400), ("GET", "/sandbox?unknown=1", 200),
     ("GET", "/sandbox?createdAtAfter=2020-01-01T00:00:00.000000%2B0000", 200),
     ("GET", "/volumes", 501), ("GET", "/object-storage/push-access", 501)],
)  # fmt: skip
async def test_paths_and_queries(in_process: InProcess, method: str, path: str, status: int) -> None:
    from yarl import URL

    url = URL(in_process.url + path, encoded=True)
    async with in_process.session.request(method, url, headers=in_process.headers()) as response:
        assert response.status == status, await response.text()


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{}", 200), (b"", 200), (b"[]", 400), (b"{", 400), (b'{"cpu": "1"}', 400), (b'{"cpu": 1.5}', 400),
     (b'{"public": "true"}', 400), (b'{"env": {"A": 1}}', 400), (b'{"unknown": 1}', 200), (b'{"cpu": 0}', 400),
     (b"[" * 100_000, 400), (b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}", 400), (b'{"name": "\xff"}', 400),
     (b'{"name": "a/b"}', 400), (b'{"env": {"A=B": "1"}}', 400),
     (b'{"volumes": [{"volumeId": "a", "mountPath": "b"}]}', 501),
     (b'{"labels": {"code-toolbox-language": "cobol"}}', 400), (b'{"snapshot": "nothing"}', 404),
     (json.dumps({"name": "[" * 150}).encode(), 200)],
)  # fmt: skip
async def test_bodies_are_strict(in_process: InProcess, body: bytes, status: int) -> None:
    headers = {**in_process.headers(), "Content-Type": "application/json"}
    async with in_process.session.post(in_process.url + "/sandbox", data=body, headers=headers) as response:
        assert response.status == status, await response.text()


async def test_an_empty_body_with_a_json_type_is_no_body(in_process: InProcess) -> None:
    headers = {**in_process.headers(), "Content-Type": "application/json"}
    async with in_process.session.post(in_process.url + "/sandbox", json={}, headers=in_process.headers()) as response:
        made = (await response.json())["id"]
    async with in_process.session.post(in_process.url + f"/sandbox/{made}/last-activity", headers=headers) as response:
        assert response.status == 201
    async with in_process.session.delete(in_process.url + f"/sandbox/{made}", headers=headers) as response:
        assert response.status == 200


async def test_long_bodies_and_headers_are_refused(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(json_bytes=1000)) as running:
        url = running.url + "/sandbox"
        async with running.session.post(url, data=b" " * 2000, headers=running.headers()) as response:
            assert response.status == 413

        async def pieces():  # type: ignore[no-untyped-def]
            for _ in range(20):
                yield b" " * 100

        headers = {**running.headers(), "Content-Type": "application/json"}
        async with running.session.post(url, data=pieces(), headers=headers) as response:
            assert response.status == 413
        async with running.session.get(url, headers={**running.headers(), "X-Long": "x" * 20_000}) as response:
            assert response.status == 400


async def test_a_bug_shows_nothing_of_itself(in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a secret at /home/somebody")

    monkeypatch.setattr(in_process.server.lifecycle.backend, "create", fail)
    async with in_process.session.post(in_process.url + "/sandbox", json={}, headers=in_process.headers()) as response:
        text = await response.text()
        assert response.status == 500
        assert "secret" not in text
        assert "home" not in text
        assert response.headers["X-Request-Id"] in text
    assert in_process.server.sandboxes.states().total() == 0


async def test_slow_clients_are_let_go_and_others_served(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(request_seconds=0.3)) as running:
        port = urlsplit(running.url).port
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in slow:
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        half_body, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /api/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
            b"Authorization: Bearer " + running.key.encode() + b"\r\n\r\n{"
        )
        async with running.session.get(running.url.removesuffix("/api") + "/health") as response:
            assert response.status == 200
        async with asyncio.timeout(20):
            for reader, writer_of_one in slow:
                assert await reader.read() == b""
                writer_of_one.close()
            assert b" 408 " in await half_body.readline()
        writer.close()


@pytest.mark.parametrize(
    "smuggled",
    [b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: 4\r\nContent-Length: 5\r\n",
     b"Transfer-Encoding: chunked, identity\r\n", b"Content-Length: +4\r\n", b"Content-Length : 4\r\n"],
)  # fmt: skip
async def test_smuggling_is_refused(in_process: InProcess, smuggled: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(in_process.url).port)
    writer.write(
        b"POST /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + smuggled + b"\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n"
        b"Host: 127.0.0.1\r\n\r\n"
    )
    async with asyncio.timeout(20):
        answer = await reader.read()
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), answer[:200]
    assert b"corral_requests_total" not in answer
    writer.close()


async def test_a_client_that_leaves_before_its_sandbox_is_there_leaves_none(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = in_process.server.lifecycle.backend
    create, begun, go_on = backend.create, asyncio.Event(), asyncio.Event()

    async def slowly(spec):  # type: ignore[no-untyped-def]
        begun.set()
        await go_on.wait()
        return await create(spec)

    monkeypatch.setattr(backend, "create", slowly)
    request = asyncio.create_task(
        in_process.session.post(in_process.url + "/sandbox", json={}, headers=in_process.headers())
    )
    async with asyncio.timeout(20):
        await begun.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        while in_process.server.metrics.in_flight:
            await asyncio.sleep(0.01)
        go_on.set()
        while in_process.server.sandboxes.states():
            await asyncio.sleep(0.01)
    assert await backend.list() == []


def test_a_call_ends_with_404_when_its_sandbox_is_deleted(daytona: Daytona) -> None:
    import threading

    box = daytona.create()
    timer = threading.Timer(1.0, lambda: daytona.delete(box))
    timer.start()
    with pytest.raises(DaytonaNotFoundError):
        box.process.exec("sleep 300", timeout=100)
    timer.join()


async def test_a_client_that_goes_away_ends_what_it_started(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    mark = f"100{uuid.uuid4().int % 10_000}"
    call = asyncio.create_task(box.process.exec(f"exec sleep {mark}"))
    count = f"ps -eo args | grep -c '[s]leep {mark}' || true"
    async with asyncio.timeout(60):
        while (await box.process.exec(count)).result.strip() == "0":
            await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        while (await box.process.exec(count)).result.strip() != "0":
            await asyncio.sleep(0.05)
    await box.delete()


async def test_tls(tmp_path: Path, open_in_process: OpenInProcess) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl can't make a certificate here")
    async with open_in_process(tls_cert=certificate, tls_key=key) as running:
        assert running.url.startswith("https://")
        trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=certificate))
        async with (
            aiohttp.ClientSession(connector=trust) as session,
            session.get(running.url + "/config") as response,
        ):
            assert (await response.json())["proxyToolboxUrl"].startswith("https://127.0.0.1")


def test_nothing_secret_is_in_the_log(server: ServedProcess, daytona: Daytona) -> None:
    from daytona import CreateSandboxFromSnapshotParams

    box = daytona.create(CreateSandboxFromSnapshotParams(env_vars={"TOKEN": "hunter2-in-env"}))
    daytona.delete(box)
    assert box.id in server.log
    assert server.key not in server.log
    assert "hunter2-in-env" not in server.log


def test_the_first_bytes_of_other_protocols_hurt_nobody(server: ServedProcess) -> None:
    port = urlsplit(server.url).port
    assert port is not None
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x00" * 100, b"SSH-2.0-x\r\n", b"GET\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    assert "Traceback" not in server.log


def test_a_timeout_of_months_harms_nobody(sandbox: Sandbox) -> None:
    assert sandbox.process.exec("echo one", timeout=9_000_000).result == "one\n"
    assert sandbox.process.exec("echo two").result == "two\n"


async def test_a_create_that_is_sent_again_makes_no_second_one(in_process: InProcess) -> None:
    headers = {**in_process.headers(), "Idempotency-Key": "once"}

    async def create(headers: dict[str, str]) -> str:
        async with in_process.session.post(in_process.url + "/sandbox", json={}, headers=headers) as response:
            made = await response.json()
            assert made["state"] == "started"
            return str(made["id"])

    first, *others = await asyncio.gather(*(create(headers) for _ in range(5)))
    assert set(others) == {first}
    foreign = {**in_process.headers(in_process.new_key("others")), "Idempotency-Key": "once"}
    assert await create(foreign) != first
    async with in_process.session.delete(in_process.url + f"/sandbox/{first}", headers=headers) as response:
        assert response.status == 200
    assert await create(headers) != first


async def test_preview_of_the_toolbox_is_the_toolbox(in_process: InProcess) -> None:
    """Clients before 0.110 find its websockets so. The port has one spelling."""
    get = functools.partial(in_process.session.get, headers=in_process.headers())
    async with in_process.session.post(in_process.url + "/sandbox", json={}, headers=in_process.headers()) as response:
        sandbox = await response.json()
    async with get(f"{in_process.url}/sandbox/{sandbox['id']}/ports/2280/preview-url") as response:
        assert response.status == 200
        assert (await response.json())["url"] == f"{sandbox['toolboxProxyUrl']}/{sandbox['id']}"
    for port, status in (("3000", 200), ("x", 400), ("02280", 400), ("+2280", 400), ("65536", 400), ("0", 400)):
        async with get(f"{in_process.url}/sandbox/{sandbox['id']}/ports/{port}/preview-url") as response:
            assert response.status == status
