"""How an operation answers: messages on the socket that came with the request."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import Any

from corral.engine import wire
from corral.inside.nolinks import LinkFoundError

_BATCH = 200


class RefusedError(Exception):
    """An operation that can't be done; `code` is a stable word, `errno` the kernel's."""

    def __init__(self, code: str, number: int, text: str, **details: Any) -> None:
        super().__init__(text)
        self.code = code
        self.errno = number
        self.details = details

    @classmethod
    def from_os(cls, error: OSError) -> RefusedError:
        """The kernel's refusal."""
        if isinstance(error, LinkFoundError):
            return cls.for_link()
        return cls("os", error.errno or errno.EIO, error.strerror or str(error))

    @classmethod
    def for_link(cls) -> RefusedError:
        """A link where a path has none."""
        return cls("link", errno.ELOOP, "a part of the path has become a link")


class Reply:
    """The answering side of one request."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._batch: list[Any] = []
        self._batch_bytes = 0

    def send(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        """The whole answer, or its last part."""
        wire.send(self.sock, {"ok": True, **message}, descriptors)

    def add(self, item: Any, *, size: int = 200) -> None:
        """One of many results; sent in batches so that memory stays flat on both sides."""
        self._batch.append(item)
        self._batch_bytes += size
        if len(self._batch) >= _BATCH or self._batch_bytes > 20_000:
            self.flush()

    def flush(self) -> None:
        """Send what has been added so far."""
        if self._batch:
            wire.send(self.sock, {"items": self._batch})
        self._batch = []
        self._batch_bytes = 0

    def refuse(self, refusal: RefusedError) -> None:
        """The answer is no."""
        text = str(refusal).encode("utf-8", "replace").decode()[:1000]
        message = {"error": refusal.code, "errno": refusal.errno, "text": text, **refusal.details}
        with contextlib.suppress(OSError):
            wire.send(self.sock, message)

    def close(self) -> None:
        """No more answers."""
        with contextlib.suppress(OSError):
            self.sock.close()


def read_all(descriptor: int, *, limit: int) -> bytes:
    """All of a descriptor, refusing more than `limit`."""
    chunks, total = [], 0
    while chunk := os.read(descriptor, 1 << 20):
        total += len(chunk)
        if total > limit:
            raise RefusedError("too_big", errno.EFBIG, f"more than {limit} bytes", limit=limit)
        chunks.append(chunk)
    return b"".join(chunks)
