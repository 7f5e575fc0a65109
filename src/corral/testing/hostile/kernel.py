"""Probes for the kernel's surface: what the seccomp list, the namespaces' limits and the empty capabilities must stop.

The system calls get arguments that have no effect. A refusal is EPERM, EACCES or ENOSYS; any other error means that the
kernel looked at the arguments, so that no defence stopped the call before it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from corral.testing.hostile.probe import Probe, Severity

_probe = functools.partial(Probe, area="kernel")
_LIST = "seccomp: not on the list"


def _calls(name: str, severity: Severity, calls: Mapping[str, tuple[object, ...]]) -> Probe:
    """Try system calls: for each label, the name of the call and its arguments."""
    return _probe(name, severity, _LIST, f"try_each(kernel, {calls!r})")


USER_NAMESPACE = _probe(
    "make-a-user-namespace", "escape", "seccomp on unshare and clone, and max_user_namespaces=0", """
NEWUSER = 0x10000000
def clone(*call):
    child = kernel(*call)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child
arguments = ctypes.create_string_buffer(struct.pack("=8Q", NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0))
try_all({"unshare": lambda: in_child(lambda: kernel("unshare", NEWUSER) or 1),
         "clone": lambda: clone("clone", NEWUSER | signal.SIGCHLD, 0, 0, 0, 0),
         "clone3": lambda: clone("clone3", arguments, 64)}, (*REFUSED, errno.ENOSPC))
""")  # fmt: skip

OTHER_NAMESPACES = _probe(
    "make-namespaces-of-every-kind", "escape", "seccomp on unshare and clone, and no capability", """
kinds = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "pid": 0x20000000,
         "net": 0x40000000, "time": 0x80}
try_each(lambda flag: in_child(lambda: kernel("unshare", flag) or 1), kinds, (*REFUSED, errno.ENOSPC))
""")  # fmt: skip

ENTER_NAMESPACES = _probe("enter-other-namespaces", "escape", _LIST + "; init is not dumpable", """
attempts = {"by number": lambda: kernel("setns", -1, 0)}
for pid in ("1", "self"):
    for name in os.listdir("/proc/self/ns"):
        attempts[f"{pid}/{name}"] = lambda p=f"/proc/{pid}/ns/{name}": kernel("setns", os.open(p, os.O_RDONLY), 0)
attempts["pidfd"] = lambda: kernel("setns", kernel("pidfd_open", 1, 0), 0x20000)
try_all(attempts, NOT_THERE)
""")  # fmt: skip

NAMESPACE_IOCTLS = _probe(
    "climb-to-the-parent-namespace", "escape", "the kernel gives no access to parent namespaces", """
GET_USERNS, GET_PARENT, PIDFD_GET_MNT = 0xB701, 0xB702, 0xFF04
def climb(name):
    found = fcntl.ioctl(os.open(f"/proc/self/ns/{name}", os.O_RDONLY), GET_PARENT)
    return os.readlink(f"/proc/self/fd/{found}")
try_all({
    "parent user": lambda: climb("user"), "parent pid": lambda: climb("pid"),
    "mounts of PID 1": lambda: fcntl.ioctl(kernel("pidfd_open", 1, 0), PIDFD_GET_MNT),
}, (*REFUSED, errno.ENOTTY, errno.EINVAL))
""")  # fmt: skip

PTRACE = _probe("trace-init-and-others", "escape", _LIST + "; init is not dumpable", """
ATTACH, SEIZE, TRACEME = 16, 0x4206, 0
def trace(request, pid):
    kernel("ptrace", request, pid, 0, 0)
    return 1
def trace_child():
    child = fork(lambda: time.sleep(5))
    try:
        return trace(ATTACH, child)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
try_all({"attach PID 1": lambda: trace(ATTACH, 1), "seize PID 1": lambda: trace(SEIZE, 1), "own child": trace_child,
         "trace me": lambda: in_child(lambda: trace(TRACEME, 0))})
""")  # fmt: skip

PROCESS_MEMORY = _probe("read-memory-of-other-processes", "escape", _LIST, """
try_all({
    "read PID 1": lambda: kernel("process_vm_readv", 1, None, 0, None, 0, 0),
    "write PID 1": lambda: kernel("process_vm_writev", 1, None, 0, None, 0, 0),
    "own": lambda: kernel("process_vm_readv", os.getpid(), None, 0, None, 0, 0),
    "kcmp": lambda: kernel("kcmp", 1, os.getpid(), 1, 0, 0),
    "madvise": lambda: kernel("process_madvise", -1, None, 0, 0, 0),
    "mem": lambda: os.open("/proc/1/mem", os.O_RDWR),
}, NOT_THERE)
""")  # fmt: skip

IO_URING = _calls("set-up-io-uring", "escape", {"io_uring": ("io_uring_setup", 1, None)})
BPF = _calls("load-bpf-programs", "escape", {"bpf": ("bpf", 0, None, 0), "prog": ("bpf", 5, None, 0)})
PERF = _calls("count-kernel-events", "host_leak", {"perf": ("perf_event_open", None, 0, -1, -1, 0)})
USERFAULTFD = _calls(
    "hold-the-kernel-at-a-page-fault", "escape", {"any": ("userfaultfd", 0), "user mode": ("userfaultfd", 1)}
)
KEYRINGS = _calls("use-the-hosts-keyrings", "lateral", {
    "session": ("keyctl", 0, -3, 0, 0, 0), "user": ("keyctl", 0, -4, 0, 0, 0),
    "add": ("add_key", None, None, None, 0, -1), "request": ("request_key", None, None, None, -1),
})  # fmt: skip
SECRET_MEMORY = _calls("hide-memory-from-the-host", "host_dos", {"secret": ("memfd_secret", 0)})
FANOTIFY = _calls("watch-whole-file-systems", "host_leak", {"init": ("fanotify_init", 0x200, 0)})
MODULES = _calls("load-kernel-code", "escape", {
    "module": ("init_module", None, 0, b""), "module file": ("finit_module", -1, b"", 0),
    "unload": ("delete_module", b"corral-none", 0), "kexec": ("kexec_load", 0, 0, None, 0),
    "kexec file": ("kexec_file_load", -1, -1, 0, b"", 0),
})  # fmt: skip
OPERATION = _calls("operate-the-host", "host_dos", {
    "reboot": ("reboot", 0, 0, 0, 0), "swapon": ("swapon", b"/corral-none", 0),
    "swapoff": ("swapoff", b"/corral-none"), "acct": ("acct", b"/corral-none"),
    "quota": ("quotactl", 0, None, 0, None), "log": ("syslog", 3, None, 0), "log size": ("syslog", 10, None, 0),
})  # fmt: skip
CLOCKS = _calls("set-the-hosts-clock", "host_dos", {
    "settimeofday": ("settimeofday", None, None), "clock": ("clock_settime", 0, None),
    "adjust": ("adjtimex", None), "adjust clock": ("clock_adjtime", 0, None),
})  # fmt: skip
NAMES = _calls("rename-the-machine", "info", {"host": ("sethostname", b"x", 1), "domain": ("setdomainname", b"x", 1)})
MOUNT_QUERIES = _calls("ask-for-mounts-past-proc", "host_leak", {
    "list": ("listmount", None, None, 0, 0), "stat": ("statmount", None, None, 0, 0),
})  # fmt: skip
CACHE_STATE = _calls("see-what-others-have-cached", "info", {"cachestat": ("cachestat", 0, None, None, 0)})

SEGMENTS = _probe("reach-ports-and-segments", "escape", _LIST, """
if MACHINE != "x86_64":
    held("not applicable: an x86 feature")
try_each(kernel, {"ioperm": (173, 0, 1, 1), "iopl": (172, 3), "modify_ldt": (154, 0, None, 0)})
""")  # fmt: skip

PERSONALITY = _probe("undo-hardening-by-personality", "escape", "seccomp on personality's argument", """
try_each(lambda flag: in_child(lambda: kernel("personality", flag) or 1),
         {"read implies exec": 0x0400000, "page zero": 0x0100000, "sticky": 0x4000000})
""")  # fmt: skip

_MACHINE_CODE = """
if MACHINE != "x86_64":
    held("not applicable: an x86 table")
import mmap
def run(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    if result < 0:
        raise OSError(-result, "refused")
    return result
"""

TABLE_32 = _probe(
    "call-through-the-32-bit-table", "escape", "seccomp kills on another architecture's number",
    _MACHINE_CODE + """
# mov eax, 20 (getpid); int 0x80; ret
result = in_child(lambda: run(bytes.fromhex("b814000000cd80c3")))
if result < 0:
    held(f"killed by signal {-result}")
breached(f"getpid through int 0x80 gave {result}")
""")  # fmt: skip

TABLE_X32 = _probe("call-through-the-x32-table", "escape", "seccomp refuses numbers of the x32 table", """
if MACHINE != "x86_64":
    held("not applicable: an x86 table")
def get_pid():
    result = in_child(lambda: kernel(0x40000000 | 39))
    return result if result >= 0 else None  # killed by a signal
try_all({"getpid": get_pid})
""")  # fmt: skip

UNKNOWN_CALLS = _probe(
    "call-numbers-nobody-has-judged", "escape", "an allow list: a call that is not on it gets ENOSYS", """
numbers = (*range(470, 560), 1000, 4095, 65535, 1 << 20)
try_each(lambda number: kernel(number, -1, -1, -1, -1, -1, -1), numbers, (errno.ENOSYS,))
""")  # fmt: skip

CAPABILITIES = _probe(
    "hold-or-regain-capabilities", "escape", "every capability set is empty, the bounding set too", """
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if value := int(status()[name], 16):
        breached(f"{name}={value:x}")
PR_CAP_AMBIENT, RAISE, PR_SET_SECUREBITS = 47, 2, 28
header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
every = ctypes.create_string_buffer(struct.pack("=6I", *[0xFFFFFFFF] * 6))
def call(function, *arguments):
    if function(*arguments):
        raise OSError(ctypes.get_errno(), "refused")
    return 1
try_each(call, {"capset": (LIBC.capset, header, every), "ambient": (LIBC.prctl, PR_CAP_AMBIENT, RAISE, 21, 0, 0),
                "securebits": (LIBC.prctl, PR_SET_SECUREBITS, 1, 0, 0, 0)}, (errno.EPERM, errno.EACCES, errno.EINVAL))
""")  # fmt: skip

SAFETY_CATCHES = _probe(
    "run-without-the-safety-catches", "escape", "no_new_privs and seccomp in filter mode, for good", """
if status().get("NoNewPrivs") != "1":
    breached("no_new_privs is not set")
if status().get("Seccomp") != "2":
    breached(f"seccomp mode is {status().get('Seccomp')}")
LIBC.prctl(38, 0, 0, 0, 0)
again = LIBC.prctl(39, 0, 0, 0, 0)
held("both are on and stay on") if again == 1 else breached("no_new_privs could be taken back")
""")  # fmt: skip

PRCTL = _probe("bend-the-process-by-prctl", "escape", "seccomp on prctl's options", """
def call(*arguments):
    if LIBC.prctl(*[ctypes.c_long(a) for a in (*arguments, 0, 0, 0, 0)[:5]]):
        raise OSError(ctypes.get_errno(), "prctl")
    return 1
try_all({"fake argv": lambda: call(35, 8, 0), "own filter": lambda: call(22, 2),
         "core scheduling": lambda: call(62, 1, 1), "merge memory": lambda: call(67, 1),
         "notify": lambda: kernel("seccomp", 1, 8, None)}, (*REFUSED, errno.EINVAL))
""")  # fmt: skip

BECOME_ROOT = _probe("become-another-user", "escape", "one uid, no CAP_SETUID, and the maps are written once", """
def become(function, *arguments):
    function(*arguments)
    return f"now {os.getuid()}"
try_each(become, {"setuid 0": (os.setuid, 0), "setresuid": (os.setresuid, 0, 0, 0), "setgid 0": (os.setgid, 0),
                  "groups": (os.setgroups, [0, 6, 999]), "uid_map": (write, "/proc/self/uid_map", "0 0 1"),
                  "gid_map": (write, "/proc/self/gid_map", "0 0 1")}, (*REFUSED, errno.EINVAL))
""")  # fmt: skip

HUGE_PAGES = _probe("take-the-hosts-huge-pages", "host_dos", "seccomp on mmap, shmget and memfd_create flags", """
LIBC.mmap.restype = ctypes.c_void_p
def by_mmap():
    found = LIBC.mmap(None, ctypes.c_size_t(2 << 20), 3, 0x40022, -1, ctypes.c_long(0))
    if found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return found
try_all({"mmap": by_mmap, "shm": lambda: kernel("shmget", 0, 2 << 20, 0o4000 | 0o1600),
         "memfd": lambda: kernel("memfd_create", b"x", 4)},
        (*REFUSED, errno.ENOMEM, errno.EINVAL, errno.ENOENT, errno.ENODEV))
""")  # fmt: skip

PRIORITY = _probe("take-realtime-priority", "host_dos", "no CAP_SYS_NICE, and no rlimit that grants it", """
deadline = ctypes.create_string_buffer(struct.pack("=IIQiIQQQ", 48, 6, 0, 0, 0, 10_000_000, 30_000_000, 30_000_000))
try_each(lambda function, *arguments: in_child(lambda: function(*arguments) or 1),
         {"fifo": (os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
          "rr": (os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1)),
          "deadline": (kernel, "sched_setattr", 0, deadline, 0),
          "nice": (os.setpriority, os.PRIO_PROCESS, 0, -10)}, (*REFUSED, errno.EINVAL))
""")  # fmt: skip

AS_ROOT = _probe(
    "attack-the-kernel-as-root-inside", "escape",
    "the same filter, and only eight capabilities, in the sandbox's own namespace", """
if os.getuid():
    held(f"no root inside: uid {os.getuid()}")
effective = int(status()["CapEff"], 16)
dangerous = {"sys_admin": 21, "sys_ptrace": 19, "sys_module": 16, "net_admin": 12, "net_raw": 13, "sys_rawio": 17,
             "dac_read_search": 2, "sys_chroot": 18, "mknod": 27, "bpf": 39, "perfmon": 38, "sys_boot": 22,
             "sys_time": 25}
for name, bit in dangerous.items():
    if effective >> bit & 1:
        breached(f"root inside has CAP_{name.upper()}")
try_each(kernel, {"unshare": ("unshare", 0x10000000), "setns": ("setns", -1, 0), "bpf": ("bpf", 0, None, 0),
                  "ptrace": ("ptrace", 16, 1, 0, 0), "io_uring": ("io_uring_setup", 1, None),
                  "keyctl": ("keyctl", 0, -3, 0, 0, 0), "clone3": ("clone3", None, 0)})
""", user="root")  # fmt: skip

CRASHES = _probe(
    "have-the-host-look-at-a-crash", "host_dos",
    "a core dump limit of 1, with which the kernel starts no program of the host, and a filter that keeps it", """
zero = ctypes.create_string_buffer(struct.pack("=QQ", 0, 0), 16)
old = ctypes.create_string_buffer(16)
for attempt in (lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
                lambda: kernel("prlimit64", 0, 4, zero, 0), lambda: kernel("prlimit64", 0, 4, zero, old),
                lambda: kernel("prlimit64", os.getpid(), 4, zero, 0),
                lambda: MACHINE == "x86_64" and kernel(160, 4, zero)):
    try:
        attempt()
    except (OSError, ValueError):
        pass
limits = resource.getrlimit(resource.RLIMIT_CORE)
if limits[0] != 1:
    breached(f"with a limit of {limits[0]}, a program of the host may be started for each crash inside")
ended = os.waitpid(fork(os.abort), 0)[1]
(breached if os.WCOREDUMP(ended) else held)(f"status {ended:#x}, and no dump was made")
""")  # fmt: skip


# Probes for socket families, types, protocols and options: kernel code that programs in a sandbox do not need.

FAMILIES = _probe(
    "open-odd-socket-families", "escape", "seccomp on socket: UNIX, INET, INET6 and NETLINK_ROUTE only", """
names = {"AX25": 3, "IPX": 4, "X25": 9, "PACKET": 17, "RDS": 21, "PPPOX": 24, "LLC": 26, "CAN": 29, "TIPC": 30,
         "BLUETOOTH": 31, "RXRPC": 33, "PHONET": 35, "IEEE802154": 36, "CAIF": 37, "ALG": 38, "NFC": 39, "VSOCK": 40,
         "KCM": 41, "QIPCRTR": 42, "SMC": 43, "XDP": 44, "MCTP": 45}
sockets = {f"{name} {kind}": (family, kind, 0) for name, family in names.items() for kind in (1, 2, 3, 5)}
try_each(socket.socket, sockets, (errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES))
""")  # fmt: skip

RAW_SOCKETS = _probe("open-raw-sockets", "escape", "seccomp on socket types and protocols", """
sockets = {"raw icmp": (2, 3, 1), "raw": (2, 3, 255), "raw 6": (10, 3, 58), "packet type": (2, 10, 0),
           "sctp": (2, 1, 132), "mptcp": (2, 1, 262), "dccp": (2, 6, 33), "udplite": (2, 2, 136),
           "seqpacket": (2, 5, 0)}
try_each(socket.socket, sockets, (errno.EPERM, errno.EACCES, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT))
""")  # fmt: skip

NETLINK = _probe("speak-to-kernel-subsystems-by-netlink", "escape", "seccomp on netlink protocols: ROUTE only", """
names = {"SOCK_DIAG": 4, "NFLOG": 5, "XFRM": 6, "SELINUX": 7, "ISCSI": 8, "AUDIT": 9, "FIB_LOOKUP": 10, "CONNECTOR": 11,
         "NETFILTER": 12, "DNRTMSG": 14, "KOBJECT_UEVENT": 15, "GENERIC": 16, "SCSITRANSPORT": 18, "RDMA": 20,
         "CRYPTO": 21}
try_each(lambda protocol: socket.socket(16, 3, protocol), names, (errno.EPROTONOSUPPORT, errno.EPERM, errno.EACCES))
""")  # fmt: skip

SOCKET_OPTIONS = _probe("load-modules-by-socket-options", "escape", "seccomp on setsockopt and ioctl", """
def option(family, level, name, value):
    with socket.socket(family, 1) as sock:
        sock.setsockopt(level, name, value)
    return "accepted"
def request(number):
    with socket.socket(2, 2) as sock:
        fcntl.ioctl(sock, number, bytes(64))
    return "accepted"
try_all({"tls": lambda: option(2, 6, 31, b"tls"), "iptables": lambda: option(2, 0, 64, bytes(100)),
         "ip6tables": lambda: option(10, 41, 64, bytes(100)), "bridge": lambda: request(0x89A0),
         "vlan": lambda: request(0x8983)}, (errno.ENOPROTOOPT, errno.EPERM, errno.EACCES))
""")  # fmt: skip
