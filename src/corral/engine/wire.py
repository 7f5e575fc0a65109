"""Messages between the engine's processes: small JSON objects and descriptors over SOCK_SEQPACKET sockets.

Each request carries the socket for its answer, so that answers need no matching: any thread or event loop may send
requests, a closed answer socket is a cancellation, and a dead peer is an end of file.
Everything received is bounded in size, depth and number of descriptors, since the host does not trust init.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import resource
import socket
import stat
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from corral.engine.errors import ProtocolError, explain_shortage
from corral.inside.nolinks import opened

Message = dict[str, Any]
End = TypeVar("End", bound=socket.socket)

MAX_INLINE_BYTES: Final = 60_000
MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
MAX_DESCRIPTORS: Final = 32
MAX_DEPTH: Final = 200
"""Ours have five or six levels. The limit of json itself depends on the Python: 1,000 in 3.11, 10,000 in 3.13."""


class AnswerSocket(socket.socket):
    """The socket for an answer. Closing it cancels the request, and so does forgetting it."""

    def __del__(self) -> None:
        self.close()


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends. Raises: OSError when this process, or the machine, has no descriptors left."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def offering(kind: type[End]) -> Iterator[tuple[End, socket.socket]]:
    """Our end of a pair, and the end for a peer, closed with the block; if it raises, both are closed."""
    plain, theirs = make_pair()
    ours = kind(fileno=plain.detach())
    with theirs:
        try:
            yield ours, theirs
        except BaseException:
            ours.close()
            raise


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = (), *, wait: bool = True) -> None:
    """Send one message. A large one travels in a memory file as its first descriptor.

    Without `wait`, raises BlockingIOError if the receiver does not read.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    flags = 0 if wait else socket.MSG_DONTWAIT
    if len(body) <= MAX_INLINE_BYTES:
        _send_raw(sock, b"I" + body, descriptors, flags)
        return
    if len(body) > MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes is over the limit of {MAX_PAYLOAD_BYTES}")
    with opened(memory_file(body)) as carrier:
        _send_raw(sock, b"M", (carrier, *descriptors), flags)


def answer(reply: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> bool:
    """Send the one answer to a request and close its socket. False if the client has gone. Never waits: there is room
    for one message."""
    try:
        send(reply, message, descriptors, wait=False)
    except OSError:
        return False
    finally:
        reply.close()
    return True


def receive(
    sock: socket.socket, *, allow_large: bool = True, max_descriptors: int = MAX_DESCRIPTORS
) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors (the caller closes them); None at end of file.

    Raises:
        ProtocolError: malformed.
        ExhaustedError: this process has no descriptors left for it. The message is lost.
    """
    data, descriptors = _receive_raw(sock, max_descriptors)
    if not data and not descriptors:
        return None
    try:
        if data[:1] == b"M" and descriptors and allow_large:
            with opened(descriptors.pop(0)) as carrier:
                body = _read_carrier(carrier)
        elif data[:1] == b"I":
            body = data[1:]
        else:
            raise ProtocolError("a message has an unknown kind")
        message = json.loads(body)
        if not isinstance(message, dict):
            raise ProtocolError("a message is not an object")
        if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deep(message):
            raise ProtocolError("a message is nested too deeply")
    except (ValueError, RecursionError, OSError, ProtocolError) as error:
        close_all(descriptors)
        raise ProtocolError(f"unreadable message: {type(error).__name__}") from error
    return message, descriptors


def hear(sock: socket.socket, *, allow_large: bool = True) -> tuple[Message, list[int]] | None:
    """As `receive`, from a peer that is given up if it sends something malformed: None then, too."""
    try:
        return receive(sock, allow_large=allow_large)
    except ProtocolError:
        return None


def _is_deep(message: Message) -> bool:
    """Level by level: recursion would fail on exactly the messages that this check looks for."""
    level: list[Any] = [message]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors that came with a message."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def memory_file(content: bytes) -> int:
    """An unnamed file in memory holding `content`, positioned at its start."""
    descriptor = os.memfd_create("corral", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_carrier(carrier: int) -> bytes:
    about = os.fstat(carrier)
    if not stat.S_ISREG(about.st_mode):
        raise ProtocolError("a payload is not a file")
    size = about.st_size
    if size > MAX_PAYLOAD_BYTES:
        raise ProtocolError("a payload is over the limit")
    return os.pread(carrier, size, 0)


def _send_raw(sock: socket.socket, data: bytes, descriptors: tuple[int, ...], flags: int = 0) -> None:
    ancillary = []
    if descriptors:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    try:
        sent = sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL | flags)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        with _as_much_as_allowed():
            sent = sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL | flags)
    if sent != len(data):
        raise ProtocolError("a message was cut while being sent")


_raising = threading.Lock()


@contextlib.contextmanager
def _as_much_as_allowed() -> Iterator[None]:
    """Raise our own limit of open files for a moment.

    The kernel compares a user's descriptors in flight with the sender's limit. Code inside, which may have the same
    user, has a lower limit than we may set for ourselves: so it can't keep us from sending.
    """
    with _raising:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _receive_raw(sock: socket.socket, max_descriptors: int) -> tuple[bytes, list[int]]:
    space = socket.CMSG_SPACE(max_descriptors * 4)
    try:
        try:
            data, ancillary, flags, _ = sock.recvmsg(MAX_INLINE_BYTES + 64, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            # The peer has closed without reading our last message. The kernel says so once, and before what the peer
            # had sent, which is still there: the end of a program that we were about to kill.
            data, ancillary, flags, _ = sock.recvmsg(MAX_INLINE_BYTES + 64, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return b"", []
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    received = list(descriptors)
    if flags & socket.MSG_CTRUNC and len(received) < max_descriptors:
        close_all(received)
        shortage = explain_shortage(OSError(errno.EMFILE, "no free file descriptors for a message"))
        assert shortage is not None
        raise shortage
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(received)
        raise ProtocolError("a message is over the size limit")
    return data, received
