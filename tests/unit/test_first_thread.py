"""A process whose first thread has ended keeps running, and /proc shows a zombie: ending a tree must still find it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.engine import soft
from corral.inside import processes, trees
from support.user import is_dead

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are shown by Linux's /proc")

PROGRAM = """
import ctypes, os, sys, threading
def hold():
    block = bytearray(b"x") * (32 << 20)
    first = f"/proc/self/task/{os.getpid()}/stat"
    while open(first).read().rpartition(")")[2].split()[0] != "Z":
        pass
    os.write(1, b"holding\\n")
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=hold).start()
ctypes.CDLL(None).syscall({"aarch64": 93}.get(os.uname().machine, 60), 0)
"""

FINDERS: dict[str, Callable[[int], bool]] = {
    "the list of processes": lambda pid: pid in processes.list_processes(),
    "the tree": lambda pid: pid in trees.find_below([os.getpid()]),
    "the tests themselves": lambda pid: not is_dead(Path(f"/proc/{pid}/status").read_text()),
}


@pytest.fixture(scope="module")
def headless() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"holding\n"
        yield child.pid


@pytest.mark.parametrize("finder", FINDERS)
def test_process_without_its_first_thread_is_found_alive(finder: str, headless: int) -> None:
    assert FINDERS[finder](headless)


@pytest.mark.parametrize("finder", FINDERS)
def test_zombie_is_not(finder: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not FINDERS[finder](child.pid)


def test_memory_of_process_without_its_first_thread_is_added_up(headless: int) -> None:
    for held in (soft.resident_bytes(), soft.proportional_bytes()):
        assert held[headless] >= 32 << 20


def test_state_of_process_without_its_first_thread_is_that_of_another(headless: int) -> None:
    assert processes.list_processes()[headless].state != b"Z"
