"""Tars by hand: members that no honest program would pack."""

import io
import tarfile
from collections.abc import AsyncIterator
from typing import Any


def member(name: str, data: bytes = b"x", **about: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data) if about.get("type", tarfile.REGTYPE) == tarfile.REGTYPE else 0
    info.mode = 0o644
    for key, value in about.items():
        setattr(info, key, value)
    return info, data


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, b"", type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, b"", type=tarfile.LNKTYPE, linkname=target)


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, b"", type=tarfile.DIRTYPE, mode=mode)


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


async def stream(data: bytes, size: int = 700) -> AsyncIterator[bytes]:
    for offset in range(0, len(data), size):
        yield data[offset : offset + size]
