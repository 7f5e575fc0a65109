"""Watching a tree through inotify, until the host closes the channel."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Callable

from corral.engine import wire
from corral.engine.agent.reply import Reply
from corral.inside.files import TEMPORARY_PREFIX
from corral.inside.refusal import RefusedError

_CREATE, _DELETE, _MODIFY, _MOVED_FROM, _MOVED_TO, _CLOSE_WRITE = 0x100, 0x200, 0x2, 0x40, 0x80, 0x8
_ISDIR, _OVERFLOW, _ONLYDIR = 0x40000000, 0x4000, 0x01000000
_WANTED = _CREATE | _DELETE | _MODIFY | _MOVED_FROM | _MOVED_TO | _CLOSE_WRITE
_NAMES = (
    (_CREATE, "created"),
    (_MOVED_TO, "created"),
    (_DELETE, "removed"),
    (_MOVED_FROM, "removed"),
    (_CLOSE_WRITE, "written"),
    (_MODIFY, "modified"),
)


def watch(message: wire.Message, descriptors: list[int], reply: Reply) -> None:
    """Send an event for each change below the folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    instance = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if instance < 0:
        raise OSError(ctypes.get_errno(), "inotify is exhausted")
    folders: dict[int, str] = {}

    def add(folder: str) -> None:
        number = libc.inotify_add_watch(instance, os.fsencode(folder), _WANTED | _ONLYDIR)
        if number >= 0:
            folders[number] = folder

    os.scandir(message["path"]).close()
    add(message["path"])
    if message.get("recursive", True):
        for root, names, _ in os.walk(message["path"]):
            for name in names:
                add(os.path.join(root, name))
    wire.send(reply.sock, {"watching": len(folders)})
    poll = select.poll()
    poll.register(instance, select.POLLIN)
    poll.register(reply.sock.fileno(), select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if reply.sock.fileno() in ready:
            return
        _pass_on(os.read(instance, 65536), folders, add, reply, recursive=message.get("recursive", True))


def _pass_on(
    data: bytes, folders: dict[int, str], add: Callable[[str], None], reply: Reply, *, recursive: bool
) -> None:
    offset = 0
    while offset < len(data):
        number, mask, _, length = struct.unpack_from("iIII", data, offset)
        name = os.fsdecode(data[offset + 16 : offset + 16 + length].rstrip(b"\0"))
        offset += 16 + length
        if mask & _OVERFLOW:
            raise RefusedError("overflow", 0, "changes came faster than they could be read")
        if name.startswith(TEMPORARY_PREFIX):
            continue  # our own, which will be renamed
        path = os.path.join(folders.get(number, "?"), name)
        for bit, kind in _NAMES:
            if mask & bit:
                reply.add({"path": path, "kind": kind, "folder": bool(mask & _ISDIR)})
                break
        if recursive and mask & _ISDIR and mask & (_CREATE | _MOVED_TO):
            add(path)
    reply.flush()
