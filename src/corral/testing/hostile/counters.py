"""Probes for what the kernel counts for the whole machine or for one user, and charges to no sandbox by itself.

Each takes a little more than a sandbox may have, and far less than would hurt the machine.
"""

from __future__ import annotations

from corral.testing.hostile.probe import Probe, expect_stopped_or_ended, expect_stopped_or_killed

ASYNCHRONOUS_IO = Probe(
    "take-all-asynchronous-input-and-output", "resources", "host_dos", "the filter refuses io_setup and its like",
    """
def attempt(events):
    context = (ctypes.c_ulong * 1)()
    kernel("io_setup", events, context)
    return f"a context for {events} events"
try_all({"a small context": lambda: attempt(8), "all there is": lambda: attempt(65536)})
""",
)  # fmt: skip

LOCKS = Probe(
    "pile-up-file-locks", "resources", "host_dos", "init counts the locks of its sandbox, and ends what has too many",
    """
files = [os.memfd_create("locked") for _ in range(20)]
files += [os.open(f"locked-{number}", os.O_CREAT | os.O_RDWR) for number in range(20)]
taken = 0
try:
    for taken in range(20000):
        fcntl.lockf(files[taken % 40], fcntl.LOCK_EX, 1, taken // 40 * 2)
except OSError as error:
    held(f"{name_of(error.errno)} after {taken}")
time.sleep(8)
breached(f"{taken} locks, which no cgroup counts")
""",
    timeout=20, expect=expect_stopped_or_ended, alone=True,
)  # fmt: skip

LOCKS_OF_MANY = Probe(
    "pile-up-file-locks-in-many-processes", "resources", "host_dos",
    "the locks of all processes of a sandbox are counted together",
    """
for _ in range(19):
    if os.fork() == 0:
        break
files = [os.memfd_create("locked") for _ in range(10)]
for number in range(1000):
    fcntl.lockf(files[number % 10], fcntl.LOCK_EX, 1, number // 10 * 2)
time.sleep(8)
breached("20000 locks, which no cgroup counts")
""",
    timeout=20, expect=expect_stopped_or_ended, alone=True,
)  # fmt: skip

HIDDEN_LOCKS = Probe(
    "hide-file-locks-from-whoever-counts-them", "resources", "host_dos",
    "the filter refuses locks of open files, and processes that share one table of descriptors",
    """
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
""",
)  # fmt: skip

SOCKET_FILTERS = Probe(
    "attach-filters-to-sockets", "resources", "host_dos",
    "the filter refuses them: the room for compiled filters is one for the whole machine",
    """
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFF), 8)
program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(code))
def attempt(option):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, 15, 1)
        sock.setsockopt(socket.SOL_SOCKET, option, program)
    return "attached"
try_all({"SO_ATTACH_FILTER": lambda: attempt(26), "SO_ATTACH_REUSEPORT_CBPF": lambda: attempt(51)},
        (errno.ENOPROTOOPT, *REFUSED))
""",
)  # fmt: skip

FLOW_LABELS = Probe(
    "lease-flow-labels", "resources", "host_dos", "the filter refuses them: there are 4,096 for the whole machine",
    """
wish = socket.inet_pton(socket.AF_INET6, "::1") + struct.pack("=IBBHHHI", 0, 0, 255, 1, 6, 60, 0)
def attempt():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(41, 32, wish)
    return "a label"
try_all({"a flow label": attempt}, (errno.ENOPROTOOPT, errno.EAFNOSUPPORT, *REFUSED))
""",
)  # fmt: skip

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
    say("unproven", "none of them can be opened")
def events():
    try:
        return len(os.read(watcher, 65536)) // 16
    except BlockingIOError:
        return 0
events()
hold()
seen = events()
breached(f"{seen} opens of others were seen") if seen else held(f"{len(locked)} watched and locked; nobody noticed")
"""

_TRY_LOCK = """
for path in ("/dev/null", "/dev/urandom"):
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""

DEVICES = Probe(
    "watch-and-lock-the-devices-of-the-host", "lateral", "lateral",
    "as root, device nodes that the launcher makes for each sandbox",
    "PATHS = [f'/dev/{name}' for name in ('null', 'zero', 'full', 'random', 'urandom')]" + _WATCH,
    neighbour_code=_TRY_LOCK,
)  # fmt: skip

MASKS = Probe(
    "watch-and-lock-what-covers-proc", "lateral", "lateral", "masks are files of the sandbox's own",
    "PATHS = [f'/proc/{name}' for name in ('kcore', 'keys', 'locks', 'kallsyms', 'slabinfo')]" + _WATCH,
    neighbour_code="fcntl.flock(os.open('/proc/locks', os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)",
)  # fmt: skip

IN_FLIGHT = Probe(
    "put-descriptors-in-flight", "resources", "neighbour_dos",
    "a user id of its own as root; else init looks whether too many are on their way, and ends what sent them",
    """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
pairs, sent, why = [], 0, "the goal"
descriptor = os.open("/dev/null", os.O_RDONLY)
try:
    while sent < 8000:
        pairs.append(socket.socketpair())
        socket.send_fds(pairs[-1][0], [b"x"], [descriptor] * 250)
        sent += 250
except OSError as error:
    why = name_of(error.errno)
time.sleep(2)
hold()
held(f"{sent}, then {why}")
""",
    timeout=20, expect=expect_stopped_or_killed,
    neighbour_code="""
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [0])
""",
)  # fmt: skip

HIDDEN_IN_FLIGHT = Probe(
    "hide-descriptors-in-flight-in-sockets-in-flight", "resources", "neighbour_dos",
    "a user id of its own as root; else, while the user is short of them, whoever holds a few is ended after a while",
    """
descriptor = os.open("/dev/null", os.O_RDONLY)
outer, queue = socket.socketpair()
sent, why = 0, "the goal"
try:
    for _ in range(9):
        ours, theirs = socket.socketpair()
        socket.send_fds(outer, [b"x"], [theirs.fileno()])
        theirs.close()
        socket.send_fds(ours, [b"x"], [descriptor] * 120)
        ours.close()
        sent += 121
except OSError as error:
    why = name_of(error.errno)
time.sleep(3.5)
hold()
held(f"{sent}, then {why}")
""",
    timeout=20, expect=expect_stopped_or_killed, neighbour_code=IN_FLIGHT.neighbour_code,
)  # fmt: skip

_SMALL_PIPES = """
size = fcntl.fcntl(os.pipe()[1], 1032)
if size < 65536:
    breached(f"a new pipe holds {size} bytes")
"""

PIPE_PAGES = Probe(
    "shrink-everybodys-pipes", "resources", "neighbour_dos",
    "a user id of its own as root; else init looks whether new pipes are small, and ends what has too many",
    """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
helpers = []
for _ in range(2):
    child = os.fork()
    helpers.append(child)
    if child == 0:
        break
made = [os.pipe() for _ in range(480)]
if helpers[-1] == 0:
    time.sleep(15)
    os._exit(0)
time.sleep(2)
hold()
for child in helpers:
    os.kill(child, 9)
held(f"{len(made)} pipes in each of three processes")
""",
    timeout=20, expect=expect_stopped_or_killed, neighbour_code=_SMALL_PIPES,
)  # fmt: skip

HIDDEN_PIPES = Probe(
    "shrink-everybodys-pipes-from-hidden-threads", "resources", "neighbour_dos",
    "a user id of its own as root; else init counts what each thread holds open, not the first of a process alone",
    """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
for _ in range(3):
    made = [os.pipe() for _ in range(480)]
    # A thread of this process with a table of descriptors of its own: a copy of ours, which we then empty.
    stack = LIBC.mmap(None, 65536, 3, 0x22, -1, 0)
    flags = 0x100 | 0x200 | 0x800 | 0x10000
    if LIBC.clone(ctypes.cast(LIBC.pause, ctypes.c_void_p), stack + 65536 - 64, flags, None) < 0:
        held(f"no such thread: {name_of(ctypes.get_errno())}")
    os.closerange(3, 2000)
time.sleep(2)
hold()
held("1440 pipes in three threads")
""",
    timeout=20, expect=expect_stopped_or_killed, neighbour_code=_SMALL_PIPES,
)  # fmt: skip

EPOLL_WATCHES = Probe(
    "use-up-epoll-watches", "resources", "neighbour_dos",
    "a user id of its own as root; else init looks whether the user can have one more, and ends what holds many",
    """
import select
watched = [os.eventfd(0) for _ in range(400)]
taken, epolls = 0, []
while taken < 80000:
    epolls.append(select.epoll())
    for descriptor in watched:
        epolls[-1].register(descriptor, select.EPOLLIN)
    taken += len(watched)
time.sleep(1)
hold()
held(f"{taken} watches, and others get theirs")
""",
    timeout=20, expect=expect_stopped_or_killed,
    neighbour_code="""
import select
select.epoll().register(os.pipe()[0], select.EPOLLIN)
""",
)  # fmt: skip
