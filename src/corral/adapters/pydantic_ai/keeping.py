"""Keeping the files of a session on the host, between one sandbox and the next."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from corral.adapters.pydantic_ai.opening import make_name
from corral.client.sandbox import AsyncSandbox

MAX_BYTES = 4 * 1024**3
"""More is not copied back: what is inside is hostile, and the host's disk is not."""


async def lay_down(box: AsyncSandbox, root: Path, session_id: str) -> None:
    """Copy what is kept into the sandbox's working folder."""
    folder = _folder(root, session_id)
    for part in (folder, _settings_of(folder)):
        if await asyncio.to_thread(part.is_dir):
            await box.files.upload(str(part), box.spec.workdir)


async def take_back(box: AsyncSandbox, root: Path, session_id: str) -> None:
    """Copy the working folder to the host, in the place of what was kept.

    It is changed as a whole: if this fails, what was kept before is still there. Git's settings lie beside it, where
    git does not find them.
    """
    folder = _folder(root, session_id)
    await asyncio.to_thread(folder.parent.mkdir, parents=True, exist_ok=True)
    fresh = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=".new-", dir=folder.parent))
    try:
        settings = _settings_of(fresh)
        await box.files.download(box.spec.workdir, str(fresh), max_bytes=MAX_BYTES, git_settings_to=settings)
        await asyncio.to_thread(shutil.rmtree, _settings_of(folder), ignore_errors=True)
        if await asyncio.to_thread(settings.is_dir):
            await asyncio.to_thread(settings.rename, _settings_of(folder))
        await asyncio.to_thread(_exchange, fresh, folder)
    finally:
        for left in (fresh, _settings_of(fresh)):
            await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)


def _folder(root: Path, session_id: str) -> Path:
    # An id may be anything, `..` included; its name is not.
    return root / make_name(session_id) / "workspace"


def _settings_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.git-settings")


def _exchange(fresh: Path, folder: Path) -> None:
    """Put one folder in the place of another; `fresh` holds the old one then."""
    old = fresh.with_name(f"{fresh.name}.old")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    if old.exists():
        old.rename(fresh)
