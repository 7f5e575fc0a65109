"""Probes for resources that the kernel counts for the whole machine or for one user, and charges to no sandbox.

Each takes a little more than a sandbox may have, and far less than would hurt the machine.
"""

from __future__ import annotations

import functools

from corral.testing.hostile.probe import Probe, expect_stopped_or_ended, expect_stopped_or_killed

_probe = functools.partial(Probe, area="resources")

ASYNCHRONOUS_IO = _probe(
    "take-all-asynchronous-input-and-output", "host_dos", "the filter refuses io_setup and its like", """
try_each(lambda events: kernel("io_setup", events, (ctypes.c_ulong * 1)()), (8, 65536))
""")  # fmt: skip

LOCKS = _probe("pile-up-file-locks", "host_dos", "init counts a sandbox's locks, and ends programs with too many", """
files = [os.memfd_create("locked") for _ in range(20)]
files += [os.open(f"locked-{number}", os.O_CREAT | os.O_RDWR) for number in range(20)]
taken, why = repeat(lambda n: fcntl.lockf(files[n % 40], fcntl.LOCK_EX, 1, n // 40 * 2), 20000)
if taken < 20000:
    held(f"{why} after {taken}")
time.sleep(8)
breached(f"{taken} locks, which no cgroup counts")
""", timeout=20, expect=expect_stopped_or_ended, alone=True)  # fmt: skip

LOCKS_OF_MANY = _probe(
    "pile-up-file-locks-in-many-processes", "host_dos",
    "the locks of all processes of a sandbox are counted together", """
for _ in range(19):
    if os.fork() == 0:
        break
files = [os.memfd_create("locked") for _ in range(10)]
for number in range(1000):
    fcntl.lockf(files[number % 10], fcntl.LOCK_EX, 1, number // 10 * 2)
time.sleep(8)
breached("20000 locks, which no cgroup counts")
""", timeout=20, expect=expect_stopped_or_ended, alone=True)  # fmt: skip

HIDDEN_LOCKS = _probe(
    "hide-file-locks-from-whoever-counts-them", "host_dos",
    "the filter refuses locks of open files, and processes that share one table of descriptors", """
descriptor = os.memfd_create("locked")
whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
def share_descriptors():
    child = kernel("clone", 0x411, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return child
try_all({"a lock of an open file": lambda: fcntl.fcntl(descriptor, 37, whole),
         "the same, waiting": lambda: fcntl.fcntl(descriptor, 38, whole),
         "a process with our descriptors": share_descriptors}, (errno.EINVAL, *REFUSED))
""")  # fmt: skip

SOCKET_FILTERS = _probe(
    "attach-filters-to-sockets", "host_dos",
    "the filter refuses them: the memory for compiled filters has one limit for the whole machine", """
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFF), 8)
program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(code))
def attach(option):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, 15, 1)
        sock.setsockopt(socket.SOL_SOCKET, option, program)
    return "attached"
try_each(attach, {"SO_ATTACH_FILTER": 26, "SO_ATTACH_REUSEPORT_CBPF": 51}, (errno.ENOPROTOOPT, *REFUSED))
""")  # fmt: skip

FLOW_LABELS = _probe(
    "lease-flow-labels", "host_dos", "the filter refuses them: there are 4,096 for the whole machine", """
request = socket.inet_pton(socket.AF_INET6, "::1") + struct.pack("=IBBHHHI", 0, 0, 255, 1, 6, 60, 0)
def lease():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(41, 32, request)
    return "a label"
try_all({"a flow label": lease}, (errno.ENOPROTOOPT, errno.EAFNOSUPPORT, *REFUSED))
""")  # fmt: skip

_WATCH = """
watcher = kernel("inotify_init1", 0o4000)
locked = []
for path in PATHS:
    LIBC.inotify_add_watch(watcher, path.encode(), 0xFFF)
    try:
        locked.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
        fcntl.flock(locked[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass
if not locked:
    say("unproven", "none of the files can be opened")
def events():
    try:
        return len(os.read(watcher, 65536)) // 16
    except BlockingIOError:
        return 0
events()
hold()
if seen := events():
    breached(f"{seen} opens by other sandboxes were seen")
held(f"{len(locked)} files watched and locked, with no effect on other sandboxes")
"""

_TRY_LOCK = """
for path in ("/dev/null", "/dev/urandom"):
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""

DEVICES = _probe(
    "watch-and-lock-the-devices-of-the-host", "lateral",
    "as root, the launcher makes device nodes for each sandbox",
    "PATHS = [f'/dev/{name}' for name in ('null', 'zero', 'full', 'random', 'urandom')]" + _WATCH,
    neighbour_code=_TRY_LOCK, needs_hard="devices", area="lateral",
)  # fmt: skip

MASKS = _probe(
    "watch-and-lock-what-covers-proc", "lateral", "each sandbox has its own files as masks",
    "PATHS = [f'/proc/{name}' for name in ('kcore', 'keys', 'locks', 'kallsyms', 'slabinfo')]" + _WATCH,
    neighbour_code="fcntl.flock(os.open('/proc/locks', os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)", area="lateral",
)  # fmt: skip

_OWN_USER = "as root, each sandbox has its own user id; otherwise "
"""The defence against using up what the kernel counts for each user."""

IN_FLIGHT = _probe(
    "put-descriptors-in-flight", "neighbour_dos",
    _OWN_USER + "init checks whether too many are in flight, and ends their senders", """
raise_descriptor_limit()
pairs = []
descriptor = os.open("/dev/null", os.O_RDONLY)
def send(_):
    pairs.append(socket.socketpair())
    socket.send_fds(pairs[-1][0], [b"x"], [descriptor] * 250)
sent, why = repeat(send, 32)
time.sleep(2)
hold()
held(f"{250 * sent}, then {why}")
""", timeout=20, expect=expect_stopped_or_killed, neighbour_code="""
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [0])
""")  # fmt: skip

HIDDEN_IN_FLIGHT = _probe(
    "hide-descriptors-in-flight-in-sockets-in-flight", "neighbour_dos",
    _OWN_USER + "programs that hold even a few are ended while the user is short of them", """
descriptor = os.open("/dev/null", os.O_RDONLY)
outer, queue = socket.socketpair()
def hide(_):
    ours, theirs = socket.socketpair()
    socket.send_fds(outer, [b"x"], [theirs.fileno()])
    theirs.close()
    socket.send_fds(ours, [b"x"], [descriptor] * 120)
    ours.close()
sent, why = repeat(hide, 9)
time.sleep(3.5)
hold()
held(f"{121 * sent}, then {why}")
""", timeout=20, expect=expect_stopped_or_killed, neighbour_code=IN_FLIGHT.neighbour_code)  # fmt: skip

_SMALL_PIPES = """
size = fcntl.fcntl(os.pipe()[1], 1032)
if size < 65536:
    breached(f"a new pipe holds {size} bytes")
"""

PIPE_PAGES = _probe(
    "shrink-everybodys-pipes", "neighbour_dos",
    _OWN_USER + "init checks whether new pipes are small, and ends programs with too many pipes", """
raise_descriptor_limit()
def open_pipes():
    return [os.pipe() for _ in range(480)]
def keep_pipes():
    pipes = open_pipes()
    time.sleep(15)
helpers = [fork(keep_pipes) for _ in range(2)]
pipes = open_pipes()
time.sleep(2)
hold()
for child in helpers:
    os.kill(child, 9)
held(f"{len(pipes)} pipes in each of three processes")
""", timeout=20, expect=expect_stopped_or_killed, neighbour_code=_SMALL_PIPES)  # fmt: skip

HIDDEN_PIPES = _probe(
    "shrink-everybodys-pipes-from-hidden-threads", "neighbour_dos",
    _OWN_USER + "init counts the descriptors of every thread, not only of a process's first one", """
raise_descriptor_limit()
LIBC.mmap.restype = ctypes.c_void_p
LIBC.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
for _ in range(3):
    made = [os.pipe() for _ in range(480)]
    # A thread of this process with its own table of descriptors: a copy of ours, which we then empty.
    stack = LIBC.mmap(None, 65536, 3, 0x22, -1, 0)
    flags = 0x100 | 0x200 | 0x800 | 0x10000
    if LIBC.clone(ctypes.cast(LIBC.pause, ctypes.c_void_p), stack + 65536 - 64, flags, None) < 0:
        held(f"no such thread: {name_of(ctypes.get_errno())}")
    os.closerange(3, 2000)
time.sleep(2)
hold()
held("1440 pipes in three threads")
""", timeout=20, expect=expect_stopped_or_killed, neighbour_code=_SMALL_PIPES)  # fmt: skip

EPOLL_WATCHES = _probe(
    "use-up-epoll-watches", "neighbour_dos",
    _OWN_USER + "init checks whether the user can have one more, and ends programs that hold many", """
import select
watched = [os.eventfd(0) for _ in range(400)]
epolls = []
for _ in range(200):
    epolls.append(select.epoll())
    for descriptor in watched:
        epolls[-1].register(descriptor, select.EPOLLIN)
time.sleep(1)
hold()
held(f"{len(epolls) * len(watched)} watches, and the neighbour still gets its own")
""", timeout=20, expect=expect_stopped_or_killed, neighbour_code="""
import select
select.epoll().register(os.pipe()[0], select.EPOLLIN)
""")  # fmt: skip
