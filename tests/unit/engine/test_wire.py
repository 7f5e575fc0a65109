"""Messages between the engine's processes: all input is bounded, and a bad message leaks no descriptor."""

import array
import json
import os
import socket
from collections.abc import Iterator

import pytest

from corral.engine import wire
from corral.engine.errors import ProtocolError
from support.leftovers import nothing_left_open

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = wire.make_pair()
    with ours, theirs:
        yield ours, theirs


def send_raw(sock: socket.socket, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([data], rights)


def refuse(pair: Pair, data: bytes, descriptors: tuple[int, ...] = (), **options: bool) -> None:
    """Send it, and see it refused with nothing left open on the receiving side."""
    send_raw(pair[0], data, descriptors)
    with nothing_left_open(), pytest.raises(ProtocolError):
        wire.receive(pair[1], **options)


def test_message_arrives_with_its_descriptors(pair: Pair) -> None:
    reader, writer = os.pipe()
    try:
        wire.send(pair[0], {"op": "x", "name": "\udcff\u2028", "n": 1.5}, (writer,))
        received = wire.receive(pair[1])
        assert received is not None
        message, (copy,) = received
        assert message == {"op": "x", "name": "\udcff\u2028", "n": 1.5}
        assert not os.get_inheritable(copy)
        os.write(copy, b"through")
        assert os.read(reader, 10) == b"through"
        os.close(copy)
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("size", [wire.MAX_INLINE_BYTES - 100, wire.MAX_INLINE_BYTES + 1, 5_000_000])
def test_message_of_any_size_below_the_limit_arrives_whole(pair: Pair, size: int) -> None:
    with nothing_left_open():
        wire.send(pair[0], {"text": "x" * size})
        assert wire.receive(pair[1]) == ({"text": "x" * size}, [])


def test_message_over_the_limit_is_not_sent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_PAYLOAD_BYTES", 100_000)
    with nothing_left_open(), pytest.raises(ProtocolError, match="100000"):
        wire.send(pair[0], {"text": "x" * 100_000})


def test_closed_peer_is_an_end_and_no_error(pair: Pair) -> None:
    pair[0].close()
    assert wire.receive(pair[1]) is None


def test_sending_to_a_closed_peer_raises_and_kills_nobody(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(OSError, match="pipe"):
        wire.send(pair[0], {"op": "x"})


def test_oversized_message_is_refused(pair: Pair) -> None:
    refuse(pair, b"I" + b" " * (wire.MAX_INLINE_BYTES + 100))


def test_oversized_message_with_descriptors_leaks_none(pair: Pair) -> None:
    refuse(pair, b"I" + b" " * (wire.MAX_INLINE_BYTES + 100), (0, 0, 0))


@pytest.mark.parametrize(
    "data",
    [
        b"I",
        b"I{",
        b'I{"op": "cut off',
        b"I[]",
        b"I1",
        b"Inull",
        b"I{} {}",
        b"I\xff\xfe\x00",
        b"I{'op': 1}",
        b"I" + b"9" * 5000,
        b'I{"n": ' + b"9" * 5000 + b"}",
        b"X{}",
        b"{}",
        b"\0",
    ],
    ids=lambda data: repr(data[:16]),
)
def test_unreadable_message_is_refused_and_its_descriptors_closed(pair: Pair, data: bytes) -> None:
    refuse(pair, data, (0, 0))


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_json_is_refused(pair: Pair, opening: bytes, closing: bytes) -> None:
    for levels in (wire.MAX_DEPTH, 9000):
        refuse(pair, b'I{"a":' + opening * levels, (0,))
        refuse(pair, b'I{"a":' + opening * levels + b"1" + closing * levels + b"}", (0,))


def test_json_that_is_wide_or_as_deep_as_allowed_arrives(pair: Pair) -> None:
    deep: object = 1
    for _ in range(wire.MAX_DEPTH - 1):
        deep = [deep]
    for message in ({"a": [[{}] for _ in range(1000)]}, {"a": deep, "text": "[" * 1000}):
        wire.send(pair[0], message)
        assert wire.receive(pair[1]) == (message, [])


def test_too_many_descriptors_are_refused_and_all_closed(pair: Pair) -> None:
    refuse(pair, b"I{}", (0,) * (wire.MAX_DESCRIPTORS + 1))
    refuse(pair, b"I{}", (0,) * 253)


def test_as_many_descriptors_as_allowed_arrive(pair: Pair) -> None:
    send_raw(pair[0], b"I{}", (0,) * wire.MAX_DESCRIPTORS)
    received = wire.receive(pair[1])
    assert received is not None
    assert len(received[1]) == wire.MAX_DESCRIPTORS
    wire.close_all(received[1])


def test_descriptors_without_a_message_are_refused_and_closed(pair: Pair) -> None:
    with pytest.raises((ProtocolError, OSError)):
        refuse_empty(pair)


def refuse_empty(pair: Pair) -> None:
    """An empty packet is how SOCK_SEQPACKET shows an end of file, so it may count as one; never may it leak."""
    with nothing_left_open():
        send_raw(pair[0], b"", (0,))
        wire.receive(pair[1])


def test_large_message_is_refused_where_none_is_expected(pair: Pair) -> None:
    carrier = wire.memory_file(b"{}")
    try:
        refuse(pair, b"M", (carrier, 0), allow_large=False)
    finally:
        os.close(carrier)


def test_large_message_without_its_carrier_is_refused(pair: Pair) -> None:
    refuse(pair, b"M")


def test_carrier_over_the_limit_is_refused_unread(pair: Pair) -> None:
    carrier = os.memfd_create("large")
    try:
        os.ftruncate(carrier, wire.MAX_PAYLOAD_BYTES + 1)
        refuse(pair, b"M", (carrier, 0))
    finally:
        os.close(carrier)


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "epoll", "write-only"])
def test_carrier_that_is_no_file_is_refused_and_nothing_leaks(pair: Pair, kind: str) -> None:
    opened: list[int] = []
    if kind == "pipe":
        opened += os.pipe()
    elif kind == "folder":
        opened.append(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    elif kind == "socket":
        opened.append(socket.socket(socket.AF_UNIX).detach())
    elif kind == "epoll":
        opened.append(os.eventfd(0))
    else:
        opened.append(os.open("/dev/null", os.O_WRONLY))
    try:
        refuse(pair, b"M", (opened[0], 0, 0))
    finally:
        wire.close_all(opened)


def test_carrier_that_lies_about_json_is_refused(pair: Pair) -> None:
    carrier = wire.memory_file(b"[" * 100_000)
    try:
        refuse(pair, b"M", (carrier,))
    finally:
        os.close(carrier)


def test_message_after_a_refused_one_arrives(pair: Pair) -> None:
    refuse(pair, b"Igarbage")
    wire.send(pair[0], {"op": "next"})
    assert wire.receive(pair[1]) == ({"op": "next"}, [])


def test_memory_file_holds_its_content_from_the_start() -> None:
    content = json.dumps(list(range(1000))).encode()
    carrier = wire.memory_file(content)
    try:
        assert os.read(carrier, 10_000) == content
        assert not os.get_inheritable(carrier)
    finally:
        os.close(carrier)


def test_closing_descriptors_twice_is_no_error() -> None:
    descriptor = os.dup(0)
    wire.close_all([descriptor])
    wire.close_all((descriptor,))


def test_what_the_peer_sent_before_it_closed_is_received_although_it_left_a_message_unread() -> None:
    """The kernel reports the unread message first: a kill that comes as the program ends must not hide its end."""
    ours, theirs = wire.make_pair()
    with ours:
        wire.send(ours, {"op": "kill"})
        wire.send(theirs, {"ended": True})
        theirs.close()
        assert wire.receive(ours) == ({"ended": True}, [])
        assert wire.receive(ours) is None
