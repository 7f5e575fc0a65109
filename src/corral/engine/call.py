"""One call: a program that init started, from its start to the report of its end."""

from __future__ import annotations

import contextlib
import os
import pty
import socket
import time
from dataclasses import dataclass

from corral.engine import wire
from corral.engine.child import Program
from corral.engine.errors import RefusedError
from corral.engine.spare import Spare
from corral.engine.trees import Trees
from corral.inside.starting import set_window
from corral.inside.trees import read_status


@dataclass(slots=True)
class Call:
    """Init's state of a running program."""

    number: int
    program: Program
    channel: socket.socket
    pid: int
    program_pid: int
    status_fd: int | None
    report_fd: int
    started: float
    deadline: float | None
    oom_before: int
    reason: str = ""
    limit: str = ""
    ended: bool = False
    terminal_fd: int | None = None
    """The terminal's inner side, kept open so that its outer side does not hang up before the program has opened it."""
    master_fd: int | None = None
    """Its outer side, until it is handed to the client."""
    refusal: tuple[str, int, str] | None = None
    announced: bool = False

    @classmethod
    def start(cls, spare: Spare, program: Program, channel: socket.socket, *, oom_count: int) -> Call:
        """Let a waiting child become the program. Its start is announced when it runs.

        Raises:
            RefusedError: no terminal is available, or the child has died.
        """
        master, slave = _open_terminal(program) if program.pty else (None, None)
        terminal = os.ttyname(slave) if slave is not None else None
        if not spare.become(program, terminal):
            for descriptor in (master, slave):
                if descriptor is not None:
                    os.close(descriptor)
            raise RefusedError("the process that was to become the program has been killed", code="fork")
        now = time.monotonic()
        return cls(
            number=spare.number,
            program=program,
            channel=channel,
            pid=spare.started.pid,
            program_pid=spare.started.program_pid,
            status_fd=spare.started.status_fd,
            report_fd=spare.report_fd,
            started=now,
            deadline=now + program.timeout if program.timeout is not None else None,
            oom_before=oom_count,
            terminal_fd=slave,
            master_fd=master,
        )

    def signal(self, number: int, *, group: bool) -> None:
        """Signal the program, or its whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self.program_pid, number)

    def read_report(self) -> None:
        """Check whether the program runs, and tell the client if it does. A failure is reported at its end."""
        if self.announced or self.refusal is not None:
            return
        self.refusal = _read_report(self.report_fd)
        if self.refusal is None:
            self.announced = True
            with contextlib.suppress(OSError):  # a client gone by now is noticed on the channel
                wire.send(
                    self.channel,
                    {"started": self.program_pid, "tree": self.number},
                    (self.master_fd,) if self.master_fd is not None else (),
                )
        if self.master_fd is not None:
            os.close(self.master_fd)
            self.master_fd = None

    def judge(self, status: int, *, oom_count: int) -> bool:
        """True if it was killed because it was out of memory."""
        code, number = read_status(status)
        if self.reason in ("", "cancelled") and oom_count > self.oom_before and 137 in (code, 128 + number):
            self.reason = "oom"
        return self.reason == "oom"

    def finish(
        self, status: int, *, cpu_seconds: float | None, peak_kib: int | None, trees: Trees, unjudged: bool
    ) -> None:
        """Report the end, by the kernel's status alone; no output is parsed. `unjudged`: as of `Stage.has_unjudged`."""
        self.ended = True
        if self.terminal_fd is not None:
            os.close(self.terminal_fd)
            self.terminal_fd = None
        self.read_report()
        code, number = read_status(status)
        report: wire.Message = {"ended": True, "code": code, "signal": number, "limit": self.limit}
        if self.refusal is not None:
            report["error"], report["errno"], report["text"] = self.refusal
        if unjudged:
            report["unjudged"] = True
        report["reason"] = self.reason or ("signalled" if number else "exited")
        tree_cpu = trees.cpu_seconds(self.number)
        report["usage"] = {
            "cpu_seconds": tree_cpu if tree_cpu is not None else cpu_seconds,
            "cpu_of": "tree" if tree_cpu is not None else "process",
            "peak_memory_bytes": (peak_kib or 0) * 1024,
            "wall_seconds": time.monotonic() - self.started,
        }
        with contextlib.suppress(OSError):
            wire.send(self.channel, report)

    def close(self) -> None:
        """Close every descriptor."""
        os.close(self.report_fd)
        if self.status_fd is not None:
            os.close(self.status_fd)
        self.channel.close()


def _open_terminal(program: Program) -> tuple[int, int]:
    try:
        master, slave = pty.openpty()
    except OSError as error:
        raise RefusedError(f"no pseudo terminal: {error.strerror}", code="pty", errno=error.errno or 0) from error
    os.fchown(slave, program.uid, program.gid)
    set_window(master, program.rows, program.columns)
    return master, slave


def _read_report(report_fd: int) -> tuple[str, int, str] | None:
    try:
        parts = os.read(report_fd, 4096).decode(errors="replace").split("\0", 2)
    except BlockingIOError:
        return None
    if len(parts) != 3:
        return None
    return parts[0], int(parts[1]), parts[2]
