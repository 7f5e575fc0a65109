"""Questions of the sandbox: what is understood, what is dropped, and what the answers are."""

import struct
from ipaddress import IPv4Address

import pytest

from corral.network import dns
from corral.network.names import RANGE, NameTable, is_stand_in


def ask(*labels: bytes, kind: int = 1, klass: int = 1, flags: int = 0x100, questions: int = 1) -> bytes:
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack("!6H", 4242, flags, questions, 0, 0, 0) + name + struct.pack("!HH", kind, klass)


def test_a_question_and_its_answer() -> None:
    question = dns.read_query(ask(b"WWW", b"Example", b"org"))
    assert question is not None
    assert (question.name, question.kind, question.standard) == ("www.example.org", 1, True)
    answer = dns.answer_with(question, IPv4Address("198.18.0.1"), seconds=30)
    assert struct.unpack_from("!6H", answer) == (4242, 0x8580, 1, 1, 0, 0)
    assert answer[12:].startswith(b"\3WWW\7Example\3org\0")  # as it was written: some clients compare it
    assert answer[-10:] == struct.pack("!IH", 30, 4) + bytes((198, 18, 0, 1))
    assert struct.unpack_from("!6H", dns.answer(question, dns.NO_SUCH_NAME))[1] & 0xF == 3


@pytest.mark.parametrize(
    "labels",
    [
        (b"example.org",),  # one label with a dot in it
        (b"ex\xc3\xa4mple", b"org"),
        ("ｅxample".encode("latin-1", "replace"), b"org\x00"),
        (b"127", b"1"),
        (b"0x7f000001",),
        (b"-", b"org"),
        (b"a" * 63,) * 4,
        (),
    ],
)
def test_what_is_no_name_of_a_host_has_none(labels: tuple[bytes, ...]) -> None:
    question = dns.read_query(ask(*labels))
    assert question is None or question.name is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 11,
        ask(b"a", b"org")[:-1],
        ask(b"a", b"org", questions=2),
        ask(b"a", b"org", questions=0),
        ask(b"a", b"org", flags=0x8180),  # an answer
        struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + b"\xc0\x0c" + struct.pack("!HH", 1, 1),  # points at itself
        struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + b"\x3fshort\0",
        struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + b"\1a" * 200 + b"\0\0\1\0\1",
        ask(b"a", b"org") + b"\0" * 2000,
    ],
)
def test_what_is_malformed_is_dropped(data: bytes) -> None:
    assert dns.read_query(data) is None


def test_other_operations_and_classes_are_told_apart() -> None:
    for data in (ask(b"a", b"org", flags=0x2900), ask(b"a", b"org", klass=3)):
        question = dns.read_query(data)
        assert question is not None
        assert not question.standard


def test_a_name_keeps_its_address_and_an_old_one_is_forgotten() -> None:
    table = NameTable(most=3)
    first = table.address_of("a.example")
    assert is_stand_in(first)
    assert table.address_of("a.example") == first
    second, third = (table.address_of(f"{letter}.example") for letter in "bc")
    assert len({first, second, third}) == 3
    assert table.name_of(first) == "a.example"  # used: so b is the oldest
    new = table.address_of("d.example")
    assert new not in {first, second, third}
    assert table.name_of(first) == "a.example"
    assert table.name_of(second) is None
    assert table.name_of(IPv4Address("198.18.0.0")) is None


def test_what_a_program_remembers_of_an_earlier_gate_is_nobodys() -> None:
    # A gate starts with an empty table. Were its first address always the same, it would stand for another name.
    assert len({NameTable().address_of("a.example") for _ in range(20)}) > 1


def test_the_range_is_used_round_and_round_and_never_twice_at_a_time() -> None:
    table = NameTable(most=4)
    for number in range(RANGE.num_addresses + 10):
        address = table.address_of(f"{number}.example")
        assert is_stand_in(address)
        assert table.name_of(address) == f"{number}.example"
    assert table.name_of(table.address_of(f"{number - 3}.example")) == f"{number - 3}.example"
