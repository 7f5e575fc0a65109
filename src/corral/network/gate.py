"""The gate: the process through which all traffic of one sandbox goes, on the host's side.

It answers the sandbox's lookups and accepts its connections, through sockets that were made inside and are held
outside. What the policy permits it connects; what it refuses it writes down first. It prints nothing, and an error of
one connection never ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import encodings.idna
import gc
import json
import os
import select
import signal
import socket
import threading
from typing import Any, Final

from corral.inside.nolinks import opened
from corral.network.confine import bound_descriptors, confine
from corral.network.connections import Connections, Terms
from corral.network.denials import DenialLog
from corral.network.injection import make_injector
from corral.network.judge import Judge
from corral.network.limits import Meter
from corral.network.lookups import Lookups
from corral.network.names import NameTable
from corral.network.outside import Outside
from corral.network.own import is_own_address
from corral.network.passage import Policy
from corral.network.resolve import HostResolver
from corral.network.settings import GateSettings, SettingsError

_MAX_REQUEST_BYTES: Final = 64 * 1024
_MAX_DESCRIPTORS: Final = 4
_TIDY_SECONDS, _IDLE_SECONDS = 1.0, 5.0
"""How often the count of bytes is written down."""


class Gate:
    """Everything that a gate has, wired together."""

    def __init__(self, start: dict[str, Any], settings: GateSettings) -> None:
        self._control = socket.socket(fileno=start["control"])
        self._log = DenialLog(start["denials"])
        self._meter = Meter(
            settings.limits,
            transferred=self._log.transferred,
            room=bound_descriptors(settings.limits.connections),
        )
        self._resolver = HostResolver()
        names = NameTable()
        terms = self._make_terms(settings)
        judge = terms.policy.judge
        self._lookups = Lookups(socket.socket(fileno=start["dns"]), judge, names, self._meter, self._log)
        listeners = [socket.socket(fileno=start[name]) for name in ("tcp4", "tcp6") if start.get(name) is not None]
        self._connections = Connections(listeners, terms, names, self._meter, self._log)

    async def run(self) -> None:
        """Serve until the process is ended."""
        loop = asyncio.get_running_loop()
        self._control.setblocking(False)
        loop.add_reader(self._control, self._hear)
        self._lookups.open()
        self._connections.open()
        self._say({"ok": True, "ready": True})
        while True:
            await asyncio.sleep(_TIDY_SECONDS if self._meter.connections else _IDLE_SECONDS)
            self._log.save_transferred(self._meter.transferred)

    def _make_terms(self, settings: GateSettings) -> Terms:
        outside = Outside(settings.upstream, self._resolver, self._meter)
        judge = Judge(settings, self._resolver, is_own=is_own_address, by_proxy=outside.by_proxy)
        policy = Policy(judge, make_injector(settings), is_open=settings.mode == "open")
        return Terms(policy, outside, settings.described)

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, _MAX_REQUEST_BYTES, _MAX_DESCRIPTORS)
        except OSError:
            return
        if not data:
            os._exit(0)  # the holder has gone
        try:
            request = json.loads(data)
            operation = request.get("op") if isinstance(request, dict) else None
            if operation == "settings" and len(descriptors) == 1:
                self._change(GateSettings.from_memfd(descriptors[0]))
                self._say({"ok": True})
            elif operation == "judge":
                self._connections.accept_waiting()
                # After the first steps of their tasks, which refuse what needs no lookup.
                asyncio.get_running_loop().call_soon(lambda: self._say({"ok": True, "judged": True}))
            elif operation == "usage":
                self._say({"ok": True, **self._usage()})
            else:
                self._say({"ok": False, "error": "unknown"})
        except SettingsError as error:
            self._say({"ok": False, "error": f"settings: {error}"})
        except (ValueError, RecursionError):
            self._say({"ok": False, "error": "not JSON"})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _change(self, settings: GateSettings) -> None:
        terms = self._make_terms(settings)
        self._meter.change(settings.limits, room=bound_descriptors(settings.limits.connections))
        self._lookups.change(terms.policy.judge)
        self._connections.change(terms)

    def _usage(self) -> dict[str, int]:
        return {
            "connections": self._meter.connections,
            "attempts": self._meter.attempts,
            "denied": self._log.count,
            "bytes_in": self._meter.bytes_in,
            "bytes_out": self._meter.bytes_out,
        }

    def _say(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # a holder that does not read its answers goes without
            self._control.send(json.dumps(message).encode("ascii"))


def _end_with(control: int, sandbox: int) -> None:
    """End this process with its holder or its sandbox, whatever the loop is doing."""
    poll = select.poll()
    poll.register(control, select.POLLRDHUP)
    poll.register(sandbox, select.POLLIN)
    while not poll.poll():
        pass
    os._exit(0)


def main(start: dict[str, Any]) -> None:
    """Entry point of the gate's process; `booting.BOOT` says what `start` has."""
    with opened(os.open(os.devnull, os.O_RDWR)) as null:
        for stream in (0, 1, 2):
            os.dup2(null, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program whose sandbox this is
    settings = GateSettings.from_memfd(start["settings"])
    os.close(start["settings"])
    # A rule is for a whole name: no domain that the host searches is put behind it.
    os.environ["LOCALDOMAIN"] = ""
    # What is imported late has to be imported now: the user that we become may not read it.
    _ = encodings.idna.ToASCII
    make_injector(settings)
    readable = filter(None, (start["package"], settings.site_packages, settings.ca_file))
    confine("corral-gate", uid=start.get("uid"), gid=start.get("gid"), readable=readable)
    threading.Thread(target=_end_with, args=(start["control"], start["sandbox"]), daemon=True).start()
    gate = Gate(start, settings)
    gc.freeze()
    asyncio.run(gate.run())
