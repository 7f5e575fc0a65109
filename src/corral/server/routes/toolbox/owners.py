"""Files as the wire describes them: modes as text, and owners by name."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence

from corral.errors import SandboxFileError
from corral.protocol import AsyncFiles
from corral.results import FileInfo, FileKind
from corral.server.wire import toolbox as wire
from corral.server.wire.base import timestamp

_TYPES: dict[FileKind, int] = {
    "file": stat.S_IFREG,
    "folder": stat.S_IFDIR,
    "link": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
    "device": stat.S_IFCHR,
}
_USUAL = {0: "root", 1000: "daytona"}
"""Known without a look into the tables inside."""
_MAX_TABLE_BYTES = 1024 * 1024


async def describe_all(files: AsyncFiles, infos: Sequence[FileInfo]) -> list[wire.FileInfo]:
    """What the wire says of files; ids that no table inside knows are shown as numbers."""
    users = await _names(files, "/etc/passwd", (info.uid for info in infos))
    groups = await _names(files, "/etc/group", (info.gid for info in infos))
    return [
        wire.FileInfo(
            name=info.name,
            is_dir=info.is_folder,
            size=info.size,
            mode=stat.filemode(_TYPES.get(info.kind, 0) | info.mode),
            mod_time=timestamp(info.modified),
            owner=users.get(info.uid, str(info.uid)),
            group=groups.get(info.gid, str(info.gid)),
            permissions=f"{info.mode:04o}",
            modified_at=timestamp(info.modified),
            path=info.path,
        )
        for info in infos
    ]


async def _names(files: AsyncFiles, table: str, ids: Iterable[int]) -> dict[int, str]:
    if set(ids) <= _USUAL.keys():
        return _USUAL
    try:
        text = await files.read_text(table, errors="replace", max_bytes=_MAX_TABLE_BYTES)
    except SandboxFileError:
        return _USUAL
    rows = (line.split(":") for line in text.splitlines())
    return _USUAL | {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isascii() and row[2].isdigit()}
