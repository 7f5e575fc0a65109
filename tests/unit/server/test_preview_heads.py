"""Responses of hostile programs, and what programs get of a request."""

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.server.preview.heads import (
    MAX_HEAD_BYTES,
    Head,
    MalformedError,
    Route,
    own_cookie,
    read_head,
    request_fields,
    response_fields,
    write_request,
)
from corral.server.preview.upstream import Upstream

WAY = Route(client="127.0.0.1", scheme="http", host="h:1")


def of(*lines: str, status: str = "HTTP/1.1 200 OK") -> Head:
    return read_head("\r\n".join([status, *lines]).encode("latin-1"))


def test_usual_head_is_read() -> None:
    head = of("Content-Length: 5", "X-A:  b \t", "Location: /x")
    assert (head.status, head.reason, head.length, head.chunked) == (200, "OK", 5, False)
    assert head.get("x-a") == ["b"]
    assert of("transfer-encoding: Chunked").chunked
    assert of(status="HTTP/1.0 404").status == 404
    assert read_head("HTTP/1.1 200 é\r\nX: ü".encode()).get("x") == ["ü"]
    assert read_head("HTTP/1.1 200 OK\r\nX: ü".encode("latin-1")).get("x") == ["ü"]


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 5", "Content-Length: 5"],
        ["Content-Length: 5, 5"],
        ["Content-Length: +5"],
        ["Content-Length: 0x5"],
        ["Content-Length: -1"],
        ["Content-Length:"],
        ["Content-Length: 9999999999999999999"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: identity"],
        ["X : b"],
        [" folded"],
        ["X: a", "\tfolded"],
        ["X: a\nSet-Cookie: corral_preview=x"],
        ["X: a\rb"],
        ["X: a\0b"],
        ["no colon"],
        [": empty"],
        [""],
        [f"X{number}: a" for number in range(300)],
    ],
)
def test_odd_head_is_refused(lines: list[str]) -> None:
    with pytest.raises(MalformedError):
        of(*lines)


@pytest.mark.parametrize(
    "status", ["", "HTTP/2 200 OK", "HTTP/1.1 200\tOK", "HTTP/1.1 99 x", "HTTP/1.1 600 x", "HTTP/1.1  200 OK",
               "http/1.1 200 OK", "HTTP/1.1 200 O\nK", "HTTP/1.10 200 OK", "SSH-2.0-x"],
)  # fmt: skip
def test_odd_status_line_is_refused(status: str) -> None:
    with pytest.raises(MalformedError):
        of(status=status)


def test_chunked_is_not_of_http_1_0() -> None:
    with pytest.raises(MalformedError):
        of("Transfer-Encoding: chunked", status="HTTP/1.0 200 OK")


def test_long_run_of_blanks_is_read_in_no_time() -> None:
    """A pattern that tries each of them as the end would take minutes."""
    assert of(f"X: a{' ' * 60000}b").get("x")[0].endswith("b")


@given(st.lists(st.text(st.characters(codec="latin-1"), max_size=30), max_size=5))
def test_fields_never_have_line_breaks(lines: list[str]) -> None:
    try:
        head = of(*lines)
    except MalformedError:
        return
    for name, value in response_fields(head, shared_origin=False):
        assert not set(name + value) & {"\r", "\n", "\0"}


def test_program_can_not_act_beyond_its_origin() -> None:
    head = of(
        "Connection: keep-alive, X-Hop", "X-Hop: 1", "Keep-Alive: timeout=5", "Alt-Svc: h2=\":443\"",
        "Clear-Site-Data: \"*\"", "Strict-Transport-Security: max-age=9", "NEL: {}", "Server: mine",
        "Set-Cookie: a=b; Domain=.example.org; Path=/; domain = x", "Set-Cookie: corral_preview=x; Path=/",
        "set-cookie: CORRAL_PREVIEW =x", "WWW-Authenticate: Basic", "Service-Worker-Allowed: /", "Location: /in",
        "Content-Length: 0", "X-Kept: yes",
    )  # fmt: skip
    kept = response_fields(head, shared_origin=False)
    assert kept == [
        ("Set-Cookie", "a=b; Path=/"), ("WWW-Authenticate", "Basic"), ("Service-Worker-Allowed", "/"),
        ("Location", "/in"), ("X-Kept", "yes"),
    ]  # fmt: skip
    assert response_fields(head, shared_origin=True) == [("Location", "/in"), ("X-Kept", "yes")]
    assert own_cookie("a=b;secure;DOMAIN=x;path=/") == "a=b;secure;path=/"


def test_program_gets_nothing_of_ours() -> None:
    given = [
        ("Host", "h:1"), ("Cookie", "corral_preview=t; a=b"), ("Cookie", "corral_preview=t"),
        ("Authorization", "Bearer corral_x"), ("X-Daytona-Preview-Token", "t"), ("Connection", "close, X-Hop, Host"),
        ("X-Hop", "1"), ("Content-Length", "3"), ("Expect", "100-continue"), ("TE", "trailers"),
        ("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-Proto", "https"), ("Forwarded", "for=x"), ("Accept", "*/*"),
    ]  # fmt: skip
    fields = request_fields(given, route=WAY, ours={"authorization"}, all_cookies=False, length=3, websocket=False)
    assert fields == [
        ("Host", "h:1"), ("Cookie", "a=b"), ("Accept", "*/*"), ("X-Forwarded-For", "1.2.3.4, 127.0.0.1"),
        ("X-Forwarded-Proto", "http"), ("X-Forwarded-Host", "h:1"), ("Content-Length", "3"), ("Connection", "close"),
    ]  # fmt: skip
    own = [("Authorization", "Basic x"), ("Cookie", "a=b")]
    fields = request_fields(own, route=WAY, ours=(), all_cookies=True, length=-1, websocket=True)
    assert ("Authorization", "Basic x") in fields
    assert ("Transfer-Encoding", "chunked") in fields
    assert fields[-2:] == [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    assert "Cookie" not in dict(fields)


@pytest.mark.parametrize(
    ("target", "value"), [("/a b", "x"), ("/", "a\r\nb"), ("/", "a\nb"), ("/", "a\0b"), ("/\r", "x")]
)
def test_request_is_one_head(target: str, value: str) -> None:
    with pytest.raises(MalformedError):
        write_request("GET", target, [("X", value)])


async def body_of(sent: bytes, *, method: str = "GET") -> bytes:
    """What a program sends before it closes the connection, as its response's body."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        sending = asyncio.create_task(asyncio.to_thread(send_and_close, theirs, sent))
        upstream = Upstream(ours)
        try:
            head = await upstream.head()
            return b"".join([piece async for piece in upstream.body(head, method=method)])
        finally:
            ours.close()
            await sending


def send_and_close(theirs: socket.socket, sent: bytes) -> None:
    try:
        theirs.sendall(sent)
    except OSError:
        pass  # it was given up
    theirs.close()


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhelloEXTRA", b"hello"),
        (OK + b"\r\nto the end", b"to the end"),
        (CHUNKED + b"5\r\nhello\r\n3;a=b\r\nyou\r\n0\r\nTrailer: x\r\n\r\nEXTRA", b"helloyou"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 204 No Content\r\n\r\nEXTRA", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b""),
    ],
)
async def test_bodies_end_where_they_say(sent: bytes, body: bytes) -> None:
    assert await body_of(sent) == body


async def test_head_has_no_body() -> None:
    assert await body_of(OK + b"Content-Length: 500\r\n\r\n", method="HEAD") == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        OK,
        OK + b"Content-Length: 5\r\n\r\nhell",
        CHUNKED + b"5\r\nhello",
        CHUNKED + b"5\r\nhelloX\r\n0\r\n\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"5\nhello\r\n0\r\n\r\n",
        CHUNKED + b"1" * 2000,
        CHUNKED + b"5;" + b"a" * 2000 + b"\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"0\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        OK + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + OK + b"\r\n",
    ],
)
async def test_odd_body_is_refused(sent: bytes) -> None:
    with pytest.raises(MalformedError):
        await body_of(sent)
