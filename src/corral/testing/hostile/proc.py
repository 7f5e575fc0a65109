"""Probes for /proc and /sys, and for facts about the host that they reveal."""

from __future__ import annotations

import functools

from corral.testing.hostile.probe import Probe, expect_no_host_words

_probe = functools.partial(Probe, area="proc")
_MASKS = "masked by a bind of the host's /dev/null, or by an empty read-only tmpfs"

READ_MASKED = _probe("read-kernel-files-of-proc", "host_leak", _MASKS, """
names = ("kcore", "kmsg", "kallsyms", "config.gz", "interrupts", "iomem", "ioports", "keys", "key-users", "modules",
         "mtrr", "sched_debug", "schedstat", "slabinfo", "softirqs", "timer_list", "vmallocinfo", "zoneinfo",
         "buddyinfo", "diskstats", "partitions", "swaps", "pagetypeinfo", "kpagecount", "kpageflags", "kpagecgroup",
         "locks", "allocinfo", "latency_stats")
try_each(lambda name: os.read(os.open(f"/proc/{name}", os.O_RDONLY | os.O_NONBLOCK), 100) or None, names, NOT_THERE)
""")  # fmt: skip

MASKED_FOLDERS = _probe("look-into-hardware-folders-of-proc", "host_leak", _MASKS, """
names = ("acpi", "asound", "bus", "driver", "irq", "scsi", "fs", "dynamic_debug", "sysvipc", "tty", "device-tree",
         "xen")
try_each(lambda name: os.listdir(f"/proc/{name}")[:5] or None, names, NOT_THERE)
""")  # fmt: skip

SYSRQ = _probe("pull-the-magic-sysrq-lever", "host_dos", _MASKS, """
def attempt(path):
    found = os.fstat(os.open(path, os.O_WRONLY))
    return None if stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3) else path
try_each(attempt, ("/proc/sysrq-trigger", "/proc/kmsg", "/proc/self/../sysrq-trigger"), NOT_THERE)
""")  # fmt: skip

_OPEN_SYSCTLS = """
paths = [f"{root}/{name}" for root, folders, files in os.walk("/proc/sys") for name in files]
if not paths:
    say("unproven", "there is no /proc/sys to try")
opened = [path for path in paths if can(lambda: os.close(os.open(path, os.O_WRONLY)))]
breached(f"{len(opened)} can be written: {opened[:5]}") if opened else held(f"{len(paths)} files, all refuse writing")
"""

SYSCTLS = _probe("set-kernel-parameters", "escape", "/proc/sys is read-only, and no capability", _OPEN_SYSCTLS)

SYSCTLS_AS_ROOT = _probe(
    "set-kernel-parameters-as-root-inside", "escape", "/proc/sys is read-only", _OPEN_SYSCTLS, user="root"
)

SYSFS = _probe("use-sysfs", "escape", "there is no /sys", """
try:
    entries = os.listdir("/sys")
except OSError as error:
    held(f"/sys: {name_of(error.errno)}")
breached(f"/sys holds {entries[:8]}") if entries else held("/sys is empty")
""")  # fmt: skip

OWN_FILES = _probe(
    "write-to-risky-files-of-ones-own-process", "escape",
    "maps are written once; lowering the score needs a capability", """
def attempt(path, text):
    write(f"/proc/{path}", text)
    return f"wrote {text!r}"
try_each(attempt, {"score": ("self/oom_score_adj", "-1000"), "old score": ("self/oom_adj", "-17"),
                   "uid_map": ("self/uid_map", "0 0 1"), "setgroups": ("self/setgroups", "allow"),
                   "score of PID 1": ("1/oom_score_adj", "1000"), "attributes of PID 1": ("1/attr/current", "x")},
         (*NOT_THERE, errno.EINVAL))
""")  # fmt: skip

MOUNT_TABLE = _probe(
    "read-host-paths-in-the-mount-table", "host_leak",
    "layers get short names in a staging area before they are mounted", """
for pid in pids():
    for name in ("mountinfo", "mounts", "mountstats"):
        print(peek(f"/proc/{pid}/{name}", 1 << 20).decode(errors="replace"))
expected = ("/", "/null", "/zero", "/full", "/random", "/urandom", "/tty", "/sys")
for line in read("/proc/self/mountinfo", 1 << 20).decode().splitlines():
    words = line.split()
    if words[4].startswith("/proc/") and words[3][1:].isdigit():
        continue  # a mask over a file of /proc
    if words[3] not in expected and not words[3].startswith("/null"):
        breached(f"a folder of the host is bound: {words[3]} at {words[4]}")
held("only names of the sandbox itself")
""", expect=expect_no_host_words)  # fmt: skip

CGROUP_PATHS = _probe("read-host-paths-in-cgroups", "host_leak", "each sandbox has its own cgroup namespace", """
paths = set()
for pid in pids():
    text = peek(f"/proc/{pid}/cgroup").decode()
    print(text)
    paths |= {line.split(":", 2)[2] for line in text.splitlines()}
strange = [path for path in paths if path not in ("/", "/init", "/..") and not path.startswith(("/call", "/../call"))]
breached(f"shows {strange}") if strange else held(sorted(paths))
""", expect=expect_no_host_words)  # fmt: skip

PROCESS_TEXTS = _probe(
    "read-host-paths-of-every-process", "host_leak",
    "arguments overwritten, init not dumpable, no environment passed on", """
seen = 0
for pid in pids():
    for name in ("cmdline", "environ", "maps", "comm", "stat", "status", "wchan", "limits", "sched", "io", "net/unix"):
        if pid == os.getpid() and name == "cmdline":
            continue
        text = peek(f"/proc/{pid}/{name}", 1 << 20)
        seen += bool(text)
        print(pid, name, text.decode(errors="replace").replace("\\0", " "))
    for name in ("exe", "cwd", "root"):
        can(lambda: print(pid, name, os.readlink(f"/proc/{pid}/{name}")))
held(f"{seen} files read")
""", expect=expect_no_host_words)  # fmt: skip

ENVIRONMENT = _probe(
    "read-secrets-of-the-hosts-environment", "host_leak", "the launcher starts with an empty environment", """
print("\\n".join(f"{name}={value}" for name, value in os.environ.items()))
for pid in pids():
    print(peek(f"/proc/{pid}/environ").decode(errors="replace").replace("\\0", "\\n"))
strange = [name for name in os.environ if name.endswith(("_KEY", "_TOKEN", "_SECRET", "_PASSWORD"))
           or name.startswith(("AWS_", "SSH_", "CORRAL_CANARY"))]
breached(f"variables {strange}") if strange else held(f"only {sorted(os.environ)}")
""")  # fmt: skip

HOST_NAME = _probe("learn-the-hosts-name", "info", "each sandbox has its own UTS namespace and name", """
print(os.uname().nodename, socket.gethostname(), read("/proc/sys/kernel/hostname").decode())
for path in ("/etc/hostname", "/etc/hosts", "/etc/machine-id", "/etc/resolv.conf", "/proc/sys/kernel/domainname"):
    print(path, peek(path).decode(errors="replace"))
held(f"it is {socket.gethostname()!r}")
""", expect=expect_no_host_words)  # fmt: skip

BOOT = _probe("tell-one-boot-of-the-host-from-another", "info", "each sandbox has its own boot id", """
first, second = (read("/proc/sys/kernel/random/boot_id").decode().strip() for _ in range(2))
print(first)
if first != second or len(first) != 36:
    say("unproven", f"{first!r}, then {second!r}: programs that ask for the boot can't work")
held(f"it is {first}")
""", expect=expect_no_host_words)  # fmt: skip

LIVE_COUNTERS = _probe("read-the-kernels-counters", "info", "masked, or replaced by numbers that reveal nothing", """
names = ("sys/fs/file-nr", "sys/fs/inode-nr", "sys/fs/inode-state", "sys/fs/dentry-state", "sys/fs/aio-nr",
         "sys/kernel/pty/nr", "cgroups", "consoles", "mdstat", "misc")
def numbers():
    return {name: peek(f"/proc/{name}").decode().split() for name in names}
before = numbers()
for name in os.listdir("/proc/sys/fs/quota") if os.path.isdir("/proc/sys/fs/quota") else ():
    if name != "warnings" and int(read(f"/proc/sys/fs/quota/{name}") or 0):
        breached(f"{name} of /proc/sys/fs/quota counts what happens on this machine")
for name in ("cgroups", "consoles", "mdstat", "misc"):
    if before[name]:
        breached(f"/proc/{name} shows {before[name][:6]}")
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(400)]
terminals = [os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY) for _ in range(5)]
for number in range(400):
    os.close(os.open(f"counted-{number}", os.O_CREAT | os.O_WRONLY))
after = numbers()
moved = [name for name in names if before[name] != after[name]]
breached(f"{moved} count what happens on this machine") if moved else held("all of them stay the same")
""")  # fmt: skip

HOST_PROCESSES = _probe("see-or-signal-processes-of-the-host", "escape", "each sandbox has its own PID namespace", """
everything = pids()
for pid in everything:
    if T["canary_mark"].encode() in read(f"/proc/{pid}/cmdline"):
        breached(f"the host's process is visible as {pid}")
if T["canary_pid"] in everything:
    breached("the host's process number exists here")
for number in (0, signal.SIGTERM, signal.SIGKILL):
    try:
        os.kill(T["canary_pid"], number)
        breached("the host's process could be signalled")
    except OSError as error:
        last = name_of(error.errno)
if len(everything) > 60:
    breached(f"{len(everything)} processes are visible")
held(f"{len(everything)} visible processes, all of the sandbox; {last}")
""")  # fmt: skip

KERNEL_COMMAND_LINE = _probe("read-the-kernels-command-line", "info", _MASKS, """
try_each(lambda path: read(path).decode(errors="replace").strip()[:60] or None, ("/proc/cmdline",), NOT_THERE)
""")  # fmt: skip

PRESSURE = _probe("measure-the-hosts-load", "info", _MASKS, """
try_each(lambda name: os.open(f"/proc/pressure/{name}", os.O_RDWR), ("cpu", "memory", "io", "irq"),
         (*NOT_THERE, errno.EOPNOTSUPP))
""")  # fmt: skip
