"""Probes against the host when it reads a sandbox's files, and against the files that all sandboxes start from."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import stat
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from corral.errors import CorralError
from corral.testing.check import make_tar, pieces
from corral.testing.hostile.probe import Finding, Probe, Scene, breached, held, unproven

_probe = functools.partial(Probe, area="files")
_PATIENCE_SECONDS = 8.0
_CLEAR = """
import shutil
shutil.rmtree("{folder}", ignore_errors=True)  # of an attempt that proved nothing
"""

_CONFINED = "files are opened inside, as the code's user, without magic links"


async def _try_to_read(scene: Scene, name: str) -> bytes | Finding | None:
    """Read a file as the host does: its content, None if that was refused, or the finding that it hung."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await scene.sandbox.files.read(name, max_bytes=1_000_000)
    except TimeoutError:
        return breached(f"reading {name} hung")
    except CorralError:
        return None


async def _read_links(scene: Scene) -> Finding | None:
    refused = 0
    for name in ("trap/file", "trap/environ", "trap/parent", "trap/root/etc/shadow", "trap/mem", "trap/fd"):
        content = await _try_to_read(scene, name)
        if isinstance(content, Finding):
            return content
        if content is None:
            refused += 1
        elif said := scene.find_secret(content):
            return breached(f"{name}: {said}")
    return held(f"{refused} of 6 links refused, no secret read")


READ_LINKS = _probe("lay-links-for-the-host-to-follow", "host_leak", _CONFINED, """
os.makedirs("trap", exist_ok=True)
goals = {"file": T["canary_paths"][0], "environ": "/proc/self/environ", "parent": "/proc/1/environ",
         "root": "/proc/1/root", "mem": "/proc/self/mem", "fd": "/proc/self/fd/3"}
for name, goal in goals.items():
    os.symlink(goal, f"trap/{name}")
held(f"{len(goals)} links laid")
""", after=_read_links)  # fmt: skip


async def _write_through_links(scene: Scene) -> Finding | None:
    for name in ("way/planted", "way/deeper/planted", "direct"):
        with contextlib.suppress(CorralError):
            await scene.sandbox.files.write(name, b"planted")
    return held("written; the canaries show whether the host's folder changed")


WRITE_LINKS = _probe("lay-links-for-the-host-to-write-through", "escape", _CONFINED, """
folder = os.path.dirname(T["canary_paths"][0])
for name, goal in {"way": folder, "direct": T["canary_paths"][0] + ".planted"}.items():
    os.symlink(goal, name)
held("links laid")
""", after=_write_through_links)  # fmt: skip


async def _download(scene: Scene, name: str, target: Path, *, times: int = 1) -> Finding | None:
    """Download a folder; a finding if that hung or was refused."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            for _ in range(times):
                await scene.sandbox.files.download(name, target, max_bytes=4_000_000)
    except TimeoutError:
        return breached("the download hung")
    except CorralError as error:
        return held(f"refused: {error.code}")
    return None


async def _download_trap(scene: Scene) -> Finding | None:
    with tempfile.TemporaryDirectory(prefix="corral-trap-") as folder:
        target = Path(folder) / "out"
        if (finding := await _download(scene, "tree", target)) is not None:
            return finding
        for path in target.rglob("*"):
            if path.is_symlink() and not (path.parent / path.readlink()).resolve().is_relative_to(target.resolve()):
                return breached(f"a link out of the folder was downloaded: {path.name} → {path.readlink()}")
            if path.is_file() and (said := scene.find_secret(path.read_bytes())):
                return breached(said)
            if path.is_fifo() or path.is_socket() or path.is_block_device() or path.is_char_device():
                return breached(f"{path.name} is not a plain file")
        return held(f"{sum(1 for _ in target.rglob('*'))} harmless entries were downloaded")


DOWNLOAD = _probe(
    "lay-a-tree-of-traps-for-a-download", "host_leak",
    "links out of the folder, FIFOs and sockets are not downloaded", _CLEAR.format(folder="tree") + """
os.makedirs("tree/sub")
os.symlink(T["canary_paths"][0], "tree/absolute")
os.symlink("../../../../../../.." + T["canary_paths"][0], "tree/sub/relative")
os.symlink("/proc/self/environ", "tree/environ")
os.symlink("sub", "tree/inside")
os.mkfifo("tree/pipe")
socket.socket(socket.AF_UNIX).bind("tree/socket")
write("tree/plain", "plain")
held("laid")
""", after=_download_trap)  # fmt: skip


async def _bring_home(scene: Scene) -> Finding | None:
    with tempfile.TemporaryDirectory(prefix="corral-trap-") as folder:
        target = Path(folder) / "out"
        # Twice, as for a folder that is kept on the host and downloaded again.
        if (finding := await _download(scene, "project", target, times=2)) is not None:
            return finding
        came = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
        settings = [name for name in came if name.endswith(("/config", "/hooks/pre-commit"))]
        if settings:
            return breached(f"git on the host would run what these say: {', '.join(settings)}")
        if "plain" not in came:
            return unproven("the folder was not downloaded")
        return held(f"{len(came)} files were downloaded, none of them a setting of git")


GIT_SETTINGS = _probe(
    "leave-settings-of-git-in-a-folder-that-comes-back", "escape",
    "settings that make git run programs are not downloaded", """
for folder in ("project/.git", "project/.GIT", "project/bare", "project/.git/modules/sub"):
    for name in ("objects", "refs", "hooks"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    write(f"{folder}/HEAD", "ref: refs/heads/main")
    write(f"{folder}/config", "[core]\\nfsmonitor = id")
    write(f"{folder}/hooks/pre-commit", "id")
write("project/plain", "plain")
held("laid")
""", after=_bring_home)  # fmt: skip


async def _read_odd(scene: Scene) -> Finding | None:
    for name in ("odd/pipe", "odd/socket", "odd/sparse", "odd/zero", "odd/folder", "odd/loop"):
        content = await _try_to_read(scene, name)
        if content is not None:
            return content if isinstance(content, Finding) else breached(f"{name} gave {len(content)} bytes")
    return held("each was refused by a typed error")


READ_ODD = _probe(
    "offer-files-that-never-end", "host_dos", "only regular files up to a size are read, never blocking",
    _CLEAR.format(folder="odd") + """
os.makedirs("odd/folder")
os.mkfifo("odd/pipe")
socket.socket(socket.AF_UNIX).bind("odd/socket")
os.symlink("/dev/zero", "odd/zero")
os.symlink("loop", "odd/loop")
size = T["limits"]["disk_bytes"] // 2
with open("odd/sparse", "wb") as file:
    file.truncate(size)
held("laid")
""", after=_read_odd)  # fmt: skip


async def _race(scene: Scene) -> Finding | None:
    swapper = await scene.sandbox.start(["python3", "-c", _SWAP, scene.token, scene.canaries.paths[0]])
    read = refused = 0
    try:
        started = time.monotonic()
        # On a busy machine it may take a while until a read finds the file and not the link.
        while time.monotonic() < started + (0.8 if read else 30.0):
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
    text = f"{read} reads and {refused} refusals while the names were swapped in a loop"
    return held(text) if read else unproven(text)


_SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b"race/file", -100, b"race/link", 2)
"""

RACE = _probe(
    "swap-a-file-for-a-link-while-it-is-read", "host_leak", _CONFINED, _CLEAR.format(folder="race") + """
os.makedirs("race")
write("race/file", "innocent")
os.symlink(T["canary_paths"][0], "race/link")
held("laid")
""", after=_race)  # fmt: skip


async def _unpack(scene: Scene) -> Finding | None:
    folder = Path(scene.canaries.paths[0]).parent
    for members in (
        (("../" * 12 + f"{folder}/planted", b"evil"),),
        ((f"{folder}/planted", b"evil"),),
        (("l", str(folder)), ("l/planted", b"evil")),
    ):
        with contextlib.suppress(CorralError):
            await scene.sandbox.files.unpack("unpacked", pieces(make_tar(*members)))
    return held("unpacked; the canaries show whether the host's folder changed")


UNPACK = _probe("unpack-an-archive-that-climbs-out", "escape", "archives are unpacked inside", """
os.makedirs("unpacked", exist_ok=True)
held("ready")
""", after=_unpack)  # fmt: skip

_LOOKED_UP = ("/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/localtime")
_TAKE_AWAY = 'for f; do [ -p "$f" ] && rm -f "$f"; [ -e "$f.old" ] && mv "$f.old" "$f"; done; true'


async def _ask_the_agent(scene: Scene, user: str | None = None) -> Finding | None:
    finding = await _pack_and_search(scene)
    # Programs in the sandbox look names up, and must work again.
    await scene.sandbox.exec(["sh", "-c", _TAKE_AWAY, "sh", *_LOOKED_UP], user=user)
    return finding


async def _pack_and_search(scene: Scene) -> Finding:
    files = scene.sandbox.files
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            packed = [piece async for piece in files.pack("owned")]
            await files.unpack("again", pieces(*packed))
            found = await files.grep("plain", path="again")
    except TimeoutError:
        return breached("the file agent hangs on a file that the sandbox wrote: it looks names up in there")
    return held(f"{len(found.matches)} match, and no name was looked up")


_NAME_SERVICE = f"""
os.makedirs("owned", exist_ok=True)
write("owned/file", "plain")
def plant(path):
    if os.path.lexists(path):
        os.rename(path, path + ".old")
    os.mkfifo(path)  # opening it blocks for ever
held(f"planted {{sum(can(plant, path) for path in {_LOOKED_UP!r})}}")
"""
NAME_SERVICE = _probe(
    "plant-a-name-service-for-the-file-agent", "escape",
    "the file agent loads nothing from the sandbox's files", _NAME_SERVICE, after=_ask_the_agent, alone=True,
)  # fmt: skip
NAME_SERVICE_AS_ROOT = replace(
    NAME_SERVICE, name="plant-a-name-service-for-the-file-agent-as-root-inside", user="root",
    after=functools.partial(_ask_the_agent, user="root"),
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


FORGED_RUN = _probe(
    "forge-the-end-of-a-run", "host_dos",
    "a run has ended only when the driver answers a new request, or is dead", 'held("ready")',
    after=_forge_an_end, alone=True, timeout=60, area="lifetime",
)  # fmt: skip


# A probe for the files that all sandboxes start from: other users of the host must not be able to add to them.

_FIRST_WITHOUT_LOGIN = 0x7000_0000
_SHOWN = "base"


async def _look_from_the_host(scene: Scene) -> Finding | None:
    """Check, as another user of the host would, that the data folder is closed and its files have the right owners."""
    folders = [Path(folder) for folder in scene.canaries.folders if (Path(folder) / "instance").is_file()]
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
    return held("no other user can enter the data folder, or owns files that sandboxes start from")


PLANTED = _probe(
    "find-what-others-of-the-host-have-planted", "lateral",
    "a data folder of mode 0700, whose files have owners that can't log in", """
found = []
for top in ("/tmp", "/var/tmp", "/home", "/workspace", "/workspaces", "/srv", "/mnt"):
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            if os.lstat(path).st_uid not in (0, os.getuid()):
                found.append(path)
if found:
    breached(f"other users own {found[:5]}")
held("all files belong to this user, or to root inside")
""", after=_look_from_the_host)  # fmt: skip
