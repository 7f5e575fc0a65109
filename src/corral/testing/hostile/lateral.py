"""Probes between two sandboxes: a sandbox can't see, signal, lock or connect to anything in its neighbour."""

from __future__ import annotations

from corral.testing.hostile.probe import Probe

_OWN_INODES = "each sandbox has its own overlay, with its own inodes"


def _lateral(name: str, why: str, code: str, *, neighbour_code: str = "") -> Probe:
    return Probe(name, "lateral", why, code, area="lateral", victim=True, neighbour_code=neighbour_code)


PROCESSES = _lateral("see-the-neighbours-processes", "each sandbox has its own PID namespace", """
for pid in pids():
    if T["victim"].encode() in peek(f"/proc/{pid}/cmdline"):
        breached(f"the neighbour's process is visible as {pid}")
held(f"{len(pids())} processes, none of them the neighbour's")
""")  # fmt: skip

SIGNALS = _lateral("signal-the-neighbours-processes", "each sandbox has its own PID namespace and uids", """
# SIGCONT does no harm to the processes that serve this sandbox; the victim reports when it gets one.
others = sorted(set(range(2, 40000)) - set(pids()))
reached = sum(can(os.kill, pid, signal.SIGCONT) for pid in others)
time.sleep(0.2)
held(f"{reached} processes reached; the neighbour's was not")
""")  # fmt: skip

TEMPORARY_FILES = _lateral("share-temporary-files", "each sandbox has its own overlay and /dev/shm", """
try_each(os.stat, [f"{folder}/{T['victim']}" for folder in ("/tmp", "/dev/shm", "/var/tmp")], NOT_THERE)
""")  # fmt: skip

SEGMENTS = _lateral("share-system-v-memory", "each sandbox has its own IPC namespace", """
segments = {f"id {number}": ("shmctl", number, 2, ctypes.create_string_buffer(256)) for number in range(8)}
try_each(kernel, {"by key": ("shmget", 0x7C0FFEE, 4096, 0), **segments},
         (errno.ENOENT, errno.EINVAL, errno.EIDRM, *REFUSED))
""")  # fmt: skip

ABSTRACT = _lateral(
    "connect-to-the-neighbours-abstract-socket", "each sandbox has its own network namespace", """
def connect():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\\0" + T["victim"])
    return "connected"
try_all({"abstract": connect}, (errno.ECONNREFUSED,))
""")  # fmt: skip

PORTS = _lateral("connect-to-the-neighbours-port", "each sandbox has its own network namespace", """
def connect():
    with socket.create_connection(("127.0.0.1", T["victim_port"]), timeout=2):
        return "connected"
try_all({"port": connect}, (errno.ECONNREFUSED,))
""")  # fmt: skip

LOCKS = _lateral("signal-by-locks-on-shared-files", _OWN_INODES, """
def attempt(path):
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"{path} is locked by the neighbour"
try_each(attempt, ("/usr/bin/env", "/etc/passwd"), ())
""")  # fmt: skip

NOTIFICATIONS = _lateral("watch-the-neighbour-read-shared-files", _OWN_INODES, """
descriptor = kernel("inotify_init1", os.O_NONBLOCK)
LIBC.inotify_add_watch(descriptor, b"/usr/bin/env", 0x21)
hold()
try:
    breached(f"noticed it: {os.read(descriptor, 100)!r}")
except BlockingIOError:
    held("no event, though the neighbour read the file")
""", neighbour_code="import subprocess; read('/usr/bin/env'); subprocess.run(['/usr/bin/env', 'true'])")  # fmt: skip

BASE = _lateral("poison-the-files-both-start-from", "copy-on-write: a change is visible only where it was made", """
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
    if b"# poison" in peek(path):
        breached(f"{path} was poisoned by the neighbour")
""")  # fmt: skip

USER_IDS = _lateral("share-a-user-id-with-the-neighbour", "as root, each sandbox has its own range of user ids", """
inside, outside, count = map(int, read("/proc/self/uid_map").split())
if count == 1:
    held("rootless: one id for all sandboxes, separated by the namespaces alone")
if outside == T["victim_outer_uid"]:
    breached(f"both are {outside} outside")
if outside < 65536:
    breached(f"the id of a user of the host: {outside}")
held("two ranges")
""")  # fmt: skip
