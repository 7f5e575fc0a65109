"""INSIDE: processes and their trees. A warden starts one program and stays above all that comes from it.

Sent inside as text, before `inside.py`. Nothing of it is imported on the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import struct
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

SET_PIPE_SIZE = 1031
SUBREAPER = 36
DUMPABLE = 4
PARENT_DEATH = 1
OUR_OWN = ("_", "SHLVL", "OLDPWD", "PWD", "PS1", "TERM", "COLUMNS", "LINES")
"""Variables of the shell that we came from."""
WAKE_SECONDS = 1.0


def become_subreaper() -> None:
    """Orphans below us come to us; and nobody of the same user looks into us, or takes what we hold open."""
    with contextlib.suppress(OSError, AttributeError):  # else what puts itself apart is found by its group only
        libc = ctypes.CDLL(None)
        libc.prctl(SUBREAPER, 1, 0, 0, 0)
        libc.prctl(DUMPABLE, 0, 0, 0, 0)


def end_with_parent(number: int) -> None:
    """Let the kernel send us a signal when our parent ends, by whomever."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DEATH, number, 0, 0, 0)


def parents() -> dict[int, int]:
    """Of every process: its parent."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            # A zombie with more than one thread lives: only its first thread has ended.
            if fields and (fields[0] not in (b"Z", b"X") or int(fields[17]) > 1):
                found[int(name)] = int(fields[1])
    return found


def below(root: int) -> list[int]:
    """All living processes that descend from one."""
    table = parents()
    children: dict[int, list[int]] = {}
    for pid, parent in table.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            found.append(pid)
            queue.append(pid)
    return found


def own_children() -> list[int]:
    """Our direct children, also those that hide from everybody else."""
    try:
        with open("/proc/thread-self/children") as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        me = os.getpid()
        return [pid for pid, parent in parents().items() if parent == me]


def send_signal(pids: Iterable[int], number: int) -> None:
    """To each that is still there."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def end_below(root: int) -> None:
    """End all that descend from one. They stand still first, so that none escapes."""
    stopped: set[int] = set()
    for _ in range(20):
        fresh = [pid for pid in below(root) if pid not in stopped]
        if not fresh:
            break
        send_signal(fresh, signal.SIGSTOP)
        stopped.update(fresh)
    send_signal(stopped, signal.SIGKILL)


def waiting_bytes(descriptor: int) -> int:
    """How much can be read without waiting."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0])
    except OSError:
        return 0


def output_pipe() -> tuple[int, int]:
    """A pipe that holds one packet, so that the order of two streams is known."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_DIRECT)
    os.set_blocking(reader, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(reader, SET_PIPE_SIZE, 4096)
    return reader, writer


def close_all_but(keep: set[int]) -> None:
    """A warden must not hold what belongs to others."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)


# The warden.


def watch_over(wish: dict[str, Any], inner: tuple[int, int, int], status: int) -> None:
    """Start a program, wait for it and for all that comes to us from it, and report."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    close_all_but({*inner, status})
    for descriptor in (0, 1, 2):
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, descriptor)
        os.close(null)
    become_subreaper()
    failed, failed_end = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError as error:
        report(status, {"error": "fork", "text": error.strerror})
        return
    if pid == 0:
        try:
            become(wish, inner, failed_end)
        finally:
            os._exit(125)
    os.close(failed_end)
    for descriptor in set(inner):
        os.close(descriptor)
    said = b""
    while True:
        data = os.read(failed, 4096)
        if not data:
            break
        said += data
    os.close(failed)
    if said:
        report(status, json.loads(said.decode()))
        os.waitpid(pid, 0)
        return
    report(status, {"pid": pid})
    stay(pid, status)


def stay(pid: int, status: int) -> None:
    """Until the program and all that it left behind have ended."""
    agent, ending = os.getppid(), False

    def end(*_: object) -> None:
        # The agent's word, or its death: end everything. What dies leaves its children to us, until there are none.
        nonlocal ending
        ending = True
        send_signal(own_children(), signal.SIGKILL)

    def wake(*_: object) -> None:
        # A program may stop the agent, which is of the same user; the agent does the same for us.
        if ending or os.getppid() != agent:
            end()
        else:
            send_signal([agent], signal.SIGCONT)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, wake)
    signal.setitimer(signal.ITIMER_REAL, WAKE_SECONDS, WAKE_SECONDS)
    end_with_parent(signal.SIGTERM)
    while True:
        try:
            ended, code, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return
        except InterruptedError:
            continue
        if ending:
            end()
        if ended == pid:
            number = os.WTERMSIG(code) if os.WIFSIGNALED(code) else None
            report(
                status,
                {
                    "code": 128 + number if number is not None else os.WEXITSTATUS(code),
                    "signal": number,
                    "cpu": usage.ru_utime + usage.ru_stime,
                    "peak": usage.ru_maxrss * 1024,
                },
            )


def report(status: int, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the agent may be gone
        os.write(status, json.dumps(message).encode() + b"\n")


def become(wish: dict[str, Any], inner: tuple[int, int, int], failed: int) -> None:
    """From a fork to the program."""
    os.setsid()
    end_with_parent(signal.SIGKILL)  # one that kills its warden and the agent does not outlive them
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for place, descriptor in enumerate(inner):
        os.dup2(descriptor, place, inheritable=True)
    if wish.get("pty"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.umask(0o022)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DUMPABLE, 1, 0, 0, 0)  # else the next file is not ours
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # if memory is short, it is taken from programs before those who watch over them
    try:
        os.chdir(os.fsencode(wish["cwd"]))
    except OSError as error:
        os.write(failed, json.dumps({"error": "cwd", "text": error.strerror}).encode())
        return
    for name, value in wish.get("rlimits", {}).items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))
    env = {name: value for name, value in os.environ.items() if name not in OUR_OWN and not name.startswith("CORRAL_")}
    if wish.get("pty"):
        env["TERM"] = "xterm-256color"
    env.update(wish["env"])
    argv = [os.fsencode(word) for word in wish["argv"]]
    try:
        os.execvpe(argv[0], argv, {os.fsencode(name): os.fsencode(value) for name, value in env.items()})
    except OSError as error:
        if error.errno == errno.E2BIG:
            os.write(failed, json.dumps({"error": "too_big", "text": error.strerror}).encode())
            return
        os.write(2, b"%s: %s\n" % (argv[0], (error.strerror or "").encode()))
        os._exit(127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126)
