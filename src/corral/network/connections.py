"""The sandbox's connections: accepted one by one, judged, and refused if the policy does not permit them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field
from typing import Final

from corral.inside.nolinks import on_error
from corral.network import explicit
from corral.network.denials import DenialLog
from corral.network.heads import MalformedHeadError
from corral.network.hello import MalformedError
from corral.network.inner import MAX_WAITING, find_target
from corral.network.judge import LookupFailedError, NoSuchNameError, RefusedError, Target
from corral.network.limits import Meter
from corral.network.names import NameTable, is_stand_in
from corral.network.outside import Outside, UnreachableError, parse_address
from corral.network.passage import Passage, Policy
from corral.network.stream import FAST_CONNECTIONS, SocketStream, SpentError, bound_buffers

_AT_ONCE: Final = 64
"""So many are accepted before others have their turn."""
_EXPLICIT: Final = "proxy"
"""The host in a denial of a connection to the proxy, which has not said yet where it goes."""


@dataclass
class Terms:
    """What new connections are held to. Replaced by a change of policy."""

    policy: Policy
    outside: Outside
    described: str


@dataclass(eq=False)
class _Connection:
    """One that is open."""

    client: SocketStream
    task: asyncio.Task[None] | None = None
    passage: Passage | None = None
    """Once it is connected."""
    told: bool = False
    """What was refused is written down already."""
    streams: list[SocketStream] = field(default_factory=list)

    def reset(self) -> None:
        """Let both sides see an error."""
        for stream in (self.client, *self.streams):
            stream.reset()

    def end(self) -> None:
        """End it, from another task than its own."""
        self.reset()
        if self.task is not None:
            self.task.cancel()


class Connections:
    """All that are open."""

    def __init__(
        self, listeners: list[socket.socket], terms: Terms, names: NameTable, meter: Meter, log: DenialLog
    ) -> None:
        self._listeners = listeners
        self._terms = terms
        self._names = names
        self._meter = meter
        self._log = log
        self._open: set[_Connection] = set()

    def open(self) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            listener.setblocking(False)
            loop.add_reader(listener, self._accept, listener)

    def change(self, terms: Terms) -> None:
        """From now on, another policy. Connections that it does not permit end."""
        self._terms = terms
        for connection in list(self._open):
            if not self._may_go_on(connection):
                connection.end()

    def _may_go_on(self, connection: _Connection) -> bool:
        """One that has not been judged yet is judged by the new policy, and looks again when it is connected."""
        judge, passage = self._terms.policy.judge, connection.passage
        if passage is None:
            return True
        inner = passage.inner_target
        return judge.still_permits(passage.target, passage.address) and (
            inner == passage.target or judge.permits_name(inner.host, inner.port)
        )

    def accept_waiting(self) -> None:
        """Accept what waits now, at most as many as may wait."""
        for listener in self._listeners:
            for _ in range(MAX_WAITING // _AT_ONCE + 1):
                self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # none is left; or no descriptor is, and then the next turn tries again
            with contextlib.suppress(OSError):
                self._take(sock, find_target(sock, listener))

    def _take(self, sock: socket.socket, asked: tuple[str, int] | None) -> None:
        """Serve a connection, unless a limit is reached."""
        with on_error(sock.close):
            if len(self._open) >= FAST_CONNECTIONS:
                bound_buffers(sock)
            client = SocketStream(sock)
        limit = None
        if not self._meter.attempt():
            limit = "rate"
        elif len(self._open) >= self._meter.most_connections:
            limit = "connections"
        elif self._meter.is_spent:
            limit = "bytes"
        if limit is not None:
            self._deny_place(asked, limit)
            client.reset()
            return
        connection = _Connection(client)
        self._open.add(connection)
        self._meter.connections = len(self._open)
        connection.task = asyncio.get_running_loop().create_task(self._serve(connection, asked))
        connection.task.add_done_callback(lambda done: self._forget(connection, done))

    def _forget(self, connection: _Connection, done: asyncio.Task[None]) -> None:
        self._open.discard(connection)
        self._meter.connections = len(self._open)
        if not done.cancelled():
            done.exception()  # looked at: nobody else does, and nothing is printed

    async def _serve(self, connection: _Connection, asked: tuple[str, int] | None) -> None:
        client = connection.client
        try:
            if asked is None:
                await explicit.serve(client, self._make_doors(connection))
            else:
                passage = await self._enter(connection, self._name(asked))
                await passage.run()
        except RefusedError as error:
            self._deny(connection, error.host, error.rule, port=None if asked is None else asked[1])
            connection.reset()
        except (MalformedHeadError, MalformedError):
            self._deny(connection, None, "protocol")
            connection.reset()
        except SpentError:
            self._deny(connection, None, "bytes")
            self._end_others(connection)
            connection.reset()
        except (NoSuchNameError, LookupFailedError, UnreachableError, OSError, TimeoutError, EOFError):
            connection.reset()
        finally:
            for stream in (client, *connection.streams):
                stream.close()

    def _name(self, asked: tuple[str, int]) -> Target:
        address = parse_address(asked[0])
        return self._find(Target(str(address), asked[1], address))

    def _find(self, target: Target) -> Target:
        """An address that stands for a name, as that name. Raises: RefusedError if nobody knows for which."""
        if target.address is None or not is_stand_in(target.address):
            return target
        name = self._names.name_of(target.address)
        if name is None:
            raise RefusedError(self._terms.policy.judge.rule_for_unlisted, host=target.host)
        return Target(name, target.port)

    async def _enter(self, connection: _Connection, target: Target) -> Passage:
        """Judge where a connection goes, and connect it. Raises: as `explicit.Doors.open`."""
        while True:
            terms = self._terms
            connection.passage = None
            try:
                permit = await terms.policy.judge.judge(target)
            except RefusedError as error:
                raise RefusedError(error.rule, host=target.host) from None
            way = await terms.outside.connect(permit)
            connection.streams.append(way.stream)
            if terms is self._terms:
                connection.passage = Passage(
                    connection.client,
                    way,
                    target,
                    lambda: self._terms.policy,
                    deny=lambda host, rule: self._deny(connection, host, rule),
                )
                return connection.passage
            way.stream.close()  # the policy has changed meanwhile

    def _make_doors(self, connection: _Connection) -> explicit.Doors:
        async def enter(target: Target) -> Passage:
            if connection.streams and not self._meter.attempt():  # the first was counted when it was accepted
                self._log.add(target.host, target.port, "rate")
                raise RefusedError("rate")
            for stream in connection.streams:
                stream.close()
            connection.streams.clear()
            try:
                return await self._enter(connection, self._find(target))
            except RefusedError as error:
                self._log.add(error.host or target.host, target.port, error.rule)
                raise

        return explicit.Doors(
            open=enter,
            deny=self._log.add,
            unlisted=lambda: self._terms.policy.judge.rule_for_unlisted,
            allowed=lambda: self._terms.described,
        )

    def _deny(self, connection: _Connection, host: str | None, rule: str, *, port: int | None = None) -> None:
        if connection.told:
            return
        connection.told = True
        target = None if connection.passage is None else connection.passage.inner_target
        shown = host or (target.host if target is not None else _EXPLICIT)
        self._log.add(shown, port if target is None else target.port, rule)

    def _deny_place(self, asked: tuple[str, int] | None, rule: str) -> None:
        """Write down one that is not even looked at."""
        if asked is None:
            self._log.add(_EXPLICIT, None, rule)
            return
        name = self._names.name_of(parse_address(asked[0]))
        self._log.add(name or asked[0], asked[1], rule)

    def _end_others(self, own: _Connection) -> None:
        for connection in list(self._open):
            if connection is not own:
                connection.end()
