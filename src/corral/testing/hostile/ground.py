"""A probe for what all sandboxes start from: whoever else is on the host must not be able to put something into it."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from corral.testing.hostile.probe import Finding, Probe, Scene, breached, held

_FIRST_WITHOUT_LOGIN = 0x7000_0000
_SHOWN = "base"


async def _look_from_the_host(scene: Scene) -> Finding | None:
    """As another user of the host would: is the way in closed, and does anything inside belong to one of them?"""
    folders = [Path(folder) for folder in scene.folders if (Path(folder) / "instance").is_file()]
    findings = [await asyncio.to_thread(_judge, folder) for folder in folders]
    return next((finding for finding in findings if finding is not None), None)


def _judge(data: Path) -> Finding | None:
    for folder in (data, *(path for path in data.iterdir() if path.is_dir())):
        found = folder.lstat()
        if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.geteuid():
            name = folder.name if folder != data else "the data folder"
            return breached(f"other users of the host can enter {name} (mode {stat.S_IMODE(found.st_mode):04o})")
    for path in (data / _SHOWN).rglob("*"):
        uid = path.lstat().st_uid
        if uid not in (0, os.geteuid()) and uid < _FIRST_WITHOUT_LOGIN:
            return breached(f"/{'/'.join(path.relative_to(data).parts[2:])} belongs to uid {uid} of the host")
    return held("nobody else can enter the data folder, nor owns anything in what sandboxes start from")


PLANTED = Probe(
    "find-what-others-of-the-host-have-planted", "files", "lateral",
    "a data folder of mode 0700, and owners in it that no login has",
    """
found = []
for top in ("/tmp", "/var/tmp", "/home", "/workspace", "/workspaces", "/srv", "/mnt"):
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            if os.lstat(path).st_uid not in (0, os.getuid()):
                found.append(path)
if found:
    breached(f"somebody outside has made {found[:5]}")
held("all of it is ours, or root's inside")
""",
    after=_look_from_the_host,
)  # fmt: skip

PROBES = (PLANTED,)
