"""Probes between two sandboxes: nothing of a neighbour can be seen, signalled, locked or connected to."""

from __future__ import annotations

from corral.testing.hostile.probe import Area, Probe

_AREA: Area = "lateral"


def _lateral(name: str, why: str, code: str, *, neighbour_code: str = "") -> Probe:
    return Probe(name, _AREA, "lateral", why, code, victim=True, neighbour_code=neighbour_code)


PROCESSES = _lateral("see-the-neighbours-processes", "a PID namespace each", """
for pid in pids():
    try:
        if T["victim"].encode() in read(f"/proc/{pid}/cmdline"):
            breached(f"the neighbour's process is visible as {pid}")
    except OSError:
        pass
held(f"{len(pids())} processes, none of the neighbour")
""")  # fmt: skip

SIGNALS = _lateral("signal-the-neighbours-processes", "a PID namespace each, and own uids", """
# SIGCONT does no harm to whoever serves this sandbox; the victim says when it gets one.
reached = 0
for pid in sorted(set(range(2, 40000)) - set(pids())):
    try:
        os.kill(pid, signal.SIGCONT)
        reached += 1
    except OSError:
        pass
time.sleep(0.2)
held(f"{reached} processes reached; the neighbour's was not")
""")  # fmt: skip

TEMPORARY_FILES = _lateral("share-temporary-files", "an overlay and a /dev/shm each", """
try_all({path: lambda p=path: os.stat(p) for path in ("/tmp/" + T["victim"], "/dev/shm/" + T["victim"],
    "/var/tmp/" + T["victim"])}, NOT_THERE)
""")  # fmt: skip

SEGMENTS = _lateral("share-system-v-memory", "an IPC namespace each", """
try_all({"by key": lambda: kernel("shmget", 0x7C0FFEE, 4096, 0), **{f"id {n}": lambda n=n: kernel("shmctl", n, 2,
    ctypes.create_string_buffer(256)) for n in range(8)}},
        (errno.ENOENT, errno.EINVAL, errno.EIDRM, *REFUSED))
""")  # fmt: skip

ABSTRACT = _lateral("connect-to-the-neighbours-abstract-socket", "a network namespace each", """
def attempt():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\\0" + T["victim"])
    return "connected"
try_all({"abstract": attempt}, (errno.ECONNREFUSED,))
""")  # fmt: skip

PORTS = _lateral("connect-to-the-neighbours-port", "a network namespace each", """
def attempt():
    with socket.create_connection(("127.0.0.1", T["victim_port"]), timeout=2):
        return "connected"
try_all({"port": attempt}, (errno.ECONNREFUSED,))
""")  # fmt: skip

LOCKS = _lateral("signal-by-locks-on-shared-files", "an overlay each: its inodes are nobody else's", """
def attempt(path):
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"{path} is locked by the neighbour"
    return None
try_all({path: lambda p=path: attempt(p) for path in ("/usr/bin/env", "/etc/passwd")}, ())
""")  # fmt: skip

NOTIFICATIONS = _lateral("watch-the-neighbour-read-shared-files", "an overlay each: its inodes are nobody else's", """
descriptor = kernel("inotify_init1", os.O_NONBLOCK)
LIBC.inotify_add_watch(descriptor, b"/usr/bin/env", 0x21)
hold()
try:
    breached(f"noticed it: {os.read(descriptor, 100)!r}")
except BlockingIOError:
    held("no event, though the neighbour read the file")
""", neighbour_code="import subprocess; read('/usr/bin/env'); subprocess.run(['/usr/bin/env', 'true'])")  # fmt: skip

BASE = _lateral("poison-the-files-both-start-from", "copy-on-write: a change is its maker's alone", """
poisoned = {}
for path in ("/etc/passwd", "/etc/hosts", "/etc/profile", "/home/daytona/.bashrc", "/home/daytona/.profile",
    "/usr/bin/env"):
    try:
        before = read(path)
        with open(path, "ab", buffering=0) as file:
            file.write(b"# poison\\n")
        poisoned[path] = before
    except OSError:
        pass
hold()
for path, before in poisoned.items():
    with open(path, "wb") as file:
        file.write(before)
held(f"own copies of {sorted(poisoned)} changed, the neighbour's stayed")
""", neighbour_code="""
for path in ("/etc/passwd", "/etc/hosts", "/etc/profile", "/home/daytona/.bashrc", "/home/daytona/.profile"):
    if os.path.exists(path) and b"# poison" in read(path):
        breached(f"{path} was poisoned by the neighbour")
""")  # fmt: skip

USER_IDS = _lateral("share-a-user-id-with-the-neighbour", "a range of user ids each, as root", """
inside, outside, count = map(int, read("/proc/self/uid_map").split())
if count == 1:
    held("rootless: one id for all, kept apart by the namespaces alone")
if outside == T["victim_outer_uid"]:
    breached(f"both are {outside} outside")
if outside < 65536:
    breached(f"an id of the host's own users: {outside}")
held("two ranges")
""")  # fmt: skip
