"""A warden: a child of the agent that starts one program and stays the ancestor of all its processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import signal
import sys
import termios
import time
from typing import TYPE_CHECKING

from corral.inside.starting import execute, reset_signals, take_streams
from corral.inside.trees import (
    become_dumpable,
    become_subreaper,
    end_with_parent,
    own_children,
    read_status,
    reap_all,
    send_signal,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Task = Callable[[dict[str, Any]], int]

_OUR_OWN = ("_", "SHLVL", "OLDPWD", "PWD", "PS1", "TERM", "COLUMNS", "LINES")
"""Variables of the shell that the agent was started from."""
WAKE_SECONDS = 1.0
_PEAK_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def watch_over(
    request: dict[str, Any], inner: tuple[int, int, int], status: int, task: Task | None, *, agent: int
) -> None:
    """Start a program, wait for it and for all its orphans, and report to `status`. They end with `agent`."""
    os.setsid()
    warden = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _close_all_but({*inner, status})
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    become_subreaper()
    failed, failed_end = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        _report(status, {"error": "fork", "text": error.strerror})
        return
    if pid == 0:
        code = 125
        try:
            # A program that kills its warden and the agent does not outlive them.
            end_with_parent(signal.SIGKILL, warden)
            code = _become(request, inner, failed_end, task)
        finally:
            os._exit(code)
    os.close(failed_end)
    for descriptor in set(inner):
        os.close(descriptor)
    with os.fdopen(failed, "rb") as file:
        said = file.read(4096)
    if said:
        _report(status, json.loads(said.decode()))
        os.waitpid(pid, 0)
        return
    _report(status, {"pid": pid})
    _stay(pid, status, agent, ours=task is not None)


def _close_all_but(keep: set[int]) -> None:
    """Close descriptors above the standard streams: neither a warden nor a task may hold what belongs to others."""
    for name in os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _stay(pid: int, status: int, agent: int, *, ours: bool) -> None:
    """Wait until the program and all processes that it left behind have ended. `ours`: it is a task."""
    ending = False

    def end(*_: object) -> None:
        # The agent asks for it, or has died: end everything. Children of those that die become ours, and end too.
        nonlocal ending
        ending = True
        send_signal(own_children(), signal.SIGKILL)
        if sys.platform != "linux":
            _signal_group(pid, signal.SIGKILL)

    def wake(*_: object) -> None:
        # A program may stop the agent or a task, which have the same user; the agent continues us in the same way.
        if ending or os.getppid() != agent:
            end()
        else:
            send_signal([agent, *(own_children() if ours else ())], signal.SIGCONT)

    def tell(code: int, usage: resource.struct_rusage) -> None:
        exit_code, number = read_status(code)
        cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * _PEAK_UNIT_BYTES
        _report(status, {"code": exit_code, "signal": number or None, "cpu": cpu, "peak": peak})

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, wake)
    signal.setitimer(signal.ITIMER_REAL, WAKE_SECONDS, WAKE_SECONDS)
    end_with_parent(signal.SIGTERM, agent)
    reap_all(pid, tell, after_each=lambda: end() if ending else None)
    while sys.platform != "linux" and _signal_group(pid, 0):
        time.sleep(WAKE_SECONDS / 2)  # orphans did not come to us, but are still in its group


def _signal_group(group: int, number: int) -> bool:
    """True if the group exists."""
    with contextlib.suppress(PermissionError):  # a process of another user is in it
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return False
    return True


def _report(status: int, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the agent may be gone
        os.write(status, json.dumps(message).encode() + b"\n")


def _become(request: dict[str, Any], inner: tuple[int, int, int], failed: int, task: Task | None) -> int:
    """Turn a fork into the program, or run a task like one; returns the exit code."""
    os.setsid()
    reset_signals()
    take_streams(inner)
    if request.get("pty"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.umask(0o022)
    become_dumpable()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # if memory is short, programs are killed before the agent
    try:
        os.chdir(os.fsencode(request["cwd"]))
    except OSError as error:
        _refuse(failed, "cwd", error)
        return 125
    for name, value in request.get("rlimits", {}).items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))
    if task is not None:
        _close_all_but(set())  # a program loses them by `execve`: the pipe to the agent above all
        return task(request["request"])
    env = {}
    if request.get("inherit", True):
        ours = os.environ.items()
        env = {name: value for name, value in ours if name not in _OUR_OWN and not name.startswith("CORRAL_")}
    if request.get("pty"):
        env["TERM"] = "xterm-256color"
    env.update(request["env"])
    try:
        return execute(request["argv"], env)
    except OSError as error:
        _refuse(failed, "too_big" if error.errno == errno.E2BIG else "setup", error)
        return 125


def _refuse(failed: int, code: str, error: OSError) -> None:
    os.write(failed, json.dumps({"error": code, "text": error.strerror}).encode())
