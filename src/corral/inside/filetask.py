"""One request for files, answered by a separate process through its standard streams.

Answers go to standard output: a line of JSON for each batch (`{"items": […]}`) and for the last part; for `read` and
`pack`, a line and then the content. A refusal goes to standard error as one line of JSON, and the exit code is 1.
Content and payloads come from standard input in blocks: 4 bytes with the length, then the bytes; an empty block is the
end. If the input ends without it, nothing is written.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from typing import Any

from corral.inside.filerequests import answer, write_options
from corral.inside.files import open_regular, replacing, staging
from corral.inside.refusal import RefusedError, describe_refusal
from corral.inside.tars.reading import PIECE_BYTES
from corral.inside.tars.unpacking import unpack_tree
from corral.inside.tars.writing import pack_tree
from corral.inside.writing import write_all

_BATCH_BYTES = 64 * 1024


def serve_files(request: dict[str, Any]) -> int:
    """Answer one request; returns the exit code."""
    operation = {
        "read": _serve_read, "write": _serve_write, "stage": _serve_stage, "pack": _serve_pack, "unpack": _serve_unpack,
    }.get(request["op"], _serve_request)  # fmt: skip
    try:
        operation(request)
    except Exception as error:
        refusal = describe_refusal(error)
        if refusal is None:
            raise
        write_all(2, json.dumps(refusal).encode() + b"\n")
        return 1
    return 0


def _say(message: dict[str, Any]) -> None:
    write_all(1, json.dumps(message).encode() + b"\n")


def _serve_request(request: dict[str, Any]) -> None:
    payloads = [b"".join(_read_content()) for _ in range(request.get("payloads", 0))]
    lines: list[bytes] = []
    room = _BATCH_BYTES

    def add(item: dict[str, Any]) -> None:
        nonlocal room
        lines.append(json.dumps(item).encode())
        room -= len(lines[-1])
        if room < 0:
            flush()

    def flush() -> None:
        nonlocal room
        if lines:
            write_all(1, b'{"items": [' + b", ".join(lines) + b"]}\n")
        lines.clear()
        room = _BATCH_BYTES

    last = answer(request, payloads, add)
    flush()
    _say(last)


def _serve_read(request: dict[str, Any]) -> None:
    """Up to the size that the file has when it is opened, so that a growing file has an end."""
    file = open_regular(request["path"], links=request.get("links", True))
    left = os.fstat(file).st_size
    _say({"size": left})
    while left > 0:
        piece = os.read(file, min(left, PIECE_BYTES))
        if not piece:
            return
        write_all(1, piece)
        left -= len(piece)


def _read_content() -> Iterator[bytes]:
    while left := int.from_bytes(b"".join(_read_exactly(4)), "big"):
        yield from _read_exactly(left)


def _read_exactly(count: int) -> Iterator[bytes]:
    while count:
        piece = os.read(0, min(count, PIECE_BYTES))
        if not piece:
            raise RefusedError("aborted", errno.ECANCELED, "the content was cut short")
        count -= len(piece)
        yield piece


def _serve_write(request: dict[str, Any]) -> None:
    size = 0
    with replacing(request["path"], **write_options(request)) as new:
        for piece in _read_content():
            write_all(new.descriptor, piece)
            size += len(piece)
    _say({"size": size})


def _serve_stage(request: dict[str, Any]) -> None:
    """Another process writes the content to a path that is sent first; its size then comes as a block of digits."""
    with staging(request["path"], **write_options(request)) as place:
        _say({"place": place})
        size = int(b"".join(_read_content()))
        found = os.lstat(place).st_size
        if found != size:
            raise RefusedError("os", errno.EIO, f"only {found} of {size} bytes arrived")
    _say({"size": size})


def _serve_pack(request: dict[str, Any]) -> None:
    pack_tree(request["path"], lambda piece: write_all(1, piece), max_changing_bytes=request["max_changing_bytes"])


def _serve_unpack(request: dict[str, Any]) -> None:
    content = _read_content()
    count = unpack_tree(request["path"], content)
    for _ in content:  # what follows the end of the archive
        pass
    _say({"count": count})
