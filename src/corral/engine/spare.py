"""A spare: a child that init forks ahead, when it has nothing else to do, and that waits for its program.

Forking Python and setting limits takes longer than most programs run; a spare has done that already. It is init's own
code under init's own uid, so nothing inside can reach it before it becomes a program (rootless, where the uid is
shared, the code could kill it: then the next call simply forks).
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from typing import NoReturn

from corral.engine import syscalls, wire
from corral.engine.child import Program, become, prepare_child
from corral.engine.errors import EngineError
from corral.engine.perform import Stage
from corral.engine.trees import Started, Trees
from corral.inside.nolinks import on_error, opened


@dataclass(slots=True)
class Spare:
    """Init's side of a waiting child."""

    number: int
    started: Started
    report_fd: int
    door: socket.socket

    @classmethod
    def fork(cls, number: int, stage: Stage, trees: Trees, *, soft_limits: bool) -> Spare:
        """Fork one into the tree `number`. Raises: OSError if no process can be created now."""
        report_reader, report_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with opened(report_writer), on_error(os.close, report_reader), wire.offering(socket.socket) as (door, inner):

            def wait() -> NoReturn:
                _wait_for_program(inner, stage, report_writer, soft_limits=soft_limits)

            started = trees.start(number, wait)
        return cls(number, started, report_reader, door)

    def become(self, program: Program, terminal: str | None) -> bool:
        """Send it the program to run; False if it has ended."""
        message = {**program.to_message(), "terminal": terminal}
        try:
            wire.send(self.door, message, program.stdio)
        except OSError:
            return False
        finally:
            self.door.close()
        return True

    def drop(self) -> None:
        """Close its socket, because it is not needed or has died; it then exits."""
        with contextlib.suppress(OSError):
            self.door.close()
        os.close(self.report_fd)
        if self.started.status_fd is not None:
            os.close(self.started.status_fd)


def _wait_for_program(door: socket.socket, stage: Stage, report_fd: int, *, soft_limits: bool) -> NoReturn:
    try:
        # Close all descriptors of init: otherwise a terminal or a channel would never be closed.
        syscalls.close_all_but((0, 1, 2, door.fileno(), report_fd))
        prepare_child(stage, soft_limits=soft_limits)
        received = wire.receive(door)
    except (OSError, EngineError):
        os._exit(1)
    if received is None:
        os._exit(0)
    message, descriptors = received
    terminal = message.pop("terminal")
    program = Program.from_message(message, tuple(descriptors))
    become(program, stage, report_fd=report_fd, terminal=terminal)
