"""The agent's process: answers requests one after the other, and forks for those that may take long."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from typing import NoReturn

from corral.engine import syscalls, wire
from corral.engine.agent import files, watch
from corral.engine.agent.reply import Reply
from corral.engine.errors import ExhaustedError, ProtocolError
from corral.engine.perform import Stage
from corral.engine.recipe import CODE_GID, CODE_UID
from corral.engine.trees import answer_continuations
from corral.inside import filerequests
from corral.inside.files import TurnTakenError, read_all
from corral.inside.lines import MAX_EDIT_BYTES
from corral.inside.refusal import RefusedError, describe_refusal

_OPERATIONS: dict[str, files.Operation] = {
    "open": files.open_for_reading,
    "write": files.write,
    "write_stream": files.write_stream,
    "pack": files.pack,
    "unpack": files.unpack,
    "watch": watch.watch,
}
_QUICK = frozenset(("open", "write", *filerequests.QUICK))
_SLOW = frozenset((*_OPERATIONS, *filerequests.SLOW)) - _QUICK


def serve_files(channel_fd: int, stage: Stage) -> NoReturn:
    """Become the agent. Ends when the host closes the channel, and with init in any case."""
    status = 1
    try:
        channel = _settle(channel_fd, stage)
        while True:
            received = wire.receive(channel)
            if received is None:
                break
            _answer(channel, *received)
        status = 0
    except (OSError, ProtocolError, ExhaustedError):
        status = 1
    finally:
        os._exit(status)


def _settle(channel_fd: int, stage: Stage) -> socket.socket:
    # Let the kernel drop finished children: the agent does not wait for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    answer_continuations()
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)
    os.dup2(channel_fd, 3)
    syscalls.close_range(4)
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.chdir("/")
    os.umask(0o022)
    if not stage.identity.rootless:
        os.setgroups([])
        syscalls.set_file_identity(CODE_UID, CODE_GID)
    syscalls.set_capabilities(0)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    stage.seccomp.install()
    return socket.socket(fileno=3)


def _answer(channel: socket.socket, message: wire.Message, descriptors: list[int]) -> None:
    if not descriptors:
        return
    reply = Reply(socket.socket(fileno=descriptors.pop(0)))
    operation = message.get("op", "")
    try:
        if operation not in _QUICK and operation not in _SLOW:
            _refuse(reply, RefusedError("unknown", 0, f"unknown operation {operation!r}"))
        elif operation in _SLOW or not _run_at_once(message, descriptors, reply):
            pid = os.fork()
            if pid == 0:
                channel.close()
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.alarm(int(message.get("timeout", 0)))
                _run(message, descriptors, reply)
                os._exit(0)
    except OSError as error:
        _refuse(reply, error)
    finally:
        reply.close()
        wire.close_all(descriptors)


def _run_at_once(message: wire.Message, descriptors: list[int], reply: Reply) -> bool:
    """False if it would have to wait, for as long as a program likes: all other requests would wait with it."""
    try:
        _run({**message, "wait": False}, descriptors, reply)
    except TurnTakenError:
        return False
    return True


def _run(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    try:
        function = _OPERATIONS.get(message["op"], _answer_request)
        function(message, descriptors, reply)
    except Exception as error:  # noqa: BLE001 - `describe_refusal` decides which of them are refusals
        _refuse(reply, error)


def _answer_request(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    for descriptor in descriptors:
        os.lseek(descriptor, 0, os.SEEK_SET)  # it was read before, if `_run_at_once` could not finish
    payloads = [read_all(descriptor, limit=MAX_EDIT_BYTES) for descriptor in descriptors]
    last = filerequests.answer(message, payloads, reply.add)
    reply.flush()
    reply.send(last)


def _refuse(reply: Reply, error: Exception) -> None:
    refusal = describe_refusal(error)
    if refusal is None:
        raise error
    with contextlib.suppress(OSError):  # the client has gone
        wire.send(reply.sock, refusal)
