"""The functions that every probe's program starts with: to try an attack, and to report what happened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corral.testing.hostile.probe import Probe

_PYTHON = r"""
import ctypes, errno, fcntl, json, os, resource, signal, socket, stat, struct, sys, time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
MACHINE = os.uname().machine
# name: (x86_64, aarch64); one number where both agree
NUMBERS = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "cachestat": 451,
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220), "clone3": 435,
    "delete_module": (176, 106), "exit": (60, 93), "fanotify_init": (300, 262), "finit_module": (313, 273),
    "fsopen": 430, "fspick": 433, "init_module": (175, 105), "inotify_init1": (294, 26), "io_setup": (206, 0),
    "io_uring_setup": 425, "ioprio_set": (251, 30), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "listmount": 458,
    "memfd_create": (319, 279), "memfd_secret": 447, "mount": (165, 40), "mount_setattr": 442, "move_mount": 429,
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": 428, "perf_event_open": (298, 241),
    "personality": (135, 92), "pidfd_getfd": 438, "pidfd_open": 434, "pivot_root": (155, 41), "prlimit64": (302, 261),
    "process_madvise": 440,
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60),
    "reboot": (169, 142), "request_key": (249, 218), "rt_sigqueueinfo": (129, 138), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sched_setscheduler": (144, 119), "setpriority": (141, 140),
    "seccomp": (317, 277), "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268),
    "settimeofday": (164, 170), "shmat": (30, 196), "shmctl": (31, 195), "shmget": (29, 194), "statmount": 457,
    "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
NOT_THERE = (*REFUSED, errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ELOOP, errno.ESRCH)


def say(verdict, evidence):
    line = json.dumps({"verdict": verdict, "evidence": str(evidence)[:600]})
    sys.stdout.flush()
    os.write(1, f"\n{line}\n".encode())
    os._exit(0)


def held(evidence):
    say("held", evidence)


def breached(evidence):
    say("breached", evidence)


def kernel(call, *arguments):
    number = call
    if isinstance(call, str):
        number = NUMBERS[call]
        if isinstance(number, tuple):
            number = number[MACHINE != "x86_64"]
    words = [a if isinstance(a, (bytes, ctypes.Array, type(None))) else ctypes.c_long(a) for a in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def name_of(code):
    return errno.errorcode.get(code, str(code))


def try_all(attempts, stops=REFUSED):
    "Run each attempt. Only an error in `stops` is a refusal: any other means that the kernel looked at the arguments."
    log = []
    for name, attempt in attempts.items():
        try:
            result = attempt()
        except OSError as error:
            if error.errno not in stops:
                breached(f"{name}: not refused, but {name_of(error.errno)}")
            log.append(f"{name} {name_of(error.errno)}")
            continue
        if result is not None:
            breached(f"{name}: succeeded with {result!r}")
        log.append(f"{name} nothing")
    held(", ".join(log))


def try_each(attempt, cases, stops=REFUSED):
    "`try_all` for one function with many arguments; a case that is a tuple holds several of them."
    named = cases if isinstance(cases, dict) else {str(case): case for case in cases}
    try_all({name: lambda case=case: attempt(*case) if isinstance(case, tuple) else attempt(case)
             for name, case in named.items()}, stops)


def can(function, *arguments):
    "True if the call raises no OSError."
    try:
        function(*arguments)
    except OSError:
        return False
    return True


def repeat(take, times):
    "Call `take` with 0, 1, 2 … until it is refused: how often it worked, and what stopped it."
    for count in range(times):
        try:
            take(count)
        except (OSError, RuntimeError, MemoryError) as error:
            return count, name_of(error.errno) if isinstance(error, OSError) else str(error)
    return times, "the goal"


def fork(work):
    "Run `work` in a new process, which ends after it; the number of that process."
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def in_child(function):
    "Call a function in a new process: its number, its OSError raised again, or minus the signal that ended it."
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, b"%d 0" % int(function() or 0))
        except OSError as error:
            os.write(writer, b"0 %d" % error.errno)
        os._exit(0)
    os.close(writer)
    words = os.read(reader, 100).split()
    os.close(reader)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status)
    if words and int(words[1]):
        raise OSError(int(words[1]), "in the child")
    return int(words[0]) if words else 0


def pids():
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def read(path, limit=65536):
    with open(path, "rb", buffering=0) as file:
        return file.read(limit) or b""


def peek(path, limit=65536):
    "`read`, with nothing for a file that can't be read."
    try:
        return read(path, limit)
    except OSError:
        return b""


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def status():
    "The fields of this process in /proc."
    return dict(line.split(":\t", 1) for line in read("/proc/self/status").decode().splitlines() if ":\t" in line)


def raise_descriptor_limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def hold(seconds=0.0):
    "Keep what was taken until the host has checked itself and the neighbour, and says so on standard input."
    os.write(1, b"\nholding\n")
    end = time.monotonic() + seconds
    os.read(0, 1)
    time.sleep(max(0.0, end - time.monotonic()))


def only_loopback():
    "Ends the probe as breached if this namespace has another interface, so that nothing is sent to a real network."
    names = [line.split(":")[0].strip() for line in read("/proc/net/dev").decode().splitlines()[2:]]
    if names != ["lo"]:
        breached(f"this network has more than loopback: {names}; nothing was sent")


def bounded(limit, ceiling, factor=1.5):
    "How much a bomb takes: more than the limit, and never more than the ceiling."
    goal = int(limit * factor)
    if goal > ceiling:
        say("unproven", f"a limit of {limit} is beyond what a bounded bomb may try ({ceiling})")
    return goal
"""

_BASH = r"""
say() { printf '\n{"verdict":"%s","evidence":"%s"}\n' "$1" "$(printf %s "$2" | tr -d '"\\\n' | head -c 500)"; exit 0; }
held() { say held "$*"; }
breached() { say breached "$*"; }
"""


def compose(probe: Probe, *, targets: Mapping[str, Any]) -> str:
    """Give the whole program. It contains the targets, so that they are in no environment and no argument."""
    if probe.language == "bash":
        values = "".join(f"{name}='{value}'\n" for name, value in targets.items() if isinstance(value, int | str))
        return f"{values}{_BASH}\n{probe.code}"
    return compose_python(probe.code, targets=targets)


def compose_python(code: str, *, targets: Mapping[str, Any] | None = None) -> str:
    """Give a whole Python program, which has the functions above and prints a verdict by them."""
    return f"{_PYTHON}\nT = json.loads({json.dumps(dict(targets or {}))!r})\n{code}"
