"""What the engine's file agent does with descriptors: files opened for the host, and content that comes in files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from corral.engine import wire
from corral.engine.agent.reply import Reply
from corral.inside.files import describe, open_regular, replacing
from corral.inside.refusal import RefusedError

Operation = Callable[[wire.Message, list[int], Reply], None]


def open_for_reading(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Hand out a descriptor of a regular file."""
    descriptor = open_regular(message["path"], links=message.get("links", True))
    try:
        reply.send({"stat": describe(message["path"], os.fstat(descriptor))}, (descriptor,))
    finally:
        os.close(descriptor)


def write(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Write the content of the memory file that came along, atomically."""
    source = descriptors[0]
    size = os.fstat(source).st_size
    with replacing(message["path"], **_how(message)) as target:
        offset = 0
        while offset < size:
            sent = os.sendfile(target, source, offset, min(size - offset, 1 << 24))
            if sent == 0:
                break
            offset += sent
    reply.send({"size": size})


def write_stream(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Hand out a descriptor to write to; the file appears when the host says that it is whole."""
    with replacing(message["path"], **_how(message)) as target:
        wire.send(reply.sock, {"opened": True}, (target,))
        received = wire.receive(reply.sock)
        if received is None or not received[0].get("commit"):
            raise RefusedError("aborted", errno.ECANCELED, "the writer went away")
    reply.send({})


def _how(message: wire.Message) -> wire.Message:
    names = ("mode", "parents", "exclusive", "append", "links")
    return {name: message[name] for name in names if name in message}
