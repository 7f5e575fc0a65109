"""The sandbox's lookups: a permitted name gets an address that stands for it, every other name does not exist."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any, Final

from corral.network import dns
from corral.network.denials import DenialLog
from corral.network.judge import Judge, LookupFailedError, NoSuchNameError, RefusedError
from corral.network.limits import Meter
from corral.network.names import NameTable

ANSWER_SECONDS: Final = 30
"""How long a program may remember an answer. Each connection is judged anew in any case."""
_LOOPBACK: Final = IPv4Address("127.0.0.1")
_AT_ONCE: Final = 64
"""So many datagrams are read before others have their turn."""
_QUERY_WEIGHT: Final = 0.5
"""A program asks for both kinds of addresses, and means one lookup."""
_SAME_LOOKUP_SECONDS: Final = 1.0
_MOST_RECENT: Final = 256


class Lookups:
    """The DNS of one sandbox."""

    def __init__(
        self,
        sock: socket.socket,
        judge: Judge,
        names: NameTable,
        meter: Meter,
        log: DenialLog,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = sock
        self._judge = judge
        self._names = names
        self._meter = meter
        self._log = log
        self._clock = clock
        self._recent: OrderedDict[str, tuple[float, set[int]]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Begin to answer."""
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def change(self, judge: Judge) -> None:
        """From now on, another policy."""
        self._judge = judge

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                # Init has the socket as well, and could make it a blocking one.
                data, place = self._socket.recvfrom(dns.MAX_QUERY_BYTES + 1, socket.MSG_DONTWAIT)
            except OSError:
                return
            question = dns.read_query(data)
            if question is None:
                continue
            reply = self._answer_at_once(question)
            if reply is not None:
                self._send(reply, place)
            else:
                task = asyncio.get_running_loop().create_task(self._answer_later(question, place))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _answer_at_once(self, question: dns.Question) -> bytes | None:
        """The answer, unless the host has to be asked."""
        if not question.standard:
            return dns.answer(question, dns.NOT_IMPLEMENTED)
        if question.is_reverse:
            return dns.answer(question, dns.NO_SUCH_NAME)  # no address here has a name; asking for one is no attempt
        if question.name is not None and self._judge.is_of_sandbox(question.name):
            if question.kind == dns.A:
                return dns.answer_with(question, _LOOPBACK, seconds=ANSWER_SECONDS)
            return dns.answer(question)
        if not self._meter.attempt(_QUERY_WEIGHT):
            self._deny(question, "rate")
            return dns.answer(question, dns.SERVER_FAILURE)
        if question.name is None or not self._judge.permits_name(question.name):
            if not self._is_of_permitted(question.name or ""):
                self._deny(question, self._judge.rule_for_unlisted)
            return dns.answer(question, dns.NO_SUCH_NAME)
        return None

    def _is_of_permitted(self, name: str) -> bool:
        """True for a service of a permitted name, as apt asks for: `_http._tcp.example.org`. Looked up nowhere."""
        host = name
        while host.startswith("_"):
            host = host.partition(".")[2]
        return host != name and bool(host) and self._judge.permits_name(host)

    async def _answer_later(self, question: dns.Question, place: tuple[Any, ...]) -> None:
        name, judge = question.name, self._judge
        assert name is not None
        try:
            await judge.judge_lookup(name)
        except RefusedError as error:
            self._deny(question, error.rule)
            reply = dns.answer(question, dns.NO_SUCH_NAME)
        except NoSuchNameError:
            reply = dns.answer(question, dns.NO_SUCH_NAME)
        except LookupFailedError:
            reply = dns.answer(question, dns.SERVER_FAILURE)
        else:
            if question.kind == dns.A:
                reply = dns.answer_with(question, self._names.address_of(name), seconds=ANSWER_SECONDS)
            else:
                reply = dns.answer(question)
        self._send(reply, place)

    def _deny(self, question: dns.Question, rule: str) -> None:
        """Write a denial down, once for all kinds of addresses that a program asks for together."""
        host, now = question.name or question.text, self._clock()
        moment, kinds = self._recent.get(host, (-1e9, set()))
        if now - moment < _SAME_LOOKUP_SECONDS and question.kind not in kinds:
            kinds.add(question.kind)
            return
        self._recent[host] = (now, {question.kind})
        self._recent.move_to_end(host)
        if len(self._recent) > _MOST_RECENT:
            self._recent.popitem(last=False)
        self._log.add(host, None, rule)

    def _send(self, reply: bytes, place: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # whoever asked has gone, or does not read
            self._socket.sendto(reply, socket.MSG_DONTWAIT, place)
