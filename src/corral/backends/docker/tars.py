"""Small tars, made in memory, for the daemon to lay down."""

from __future__ import annotations

import io
import tarfile
import time

_END_BYTES = 1024


def make_entry(name: str, *, mode: int, size: int | None, uid: int = 0, gid: int = 0) -> tarfile.TarInfo:
    """A file of that size, or a folder."""
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid, info.mtime = mode, uid, gid, int(time.time())
    if size is None:
        info.type = tarfile.DIRTYPE
    else:
        info.size = size
    return info


def make_tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Without the padding of tapes: podman breaks off at the end of the entries, and complains if there is more."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
        end = tar.offset + _END_BYTES
    return sink.getvalue()[:end]
