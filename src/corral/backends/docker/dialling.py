"""Connections to ports of a container. Its loopback is reached by an exec in it, also where the daemon is elsewhere."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from corral.base.dialprogram import Keep, dial_by_program, relay_text
from corral.base.process import AsyncProcess
from corral.protocol import SpawnRequest

_OUTPUT_BYTES = 4096
# Where there is no Python: /proc tells who listens, since nc does not say when it has connected.
_SHELL = r"""
listens() { grep -Eq "^ *[0-9]+: ($1):$(printf %04X "$port") 0+:0000 0A " "/proc/net/$2" 2>/dev/null; }
port=$1
command -v nc >/dev/null && command -v grep >/dev/null || { echo '?'; exit 0; }
if listens '0100007F|00000000' tcp; then address=127.0.0.1
elif listens '0{32}|0{24}01000000' tcp6; then address=::1
else echo -; exit 0; fi
echo +
exec nc $address "$port"
"""


async def dial(
    spawn: Callable[[SpawnRequest], Awaitable[AsyncProcess]], port: int, *, sandbox_id: str, python: bool, keep: Keep
) -> socket.socket:
    """In the I/O thread. Raises: as `dial_by_program`, and what `spawn` raises."""
    if python:
        argv = ("python3", "-I", "-S", "-c", relay_text(port))
    else:
        argv = ("/bin/sh", "-c", _SHELL, "sh", str(port))
    request = SpawnRequest(
        argv=argv, env={}, cwd="/", user="", timeout=None, stdin=True, output_limit_bytes=_OUTPUT_BYTES, listened=True
    )
    return await dial_by_program(await spawn(request), port, sandbox_id=sandbox_id, keep=keep)
