"""Children of the single-threaded launcher and keepers: one that may read all files the code has written, also those
that it has locked against its own user; and one that works in the background."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from corral.engine import syscalls
from corral.inside.nolinks import on_error, opened


def fork_reader(work: Callable[[int], NoReturn]) -> int:
    """A child that may read everything the code has written; returns the pipe on which it answers.

    An ordinary user's code can create files that its own user may not read. In a new user namespace with that one id,
    the child has the capability to read them nevertheless.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with opened(writer), on_error(os.close, reader):
        if os.geteuid() == 0:
            if os.fork() == 0:
                work(writer)
            return reader
        go_reader, go_writer = os.pipe2(os.O_CLOEXEC)
        with opened(go_reader), opened(go_writer):
            pid = syscalls.clone(syscalls.CLONE_NEWUSER)
            if pid == 0:
                os.close(go_writer)
                if not os.read(go_reader, 1):
                    os._exit(1)
                work(writer)
            proc = Path(f"/proc/{pid}")
            (proc / "setgroups").write_text("deny")
            (proc / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1")
            (proc / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1")
            os.write(go_writer, b"1")
    return reader


def fork_in_background(work: Callable[[], object]) -> None:
    """Do something in a child of low priority; if no process can be created now, not at all."""
    try:
        if os.fork() != 0:
            return
    except OSError:
        return
    try:
        syscalls.close_range(3)
        with contextlib.suppress(OSError):
            os.nice(10)
        work()
    finally:
        os._exit(0)
