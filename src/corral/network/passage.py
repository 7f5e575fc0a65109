"""One permitted connection, from the moment that it is connected outside: what the client speaks is found out from its
first bytes, while those of the server already flow, and must be for the host that was permitted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from corral.network.checking import check_request, is_for, show_authority
from corral.network.exchange import HEAD_SECONDS, exchange, prepare, receive_request
from corral.network.heads import MalformedHeadError, RequestHead
from corral.network.hello import ClientHello, HelloReader, HelloWatch, MalformedError, looks_like_tls
from corral.network.injection import Injector, Tunnel
from corral.network.judge import Judge, RefusedError, Target
from corral.network.outside import HTTP_PORT, Way
from corral.network.pump import pump_to_end, relay
from corral.network.rules import read_name
from corral.network.sniff import Kind, sniff
from corral.network.stream import SocketStream, Stream, part, wait_for_any

HOLD_SECONDS: Final = 1.0
"""How long a client's first bytes are held while they might still begin a request, and no more come."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a connection is held to. A change of policy makes another; connections that it does not permit end."""

    judge: Judge
    injector: Injector | None = None
    is_open: bool = False
    """True if any name is permitted: then what a client calls the host does not matter, but for secrets."""


class Passage:
    """Both sides of one connection."""

    def __init__(
        self,
        client: SocketStream,
        way: Way,
        target: Target,
        policy: Callable[[], Policy],
        *,
        deny: Callable[[str | None, str], None] = lambda host, rule: None,
    ) -> None:
        """`policy` gives the one that holds at the moment; `deny` writes down a host and a rule before the program is
        answered, where that is not left to the caller."""
        self._client = client
        self._way = way
        self.server = way.stream
        self.target = target
        self.inner_target = target
        """With TLS: the host that it is for, which may be another one that is permitted."""
        self.address = way.address
        self._find_policy = policy
        self._deny = deny
        self._flowing: asyncio.Future[None] | None = None
        """The bytes of a server that spoke first."""

    @property
    def _policy(self) -> Policy:
        return self._find_policy()

    @property
    def _is_free(self) -> bool:
        return self._policy.is_open or self.target.address is not None

    async def run(self) -> None:
        """Serve it to its end. The caller closes both sides.

        Raises: RefusedError, MalformedHeadError, MalformedError, OSError, TimeoutError, SpentError.
        """
        if self._way.by_proxy is not None or (self.target.port == HTTP_PORT and not self._is_free):
            await self.serve_http(self._client, self.server)
        elif self._is_free and (self._policy.injector is None or self.target.address is not None):
            await relay(self._client, self.server)
        else:
            try:
                await self._find_out()
            finally:
                await self._stop_flowing()

    async def serve_http(self, client: Stream, server: Stream, *, secure: bool = False) -> None:
        """Relay requests, each checked by itself. Raises: as `run`."""
        first = True
        while True:
            if not first:
                ready = await wait_for_any(client, server)
                if client not in ready:
                    return  # the server has had enough
            head = await receive_request(client, first=first)
            if head is None:
                return
            first = False
            sent = self.make_request(head, secure=secure)
            outcome = await exchange(client, server, head, sent)
            if outcome == "raw":
                await relay(client, server)
                return
            if outcome == "close":
                await part(client)
                return
            await asyncio.sleep(0)  # others have their turn, however fast these two are

    def make_request(self, head: RequestHead, *, secure: bool = False) -> RequestHead:
        """What the server gets for a request. Raises: RefusedError, MalformedHeadError."""
        target, injector = self.target, self._policy.injector
        wanted = injector is not None and target.address is None and injector.wants(target.host, target.port)
        sent = prepare(check_request(head, target, strict=not self._is_free or wanted or secure))
        if injector is not None and target.address is None and is_for(sent, target):
            sent = injector.rewrite(sent, target.host, target.port, secure=secure)
        if self._way.by_proxy is not None and not secure:
            sent = replace(sent, target=f"http://{show_authority(target)}{sent.target}")
            if self._way.by_proxy.login is not None:
                sent = sent.adding("Proxy-Authorization", self._way.by_proxy.login)
        return sent

    async def _find_out(self) -> None:
        kind, sent = await self._listen()
        if kind == "http":
            if sent or self._flowing is not None:
                raise MalformedHeadError("a request after something else")
            await self.serve_http(self._client, self.server)
        elif kind == "tls":
            await self._pass_tls()
        elif kind == "refused":
            raise MalformedHeadError("not what it seems")
        else:
            await relay(self._client, self.server, down=self._flowing)

    async def _listen(self) -> tuple[Kind, bool]:
        """What the client speaks, and whether some of it has been sent on already. The server may speak first."""
        client, sent = self._client, 0
        seen = bytearray(client.ahead)  # what came with the request for a tunnel
        client.ahead.clear()
        try:
            while (kind := sniff(seen)) is None:
                held = len(seen) > sent and looks_like_tls(seen) is False
                waiting = (client,) if self._flowing is not None else (client, self.server)
                ready = await wait_for_any(*waiting, seconds=HOLD_SECONDS if held else None)
                if self.server in ready:
                    self._flowing = asyncio.ensure_future(pump_to_end(self.server, client))
                if client in ready:
                    if not await client.fill():
                        return "other", sent > 0  # too little for anything that has a host
                    seen += client.ahead
                    client.ahead.clear()
                elif held and not ready:
                    # It may wait for an answer to this. Should it become a request after all, that is refused.
                    await self.server.send(bytes(seen[sent:]))
                    sent = len(seen)
        finally:
            client.ahead[:0] = seen[sent:]
        return kind, sent > 0

    async def _pass_tls(self) -> None:
        client, target = self._client, self.target
        hello = await self._read_hello()
        name = target.host
        if hello.server_name is not None:
            plain = hello.server_name == hello.server_name.strip()  # what `read_name` strips, the server may not
            asked = read_name(hello.server_name) if plain else None
            if asked is None or not (asked == name or self._policy.judge.permits_name(asked, target.port)):
                raise RefusedError("tls", host=hello.server_name)
            name = asked
        self.inner_target = replace(target, host=name)
        injector = self._policy.injector
        if injector is not None and injector.wants(name, target.port):
            if self._flowing is not None:
                raise MalformedHeadError("a server that speaks before its client, in TLS")
            inner = Passage(client, self._way, self.inner_target, self._find_policy)

            async def serve_http(inside: Stream, outside: Stream) -> None:
                try:
                    await inner.serve_http(inside, outside, secure=True)
                except RefusedError as error:
                    self._deny(error.host, error.rule)
                    raise
                except MalformedHeadError:
                    self._deny(None, "protocol")
                    raise

            await injector.run(Tunnel(client, self.server, name, target.port, hello, serve_http))
            return
        await relay(client, self.server, watch=HelloWatch(hello), down=self._flowing)

    async def _read_hello(self) -> ClientHello:
        """The client's first message, which stays ahead. Raises: MalformedError, TimeoutError, OSError."""
        reader = HelloReader()
        async with asyncio.timeout(HEAD_SECONDS):
            while (hello := reader.read(self._client.ahead)) is None:
                if not await self._client.fill():
                    raise MalformedError("it ended too early")
        return hello

    async def _stop_flowing(self) -> None:
        if self._flowing is not None:
            self._flowing.cancel()
            await asyncio.gather(self._flowing, return_exceptions=True)
