"""The seam to the engine: requests from any event loop, and translation of its errors.

Nothing else of Corral sees an error of the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator

from corral.base.process import start_error
from corral.engine import errors as engine
from corral.engine import mounts, wire
from corral.engine.client import not_sent
from corral.engine.errors import GoneError, ProtocolError
from corral.engine.wire import Message
from corral.errors import (
    BackendUnavailableError,
    CapabilityError,
    CorralError,
    EngineFaultError,
    HostExhaustedError,
    MountError,
    SandboxError,
    SandboxPausedError,
    SnapshotNotFoundError,
    SpecError,
    VolumeExistsError,
    VolumeInUseError,
    VolumeNotFoundError,
    gone,
)
from corral.inside.nolinks import opened


async def ask(peer: socket.socket, message: wire.Message, descriptors: tuple[int, ...] = ()) -> socket.socket:
    """Send a request; returns the socket on which its answer will come.

    The kernel queues ten messages for a receiver that is busy, stopped or frozen, and then makes the sender wait: only
    this call waits, not the event loop.

    Raises:
        GoneError: the peer has closed the connection.
        ExhaustedError: this process has no descriptors or memory left.
        OSError: no socket can be created.
    """
    with wire.offering(wire.AnswerSocket) as (ours, theirs):
        try:
            await send(peer, message, (theirs.fileno(), *descriptors))
        except TimeoutError:
            raise
        except OSError as error:
            raise not_sent(error) from error
    return ours


async def send(sock: socket.socket, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message, waiting in the event loop while the receiver is busy. Raises: OSError."""
    while True:
        try:
            wire.send(sock, message, descriptors, wait=False)
        except BlockingIOError:
            with opened(os.dup(sock.fileno())) as own:  # a loop has one waiter per descriptor, and several may wait
                await wait_writable(own)
        else:
            return


async def receive(sock: socket.socket) -> tuple[wire.Message, list[int]]:
    """The next message and its descriptors.

    Raises:
        GoneError: the other side has ended.
    """
    sock.setblocking(False)
    while True:
        try:
            received = wire.receive(sock, allow_large=False)
        except BlockingIOError:
            await wait_readable(sock.fileno())
            continue
        if received is None:
            raise GoneError("the peer has closed the connection")
        return received


async def receive_message(sock: socket.socket) -> wire.Message:
    """As `receive`; descriptors, which should not be there, are closed."""
    message, descriptors = await receive(sock)
    wire.close_all(descriptors)
    return message


async def receive_within(sock: socket.socket, seconds: float) -> tuple[wire.Message, list[int]]:
    """As `receive`. Raises: GoneError also after a timeout."""
    try:
        async with asyncio.timeout(seconds):
            return await receive(sock)
    except TimeoutError as error:
        raise GoneError("no reply before the timeout") from error


async def answer(sock: socket.socket, *, lost: Callable[[wire.Message], object] | None = None) -> wire.Message:
    """The answer to a request; the socket is closed. Raises: as `receive`.

    If this is cancelled, either the answer can't be sent any more, which its sender notices, or it has arrived already:
    then `lost` is called with it.
    """
    try:
        return await receive_message(sock)
    except BaseException:
        if lost is not None and (late := _take_last(sock)) is not None:
            lost(late)
        raise
    finally:
        sock.close()


def _take_last(sock: socket.socket) -> wire.Message | None:
    """The message that has arrived and was not read. Nothing can arrive afterwards."""
    with contextlib.suppress(OSError, ProtocolError):
        sock.shutdown(socket.SHUT_RD)
        received = wire.receive(sock, allow_large=False)
        if received is not None:
            wire.close_all(received[1])
            return received[0]
    return None


async def read_pipe(descriptor: int, size: int) -> bytes:
    """The next bytes of a non-blocking pipe, empty at its end. Safe to cancel: no thread is left reading."""
    while True:
        try:
            return os.read(descriptor, size)
        except BlockingIOError:
            await wait_readable(descriptor)


async def wait_readable(descriptor: int) -> None:
    """Wait until there is data to read, or the peer has closed the connection."""
    loop = asyncio.get_running_loop()
    await _wait(loop, descriptor, loop.add_reader, loop.remove_reader)


async def wait_writable(descriptor: int) -> None:
    """Wait until something can be written, or a connection that was begun is there or refused."""
    loop = asyncio.get_running_loop()
    await _wait(loop, descriptor, loop.add_writer, loop.remove_writer)


async def write_pipe(descriptor: int, data: bytes) -> None:
    """Write all of `data` to a non-blocking pipe. Raises: OSError, above all BrokenPipeError."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            await wait_writable(descriptor)


async def write_stdin(descriptor: int, data: bytes) -> bool:
    """Write input to a program, and close the descriptor. False if the program has closed its end."""
    try:
        await write_pipe(descriptor, data)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


async def _wait(
    loop: asyncio.AbstractEventLoop, descriptor: int, add: Callable[..., object], remove: Callable[[int], object]
) -> None:
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, wake)
    try:
        await ready
    finally:
        remove(descriptor)


@contextlib.contextmanager
def mapped(*, sandbox_id: str | None = None, op: str) -> Iterator[None]:
    """Around every call into the engine: translates its errors."""
    try:
        yield
    except engine.EngineError as error:
        raise translate(error, sandbox_id=sandbox_id, op=op) from error
    except CorralError:
        raise  # some of them are an OSError as well, with the errno of a file inside
    except OSError as error:
        shortage = engine.explain_shortage(error)
        if shortage is None:
            raise
        raise translate(shortage, sandbox_id=sandbox_id, op=op) from error


def translate(error: engine.EngineError, *, sandbox_id: str | None, op: str) -> CorralError:
    """Corral's error for one of the engine's."""
    text = str(error)
    if isinstance(error, engine.GoneError):
        return gone(sandbox_id, op=op)
    if isinstance(error, engine.ExhaustedError):
        return HostExhaustedError(text, sandbox_id=sandbox_id, op=op, hint=error.hint)
    if isinstance(error, engine.SetupError) and error.step in mounts.HINTS:
        return MountError(text, sandbox_id=sandbox_id, op=op, hint=error.hint or mounts.HINTS[error.step])
    if isinstance(error, engine.UnsupportedError | engine.SetupError):
        return BackendUnavailableError(text, sandbox_id=sandbox_id, op=op, hint=error.hint or "run `corral doctor`")
    if isinstance(error, engine.RefusedError) and error.code in _REFUSALS:
        kind, hint = _REFUSALS[error.code]
        return kind(text, sandbox_id=sandbox_id, op=op, hint=error.hint or hint)
    return EngineFaultError(text, sandbox_id=sandbox_id, op=op)


_REFUSALS: dict[str, tuple[type[CorralError], str]] = {
    "paused": (SandboxPausedError, "resume() it"),
    "no_snapshot": (SnapshotNotFoundError, "list_snapshots() lists the existing ones"),
    "name_taken": (SpecError, "take another name, or delete that one"),
    "ephemeral": (CapabilityError, "create it without ephemeral=True"),
    "too_deep": (CapabilityError, "copy its files into a new sandbox"),
    "no_such_limit": (CapabilityError, "capabilities() lists the limits that are enforced here"),
    "not_still": (SandboxError, "try again"),
    "no_volume": (VolumeNotFoundError, "create it: `corral volume create NAME`, or Volume.create(name)"),
    "volume_exists": (VolumeExistsError, "take another name, or delete that one"),
    "volume_in_use": (VolumeInUseError, "close or delete those sandboxes first"),
    "no_quota": (CapabilityError, "leave the size out"),
    "unknown": (CapabilityError, "an earlier version of Corral holds the sandbox: stop and start it"),
    "os": (BackendUnavailableError, "check that the data folder has free space"),
}
"""Requests that the engine refuses: its code → the error, and its hint."""


def exec_error(answer: Message, *, cwd: str, sandbox_id: str) -> CorralError:
    """The error for a program that could not be started."""
    if answer.get("error") == "paused":
        return SandboxPausedError("the sandbox is paused", sandbox_id=sandbox_id, op="exec", hint="resume() it")
    return start_error(answer, cwd=cwd, sandbox_id=sandbox_id)
