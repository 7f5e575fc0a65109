"""The name that a TLS client asks for, however its first message is cut."""

import ssl
import struct

import pytest

from corral.network.hello import ClientHello, HelloReader, HelloWatch, MalformedError, looks_like_tls, parse_hello
from corral.network.sniff import sniff


def make_hello(name: str | None = "example.org", *, protocols: tuple[str, ...] = ()) -> bytes:
    """As a real client sends it."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    if protocols:
        context.set_alpn_protocols(list(protocols))
    context.verify_mode = ssl.CERT_REQUIRED if name is not None else ssl.CERT_NONE
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def record(content: bytes, kind: int = 22) -> bytes:
    return struct.pack("!BBBH", kind, 3, 1, len(content)) + content


def cut(data: bytes, size: int) -> bytes:
    """The message of one record, in records of such a size."""
    message = data[5:]
    return b"".join(record(message[at : at + size]) for at in range(0, len(message), size))


def hello_of(extensions: bytes) -> bytes:
    return b"\3\3" + bytes(32) + b"\0" + b"\0\2\0\0" + b"\1\0" + struct.pack("!H", len(extensions)) + extensions


def extension(kind: int, content: bytes) -> bytes:
    return struct.pack("!HH", kind, len(content)) + content


def server_name(name: bytes, kind: int = 0) -> bytes:
    entry = struct.pack("!BH", kind, len(name)) + name
    return extension(0, struct.pack("!H", len(entry)) + entry)


@pytest.mark.parametrize("size", [1, 5, 100, 16_000])
def test_a_message_in_pieces(size: int) -> None:
    data = cut(make_hello(protocols=("h2", "http/1.1")), size)
    reader = HelloReader()
    for end in range(1, len(data)):
        assert reader.read(data[:end]) is None
    assert reader.read(data + b"more") == ClientHello("example.org", ("h2", "http/1.1"))


def test_a_client_may_ask_for_no_name() -> None:
    assert HelloReader().read(make_hello(None)) == ClientHello(None)


@pytest.mark.parametrize(
    "body",
    [
        hello_of(server_name(b"example.org") + server_name(b"evil.test")),
        hello_of(extension(0, struct.pack("!H", 28) + (b"\0\0\x0bexample.org" + b"\0\0\x0bevil12.test"))),
        hello_of(server_name(b"example.org", kind=1)),
        hello_of(server_name("ex\u0430mple.org".encode())),
        hello_of(extension(0, b"")),
        hello_of(server_name(b"example.org"))[:-1],
        hello_of(server_name(b"example.org")) + b"x",
        hello_of(b"\0\0\0"),
        b"\3\3" + bytes(32) + b"\xff",
        b"",
    ],
)
def test_a_message_that_servers_could_read_in_two_ways_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_hello(body)


@pytest.mark.parametrize(
    "data",
    [
        record(b"\2\0\0\4abcd"),
        record(b"\1\xff\xff\xff"),
        record(b""),
        record(b"\1\0\1", kind=23),
        record(b"\1") + record(b"\1", kind=20),
        b"\x16\x03\x01\xff\xff",
    ],
)
def test_what_is_no_first_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        HelloReader().read(data)


def test_a_first_message_has_bounds() -> None:
    data = record(b"\1\0\xff\xff" + b"x" * 100) + record(b"x") * 60_000
    with pytest.raises(MalformedError):
        HelloReader().read(data[: 200 * 1024])


def watch(*pieces: bytes, early: bool = False, step: int = 1000) -> None:
    looking = HelloWatch(ClientHello("example.org", early_data=early))
    data = b"".join(pieces)
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        assert looking.take(memoryview(piece)) == len(piece)


CHANGE, DATA = record(b"\1", kind=20), record(b"x" * 50, kind=23)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_second_message_must_be_for_the_same_host(step: int) -> None:
    first, other = make_hello(), make_hello("evil.test")
    watch(first, CHANGE, first, DATA, other, step=step)  # after data, what looks like a record is data
    watch(first, CHANGE, record(b"\x10\0\0\1x"), other, step=step)  # TLS 1.2: encrypted from here
    watch(first, DATA, other, step=step)
    for pieces in ((first, other), (first, CHANGE, other), (first, cut(other, 10)), (first, record(b"\2", 21), other)):
        with pytest.raises(MalformedError):
            watch(*pieces, step=step)
    with pytest.raises(MalformedError):
        watch(first, DATA, CHANGE, other, early=True, step=step)  # data that came too early does not hide it
    with pytest.raises(MalformedError):
        watch(first, record(make_hello()[5:50]), DATA, step=step)
    with pytest.raises(MalformedError):
        watch(first, b"GET / HTTP/1.1\r\n", step=step)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", None),
        (b"\x16", None),
        (b"\x16\x03\x01", "tls"),
        (b"\x16\x01", None),
        (b"\x16\x02\x01\x00\x05\x01", "tls"),  # a version that some servers take, as any other
        (b"\x16\x02\x01\x00\x05\x00", "other"),
        (b"\x16\x10", "other"),
        (b"\x16\x01\x00\x00\x2a\x00\x00\x00", "other"),  # a message of a database, with its length first
        (b"\x15\x03\x01\x00\x02\x01", "tls"),  # a warning, which some servers skip
        (b"\x15\x02\x01\x00\x02", None),
        (b"\x15\x02\x01\x00\x02\x01", "tls"),
        (b"\x15\x02\x01\x00\x03\x01", "other"),
        (b"\x14\x03", "tls"),
        (b"\x17\x03", "tls"),
        (b"\x17\x02", "other"),
        (b"GET / HTTP/1.1\r\n", "http"),
        (b"\r\n\r\n\nGET / HTTP/1.1\r\n", "http"),
        (b"get / http/1.1\n", "http"),
        (b" GET / HTTP/1.1\r\n", "http"),
        (b"GET\t/\tHTTP/1.1\r\n", "http"),
        (b"GET\x0b/\x0bHTTP/1.1\r\n", "http"),
        (b"GET /\r\n", "http"),
        (b"GET /\xff H\x1fTP/1.1\r\n", "http"),
        (b"POST /a b HTTP/\xff\n", "http"),
        (b"PRI * HTTP/2.0\r\n", "http"),
        (b"ANYTHING at all HTTP/1.0 \r\n", "http"),
        (b"GE", None),
        (b"GET / HTTP/1.1", None),
        (b"GET /\xc3\xa9", None),  # bytes that some servers take in an address
        (b"GET /\x01\x00", None),
        (b"\x85 GET /\xff", None),
        (b"M-SEARCH \x7f", None),
        (b"\xc3GET /", "other"),
        (b"GET\xff /", "other"),
        (b"GET\0", "other"),
        (b"\r\n\r\n", None),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "refused"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21", "refused"),
        (b"x" * 40_000, "refused"),
        (b"\r\n" * 20_000, "refused"),
        (b"SSH-2.0-OpenSSH_9.7\r\n", "other"),
        (b"EHLO me\r\n", "other"),
        (b"get key\r\n", "other"),
        (b"*1\r\n$4\r\nPING\r\n", "other"),
        (b"OPTIONS rtsp://example.org RTSP/1.0\r\n", "other"),
        (b"\x00\x00\x00\x08\x04\xd2\x16/", "other"),
        (b"\x10\x1f\x00\x04MQTT", "other"),
        (b"0032git-upload-pack /a\0host=b\0", "other"),
    ],
)
def test_what_a_client_speaks(data: bytes, kind: str | None) -> None:
    assert sniff(data) == kind
    assert looks_like_tls(data) in (True, False, None)
