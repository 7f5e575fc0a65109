"""Connections to ports of a sandbox through a program in it, for backends that can't reach its network otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from corral.base.dialling import no_room, port_closed
from corral.base.process import AsyncProcess
from corral.concurrency.waiting import cancel_all
from corral.errors import CorralError, SandboxError
from corral.inside.bundle import bundle
from corral.results import OutputChunk

_ANSWER_SECONDS = 30.0
"""For the program to start, and to try both addresses."""
_LOOK_SECONDS = 1.0
_PIECE_BYTES = 64 * 1024
_ANSWER = re.compile(rb"([-+?]|!([0-9]{1,4}))\n")
_LONGEST_ANSWER = 8

Keep = Callable[[Coroutine[Any, Any, None]], object]


def relay_text(port: int) -> str:
    """The program, for a Python inside."""
    return f"{bundle('relay').decode()}\nrelay_port({port})\n"


async def dial_by_program(process: AsyncProcess, port: int, *, sandbox_id: str, keep: Keep) -> socket.socket:
    """The connection that a program has made which relays it by its standard input and output, and says so first.

    `keep` starts a task, in this event loop, and keeps it until it ends: the process belongs to it.

    Raises:
        PortClosedError: nothing listens on that port.
        HostExhaustedError: no sockets or memory left.
        SandboxError: the program did not say what it is to say.
    """
    output = process.output()
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            first = await _check(output, port, sandbox_id=sandbox_id)
        ours, theirs = socket.socketpair()
    except BaseException as error:
        keep(_end(process, output))
        if isinstance(error, TimeoutError):
            raise port_closed(port, sandbox_id=sandbox_id) from None
        raise
    for end in (ours, theirs):
        end.setblocking(False)
    keep(_relay(process, output, ours, first))
    return theirs


async def _check(output: AsyncGenerator[OutputChunk, None], port: int, *, sandbox_id: str) -> bytes:
    """What came after the first line, if that says that there is a connection."""
    said = b""
    async for chunk in output:
        said += chunk.data if chunk.stream == "stdout" else b""
        if b"\n" in said or len(said) > _LONGEST_ANSWER:
            break
    found = _ANSWER.match(said)
    if found is not None and found[1] == b"+":
        return said[found.end() :]
    if found is not None and found[1] == b"-":
        raise port_closed(port, sandbox_id=sandbox_id)
    if found is not None and found[2] and (shortage := no_room(port, int(found[2]), sandbox_id=sandbox_id)):
        raise shortage
    raise SandboxError(
        f"no connection to port {port}: the program that makes it did not start", sandbox_id=sandbox_id, op="dial",
        hint="the image needs python3, or sh, grep and nc",
    )  # fmt: skip


async def _relay(
    process: AsyncProcess, output: AsyncGenerator[OutputChunk, None], ours: socket.socket, first: bytes
) -> None:
    loop = asyncio.get_running_loop()
    sending = asyncio.ensure_future(_send(ours, process))
    try:
        with ours, contextlib.suppress(OSError, CorralError):
            await loop.sock_sendall(ours, first)
            async for chunk in output:
                if chunk.stream == "stdout":
                    await loop.sock_sendall(ours, chunk.data)
    finally:
        await cancel_all(sending)
        await _end(process, output)


async def _send(ours: socket.socket, process: AsyncProcess) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, CorralError):
        while piece := await loop.sock_recv(ours, _PIECE_BYTES):
            await process.write(piece)
        await process.close_stdin()
        # It may still read. Nothing wakes us when it is closed as well, so that is looked for.
        while not _is_closed(ours):  # noqa: ASYNC110 - a poll of the kernel, which tells no event
            await asyncio.sleep(_LOOK_SECONDS)
        process.end_tree("cancelled")


def _is_closed(ours: socket.socket) -> bool:
    """Whether the other end of a pair is closed, not only for sending."""
    poll = select.poll()
    poll.register(ours, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


async def _end(process: AsyncProcess, output: AsyncGenerator[OutputChunk, None]) -> None:
    with contextlib.suppress(CorralError):
        await output.aclose()
        await process.aclose()
