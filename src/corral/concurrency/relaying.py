"""Bytes between two connected sockets, both ways."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

from corral.concurrency.waiting import breathe, cancel_all

_PIECE_BYTES = 64 * 1024
_PROBE_AFTER_SECONDS = 60


async def relay(one: socket.socket, other: socket.socket) -> None:
    """Pass on what each sends, until both have finished; the caller closes the sockets, which must be non-blocking.

    A side that finishes is told to the other, which may still send. At most one piece for each direction is held: who
    does not read makes the other wait. Raises: OSError if one of them breaks.
    """
    for sock in (one, other):
        watch_for_death(sock)
    pumps = [asyncio.ensure_future(pump(one, other)), asyncio.ensure_future(pump(other, one))]
    try:
        await asyncio.gather(*pumps)
    finally:
        await cancel_all(*pumps)


async def pump(source: socket.socket, target: socket.socket) -> None:
    """Pass on one direction to its end, and its end. Raises: OSError."""
    loop = asyncio.get_running_loop()
    piece = memoryview(bytearray(_PIECE_BYTES))
    while size := await loop.sock_recv_into(source, piece):
        await loop.sock_sendall(target, piece[:size])
        await breathe()  # neither call waits while data comes and goes at once
    with contextlib.suppress(OSError):  # it has closed meanwhile
        target.shutdown(socket.SHUT_WR)


def watch_for_death(sock: socket.socket) -> None:
    """Have the kernel notice a peer that is gone without a word, so that its connection is not kept for ever."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_SECONDS)
