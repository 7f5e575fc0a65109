"""Requests that two servers could read in two ways are refused."""

import pytest

from corral.network.bodies import ChunkedBody, CountedBody, measure_answer, measure_request
from corral.network.checking import check_request, read_target
from corral.network.exchange import prepare
from corral.network.heads import MalformedHeadError, read_answer, read_request
from corral.network.judge import RefusedError, Target

HERE = Target("example.org", 80)


def head(*lines: str, first: str = "POST /a HTTP/1.1", host: str | None = "example.org") -> bytes:
    fields = [] if host is None else [f"Host: {host}"]
    return "\r\n".join([first, *fields, *lines, "", ""]).encode("latin-1")


def test_a_request_is_written_as_it_was_understood() -> None:
    data = head("X-Thing:  two  words \t", "Content-Length: 3")
    request = read_request(data)
    assert request.to_bytes() == head("X-Thing: two  words", "Content-Length: 3")
    assert (request.content_length, request.is_chunked, request.keeps_alive) == (3, False, True)


@pytest.mark.parametrize(
    "data",
    [
        head("Content-Length: 3", "Content-Length: 3"),
        head("Content-Length: 3", "Content-Length: 4"),
        head("Content-Length: 3, 3"),
        head("Content-Length: +3"),
        head("Content-Length: 0x3"),
        head("Content-Length: 3 "  "4"),
        head("Content-Length: -1"),
        head("Content-Length: "),
        head("Content-Length: \xb2"),
        head("Content-Length: 3", "Transfer-Encoding: chunked"),
        head("Transfer-Encoding: chunked, identity"),
        head("Transfer-Encoding: identity"),
        head("Transfer-Encoding: gzip, chunked"),
        head("Transfer-Encoding: xchunked"),
        head("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        head("Transfer-Encoding:\x0bchunked"),
        head("Transfer-Encoding : chunked"),
        head(" Transfer-Encoding: chunked"),
        head("X: y", " folded"),
        head("X: y", "\tfolded"),
        head("Transfer_Encoding: chunked"),
        head("Content_Length: 3"),
        head("Transfer-Encoding: chunked", first="POST /a HTTP/1.0"),
        head("Connection: close, Content-Length", "Content-Length: 3"),
        head("Connection: Host"),
        head("Host: example.org"),
        head("X: a\nHost: evil.test"),
        head("X: a\rHost: evil.test"),
        head("X: a\0b"),
        head("X\0: b"),
        head("No colon"),
        head(": empty"),
        head("Expect: 200-ok"),
        head("Upgrade: websocket", "Upgrade: h2c"),
        head(host=None),
        head(first="GET  /a HTTP/1.1"),
        head(first="GET /a  HTTP/1.1"),
        head(first="GET\t/a HTTP/1.1"),
        head(first=" GET /a HTTP/1.1"),
        head(first="GET /a HTTP/1.1 "),
        head(first="GET /a http/1.1"),
        head(first="GET /a HTTP/1.10"),
        head(first="GET /a HTTP/2.0"),
        head(first="GET /a"),
        head(first="GET /a b HTTP/1.1"),
        head(first="GET /\xe4 HTTP/1.1"),
        head(first="G(T /a HTTP/1.1"),
        head(*("X: y" for _ in range(300))),
    ],
)  # fmt: skip
def test_an_ambiguous_request_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedHeadError):
        read_request(data)


@pytest.mark.parametrize(
    "host",
    [
        "other.example.org", "example.org.evil.test", "example.org:81", "example.org:080", "example.org:",
        "me@example.org",
        "example.org, evil.test", "example.org evil.test", "127.0.0.1", "[::1]", "", "example.org/", "ex\xe4mple.org",
        "http://example.org", "example.org:80:80", "xn--example-.org", "example%2eorg", "g\xbaogle.test",
    ],
)  # fmt: skip
def test_a_request_for_another_host_is_refused(host: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_request(read_request(head(host=host)), HERE, strict=True)
    assert caught.value.rule == "host"


@pytest.mark.parametrize("host", ["example.org", "EXAMPLE.org", "example.org.", "example.org:80"])
def test_the_host_of_the_connection_may_be_spelled_in_its_ways(host: str) -> None:
    assert check_request(read_request(head(host=host)), HERE, strict=True).value("host") == host


def test_a_whole_address_becomes_a_path_and_must_be_of_that_host() -> None:
    request = read_request(head(first="GET http://example.org:80/a?b HTTP/1.1"))
    assert check_request(request, HERE, strict=True).target == "/a?b"
    assert (
        check_request(read_request(head(first="GET http://example.org?b HTTP/1.1")), HERE, strict=True).target == "/?b"
    )
    for first in ("GET http://evil.test/ HTTP/1.1", "GET http://evil.test@example.org.evil.test/ HTTP/1.1"):
        with pytest.raises((RefusedError, MalformedHeadError)):
            check_request(read_request(head(first=first)), HERE, strict=True)
    both = read_request(head(first="GET http://evil.test/ HTTP/1.1", host="evil.test"))
    with pytest.raises(RefusedError):
        check_request(both, HERE, strict=True)


@pytest.mark.parametrize(
    "first",
    [
        "CONNECT evil.test:443 HTTP/1.1", "PRI * HTTP/1.1", "GET * HTTP/1.1", "GET evil.test HTTP/1.1",
        "GET https://example.org/ HTTP/1.1", "GET http://me@example.org/ HTTP/1.1", "GET http:/// HTTP/1.1",
        "GET ?a HTTP/1.1",
    ],
)  # fmt: skip
def test_what_is_no_request_to_a_server_is_refused(first: str) -> None:
    with pytest.raises(MalformedHeadError):
        check_request(read_request(head(first=first)), HERE, strict=True)


def test_an_old_request_gets_the_host_of_its_connection() -> None:
    request = read_request(head(first="GET / HTTP/1.0", host=None))
    assert check_request(request, Target("example.org", 8080), strict=True).value("host") == "example.org:8080"
    assert not request.keeps_alive
    whole = read_request(head(first="GET http://example.org/a HTTP/1.0", host=None))
    assert check_request(whole, HERE, strict=True).value("host") == "example.org"


def test_a_change_to_a_protocol_that_hides_hosts_is_not_forwarded() -> None:
    request = read_request(head("Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAMA"))
    sent = prepare(request)
    assert (sent.upgrade, sent.values("http2-settings"), sent.values("connection")) == (None, [], ["close"])
    assert prepare(read_request(head("Connection: Upgrade", "Upgrade: websocket"))).upgrade == "websocket"
    assert prepare(read_request(head("Connection: Upgrade", "Upgrade: websocket ,\tH2C"))).upgrade is None
    assert prepare(read_request(head("Expect: 100-continue", "Content-Length: 1"))).values("expect") == []


def take_all(body: ChunkedBody | CountedBody, data: bytes, *, step: int) -> int:
    """How much of the data is taken, given in pieces."""
    position = 0
    while position < len(data) and not body.done:
        piece = data[position : position + step]
        used = body.take(memoryview(piece))
        position += used
        assert used == len(piece) or body.done
    return position


CHUNKED = b"4\r\nWiki\r\n10\r\n" + b"x" * 16 + b"\r\n0\r\nX-Sum: 1\r\n\r\n"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_the_end_of_a_chunked_body_is_found_in_any_pieces(step: int) -> None:
    body = ChunkedBody(strict=True)
    assert take_all(body, CHUNKED + b"GET / HTTP/1.1\r\n", step=step) == len(CHUNKED)
    assert body.done


@pytest.mark.parametrize(
    "data",
    [
        b"4;ext=1\r\nWiki\r\n0\r\n\r\n",
        b"4 \r\nWiki\r\n0\r\n\r\n",
        b"0x4\r\nWiki\r\n0\r\n\r\n",
        b"+4\r\nWiki\r\n0\r\n\r\n",
        b"4\nWiki\r\n0\r\n\r\n",
        b"4\r\nWiki\n0\r\n\r\n",
        b"4\r\nWiki5\r\n0\r\n\r\n",
        b"4\r\nWikiX\r\n0\r\n\r\n",
        b"\r\n4\r\nWiki\r\n0\r\n\r\n",
        b"ffffffffffffffffffff\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\nHost: evil.test\r\n\r\n",
        b"0\r\n folded\r\n\r\n",
        b"0\r\nX: a\x00b\r\n\r\n",
        b"0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"1" * 5000,
    ],
)
def test_a_chunked_request_is_read_strictly(data: bytes) -> None:
    for step in (1, 3, 100_000):
        with pytest.raises(MalformedHeadError):
            take_all(ChunkedBody(strict=True), data, step=step)


def test_bodies_of_requests_and_answers() -> None:
    assert measure_request(read_request(head())).done
    assert not measure_request(read_request(head("Content-Length: 1"))).done

    def answer(*lines: str, status: int = 200, method: str = "GET") -> object:
        text = "\r\n".join([f"HTTP/1.1 {status} Fine", *lines, "", ""])
        return measure_answer(read_answer(text.encode()), method=method)

    for measured in (answer(method="HEAD"), answer(status=204), answer(status=304, method="GET")):
        assert isinstance(measured, CountedBody)
        assert measured.done
    assert answer() is None
    assert answer("Transfer-Encoding: gzip") is None
    assert isinstance(answer("Transfer-Encoding: chunked"), ChunkedBody)
    assert isinstance(answer("Content-Length: 5"), CountedBody)
    with pytest.raises(MalformedHeadError):
        answer("Content-Length: 5", "Content-Length: 6")


def test_targets() -> None:
    assert read_target("example.org:443") == Target("example.org", 443)
    assert str(read_target("[2a00::1]:80")) == "[2a00::1]:80"
    for text in ("example.org", "example.org:0", "example.org:99999", "[::1", "[fe80::1%1]:80", "a b:80", "[a.b]:80"):
        assert read_target(text) is None
