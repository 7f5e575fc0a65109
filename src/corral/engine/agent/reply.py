"""How an operation answers: messages on the socket that came with the request."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from corral.engine import wire

_BATCH = 200


class Reply:
    """The answering side of one request."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._batch: list[Any] = []
        self._batch_bytes = 0

    def send(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send the whole answer, or its last part."""
        wire.send(self.sock, {"ok": True, **message}, descriptors)

    def add(self, item: wire.Message) -> None:
        """Add one of many results; they are sent in batches, so that memory stays flat on both sides."""
        self._batch.append(item)
        self._batch_bytes += 200 + 6 * sum(len(value) for value in item.values() if isinstance(value, str))
        if len(self._batch) >= _BATCH or self._batch_bytes > 20_000:
            self.flush()

    def flush(self) -> None:
        """Send the results that have been added."""
        if self._batch:
            wire.send(self.sock, {"items": self._batch})
        self._batch = []
        self._batch_bytes = 0

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.sock.close()
