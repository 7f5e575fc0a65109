"""Probes for what the host keeps of a sandbox outside its quota: the host counts blocks of its own disk."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
from pathlib import Path

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.testing.hostile.probe import Finding, Probe, Scene, breached, held

_OWN_STORAGE = ("disk", "disk.img")
_SLACK_BYTES = 16 << 20
_PROGRAMS = 40


def _measure(folder: Path, *, without: tuple[str, ...] = ()) -> int:
    """Bytes of the disk that a folder takes."""
    total = 0
    for path in folder.rglob("*"):
        if path.relative_to(folder).parts[0] not in without:
            with contextlib.suppress(FileNotFoundError):
                total += path.lstat().st_blocks * 512
    return total


async def _print_much(scene: Scene) -> Finding | None:
    box = scene.sandbox
    try:
        await box.detach()
    except CorralError as error:
        return held(f"what programs print is kept by nobody but their caller: {error}")
    try:
        return await _record(scene, box)
    finally:
        await box.kill()


async def _record(scene: Scene, box: AsyncSandbox) -> Finding:
    """Some that print more than the quota together, and many that print next to nothing."""
    quota = scene.limits["disk_bytes"]
    size = quota * 3 // 2 // 4
    commands = [f"head -c {size} /dev/urandom"] * 4 + ["echo small"] * _PROGRAMS
    for number, command in enumerate(commands):
        recorded = await box.start_recorded(command, name=f"n{number}", limit_bytes=1 << 40)
        await recorded.wait()
    for data in scene.folders:
        folder = Path(data) / "sandboxes" / box.id
        if await asyncio.to_thread(folder.is_dir):
            kept = await asyncio.to_thread(_measure, folder, without=_OWN_STORAGE)
            text = f"{kept >> 20} MiB of the host's disk for a quota of {quota >> 20} MiB"
            return breached(text) if kept > quota + _SLACK_BYTES else held(text)
    return held("there is no folder of this sandbox on the host")


RECORDS = Probe(
    "print-more-than-the-quota-into-records", "resources", "host_dos",
    "all records of a sandbox together have a budget, and the largest gives up its oldest part",
    'held("the recorded programs are started by the host")',
    timeout=60, alone=True, may_end=True, after=_print_much,
)  # fmt: skip


async def _download_and_measure(scene: Scene, times: int = 1) -> Finding | None:
    """To a disk of the host: no more than the quota, so many times."""
    quota = scene.limits["disk_bytes"]
    with tempfile.TemporaryDirectory(prefix="corral-quota-", dir="/var/tmp") as folder:
        landing = Path(folder) / "landing"
        with contextlib.suppress(CorralError):  # what counts is what has landed until then
            await scene.sandbox.files.download("much", landing)
        landed = await asyncio.to_thread(_measure, landing)
    text = f"{landed >> 20} MiB landed, of a disk of {quota >> 20} MiB"
    return breached(text) if landed > times * quota + _SLACK_BYTES else held(text)


HOLES = Probe(
    "leave-files-with-holes-for-a-download", "resources", "host_dos", "holes stay holes on the way out",
    """
os.mkdir("much")
block, size = b"x" * 4096, T["limits"]["disk_bytes"] - 4096
taken = 0
def make(name, places):
    global taken
    with open(f"much/{name}", "wb") as file:
        for place in places:
            file.seek(place)
            file.write(block)
            taken += 4096
make("one-hole", [size - 4096])
# One block in sixteen: whoever looks for long holes alone finds none.
make("many-holes", range(0, size - 4096, 65536))
for number in range(2000):
    make(f"small-{number}", [57344])
held(f"{taken >> 20} MiB of data in {(2 * size >> 20) + 122} MiB of files")
""",
    timeout=60, alone=True, after=_download_and_measure,
)  # fmt: skip

ENDLESS = Probe(
    "make-a-folder-endless-while-it-is-downloaded", "resources", "host_dos",
    "of what changes while it is packed, no more is taken than the disk holds",
    """
os.mkdir("much")
names = [f"much/{number:02}" for number in range(12)]
for name in names:
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
with open(names[0], "wb") as file:
    for _ in range(40):
        file.write(os.urandom(1 << 20))
if os.fork() == 0:
    # Whenever the file is opened, it takes the place of the one that will be opened next.
    os.setsid()
    watcher = kernel("inotify_init1", 0)
    LIBC.inotify_add_watch(watcher, b"much", 0x20)
    os.write(1, b"watching\\n")
    os.closerange(0, 3)
    place = 0
    while place < len(names) - 1:
        if names[place].encode()[5:] + b"\\0" in os.read(watcher, 65536):
            os.rename(names[place], names[place + 1])
            place += 1
    os._exit(0)
time.sleep(1)
held("a file of 40 MiB that goes ahead of its reader")
""",
    timeout=60, alone=True, after=functools.partial(_download_and_measure, times=2),
)  # fmt: skip

PROBES = (RECORDS, HOLES, ENDLESS)
