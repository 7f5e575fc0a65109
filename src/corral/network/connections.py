"""The sandbox's connections: accepted one by one, judged, and refused if the policy does not permit them."""

from __future__ import annotations

import asyncio
import socket
import struct
from ipaddress import ip_address
from typing import Final

from corral.network.denials import DenialLog
from corral.network.inner import find_target
from corral.network.judge import Judge
from corral.network.limits import Meter
from corral.network.names import NameTable
from corral.network.settings import GateSettings

_AT_ONCE: Final = 64
_RESET: Final = struct.pack("ii", 1, 0)


class Connections:
    """All that are open."""

    def __init__(
        self,
        listeners: list[socket.socket],
        judge: Judge,
        names: NameTable,
        meter: Meter,
        log: DenialLog,
        settings: GateSettings,
    ) -> None:
        self._listeners = listeners
        self._judge = judge
        self._names = names
        self._meter = meter
        self._log = log

    def open(self) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            listener.setblocking(False)
            loop.add_reader(listener, self._accept, listener)

    def change(self, judge: Judge, settings: GateSettings) -> None:
        """From now on, another policy."""
        self._judge = judge

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            asked = find_target(sock, listener)
            if asked is not None:
                self._meter.attempt()
                name = self._names.name_of(ip_address(asked[0]))
                self._log.add(name or asked[0], asked[1], self._judge.rule_for_unlisted)
            reset(sock)


def reset(sock: socket.socket) -> None:
    """Close a socket so that the other end sees a reset."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    finally:
        sock.close()
