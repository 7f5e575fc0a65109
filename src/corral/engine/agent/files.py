"""What the engine's file agent does with descriptors: opens files for the host, and moves content through them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from corral.engine import wire
from corral.engine.agent.reply import Reply
from corral.inside.filerequests import write_options
from corral.inside.files import describe, open_regular, replacing
from corral.inside.nolinks import opened
from corral.inside.refusal import RefusedError
from corral.inside.tars.reading import PIECE_BYTES
from corral.inside.tars.unpacking import unpack_tree
from corral.inside.tars.writing import pack_tree

Operation = Callable[[wire.Message, list[int], Reply], None]


def open_for_reading(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Hand out a descriptor of a regular file."""
    with opened(open_regular(message["path"], links=message.get("links", True))) as descriptor:
        reply.send({"stat": describe(message["path"], os.fstat(descriptor))}, (descriptor,))


def write(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Write the content of the memory file that came along, atomically."""
    source = descriptors[0]
    size = os.fstat(source).st_size
    with replacing(message["path"], **write_options(message)) as new:
        offset = 0
        while offset < size:
            sent = os.sendfile(new.descriptor, source, offset, min(size - offset, 1 << 24))
            if sent == 0:
                break
            offset += sent
    reply.send({"size": size})


def write_stream(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Hand out a descriptor to write to; the file appears when the host says that it is whole."""
    with replacing(message["path"], **write_options(message)) as new:
        wire.send(reply.sock, {"opened": True}, (new.descriptor,))
        received = wire.receive(reply.sock)
        if received is None or not received[0].get("commit"):
            raise RefusedError("aborted", errno.ECANCELED, "the writer went away")
    reply.send({})


def pack(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Write a tar of a file or folder to the descriptor that came along; names are relative to it."""
    with os.fdopen(descriptors.pop(0), "wb", buffering=PIECE_BYTES) as sink:
        left_out = pack_tree(message["path"], sink.write, max_changing_bytes=message.get("max_changing_bytes"))
    reply.send({"skipped": left_out[:50]})


def unpack(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Unpack a tar stream below a folder. Names that lead out of it are refused, not cleaned up."""
    source = descriptors[0]
    reply.send({"count": unpack_tree(message["path"], iter(lambda: os.read(source, PIECE_BYTES), b""))})
