"""From what Corral knows of files and edits to what the protocol says of them."""

from __future__ import annotations

from datetime import UTC, datetime

from corral.adapters.pydantic_ai.results import FileInfo
from corral.client.sandbox import AsyncSandbox
from corral.errors import EditError, SandboxFileError
from corral.results import FileInfo as CoreFileInfo


async def follow_link(box: AsyncSandbox, info: CoreFileInfo) -> CoreFileInfo:
    """What a link leads to; itself, if nowhere."""
    if info.kind != "link":
        return info
    try:
        return await box.files.stat(info.path)
    except SandboxFileError:
        return info


def describe_file(info: CoreFileInfo, real: CoreFileInfo) -> FileInfo:
    return FileInfo(
        name=info.name,
        path=info.path,
        is_dir=real.is_folder,
        size=None if real.is_folder else real.size,
        modified_at=datetime.fromtimestamp(real.modified, UTC).isoformat(),
    )


def as_text(line: str) -> str:
    """What is not UTF-8 becomes U+FFFD."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def describe_edit_error(error: EditError, old: str) -> str:
    if not old:
        return "Failed to edit file: the text to replace is empty"
    if not error.count:
        return "String not found in file"
    return (
        f"String found {error.count} times. Use replace_all=True to replace all, or provide more context."
    )  # fmt: skip
