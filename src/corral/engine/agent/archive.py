"""Trees as tar streams, packed and unpacked inside the sandbox: no path of theirs means anything on the host."""

from __future__ import annotations

import os

from corral.engine import wire
from corral.engine.agent.reply import Reply
from corral.inside.refusal import RefusedError
from corral.inside.tars.reading import PIECE_BYTES, BrokenArchiveError
from corral.inside.tars.unpacking import LeadsOutError, unpack_tree
from corral.inside.tars.writing import pack_tree


def pack(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Write a tar of a file or folder to the descriptor that came along; names are relative to it."""
    with os.fdopen(descriptors.pop(0), "wb", buffering=PIECE_BYTES) as sink:
        left_out = pack_tree(message["path"], sink.write, max_changing_bytes=message.get("max_changing_bytes"))
    reply.send({"skipped": left_out[:50]})


def unpack(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Unpack a tar stream below a folder. Names that lead out of it are refused, not cleaned up."""
    source = descriptors.pop(0)
    try:
        count = unpack_tree(message["path"], iter(lambda: os.read(source, PIECE_BYTES), b""))
    except BrokenArchiveError as error:
        raise RefusedError("archive", 0, f"bad archive: {error}") from error
    except LeadsOutError as error:
        raise RefusedError("archive", 0, str(error)) from error
    finally:
        os.close(source)
    reply.send({"count": count})
