"""Probes for resources: bombs, each bounded, which take a little more than the sandbox's limit.

A bomb holds what it took for a moment, in which the host and the neighbour must be able to work.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
from pathlib import Path
from typing import Literal

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.results import ExecResult
from corral.testing.hostile.probe import (
    Finding,
    HostView,
    Probe,
    Scene,
    breached,
    expect_gone_at_timeout,
    expect_stopped_or_killed,
    held,
    unproven,
)

_probe = functools.partial(Probe, area="resources")
_SLACK = 16
_FORKS, _BYTES, _INODES = 3000, 3 << 30, 100_000

FORKS = _probe("fork-bomb", "host_dos", "pids.max of the cgroup, or RLIMIT_NPROC in the user namespace", f"""
limit = T["limits"]["processes"]
children = []
made, why = repeat(lambda _: children.append(fork(signal.pause)), bounded(limit, {_FORKS}))
hold()
for child in children:
    os.kill(child, 9)
for child in children:
    os.waitpid(child, 0)
(held if made <= limit + {_SLACK} else breached)(f"{{made}} forks of {{limit}}, then {{why}}")
""")  # fmt: skip

THREADS = _probe("thread-bomb", "host_dos", "threads count as processes", f"""
import threading
limit = T["limits"]["processes"]
threading.stack_size(65536)
end = threading.Event()
made, why = repeat(lambda _: threading.Thread(target=end.wait, daemon=True).start(), bounded(limit, {_FORKS}))
hold()
end.set()
(held if made <= limit + {_SLACK} else breached)(f"{{made}} threads of {{limit}}, then {{why}}")
""")  # fmt: skip

ZOMBIES = _probe("zombie-storm", "host_dos", "zombies count as processes; init reaps orphans", f"""
limit = T["limits"]["processes"]
left, why = repeat(lambda _: fork(lambda: None), bounded(limit, {_FORKS}, 3))
hold()
(held if left <= limit + {_SLACK} else breached)(f"{{left}} zombies, left to init")
""")  # fmt: skip

ORPHANS = _probe("orphan-storm", "neighbour_dos", "init reaps; the tree of a call is known", """
def leave_an_orphan():
    if os.fork() == 0:
        os.setsid()
made = 0
for _ in range(300):
    try:
        os.waitpid(fork(leave_an_orphan), 0)
        made += 1
    except OSError:
        time.sleep(0.005)
held(f"{made} orphans made and reaped")
""")  # fmt: skip

_WAIT_FOR_SAMPLING = "time.sleep(8)  # a soft limit is checked only now and then"


def _fill_disk(name: str, then: str = "pass", *, needs_hard: Literal["", "disk"] = "") -> Probe:
    return _probe(name, "host_dos", "a file system of fixed size for each sandbox, or sampling", f"""
goal = bounded(T["limits"]["disk_bytes"], {_BYTES})
written, kept, block = 0, [], b"x" * (1 << 20)
try:
    while written < goal:
        path = f"bomb-{{len(kept)}}"
        kept.append(os.open(path, os.O_CREAT | os.O_WRONLY))
        {then}
        for _ in range(16):
            written += os.write(kept[-1], block)
except OSError as error:
    held(f"{{name_of(error.errno)}} after {{written >> 20}} MiB")
{_WAIT_FOR_SAMPLING}
breached(f"{{written >> 20}} MiB on a disk of {{T['limits']['disk_bytes'] >> 20}}")
""", timeout=30, expect=expect_stopped_or_killed, alone=True, needs_hard=needs_hard)  # fmt: skip


DISK = _fill_disk("fill-the-disk")

DISK_NAMELESS = _fill_disk("fill-the-disk-with-deleted-files", "os.unlink(path)", needs_hard="disk")

INODES = _probe("use-up-the-inodes", "host_dos", "a file system with a fixed number of inodes, or sampling", f"""
def make(number):
    if number % 1000 == 0:
        os.mkdir(f"many-{{number}}")
        os.chdir(f"many-{{number}}")
    os.close(os.open(f"{{number}}", os.O_CREAT | os.O_WRONLY))
goal = bounded(T["limits"]["inodes"], {_INODES})
made, why = repeat(make, goal)
if made < goal:
    held(f"{{why}} after {{made}}")
{_WAIT_FOR_SAMPLING}
breached(f"{{made}} files, {{T['limits']['inodes']}} allowed")
""", timeout=30, expect=expect_stopped_or_killed, alone=True)  # fmt: skip

SPARSE = _probe("make-a-file-of-a-terabyte", "host_dos", "RLIMIT_FSIZE", """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def attempt(function):
    descriptor = os.open("sparse", os.O_CREAT | os.O_RDWR)
    try:
        function(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
        os.unlink("sparse")
try_each(attempt, {"truncate": lambda d: os.ftruncate(d, 1 << 40),
                   "allocate": lambda d: os.posix_fallocate(d, 0, 1 << 40),
                   "write far": lambda d: os.pwrite(d, b"x", 1 << 40)}, (errno.EFBIG, errno.ENOSPC, errno.EINVAL))
""")  # fmt: skip


def _exhaust(name: str, take: str, allowed: str, why: str, neighbour: str) -> Probe:
    return _probe(name, "neighbour_dos", why, f"""
raise_descriptor_limit()
kept = []
taken, why = repeat(lambda _: kept.append({take}), 20000)
hold()
(held if taken <= {allowed} else breached)(f"{{taken}}, then {{why}}")
""", neighbour_code=neighbour)  # fmt: skip


DESCRIPTORS = _exhaust(
    "use-up-descriptors", 'os.open("/dev/null", os.O_RDONLY)', 'T["limits"]["open_files"]', "RLIMIT_NOFILE",
    "[open('/dev/null') for _ in range(100)]",
)  # fmt: skip
INOTIFY = _exhaust(
    "use-up-inotify-instances", 'kernel("inotify_init1", 0)',
    # With one user id, the sandbox takes from the user on the host and from all of the user's other sandboxes.
    'int(read("/proc/sys/fs/inotify/max_user_instances")) // '
    '(16 if read("/proc/self/uid_map").split()[2] == b"1" else 1)',
    "a limit of the user namespace, and a separate creator uid",
    'kernel("inotify_init1", 0)',
)  # fmt: skip
TERMINALS = _exhaust(
    "use-up-pseudo-terminals", 'os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)', "64",
    "a devpts instance with a maximum",
    'os.open("/dev/ptmx", os.O_RDWR)',
)  # fmt: skip
_QUEUE = (
    '(signal.pthread_sigmask(signal.SIG_BLOCK, [40]), kernel("rt_sigqueueinfo", os.getpid(), 40, '
    'ctypes.create_string_buffer(struct.pack("=iii", 40, 0, -1) + bytes(116))))'
)
SIGNALS = _exhaust("queue-signals-without-end", _QUEUE, "4096", "RLIMIT_SIGPENDING in the user namespace", _QUEUE)


def _expect_bounded_output(result: ExecResult, view: HostView) -> Finding:
    kept = len(result.stdout_bytes)
    if result.reason not in ("exited", "signalled"):
        return unproven(f"ended by {result.reason}")
    if kept > 40 << 20:
        return breached(f"{kept} bytes were kept")
    if not result.truncated or result.stdout_total_bytes < 64 << 20:
        return breached(f"the cut is not reported: truncated={result.truncated}, total={result.stdout_total_bytes}")
    return held(f"{kept} bytes kept of {result.stdout_total_bytes}")


OUTPUT = _probe("flood-the-output", "host_dos", "output beyond the limit is counted and dropped", """
block = b"y" * (1 << 20)
for _ in range(64):
    os.write(1, block)
held("written")
""", timeout=20, expect=_expect_bounded_output)  # fmt: skip


def _expect_hog_bounded(result: ExecResult, view: HostView) -> Finding:
    if view.while_holding is None:
        return unproven("the host did not check itself while it ran")
    return expect_gone_at_timeout(result, view)


PROCESSOR = _probe(
    "hog-every-processor", "neighbour_dos", "cpu.max of the cgroup, fair scheduling, and the timeout", """
for _ in range(7):
    if os.fork() == 0:
        break
else:
    os.write(1, b"armed\\nholding\\n")
while True:
    pass
""", timeout=1.5, expect=_expect_hog_bounded)  # fmt: skip


# Probes for data of a sandbox that the host keeps outside the sandbox's quota: the host counts blocks of its own disk.

_OWN_STORAGE = ("disk", "disk.img")
_SLACK_BYTES = 16 << 20
_PROGRAMS = 40


def _measure(folder: Path, *, without: tuple[str, ...] = ()) -> int:
    """Count the bytes of disk that a folder takes."""
    total = 0
    for path in folder.rglob("*"):
        if path.relative_to(folder).parts[0] not in without:
            with contextlib.suppress(FileNotFoundError):
                total += path.lstat().st_blocks * 512
    return total


async def _print_much(scene: Scene) -> Finding | None:
    box = scene.sandbox
    try:
        await box.detach()
    except CorralError as error:
        return held(f"only the caller keeps what programs print: {error}")
    try:
        return await _record(scene, box)
    finally:
        await box.kill()


async def _record(scene: Scene, box: AsyncSandbox) -> Finding:
    """Record a few programs that together print more than the quota, and many that print almost nothing."""
    quota = scene.limits["disk_bytes"]
    size = quota * 3 // 2 // 4
    commands = [f"head -c {size} /dev/urandom"] * 4 + ["echo small"] * _PROGRAMS
    for number, command in enumerate(commands):
        recorded = await box.start_recorded(command, name=f"n{number}", limit_bytes=1 << 40)
        await recorded.wait()
    for data in scene.canaries.folders:
        folder = Path(data) / "sandboxes" / box.id
        if await asyncio.to_thread(folder.is_dir):
            kept = await asyncio.to_thread(_measure, folder, without=_OWN_STORAGE)
            text = f"{kept >> 20} MiB of the host's disk for a quota of {quota >> 20} MiB"
            return breached(text) if kept > quota + _SLACK_BYTES else held(text)
    return held("this sandbox has no folder on the host")


RECORDS = _probe(
    "print-more-than-the-quota-into-records", "host_dos",
    "all records of a sandbox share one budget, and the largest record loses its oldest part",
    'held("the recorded programs are started by the host")',
    timeout=60, alone=True, may_end=True, after=_print_much,
)  # fmt: skip


async def _download_and_measure(scene: Scene, times: int = 1) -> Finding | None:
    """Download to a disk of the host: at most `times` the quota may arrive."""
    quota = scene.limits["disk_bytes"]
    with tempfile.TemporaryDirectory(prefix="corral-quota-", dir="/var/tmp") as folder:
        landing = Path(folder) / "landing"
        with contextlib.suppress(CorralError):  # what has arrived until then is measured
            await scene.sandbox.files.download("much", landing)
        landed = await asyncio.to_thread(_measure, landing)
    text = f"{landed >> 20} MiB landed, of a disk of {quota >> 20} MiB"
    return breached(text) if landed > times * quota + _SLACK_BYTES else held(text)


HOLES = _probe("leave-files-with-holes-for-a-download", "host_dos", "holes in files stay holes when downloaded", """
os.mkdir("much")
block, size = b"x" * 4096, T["limits"]["disk_bytes"] - 4096
taken = 0
def make(name, places):
    global taken
    with open(f"much/{name}", "wb") as file:
        for place in places:
            file.seek(place)
            file.write(block)
            taken += 4096
make("one-hole", [size - 4096])
# One block in sixteen: a search for long holes finds none.
make("many-holes", range(0, size - 4096, 65536))
for number in range(2000):
    make(f"small-{number}", [57344])
held(f"{taken >> 20} MiB of data in {(2 * size >> 20) + 122} MiB of files")
""", timeout=60, alone=True, after=_download_and_measure)  # fmt: skip

ENDLESS = _probe(
    "make-a-folder-endless-while-it-is-downloaded", "host_dos",
    "packing a folder that changes stops at the size of the sandbox's disk", """
os.mkdir("much")
names = [f"much/{number:02}" for number in range(12)]
for name in names:
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
with open(names[0], "wb") as file:
    for _ in range(40):
        file.write(os.urandom(1 << 20))
if os.fork() == 0:
    # Each time the file is opened, it replaces the file that will be opened next.
    os.setsid()
    watcher = kernel("inotify_init1", 0)
    LIBC.inotify_add_watch(watcher, b"much", 0x20)
    os.write(1, b"watching\\n")
    os.closerange(0, 3)
    place = 0
    while place < len(names) - 1:
        if names[place].encode()[5:] + b"\\0" in os.read(watcher, 65536):
            os.rename(names[place], names[place + 1])
            place += 1
    os._exit(0)
time.sleep(1)
held("a file of 40 MiB that moves ahead of its reader")
""", timeout=60, alone=True, after=functools.partial(_download_and_measure, times=2))  # fmt: skip
