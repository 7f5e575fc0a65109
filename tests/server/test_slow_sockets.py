"""Websockets whose clients do not read: what is held for them is counted for their key."""

import asyncio
import base64
import os
import select
import socket
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from corral.server.settings import MIB, ServerLimits
from server.test_stopping import make_sandbox, open_server, post

SOCKETS = 10
FIT = 6
"""So many that are slow fit into a budget of 1 MiB: each holds 160 KiB."""
FLOOD = "yes | head -c 12000000; sleep 1000"


async def connect(client: aiohttp.ClientSession, url: str) -> socket.socket:
    """A websocket of a client that reads the status line and no more."""
    address, loop = urlsplit(url), asyncio.get_running_loop()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # else the kernel would take the flood for it
    made.setblocking(False)
    await loop.sock_connect(made, (address.hostname, address.port))
    lines = (
        f"GET {address.path}?{address.query} HTTP/1.1",
        f"Host: {address.netloc}",
        f"Authorization: {client.headers['Authorization']}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
    )
    await loop.sock_sendall(made, "\r\n".join((*lines, "", "")).encode())
    assert await loop.sock_recv(made, 12) == b"HTTP/1.1 101"
    return made


def count_cut_off(sockets: list[socket.socket]) -> int:
    """Those whose connection was broken off. Without reading."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, 0)
    return len(poll.poll(0))


async def test_clients_that_do_not_read_are_cut_off_when_their_key_holds_too_much(tmp_path: Path) -> None:
    limits = ServerLimits(memory_per_key_bytes=MIB)
    async with open_server(tmp_path, limits) as (_, _, client, url, _), asyncio.timeout(120):
        base = await make_sandbox(client, url)
        await post(client, f"{base}/process/session", {"sessionId": "s"})
        body = {"command": FLOOD, "runAsync": True}
        command_id = (await post(client, f"{base}/process/session/s/exec", body))["cmdId"]
        log = f"{base}/process/session/s/command/{command_id}/logs?follow=true"
        sockets = [await connect(client, log) for _ in range(SOCKETS)]
        try:
            while count_cut_off(sockets) < SOCKETS - FIT:
                await asyncio.sleep(0.05)
            assert count_cut_off(sockets) < SOCKETS
        finally:
            for each in sockets:
                each.close()
