"""A range of user ids that no other sandbox on this machine has.

A range is claimed by locking the file named after it, in one folder for the whole machine that belongs to root: no
other user can claim one, several data folders never collide, and the kernel releases the lock when its last holder
dies. The file names the holder.

Earlier versions claimed a range by binding an abstract socket, which any user of the same network namespace can do.
Such a name is still bound beside the lock, so that an earlier version that runs at the same time avoids the range; but
if every name is taken, the locks alone decide. Where neither folder can be used (a read-only `/run` and `/var/lib`),
there are only names, and `lock_folder` returns None.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import os
import signal
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from corral.engine import syscalls
from corral.engine.errors import SetupError
from corral.engine.recipe import UID_RANGE_SIZE
from corral.inside.nolinks import opened

FIRST_UID = 0x7000_0000
"""Just above the range that systemd gives to containers."""
SLOTS = 4095
"""The next one would be `BASE_FIRST_UID`, which belongs to no sandbox."""
LOCK_PARENTS = (Path("/run"), Path("/var/lib"))
"""Where the folder of locks may be: the first that is writable. Containers that do not share it don't see each other's
locks."""
LOCK_NAME = "corral-uids"
_SIGNATURE_BYTES = 4096
_SHOWN_HOLDERS = 3


@dataclass(frozen=True, slots=True)
class UidRange:
    """A claimed range; it lasts as long as one of its descriptors is open somewhere."""

    first: int
    lock: int | None
    """The locked file; None without a folder for locks."""
    name: socket.socket | None
    """For earlier versions."""

    def descriptors(self) -> list[int]:
        """What a process must keep open to hold the range."""
        named = [] if self.name is None else [self.name.fileno()]
        return named if self.lock is None else [self.lock, *named]

    def sign(self, data: Path) -> None:
        """Record that this process holds it, for the error when all ranges are in use."""
        if self.lock is not None:
            with contextlib.suppress(OSError):  # a full disk: the lock alone suffices
                written = os.pwrite(self.lock, f"{os.getpid()} {data}".encode(errors="replace")[:_SIGNATURE_BYTES], 0)
                os.ftruncate(self.lock, written)

    def unsign(self) -> None:
        """Its sandbox has ended: truncate the file until the next claim."""
        if self.lock is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self.lock, 0)

    def close(self) -> None:
        """Release it, in this process."""
        if self.lock is not None:
            os.close(self.lock)
        if self.name is not None:
            self.name.close()


def claim_range(data: Path, *, preferred: int | None = None) -> UidRange:
    """Claim a free range for a sandbox of this data folder: the one that begins with `preferred`, if it is free.

    Raises:
        SetupError: all of them are taken, or other users can access the folder of locks.
    """
    start = int.from_bytes(os.urandom(4), "little")
    if preferred is not None:
        start = (preferred - FIRST_UID) // UID_RANGE_SIZE
    folder = lock_folder()
    locks = None if folder is None else os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for heed_names in (True,) if locks is None else (True, False):
            for attempt in range(SLOTS):
                found = _claim((start + attempt) % SLOTS, locks, heed_names=heed_names)
                if found is not None:
                    found.sign(data)
                    return found
        raise SetupError(
            f"all ranges of user ids are in use{_name_holders(locks)}",
            step="claim user ids",
            errno=errno.EUSERS,
            hint="delete unused sandboxes: `corral sandbox list --data-dir …` lists those of a data folder",
        )
    finally:
        if locks is not None:
            os.close(locks)


def lock_folder() -> Path | None:
    """The machine's folder of locks, made if it is missing; None if this machine has no place for it.

    Raises:
        SetupError: other users can access it.
    """
    for parent in LOCK_PARENTS:
        path = parent / LOCK_NAME
        try:
            above = parent.stat()
            if above.st_uid not in (0, os.geteuid()) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
                continue  # others could replace it
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            found = path.lstat()
            writable = os.access(path, os.W_OK)
        except OSError:  # missing or not writable
            continue
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            text = f"{path}, the folder of user id locks, must be owned and writable by root only"
            raise SetupError(text, step="claim user ids", hint="remove it when no sandbox runs; it is recreated")
        if writable:
            return path
    return None


def has_lock_folder() -> bool:
    """True if ranges are claimed by locks here; also if the folder is unsafe, which claiming a range then reports."""
    try:
        return lock_folder() is not None
    except SetupError:
        return True


def _claim(slot: int, locks: int | None, *, heed_names: bool) -> UidRange | None:
    with contextlib.ExitStack() as undo:
        lock = None if locks is None else _lock(slot, locks)
        if lock is not None:
            undo.callback(os.close, lock)
        elif locks is not None:
            return None
        name = _bind(slot)
        if name is None and heed_names:
            return None
        undo.pop_all()
    return UidRange(FIRST_UID + slot * UID_RANGE_SIZE, lock, name)


def _lock(slot: int, locks: int) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(str(slot), flags, 0o600, dir_fd=locks)
    except OSError as error:
        text = f"can't claim a range of user ids: {error.strerror}"
        raise SetupError(text, step="claim user ids", errno=error.errno or 0) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _bind(slot: int) -> socket.socket | None:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0corral-uids-{slot}")
    except OSError:
        name.close()
        return None
    return name


def _name_holders(locks: int | None) -> str:
    """The holders of most ranges, as they signed."""
    if locks is None:
        return ", by sockets named @corral-uids-…, which any user can bind: there is no folder for locks"
    signed: collections.Counter[str] = collections.Counter()
    process: dict[str, str] = {}
    for slot in range(SLOTS):
        with contextlib.suppress(OSError):
            with opened(os.open(str(slot), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=locks)) as file:
                pid, _, data = os.read(file, _SIGNATURE_BYTES).decode(errors="replace").strip().partition(" ")
            signed[data] += 1
            process[data] = pid
    shown = [f"{count} by {data or 'unknown'} (e.g. process {process[data]})" for data, count in signed.most_common()]
    rest = ["…"] if len(shown) > _SHOWN_HOLDERS else []
    return f", by sandboxes of the data folders: {', '.join(shown[:_SHOWN_HOLDERS] + rest)}"


def make_shift(*extents: tuple[int, int, int], groups: tuple[tuple[int, int, int], ...] = ()) -> int:
    """A user namespace for idmapped mounts. Each extent: the first id on disk, the first id shown, how many. `groups`
    are those of group ids, if they differ.

    Raises: OSError if the kernel refuses.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = syscalls.clone(syscalls.CLONE_NEWUSER)
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # until a descriptor holds the namespace, or our parent has ended
        os._exit(0)
    os.close(reader)
    try:
        proc = Path(f"/proc/{pid}")
        for name, mapped in (("uid_map", extents), ("gid_map", groups or extents)):
            (proc / name).write_text("\n".join(" ".join(map(str, extent)) for extent in mapped))
        return os.open(proc / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writer)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
