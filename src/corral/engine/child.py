"""From fork to execve: how a child of init becomes the program. Runs in the child; never returns."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
import termios
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from corral.engine import syscalls
from corral.engine.errors import RefusedError, SetupError
from corral.engine.perform import Stage, perform
from corral.engine.plan import Step, plan_child, plan_program
from corral.engine.recipe import CODE_GID, CODE_UID
from corral.inside.starting import NOT_EXECUTABLE, execute, move_up, take_streams

_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these, and what is ignored stays so over execve; handlers do not."""
_SHARED_MEMORY: Final = "/dev/shm"
_KEPT: Final = {"nosuid": syscalls.MS_NOSUID, "nodev": syscalls.MS_NODEV, "noexec": syscalls.MS_NOEXEC}


@dataclass(frozen=True, slots=True)
class Program:
    """What to run, as init received it."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    uid: int = CODE_UID
    gid: int = CODE_GID
    pty: bool = False
    rows: int = 24
    columns: int = 80
    read_only: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    timeout: float | None = None
    outlive_client: bool = False
    stdio: tuple[int, ...] = field(default=())

    @classmethod
    def from_message(cls, message: dict[str, Any], stdio: tuple[int, ...]) -> Program:
        """Parse a request; the sender is trusted, so a malformed one is a bug and raises."""
        known = {name: message[name] for name in cls.__slots__ if name in message and name != "stdio"}
        for name in ("argv", "read_only", "hidden"):
            if name in known:
                known[name] = tuple(known[name])
        return cls(**known, stdio=stdio)

    def to_message(self) -> dict[str, Any]:
        """The inverse; the standard streams travel as descriptors."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "stdio"}


def prepare_child(stage: Stage, *, soft_limits: bool) -> None:
    """What a child does before it knows its program. Raises: SetupError if the kernel refuses a step."""
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    perform(plan_child(stage.recipe.limits, soft_limits=soft_limits), stage)


def become(program: Program, stage: Stage, *, report_fd: int, terminal: str | None) -> NoReturn:
    """Turn this prepared child into the program. A failure is written to `report_fd`, which init reads."""
    status = NOT_EXECUTABLE
    try:
        os.setsid()  # before the terminal, which becomes this session's
        _take_standard_streams(program, terminal)
        report_fd = move_up(report_fd)
        if program.read_only or program.hidden:
            _restrict_view(program)
        perform(program_steps(stage, program.uid, program.gid), stage)
        _enter_folder(program.cwd)
        status = _execute(program)
    except RefusedError as error:
        _report(report_fd, error.code, error.errno, str(error))
    except SetupError as error:
        _report(report_fd, "setup", error.errno, error.step)
    except OSError as error:
        _report(report_fd, "setup", error.errno or 0, str(error))
    except BaseException as error:  # noqa: BLE001 - see below
        # In any case, this process must not continue as a second init.
        _report(report_fd, "setup", 0, repr(error))
    os._exit(status)


def program_steps(stage: Stage, uid: int, gid: int) -> list[Step]:
    """The plan of a program, made once for each user."""
    if (uid, gid) not in stage.plans:
        stage.plans[uid, gid] = plan_program(stage.identity, uid=uid, gid=gid)
    return stage.plans[uid, gid]


def _report(report_fd: int, code: str, number: int, text: str) -> None:
    os.write(report_fd, f"{code}\0{number}\0{text}".encode(errors="replace")[:4000])


def _take_standard_streams(program: Program, terminal: str | None) -> None:
    streams = program.stdio
    if terminal is not None:
        descriptor = os.open(terminal, os.O_RDWR)
        fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
        streams = (descriptor,) * 3
    take_streams(streams)


def _restrict_view(program: Program) -> None:
    """Read-only and hidden paths for this call alone, in its own mount namespace."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    kept = syscalls.MS_NOSUID | syscalls.MS_NODEV
    for path in program.read_only:
        _must_exist(path)
        if path != "/":
            syscalls.mount(path, path, "", syscalls.MS_BIND | syscalls.MS_REC)
        for mounted, flags in _mounts_below(path).items():
            syscalls.mount("", mounted, "", syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | flags)
    _hold_folders(program)
    for path in program.hidden:
        if os.path.realpath(path) == "/":
            # Mounting over the root changes nothing for a process that is in it already.
            raise RefusedError(f"view path {path!r}: the root can't be hidden", code="view", errno=errno.EBUSY)
        if _must_exist(path):
            syscalls.mount("tmpfs", path, "tmpfs", kept | syscalls.MS_RDONLY, "mode=0000,size=4k,nr_inodes=2")
        else:
            syscalls.mount("/dev/null", path, "", syscalls.MS_BIND)
    try:
        # Otherwise the view of another call could be reached through /proc/PID/root.
        syscalls.forbid_looking_at_others()
    except OSError as error:
        text = "this kernel has no Landlock, without which a restricted view can be bypassed"
        raise RefusedError(text, code="view", errno=error.errno or 0) from error


def _hold_folders(program: Program) -> None:
    """Keep this call from renaming folders above hidden paths: a mount point can't be renamed.

    Otherwise a program could rename such a folder, and the next call, for which the old path is hidden, would see its
    content under the new name.
    """
    above: set[str] = set()
    for path in program.hidden:
        folder = os.path.dirname(os.path.realpath(path))
        while folder != "/" and folder not in above:
            above.add(folder)
            folder = os.path.dirname(folder)
    for folder in sorted(above):  # outermost first
        try:
            where = os.stat(os.path.dirname(folder))
            if program.uid != 0 and where.st_uid == 0 and not where.st_mode & 0o022:
                continue  # this call can't rename it anyway
            syscalls.mount(folder, folder, "", syscalls.MS_BIND | syscalls.MS_REC)
        except FileNotFoundError:
            continue  # then the hidden path does not exist either, which is reported below


def _mounts_below(path: str) -> dict[str, int]:
    """`path` and the writable places mounted under it (a read-only root must not leave /usr writable, nor a volume),
    each with its flags: the kernel refuses to drop those that a mount brought along."""
    prefix = path.rstrip("/") + "/"
    found = {path: syscalls.MS_NOSUID | syscalls.MS_NODEV}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            words = line.split()
            target, kind = _unescape(words[4]), line.partition(" - ")[2].split()[0]
            below = target.startswith(prefix) and kind != "proc" and not target.startswith("/proc/")
            # Mounts in /dev, except shared memory, are read-only already or must be writable.
            if target == path or (below and (target == _SHARED_MEMORY or not target.startswith("/dev/"))):
                options = words[5].split(",")
                found[target] = sum(flag for name, flag in _KEPT.items() if name in options)
    return found


def _unescape(text: str) -> str:
    """mountinfo writes blanks, tabs, newlines and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _must_exist(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise RefusedError(f"view path {path!r}: {error.strerror}", code="view", errno=error.errno or 0) from error


def _enter_folder(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise RefusedError(f"{cwd}: {error.strerror}", code="cwd", errno=error.errno or 0) from error


def _execute(program: Program) -> int:
    try:
        return execute(program.argv, program.env)
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        raise RefusedError("argument list too long", code="too_big", errno=error.errno) from error
