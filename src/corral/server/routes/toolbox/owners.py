"""Files as wire models: modes as text, and owners by name."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence

from corral.base.files import AsyncFiles
from corral.errors import SandboxFileError
from corral.results import FileInfo, FileKind, timestamp
from corral.server.wire import toolbox as wire

_TYPES: dict[FileKind, int] = {
    "file": stat.S_IFREG,
    "folder": stat.S_IFDIR,
    "link": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
    "device": stat.S_IFCHR,
}
_USUAL = {0: "root", 1000: "daytona"}
"""Known without reading the tables in the sandbox."""
_MAX_TABLE_BYTES = 64 * 1024


class Owners:
    """The names of users and groups in the sandbox. Their tables are read once, for the first unusual id."""

    def __init__(self, files: AsyncFiles) -> None:
        self._files = files
        self._tables: dict[str, dict[int, str]] = {}

    async def describe(self, infos: Sequence[FileInfo]) -> list[wire.FileInfo]:
        """Files as wire models; unknown user and group ids are shown as numbers."""
        users = await self._names("/etc/passwd", (info.uid for info in infos))
        groups = await self._names("/etc/group", (info.gid for info in infos))
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

    async def _names(self, table: str, ids: Iterable[int]) -> dict[int, str]:
        if set(ids) <= _USUAL.keys():
            return _USUAL
        if table not in self._tables:
            self._tables[table] = await _read_names(self._files, table)
        return self._tables[table]


async def describe(files: AsyncFiles, info: FileInfo) -> wire.FileInfo:
    """One file as a wire model."""
    return (await Owners(files).describe([info]))[0]


async def _read_names(files: AsyncFiles, table: str) -> dict[int, str]:
    try:
        text = await files.read_text(table, errors="replace", max_bytes=_MAX_TABLE_BYTES)
    except SandboxFileError:
        return _USUAL
    rows = (line.split(":") for line in text.splitlines())
    return _USUAL | {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isascii() and row[2].isdigit()}
