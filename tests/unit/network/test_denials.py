"""The file of denials: counted, bounded, and read by those who don't trust it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.network import denials
from corral.network.denials import DenialLog, DeniedAttempt


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "denials"


@pytest.fixture
def descriptor(path: Path) -> Iterator[int]:
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    yield opened
    os.close(opened)


def told(attempts: tuple[DeniedAttempt, ...]) -> list[tuple[str, int | None, str, int]]:
    return [(attempt.host, attempt.port, attempt.rule, attempt.count) for attempt in attempts]


def test_attempts_are_read_in_order_and_since_a_count(path: Path, descriptor: int) -> None:
    assert denials.count(path) == 0
    assert denials.read_since(path, 0) == ()
    log = DenialLog(descriptor)
    log.add("a.example", None, "policy")
    log.add("b.example", 443, "private")
    assert denials.count(path) == denials.count(descriptor) == 2
    assert told(denials.read_since(path, 0)) == [("a.example", None, "policy", 1), ("b.example", 443, "private", 1)]
    assert told(denials.read_since(descriptor, 1)) == [("b.example", 443, "private", 1)]
    assert denials.read_since(path, 2) == ()


def test_repeats_share_a_slot_and_are_counted_from_where_they_are_asked(path: Path, descriptor: int) -> None:
    log = DenialLog(descriptor)
    for _ in range(10):
        log.add("a.example", 80, "policy")
    assert told(denials.read_since(path, 0)) == [("a.example", 80, "policy", 10)]
    assert told(denials.read_since(path, 7)) == [("a.example", 80, "policy", 3)]
    log.add("a.example", 81, "policy")
    log.add("a.example", 80, "policy")
    assert [attempt.count for attempt in denials.read_since(path, 0)] == [10, 1, 1]


def test_the_file_is_bounded_and_forgets_the_oldest(path: Path, descriptor: int) -> None:
    log = DenialLog(descriptor)
    for number in range(5000):
        log.add(f"n{number}.example", 80, "rate")
    assert path.stat().st_size <= 160 * 1024
    assert denials.count(path) == 5000
    kept = denials.read_since(path, 0)
    assert len(kept) == 256
    assert kept[-1].host == "n4999.example"
    assert [attempt.host for attempt in denials.read_since(path, 4998)] == ["n4998.example", "n4999.example"]


def test_a_second_writer_goes_on_where_the_first_ended(path: Path, descriptor: int) -> None:
    first = DenialLog(descriptor)
    for number in range(300):
        first.add(f"n{number}.example", 80, "rate")
    first.save_transferred(4096)
    second = DenialLog(descriptor)
    assert (second.count, second.transferred) == (300, 4096)
    second.add("later.example", 443, "policy")
    assert [attempt.host for attempt in denials.read_since(path, 298)] == [
        "n298.example",
        "n299.example",
        "later.example",
    ]
    assert len(denials.read_since(path, 0)) == 256


def test_a_host_is_anybodys_text(path: Path, descriptor: int) -> None:
    log = DenialLog(descriptor)
    log.add('evil"\n\x1b[31m\\' + "é" * 500, 80, "policy")
    (attempt,) = denials.read_since(path, 0)
    assert attempt.host.isascii()
    assert attempt.host.isprintable()
    assert len(attempt.host) == 253


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 200_000,
        b"corral-denials 1 " + b"9" * 400,
        b"corral-denials 1 -5 0".ljust(511) + b"\n",
        b"corral-denials 1 5 0".ljust(511)
        + b"\n"
        + b'{"n":5,"c":9,"t":0,"h":"a","p":1,"r":"policy"}'.ljust(511)
        + b"\n",
        b"corral-denials 1 5 0".ljust(511) + b"\n" + b'{"n":5,"c":1,"t":0,"h":"a","p":1,"r":"\x1b"}'.ljust(511) + b"\n",
        b"corral-denials 1 5 0".ljust(511) + b"\n" + b"{[" * 255 + b"x\n",
    ],
)
def test_nonsense_is_left_out(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert denials.count(path) >= 0
    assert denials.read_since(path, 0) == ()


def test_a_link_or_a_pipe_in_its_place_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link", "absent"):
        assert denials.count(tmp_path / name) == 0
        assert denials.read_since(tmp_path / name, 0) == ()
