"""When init looks at what no cgroup counts."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.engine import counting
from corral.engine.counting import LOOK_SECONDS, MOST_LOCKS, LockWatch, count_watches

_THREADS = """
import ctypes, os, select, sys, threading
epoll, reader = select.epoll(), os.pipe()[0]
for _ in range(300):
    epoll.register(os.dup(reader), select.EPOLLIN)
ready, end = threading.Barrier(8), threading.Event()
def wait(unshare):
    if unshare and ctypes.CDLL(None).unshare(0x400):
        os._exit(1)
    ready.wait()
    end.wait()
for number in range(7):
    threading.Thread(target=wait, args=(number < int(sys.argv[1]),), daemon=True).start()
ready.wait()
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""


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


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux only")
@pytest.mark.parametrize("tables", [1, 2])
def test_threads_that_share_their_descriptors_are_counted_once(tables: int, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", _THREADS, str(tables - 1)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        monkeypatch.setattr(counting, "list_pids", lambda: [program.pid])
        assert counting.count_held()["watches"] == tables * 300
        program.communicate()
