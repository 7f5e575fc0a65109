"""Lookups on the host: as the host does them, in threads, and remembered for a moment."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from corral.network.judge import LookupFailedError, NoSuchNameError
from corral.network.rules import Address

FOUND_SECONDS: Final = 5.0
NOT_FOUND_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 10.0
_THREADS: Final = 8
_MOST_WAITING: Final = 64
_MOST_REMEMBERED: Final = 1024
_TEMPORARY: Final = frozenset((socket.EAI_AGAIN, socket.EAI_SYSTEM, socket.EAI_MEMORY, socket.EAI_FAIL))

Ask = Callable[[str], list[Address]]


@dataclass
class _Remembered:
    until: float
    addresses: tuple[Address, ...] = ()


@dataclass
class HostResolver:
    """Names by `getaddrinfo`, with whatever the host is configured for."""

    ask: Ask = field(default_factory=lambda: ask_host)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lookup")
        self._remembered: OrderedDict[str, _Remembered] = OrderedDict()
        self._asking: dict[str, asyncio.Future[tuple[Address, ...]]] = {}

    async def look_up(self, name: str) -> Sequence[Address]:
        """As `judge.Resolver`. Whoever asks for the same name meanwhile waits for the same answer."""
        known = self._remembered.get(name)
        if known is not None and known.until > self.clock():
            if not known.addresses:
                raise NoSuchNameError
            return known.addresses
        asking = self._asking.get(name)
        if asking is None:
            if len(self._asking) >= _MOST_WAITING:
                raise LookupFailedError
            asking = asyncio.ensure_future(self._ask(name))
            self._asking[name] = asking
            asking.add_done_callback(lambda done: self._note(name, done))
        try:
            return await asyncio.wait_for(asyncio.shield(asking), PATIENCE_SECONDS)
        except TimeoutError:
            raise LookupFailedError from None

    async def _ask(self, name: str) -> tuple[Address, ...]:
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._pool, self.ask, name)
        except socket.gaierror as error:
            if error.errno in _TEMPORARY:
                raise LookupFailedError from None
            raise NoSuchNameError from None
        except (OSError, ValueError):
            raise LookupFailedError from None
        if not found:
            raise NoSuchNameError
        return tuple(found)

    def _note(self, name: str, done: asyncio.Future[tuple[Address, ...]]) -> None:
        """Remember an answer, whether or not anybody still waits for it."""
        self._asking.pop(name, None)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._remember(name, _Remembered(self.clock() + FOUND_SECONDS, done.result()))
        elif isinstance(error, NoSuchNameError):
            self._remember(name, _Remembered(self.clock() + NOT_FOUND_SECONDS))

    def _remember(self, name: str, answer: _Remembered) -> None:
        self._remembered[name] = answer
        self._remembered.move_to_end(name)
        while len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)


def ask_host(name: str) -> list[Address]:
    """The addresses of a name. An address with a zone is left out: it is of a neighbour. Raises: OSError."""
    found: list[Address] = []
    for family, _, _, _, place in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
        if family == socket.AF_INET or (family == socket.AF_INET6 and len(place) == 4 and place[3] == 0):
            address = ip_address(str(place[0]).partition("%")[0])
            if address not in found:
                found.append(address)
    return found
