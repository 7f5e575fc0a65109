"""Probes against whoever reads the sandbox's files from outside, and against what all sandboxes start from."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import stat
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from corral.errors import CorralError
from corral.testing.hostile.probe import Finding, Probe, Scene, breached, held, unproven

_PATIENCE_SECONDS = 8.0

_CONFINED = "files are opened inside, as the code's user, without magic links"


async def _read_links(scene: Scene) -> Finding | None:
    refused = 0
    for name in ("trap/file", "trap/environ", "trap/parent", "trap/root/etc/shadow", "trap/mem", "trap/fd"):
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                content = await scene.sandbox.files.read(name, max_bytes=1_000_000)
        except TimeoutError:
            return breached(f"reading {name} hung")
        except CorralError:
            refused += 1
            continue
        if said := scene.find_secret(content):
            return breached(f"{name}: {said}")
    return held(f"{refused} of 6 links refused, no secret read")


READ_LINKS = Probe(
    "lay-links-for-the-host-to-follow", "files", "host_leak", _CONFINED,
    """
os.makedirs("trap", exist_ok=True)
goals = {"file": T["canary_paths"][0], "environ": "/proc/self/environ", "parent": "/proc/1/environ",
    "root": "/proc/1/root",
         "mem": "/proc/self/mem", "fd": "/proc/self/fd/3"}
for name, goal in goals.items():
    os.symlink(goal, f"trap/{name}")
held(f"{len(goals)} links laid")
""",
    after=_read_links,
)  # fmt: skip


async def _write_through_links(scene: Scene) -> Finding | None:
    folder = Path(scene.canary_paths[0]).parent
    before = sorted(entry.name for entry in folder.iterdir())
    for name in ("way/planted", "way/deeper/planted", "direct"):
        with contextlib.suppress(CorralError):
            await scene.sandbox.files.write(name, b"planted")
    after = sorted(entry.name for entry in folder.iterdir())
    return (
        breached(f"the host's folder changed: {after}") if after != before else held("the host's folder is as it was")
    )


WRITE_LINKS = Probe(
    "lay-links-for-the-host-to-write-through", "files", "escape", _CONFINED,
    """
folder = os.path.dirname(T["canary_paths"][0])
for name, goal in {"way": folder, "direct": T["canary_paths"][0] + ".planted"}.items():
    os.symlink(goal, name)
held("links laid")
""",
    after=_write_through_links,
)  # fmt: skip


async def _download_trap(scene: Scene) -> Finding | None:
    with tempfile.TemporaryDirectory(prefix="corral-trap-") as folder:
        target = Path(folder) / "out"
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await scene.sandbox.files.download("tree", target, max_bytes=4_000_000)
        except TimeoutError:
            return breached("the download hung")
        except CorralError as error:
            return held(f"refused: {error.code}")
        for path in target.rglob("*"):
            if path.is_symlink() and not (path.parent / path.readlink()).resolve().is_relative_to(target.resolve()):
                return breached(f"a link that leads out was laid down: {path.name} → {path.readlink()}")
            if path.is_file() and (said := scene.find_secret(path.read_bytes())):
                return breached(said)
            if path.is_fifo() or path.is_socket() or path.is_block_device() or path.is_char_device():
                return breached(f"{path.name} is no plain file")
        return held(f"{sum(1 for _ in target.rglob('*'))} harmless entries came out")


DOWNLOAD = Probe(
    "lay-a-tree-of-traps-for-a-download", "files", "host_leak",
    "links that lead out, FIFOs and sockets are left behind",
    """
import shutil
shutil.rmtree("tree", ignore_errors=True)  # of an attempt that proved nothing
os.makedirs("tree/sub")
os.symlink(T["canary_paths"][0], "tree/absolute")
os.symlink("../../../../../../.." + T["canary_paths"][0], "tree/sub/relative")
os.symlink("/proc/self/environ", "tree/environ")
os.symlink("sub", "tree/inside")
os.mkfifo("tree/pipe")
socket.socket(socket.AF_UNIX).bind("tree/socket")
with open("tree/plain", "w") as file:
    file.write("plain")
held("laid")
""",
    after=_download_trap,
)  # fmt: skip


async def _bring_home(scene: Scene) -> Finding | None:
    with tempfile.TemporaryDirectory(prefix="corral-trap-") as folder:
        target = Path(folder) / "out"
        try:
            await scene.sandbox.files.download("project", target, max_bytes=4_000_000)
            await scene.sandbox.files.download("project", target, max_bytes=4_000_000)  # as a folder does that is kept
        except CorralError as error:
            return held(f"refused: {error.code}")
        came = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
        settings = [name for name in came if name.endswith(("/config", "/hooks/pre-commit"))]
        if settings:
            return breached(f"the host's git would run what these say: {', '.join(settings)}")
        if "plain" not in came:
            return unproven("the folder did not come")
        return held(f"{len(came)} files came, and none of them is a setting of git")


GIT_SETTINGS = Probe(
    "leave-settings-of-git-in-a-folder-that-comes-back", "files", "escape",
    "what makes git run programs stays in the sandbox",
    """
for folder in ("project/.git", "project/.GIT", "project/bare", "project/.git/modules/sub"):
    for name in ("objects", "refs", "hooks"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    files = {"HEAD": "ref: refs/heads/main", "config": "[core]\\nfsmonitor = id", "hooks/pre-commit": "id"}
    for name, text in files.items():
        with open(f"{folder}/{name}", "w") as file:
            file.write(text)
with open("project/plain", "w") as file:
    file.write("plain")
held("laid")
""",
    after=_bring_home,
)  # fmt: skip


async def _read_odd(scene: Scene) -> Finding | None:
    for name in ("odd/pipe", "odd/socket", "odd/sparse", "odd/zero", "odd/folder", "odd/loop"):
        started = time.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                content = await scene.sandbox.files.read(name, max_bytes=1_000_000)
        except TimeoutError:
            return breached(f"reading {name} hung")
        except CorralError:
            continue
        return breached(f"{name} gave {len(content)} bytes in {time.monotonic() - started:.1f} s")
    return held("each was refused by a typed error")


READ_ODD = Probe(
    "offer-files-that-never-end", "files", "host_dos", "only regular files up to a size are read, never blocking",
    """
import shutil
shutil.rmtree("odd", ignore_errors=True)  # of an attempt that proved nothing
os.makedirs("odd/folder")
os.mkfifo("odd/pipe")
socket.socket(socket.AF_UNIX).bind("odd/socket")
os.symlink("/dev/zero", "odd/zero")
os.symlink("loop", "odd/loop")
size = T["limits"]["disk_bytes"] // 2
with open("odd/sparse", "wb") as file:
    file.truncate(size)
held("laid")
""",
    after=_read_odd,
)  # fmt: skip


async def _race(scene: Scene) -> Finding | None:
    swapper = await scene.sandbox.start(["python3", "-c", _SWAP, scene.token, scene.canary_paths[0]])
    read = refused = 0
    try:
        begun = time.monotonic()
        # On a busy machine it may take a while until one read meets the file and not the link.
        while time.monotonic() < begun + (0.8 if read else 30.0):
            try:
                content = await scene.sandbox.files.read("race/file", max_bytes=100_000)
            except CorralError:
                refused += 1
                continue
            read += 1
            if said := scene.find_secret(content):
                return breached(f"after {read} reads: {said}")
    finally:
        await swapper.aclose()
    return (
        held(f"{read} reads and {refused} refusals against a loop of exchanges")
        if read
        else unproven("nothing was read")
    )


_SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b"race/file", -100, b"race/link", 2)
"""

RACE = Probe(
    "swap-a-file-for-a-link-while-it-is-read", "files", "host_leak", _CONFINED,
    """
import shutil
shutil.rmtree("race", ignore_errors=True)  # of an attempt that proved nothing: the names may be exchanged
os.makedirs("race")
with open("race/file", "w") as file:
    file.write("innocent")
os.symlink(T["canary_paths"][0], "race/link")
held("laid")
""",
    after=_race,
)  # fmt: skip


async def _unpack(scene: Scene) -> Finding | None:
    folder = Path(scene.canary_paths[0]).parent
    before = sorted(entry.name for entry in folder.iterdir())
    for name, link in (
        ("../" * 12 + str(folder) + "/planted", ""),
        (f"{folder}/planted", ""),
        ("l/planted", str(folder)),
    ):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            if link:
                entry = tarfile.TarInfo("l")
                entry.type, entry.linkname = tarfile.SYMTYPE, link
                archive.addfile(entry)
            entry = tarfile.TarInfo(name)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"evil"))
        with contextlib.suppress(CorralError):
            await scene.sandbox.files.unpack("unpacked", _stream(buffer.getvalue()))
    after = sorted(entry.name for entry in folder.iterdir())
    return breached(f"the host's folder changed: {after}") if after != before else held("nothing came out on the host")


async def _stream(data: bytes) -> AsyncIterator[bytes]:
    yield data


UNPACK = Probe(
    "unpack-an-archive-that-climbs-out", "files", "escape", "archives are unpacked inside",
    """
os.makedirs("unpacked", exist_ok=True)
held("ready")
""",
    after=_unpack,
)  # fmt: skip

_LOOKED_UP = ("/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/localtime")
_TAKE_AWAY = 'for f; do [ -p "$f" ] && rm -f "$f"; [ -e "$f.old" ] && mv "$f.old" "$f"; done; true'


async def _ask_the_agent(scene: Scene, user: str | None = None) -> Finding | None:
    finding = await _pack_and_search(scene)
    # Programs of the sandbox's own look names up, and have to work again.
    await scene.sandbox.exec(["sh", "-c", _TAKE_AWAY, "sh", *_LOOKED_UP], user=user)
    return finding


async def _pack_and_search(scene: Scene) -> Finding:
    files = scene.sandbox.files
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            packed = [piece async for piece in files.pack("owned")]
            await files.unpack("again", _stream(b"".join(packed)))
            found = await files.grep("plain", path="again")
    except TimeoutError:
        return breached("the file agent waits for what the sandbox wrote: it looks names up in there")
    return held(f"{len(found.matches)} match, and nothing was looked up")


_NAME_SERVICE = """
os.makedirs("owned", exist_ok=True)
with open("owned/file", "w") as file:
    file.write("plain")
planted = []
for path in LOOKED_UP:
    try:
        if os.path.lexists(path):
            os.rename(path, path + ".old")
        os.mkfifo(path)  # who opens it waits for ever
        planted.append(path)
    except OSError:
        continue
held(f"planted {len(planted)}")
""".replace("LOOKED_UP", repr(_LOOKED_UP))
_NOTHING_LOADED = "the file agent loads nothing from the sandbox's files"
NAME_SERVICE = Probe(
    "plant-a-name-service-for-the-file-agent", "files", "escape", _NOTHING_LOADED, _NAME_SERVICE,
    after=_ask_the_agent, alone=True,
)  # fmt: skip
NAME_SERVICE_AS_ROOT = Probe(
    "plant-a-name-service-for-the-file-agent-as-root-inside", "files", "escape", _NOTHING_LOADED, _NAME_SERVICE,
    after=functools.partial(_ask_the_agent, user="root"), alone=True, user="root",
)  # fmt: skip

_FORGED_RUN = """
import gc, sys, time
driver = next(each for each in gc.get_objects() if type(each).__name__ == "Interpreter")
frame = sys._getframe()
while "name" not in frame.f_locals or "request" not in frame.f_locals:
    frame = frame.f_back
while True:
    try:
        driver.send({"event": "end", "run": frame.f_locals["name"], "state": "completed"}, (1, 2))
        time.sleep(600)
    except KeyboardInterrupt:
        continue
"""


async def _forge_an_end(scene: Scene) -> Finding | None:
    box = scene.sandbox
    forged = await box.interpreter.execute(_FORGED_RUN, timeout=2.0)
    if forged.status != "timeout":
        return breached(f"a run that goes on was reported as {forged.status}")
    async with asyncio.timeout(_PATIENCE_SECONDS * 4):
        follows = await box.interpreter.execute("6 * 7")
    return held("it was ended") if follows.text == "42" else breached(f"the next run: {follows.status}")


FORGED_RUN = Probe(
    "forge-the-end-of-a-run", "lifetime", "host_dos",
    "a run has ended when the driver answers a new question, or is dead",
    """
held("ready")
""",
    after=_forge_an_end, alone=True, timeout=60,
)  # fmt: skip


# A probe for what all sandboxes start from: whoever else is on the host must not be able to put something into it.

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
