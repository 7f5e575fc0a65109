"""Probes for memory: bombs of every kind of memory, each bounded, which take a little more than the sandbox's limit."""

from __future__ import annotations

import functools
from typing import Literal

from corral.testing.hostile.probe import Probe, expect_stopped_or_killed

_probe = functools.partial(Probe, area="resources")
_BYTES = 3 << 30

MEMORY = _probe("memory-bomb", "host_dos", "memory.max of the cgroup, or RLIMIT_DATA and sampling", f"""
goal = bounded(T["limits"]["memory_bytes"], {_BYTES})
held_bytes, chunks = 0, []
try:
    while held_bytes < goal:
        chunks.append(bytearray(b"x") * (8 << 20))
        held_bytes += 8 << 20
except MemoryError:
    chunks.clear()
    held(f"no more after {{held_bytes >> 20}} MiB")
hold(2.0)
breached(f"holds {{held_bytes >> 20}} MiB of {{T['limits']['memory_bytes'] >> 20}}")
""", timeout=20, expect=expect_stopped_or_killed, may_end=True, alone=True)  # fmt: skip


def _of_many(name: str, hold: str, why: str) -> Probe:
    """A bomb in four processes, each of which stays below the limit."""
    return _probe(name, "host_dos", why, f"""
import threading
share = bounded(T["limits"]["memory_bytes"], {_BYTES}) // 4
def keep():
    try:
        block = bytearray(b"x") * share
        time.sleep(8)
    except MemoryError:
        os._exit(3)
    os._exit(0)
def start():
    {hold}
children = [fork(start) for _ in range(4)]
deadline = time.monotonic() + 4
ended = []
while time.monotonic() < deadline and not ended:
    time.sleep(0.1)
    ended = [status for pid, status in (os.waitpid(child, os.WNOHANG) for child in children) if pid]
for child in children:
    can(os.kill, child, 9)
text = f"4 × {{share >> 20}} MiB against {{T['limits']['memory_bytes'] >> 20}} MiB: ended {{ended}}"
(held if ended else breached)(text)
""", timeout=20, expect=expect_stopped_or_killed, may_end=True, alone=True)  # fmt: skip


MEMORY_OF_MANY = _of_many("memory-bomb-of-many-processes", "keep()", "memory.max of the cgroup, or the sum by sampling")

MEMORY_WITHOUT_FIRST_THREADS = _of_many(
    "memory-bomb-of-processes-without-their-first-threads",
    """threading.Thread(target=lambda: (time.sleep(0.3), keep())).start()
    kernel("exit", 0)""",
    "memory.max of the cgroup, or sampling that asks another thread if the first one has ended",
)  # fmt: skip


def _hidden_memory(name: str, how: str, why: str, *, needs_hard: Literal["", "memory"] = "memory") -> Probe:
    """A bomb of memory that is in no process's resident size."""
    return _probe(name, "host_dos", why, f"""
goal = bounded(T["limits"]["memory_bytes"], {_BYTES})
taken = 0
kept = []
LIBC.mmap.restype = LIBC.shmat.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.shmdt.argtypes = [ctypes.c_void_p]
{how}
def pass_on():
    "Let another process hold these descriptors: the number in one process is limited."
    fork(signal.pause)
    kept.clear()
    os.closerange(3, 1 << 16)
while taken < goal:
    try:
        taken += take()
    except (OSError, MemoryError) as error:
        if getattr(error, "errno", 0) != errno.EMFILE:
            held(f"no more after {{taken >> 20}} MiB: {{error}}")
        try:
            pass_on()
        except OSError as refusal:
            held(f"no more after {{taken >> 20}} MiB and the last possible process: {{refusal}}")
hold(3.0)
breached(f"holds {{taken >> 20}} MiB of {{T['limits']['memory_bytes'] >> 20}}")
""", timeout=25, expect=expect_stopped_or_killed, may_end=True, alone=True, needs_hard=needs_hard)  # fmt: skip


MEMORY_FILES = _hidden_memory(
    "memory-bomb-in-nameless-files", """
block = b"x" * (1 << 20)
def take():
    if not kept or os.fstat(kept[-1]).st_size >= 64 << 20:
        kept.append(os.memfd_create("bomb"))
    return os.write(kept[-1], block)
""", "memory.max of the cgroup, or sampling that counts memory files",
)  # fmt: skip

SHARED_SEGMENTS = _hidden_memory(
    "memory-bomb-in-system-v-segments", """
def take(size=32 << 20):
    segment = kernel("shmget", 0, size, 0o1600)
    address = LIBC.shmat(segment, None, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "shmat")
    ctypes.memset(address, 1, size)
    LIBC.shmdt(address)
    return size
""", "memory.max of the cgroup, or small limits of the IPC namespace",
)  # fmt: skip

PAGE_TABLES = _hidden_memory(
    "page-table-bomb", """
SPAN, STEP = 1 << 30, 2 << 20
def take():
    start = LIBC.mmap(None, SPAN, 1, 0x4022, -1, 0)
    if start == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    LIBC.madvise(start, SPAN, 15)
    for offset in range(0, SPAN, STEP):
        ctypes.c_ubyte.from_address(start + offset).value
    return SPAN // STEP * 4096
""", "memory.max counts page tables, or RLIMIT_AS and sampling of VmPTE", needs_hard="",
)  # fmt: skip

SOCKET_BUFFERS = _hidden_memory(
    "memory-bomb-in-socket-buffers", """
block = b"x" * 16384
def take():
    pair = socket.socketpair()
    kept.append(pair)
    pair[0].setblocking(False)
    sent = 0
    try:
        while sent < 1 << 20:
            sent += pair[0].send(block)
    except BlockingIOError:
        pass
    return sent
""", "memory.max of the cgroup, or small default buffers of the network namespace",
)  # fmt: skip

PIPES = _hidden_memory(
    "memory-bomb-in-pipes", """
def take():
    reader, writer = os.pipe2(os.O_NONBLOCK)
    kept.append((reader, writer))
    try:
        fcntl.fcntl(writer, 1031, 1 << 20)
    except OSError:
        pass
    try:
        return os.write(writer, b"x" * (1 << 20))
    except BlockingIOError:
        return 0
""", "memory.max of the cgroup, or the kernel's pipe limits per user",
)  # fmt: skip

SHARED_MEMORY = _probe("fill-dev-shm", "host_dos", "a tmpfs with a size", f"""
goal = bounded(T["limits"]["memory_bytes"], {_BYTES})
written, path = 0, "/dev/shm/bomb"
try:
    with open(path, "wb", buffering=0) as file:
        while written < goal:
            written += file.write(b"x" * (1 << 20))
except OSError as error:
    os.unlink(path)
    held(f"{{name_of(error.errno)}} after {{written >> 20}} MiB")
os.unlink(path)
breached(f"{{written >> 20}} MiB in /dev/shm")
""", timeout=20, expect=expect_stopped_or_killed, may_end=True)  # fmt: skip

SHARED_MEMORY_INODES = _probe("fill-dev-shm-with-empty-files", "host_dos", "a tmpfs with a number of inodes", """
def make(number):
    os.close(os.open(f"/dev/shm/bomb-{number}", os.O_CREAT | os.O_WRONLY))
made, why = repeat(make, 20000)
if made == 20000:
    breached(f"{made} files")
for number in range(made):
    os.unlink(f"/dev/shm/bomb-{number}")
held(f"{why} after {made}")
""")  # fmt: skip
