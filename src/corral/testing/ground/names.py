"""A name server whose answers are scripted."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

_TYPES = {1: "A", 28: "AAAA"}
_NO_SUCH_NAME, _BROKEN = 3, 2


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered: those of the addresses that have the type that was asked for."""

    addresses: tuple[str, ...] = ()
    ttl: int = 0
    delay_seconds: float = 0.0
    broken: bool = False
    """Answer that the server could not find out."""


class NameServer:
    """Answers on 127.0.0.1:53 until it is closed. `asked` are the questions so far, as (name, type)."""

    def __init__(self, answer: Callable[[str, str], Answer | None]) -> None:
        self.asked: list[tuple[str, str]] = []
        self._answer = answer
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> NameServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop answering."""
        # An empty packet wakes the thread, which closing alone would not.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waking:
            waking.sendto(b"", ("127.0.0.1", 53))
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, sender = self._socket.recvfrom(4096)
            if not query:
                return
            threading.Thread(target=self._reply, args=(query, sender), daemon=True).start()

    def _reply(self, query: bytes, sender: tuple[str, int]) -> None:
        try:
            name, kind, end = _read_question(query)
        except (IndexError, struct.error, UnicodeDecodeError):
            return
        wanted = _TYPES.get(kind, str(kind))
        self.asked.append((name, wanted))
        answer = self._answer(name, wanted)
        code = _NO_SUCH_NAME if answer is None else _BROKEN if answer.broken else 0
        records = b""
        count = 0
        if answer is not None and not answer.broken:
            time.sleep(answer.delay_seconds)
            packed = [ip_address(text).packed for text in answer.addresses]
            fitting = [data for data in packed if _TYPES.get(kind) == {4: "A", 16: "AAAA"}[len(data)]]
            count = len(fitting)
            records = b"".join(struct.pack("!HHHIH", 0xC00C, kind, 1, answer.ttl, len(data)) + data for data in fitting)
        head = query[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, count, 0, 0)
        self._socket.sendto(head + query[12:end] + records, sender)


def _read_question(query: bytes) -> tuple[str, int, int]:
    labels, position = [], 12
    while length := query[position]:
        labels.append(query[position + 1 : position + 1 + length].decode("ascii").lower())
        position += 1 + length
    (kind,) = struct.unpack_from("!H", query, position + 1)
    return ".".join(labels), kind, position + 5
