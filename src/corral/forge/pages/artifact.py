"""Artifacts as a page may show them. Their content is hostile."""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corral.forge.artifacts import open_artifact
from corral.forge.pages.text import clean, show_size

Kind = Literal["text", "image", "binary"]

_HEX_BYTES = 512
_SNIFFED_BYTES = 4096


def find_image_type(data: bytes) -> str | None:
    """The media type by the first bytes, never by the name. SVG can carry scripts and does not count as an image."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def find_kind(data: bytes) -> Kind:
    """The kind of a file, by its first bytes."""
    data = data[:_SNIFFED_BYTES]
    if find_image_type(data) is not None:
        return "image"
    if b"\0" in data:
        return "binary"
    try:
        # Incremental: the last character may be cut in two.
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return "binary"
    return "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a page shows of one file."""

    kind: Kind
    text: str = ""
    """The text, or a hex dump of the first bytes; empty for an image."""
    image_type: str = ""
    data: bytes = b""
    """The bytes of an image."""
    note: str = ""
    """What is not shown, and why."""


def show_file(folder: Path, name: str, *, text_bytes: int, image_bytes: int) -> Shown:
    """Read what may be shown of one artifact. If it can't be read, the note says so."""
    try:
        with os.fdopen(open_artifact(folder, name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_SNIFFED_BYTES)
            kind = find_kind(head)
            if kind == "image":
                if size > image_bytes:
                    note = f"an image of {show_size(size)} is too big to be shown here"
                    return Shown(kind="binary", text=show_bytes(head), note=note)
                data = head + file.read(image_bytes - len(head))
                return Shown(kind="image", image_type=find_image_type(head) or "", data=data)
            if kind == "binary":
                note = f"the first {_HEX_BYTES} of {size} bytes" if size > _HEX_BYTES else ""
                return Shown(kind="binary", text=show_bytes(head), note=note)
            data = head + file.read(max(0, text_bytes + 1 - len(head)))
            note = f"the first {show_size(text_bytes)} of {show_size(size)}" if len(data) > text_bytes else ""
            return Shown(kind="text", text=clean(data[:text_bytes].decode("utf-8", "replace")), note=note)
    except OSError as error:
        return Shown(kind="binary", note=f"could not be read: {error.strerror or 'not a file below the folder'}")


def show_bytes(data: bytes) -> str:
    """The first bytes as numbers and letters, sixteen in a line."""
    lines = []
    for start in range(0, min(len(data), _HEX_BYTES), 16):
        row = data[start : min(start + 16, _HEX_BYTES)]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {letters}")
    return "\n".join(lines)
