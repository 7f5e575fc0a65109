"""Probes for the end of programs: refusing to end, hiding from it, or attacking the processes that end them."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace

from corral.errors import CorralError
from corral.results import ExecResult
from corral.testing.hostile.prelude import compose_python
from corral.testing.hostile.probe import (
    GRACE_SECONDS,
    Finding,
    HostView,
    Probe,
    Scene,
    breached,
    expect_gone_at_timeout,
    held,
    unproven,
)

_probe = functools.partial(Probe, area="lifetime")
_TREE = "the tree of a call is known: a cgroup leaf that one write kills, or a subreaper"
_INIT = "the kernel does not deliver signals from inside to PID 1"


_ARMED = 'os.write(1, b"armed\\n")'


def _outlast(name: str, code: str) -> Probe:
    """A program that tries to go on after its timeout."""
    return _probe(name, "host_dos", _TREE, _ARMED + code, timeout=1.0, expect=expect_gone_at_timeout, must_go=True)


DAEMON = _outlast("daemonise-past-the-timeout", """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.chdir("/")
        time.sleep(60)
        os._exit(0)
    os._exit(0)
time.sleep(60)
""")  # fmt: skip

IGNORE_SIGNALS = _outlast("ignore-every-signal", """
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    time.sleep(60)
""")  # fmt: skip

STOP_ONESELF = _outlast("stop-oneself", """
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)
""")  # fmt: skip

# Each generation starts the next and ends: a killer that first lists the processes comes too late.
_RUN_AWAY = """
if os.fork():
    time.sleep(60)
os.setsid()
for generation in range(2500):
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
    time.sleep(0.001)
"""

KEEP_FORKING = _outlast("run-away-by-forking", _RUN_AWAY)

NO_FIRST_THREAD = _outlast("go-on-without-ones-first-thread", """
# The kernel's way to kill a whole group passes over a process whose first thread has ended.
import threading
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=time.sleep, args=(60,)).start()
    kernel("exit", 0)
time.sleep(60)
""")  # fmt: skip

SUBREAPER = _outlast("adopt-ones-own-orphans", """
LIBC.prctl(36, 1, 0, 0, 0)
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
time.sleep(60)
""")  # fmt: skip

VFORK = _outlast("hang-in-an-uninterruptible-call", """
# The parent of a vfork sleeps unkillably in the kernel until the child lets go.
if os.fork() == 0:
    child = LIBC.vfork()
    if child == 0:
        while True:
            LIBC.sleep(60)
time.sleep(60)
""")  # fmt: skip

NO_HANG_UP = _probe("leave-nohup-children-behind", "host_dos", _TREE, """
trap '' TERM INT HUP
rm -f first-child second-child  # of an attempt that proved nothing
child='import sys, time; open(sys.argv[2], "w").close(); time.sleep(60)'
nohup python3 -c "$child" "$1" first-child >/dev/null 2>&1 &
setsid python3 -c "$child" "$1" second-child >/dev/null 2>&1 &
disown -a
until [ -e first-child ] && [ -e second-child ]; do sleep 0.02; done
echo armed
while :; do sleep 60; done
""", language="bash", timeout=3.0, expect=expect_gone_at_timeout, must_go=True)  # fmt: skip


def _expect_prompt_return(result: ExecResult, view: HostView) -> Finding | None:
    if result.usage.wall_seconds > GRACE_SECONDS:
        return breached(f"the result came after {result.usage.wall_seconds:.1f} s, when the pipe closed")
    return None


HOLD_OUTPUT = _probe("hold-the-output-open", "host_dos", "the result arrives when the direct child ends", """
if os.fork() == 0:
    os.setsid()
    time.sleep(20)
    os._exit(0)
held("a child keeps the output open")
""", timeout=15, expect=_expect_prompt_return)  # fmt: skip

OUTLIVE_SANDBOX = _probe("outlive-the-sandbox", "host_dos", "the kernel ends a PID namespace with its init", """
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.closerange(0, 3)
            time.sleep(60)
        os._exit(0)
held("five daemons wait for the end of the sandbox")
""", alone=True)  # fmt: skip

_KILL_INIT = """
sent = [number for number in range(1, 65) if can(os.kill, 1, number)]
handle = kernel("pidfd_open", 1, 0)
for number in (9, 19, 15):
    can(signal.pidfd_send_signal, handle, number)
time.sleep(0.3)
state = read("/proc/1/stat").rpartition(b")")[2].split()[0] if os.path.exists("/proc/1/stat") else b"?"
breached("PID 1 is stopped") if state in b"Tt" else held(f"{len(sent)} signals sent, PID 1 goes on")
"""

KILL_INIT = _probe("kill-init", "neighbour_dos", _INIT, _KILL_INIT)

KILL_INIT_AS_ROOT = replace(KILL_INIT, name="kill-init-as-root-inside", user="root")

_CRIPPLE_INIT = """
limits = ctypes.create_string_buffer(struct.pack("=QQ", 0, 0), 16)
# A pointer whose lower half is zero, against a filter that looks at that half alone.
LIBC.mmap.restype = ctypes.c_void_p
place = LIBC.mmap(ctypes.c_void_p(1 << 32), 4096, 3, 0x100022, -1, 0)
if place == 1 << 32:
    ctypes.memset(place, 0, 4096)
attempts = {}
for name, kind in (("descriptors", 7), ("processes", 6), ("memory", 9), ("processor", 0)):
    attempts[f"prlimit {name}"] = lambda kind=kind: kernel("prlimit64", 1, kind, limits, 0)
    attempts[f"prlimit {name}, odd pointer"] = lambda kind=kind: kernel("prlimit64", 1, kind, 1 << 32, 0)
mask = ctypes.create_string_buffer(struct.pack("=Q", 1), 8)
idle = ctypes.create_string_buffer(struct.pack("=i", 0), 4)
attributes = ctypes.create_string_buffer(struct.pack("=IIQiIQQQ", 48, 5, 0, 19, 0, 0, 0, 0), 48)
attempts |= {
    "affinity": lambda: kernel("sched_setaffinity", 1, 8, mask),
    "scheduler": lambda: kernel("sched_setscheduler", 1, 5, idle),
    "attributes": lambda: kernel("sched_setattr", 1, attributes, 0),
    "priority": lambda: kernel("setpriority", 0, 1, 19),
    "disk priority": lambda: kernel("ioprio_set", 1, 1, 3 << 13),
}
try_all(attempts, (*REFUSED, errno.ESRCH))
"""

CRIPPLE_INIT = _probe(
    "cripple-init-by-limits-and-priorities", "neighbour_dos",
    "the filter lets a program set only its own limits; the kernel protects the priorities of privileged processes",
    _CRIPPLE_INIT,
)  # fmt: skip

CRIPPLE_INIT_AS_ROOT = replace(
    CRIPPLE_INIT, name="cripple-init-as-root-inside", what_stops_it="the same for root inside", user="root"
)

FORGE_SIGNALS = _probe("forge-signals-of-the-kernel", "neighbour_dos", _INIT, """
def queue(number, code):
    information = struct.pack("=iiiiii", number, 0, code, 0, 0, 0) + bytes(104)
    kernel("rt_sigqueueinfo", 1, number, ctypes.create_string_buffer(information))
refused = sum(not can(queue, number, code) for number in (9, 19, 11, 15) for code in (-1, -2, -60, 128))
# A signal that the kernel sends in our name when a pipe becomes readable.
reader, writer = os.pipe()
def send_by_pipe(number):
    fcntl.fcntl(reader, 10, number)
    fcntl.fcntl(reader, fcntl.F_SETOWN, 1)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writer, b"x")
refused += sum(not can(send_by_pipe, number) for number in (9, 19))
time.sleep(0.3)
held(f"{refused} of 18 refused; the host checks that the sandbox still works")
""")  # fmt: skip

SIGNAL_STORM = _probe("storm-init-with-signals", "neighbour_dos", _INIT + "; its one handler does nothing", """
for _ in range(3):
    if os.fork() == 0:
        break
end = time.monotonic() + 0.7
sent = 0
while time.monotonic() < end:
    sent += sum(can(os.kill, 1, n) for n in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGCONT))
time.sleep(0.2)
held(f"{sent} signals sent")
""")  # fmt: skip


async def _still_serves(scene: Scene) -> Finding | None:
    try:
        async with asyncio.timeout(10):
            await scene.sandbox.files.write("after", b"42")
            content = await scene.sandbox.files.read("after")
    except TimeoutError:
        return breached("files hang: the file agent was stopped from inside")
    except CorralError as error:
        return breached(f"files no longer work: {error.code}")
    return None if content == b"42" else breached(f"files give {content!r}")


_SERVANTS = """
others = set(range(2, 400)) - {os.getpid(), os.getppid()}
hit = [pid for pid in sorted(others) if can(os.kill, pid, NUMBER)]
time.sleep(0.3)
held(f"reached {hit}")
"""

KILL_SERVANTS = _probe(
    "kill-whoever-serves-the-host", "neighbour_dos",
    "as root, the file agent has another uid; otherwise it is started again",
    _SERVANTS.replace("NUMBER", "9"), after=_still_serves, alone=True,
)  # fmt: skip

STOP_SERVANTS = _probe(
    "stop-whoever-serves-the-host", "host_dos",
    "as root, the file agent has another uid; otherwise the host's wait for it is bounded",
    _SERVANTS.replace("NUMBER", "19"), after=_still_serves, alone=True,
)  # fmt: skip

STOP_SERVANTS_AS_ROOT = replace(
    STOP_SERVANTS, name="stop-whoever-serves-the-host-as-root-inside", user="root",
    what_stops_it="the host's wait for the file agent is bounded",
)  # fmt: skip


def _expect_result(result: ExecResult, view: HostView) -> Finding:
    if result.usage.wall_seconds > view.deadline + GRACE_SECONDS:
        return breached(f"the result came after {result.usage.wall_seconds:.1f} s")
    return held(f"ended by {result.reason} after {result.usage.wall_seconds:.1f} s, no process left")


KILL_PARENT = _probe("kill-ones-own-subreaper", "host_dos", "a tree without its subreaper is ended", """
if os.getppid() != 1:
    os.kill(os.getppid(), 9)
if os.fork() == 0:
    os.setsid()
time.sleep(60)
""", timeout=1.5, expect=_expect_result, alone=True, must_go=True)  # fmt: skip

STOP_PARENT = _probe("stop-ones-own-subreaper", "host_dos", "the timeout is init's, not the subreaper's", """
if os.getppid() != 1:
    os.kill(os.getppid(), 19)
print("gone", flush=True)
os._exit(0)
""", timeout=1.5, expect=_expect_result, alone=True, must_go=True)  # fmt: skip


async def _beside_another_call(scene: Scene) -> Finding | None:
    """Run away while another call goes on: that call must live, the run-away must not."""
    other = await scene.sandbox.start(["sleep", "30"])
    try:
        program = compose_python(_RUN_AWAY)
        result = await scene.sandbox.exec(["python3", "-c", program, scene.token], timeout=1.0)
        if result.reason != "timeout":
            return unproven(f"ended by {result.reason}: {result.output[-200:]}")
        try:
            await other.wait(timeout=0.2)
        except TimeoutError:
            return None
        return breached("the other call was ended too")
    finally:
        await other.aclose()


BESIDE = _probe(
    "run-away-beside-another-call", "neighbour_dos", _TREE, 'held("the host goes on")',
    after=_beside_another_call, must_go=True,
)  # fmt: skip
