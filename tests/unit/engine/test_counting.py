"""When init looks at what no cgroup counts."""

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.engine.counting import LOOK_SECONDS, MOST_LOCKS, LockWatch, count_watches


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[LockWatch]:
    path = tmp_path / "locks"
    path.write_text("1: POSIX ADVISORY WRITE 1 00:00:0 0 0\n" * (MOST_LOCKS + 1))
    with path.open("rb") as file:
        yield LockWatch(file.fileno())


def test_a_short_call_after_a_silence_does_not_wait_for_the_list_of_locks(watch: LockWatch) -> None:
    assert not watch.look(100.0)
    assert not watch.look(100.0 + LOOK_SECONDS / 2)
    assert watch.look(100.0 + LOOK_SECONDS)


def test_an_init_that_seldom_gets_its_turn_looks_all_the_same(watch: LockWatch) -> None:
    assert [watch.look(100.0 + turn * 5) for turn in range(4)] == [False, True, False, True]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux only")
def test_what_an_epoll_watches_is_counted() -> None:
    reader, writer = os.pipe()
    with select.epoll() as epoll:
        copies = [os.dup(reader) for _ in range(300)]
        for copy in copies:
            epoll.register(copy, select.EPOLLIN)
        assert str(Path(f"/proc/self/fd/{epoll.fileno()}").readlink()) == "anon_inode:[eventpoll]"
        assert count_watches(f"/proc/self/fdinfo/{epoll.fileno()}") == 300
    for descriptor in (reader, writer, *copies):
        os.close(descriptor)
