"""Uppers in a separate file system in a sparse file: a hard quota of bytes and inodes on any disk.

mkfs runs once per size; each sandbox gets a sparse copy of that template (about 1 MiB of real data), and the templates
that were used last are kept. The loop device clears itself and the mount is never attached to the host's tree, so that
a killed launcher leaves only the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

from corral.engine import syscalls
from corral.engine.recipe import Identity, Layer, Limits, Recipe
from corral.engine.storage.copying import copy_sparse
from corral.engine.storage.folder import make_uppers
from corral.inside.nolinks import on_error, opened

_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE, _LOOP_SET_CAPACITY, _LOOP_GET_STATUS = 0x4C82, 0x4C0A, 0x4C07, 0x4C05
_LOOP_STATUS_BYTES = 232
_RESIZE_EXT4, _FREEZE, _THAW = 0x40086610, 0xC0045877, 0xC0045878
_BLOCK_BYTES = 4096
_READ_ONLY, _AUTOCLEAR = 1, 4
_RELEASE_SECONDS = 5.0
_PROGRAMS = "/usr/sbin:/sbin:/usr/bin:/bin"
_NO_ACCESS_TIME = 0x10
_SMALLEST_BYTES = 4 * 1024 * 1024
_INODE_BYTES = 256
_TABLES_BYTES = 2 * 1024 * 1024
_JOURNAL_BYTES = 4 * 1024 * 1024
_MAX_TEMPLATES = 8
_UNFINISHED_SECONDS = 3600.0
_ATTEMPTS = 3


class LoopStorage:
    """A file `disk.img` inside the sandbox's folder."""

    kind = "loop"
    hard = True

    def __init__(self, templates: str) -> None:
        self._templates = templates

    @staticmethod
    def available() -> bool:
        """True if there are loop devices and mkfs.ext4: tried, not guessed."""
        if shutil.which("mkfs.ext4", path=_PROGRAMS) is None:
            return False
        try:
            with opened(os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)) as control:
                number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
        except OSError:
            return False
        return os.path.exists(f"/dev/loop{number}")

    def prepare(self, recipe: Recipe, identity: Identity) -> int | None:
        image = os.path.join(recipe.folder, "disk.img")
        if os.path.exists(image):
            _wait_released(image)
            _grow_unused(image, _image_bytes(recipe.limits.disk_bytes, recipe.limits.inodes))
        else:
            unfinished = f"{image}.{os.getpid()}"
            self.copy_template(recipe.limits, unfinished)
            os.rename(unfinished, image)  # complete or missing: a stopped sandbox may be started after a crash
        # Barriers would flush the host's disk for every sync inside; a sandbox's files do not outlive a power cut.
        mount = _mount(image, ("nobarrier", "noinit_itable"))
        with on_error(os.close, mount):
            make_uppers(recipe, identity, directory_fd=mount)
        return mount

    def copy_template(self, limits: Limits, target: str) -> None:
        """Create an empty file system of that size in a new file. Raises: OSError."""
        for attempt in range(_ATTEMPTS):
            template = self._template(limits.disk_bytes, limits.inodes)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
            try:
                copy_sparse(template, target)
            except FileNotFoundError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue  # another launcher has removed it, because others were used later
            return

    def _collect(self) -> None:
        """Delete all but the templates that were used last, and unfinished ones of killed processes.

        A process that copies one has it open, and can continue after it was deleted.
        """
        now = time.time()
        used: list[tuple[float, str]] = []
        with os.scandir(self._templates) as scan:
            for entry in scan:
                with contextlib.suppress(FileNotFoundError):
                    age = now - entry.stat(follow_symlinks=False).st_mtime
                    if entry.name.endswith(".img"):
                        used.append((age, entry.path))
                    elif age > _UNFINISHED_SECONDS:
                        os.unlink(entry.path)
        for _, path in sorted(used)[_MAX_TEMPLATES:]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _template(self, size_bytes: int, inodes: int) -> str:
        size_bytes = _image_bytes(size_bytes, inodes)
        path = os.path.join(self._templates, f"{size_bytes}-{inodes}.img")
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
            return path
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._templates, 0o700)
        unfinished = f"{path}.{os.getpid()}"
        try:
            with open(unfinished, "wb") as file:
                file.truncate(size_bytes)
            options = f"-q -F -b 4096 -m 0 -O ^has_journal,^resize_inode -N {inodes} -I {_INODE_BYTES}".split()
            _run("mkfs.ext4", *options, "-E", "lazy_itable_init=1,nodiscard", unfinished)
            os.rename(unfinished, path)  # two launchers may race: either result is good
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
        self._collect()
        return path


def _run(program: str, *arguments: str) -> None:
    """Run a program of e2fsprogs. Raises: OSError."""
    try:
        subprocess.run(
            [str(shutil.which(program, path=_PROGRAMS) or program), *arguments],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={"PATH": _PROGRAMS},
        )
    except subprocess.CalledProcessError as error:
        raise OSError(errno.ENOSPC, f"{program}: {error.stderr.decode(errors='replace').strip()[:200]}") from error


def _image_bytes(size_bytes: int, inodes: int) -> int:
    """The size of an image, with room for the file system's own tables."""
    return max(size_bytes, _SMALLEST_BYTES) + inodes * _INODE_BYTES + _TABLES_BYTES


def mount_layer(layer: Layer) -> int:
    """A detached read-only mount of a layer. Any number of sandboxes may have one each."""
    return _mount(os.path.join(layer.folder, "disk.img"), ("ro",), read_only=True)


def _mount(image: str, flags: tuple[str, ...], *, read_only: bool = False) -> int:
    """A detached mount of an image file."""
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | _NO_ACCESS_TIME
    attributes |= syscalls.MOUNT_ATTR_RDONLY if read_only else 0
    device_fd, device = _attach_loop(image, read_only=read_only)
    with opened(device_fd):
        return syscalls.make_filesystem_mount("ext4", device, flags=flags, attributes=attributes)


def make_lasting(image: str, size_bytes: int, inodes: int, *, owners: tuple[int, int]) -> None:
    """A file system that is to survive a power cut, with an empty root folder of these owners. Raises: OSError."""
    with open(image, "xb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.truncate(_image_bytes(size_bytes, inodes) + _JOURNAL_BYTES)
    options = f"-q -F -b 4096 -m 0 -O ^resize_inode -J size={_JOURNAL_BYTES >> 20} -N {inodes} -I {_INODE_BYTES}"
    _run("mkfs.ext4", *options.split(), "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", image)
    with opened(mount_lasting(image)) as mount:
        os.rmdir("lost+found", dir_fd=mount)
        os.chown(".", *owners, dir_fd=mount)
        os.chmod(".", 0o755, dir_fd=mount)


def mount_lasting(image: str) -> int:
    """A detached mount of an image that several processes may mount at the same time.

    All of them share one loop device and one file system, since two devices on one file would destroy it.

    Raises:
        OSError: EBUSY, its device does not come free.
    """
    with opened(os.open(image, os.O_RDONLY | os.O_CLOEXEC)) as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)  # until it is mounted
        device_fd, device = _find_device(image) or _attach_loop(image)
        with opened(device_fd):
            attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | _NO_ACCESS_TIME
            flags = ("noinit_itable", "discard")
            return syscalls.make_filesystem_mount("ext4", device, flags=flags, attributes=attributes)


def _find_device(image: str) -> tuple[int, str] | None:
    """The loop device of an image, kept by its descriptor. Waits while one is being released."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    wanted = os.stat(image)
    while devices := _devices_on(image):
        for device in devices:
            with contextlib.suppress(OSError):
                device_fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
                with on_error(os.close, device_fd):
                    status = bytearray(_LOOP_STATUS_BYTES)
                    fcntl.ioctl(device_fd, _LOOP_GET_STATUS, status)
                    if struct.unpack_from("=QQ", status)[1] == wanted.st_ino:
                        return device_fd, device
                os.close(device_fd)
        if time.monotonic() >= deadline:
            raise OSError(errno.EBUSY, "its device does not come free")
        time.sleep(0.002)
    return None


def freeze(mount_fd: int) -> None:
    """Everything written reaches the image, and nothing more is written until `thaw`: writers wait."""
    fcntl.ioctl(mount_fd, _FREEZE, 0)


def thaw(mount_fd: int) -> None:
    """Undo `freeze`; does nothing if it is not frozen."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(mount_fd, _THAW, 0)


def thaw_left_over(image: str) -> None:
    """For the sweeper: the process that froze this image was killed before it could thaw it.

    A frozen file system keeps itself and its loop device for ever. Mounting the same device again gives access to it.
    """
    for device in _devices_on(image) if os.path.exists(image) else ():
        with contextlib.suppress(OSError):
            mount = syscalls.make_filesystem_mount("ext4", device, flags=(), attributes=syscalls.MOUNT_ATTR_NODEV)
            with opened(mount), opened(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)) as root:
                thaw(root)


def grow(image: str, mount_fd: int, limits: Limits) -> None:
    """Make a mounted image larger, while it is used.

    Raises:
        OSError: EINVAL for a smaller size than it has; else the kernel's.
    """
    size_bytes, before = _image_bytes(limits.disk_bytes, limits.inodes), os.path.getsize(image)
    if size_bytes < before:
        raise OSError(errno.EINVAL, "an image can't be made smaller")
    device = f"/dev/loop{os.minor(os.fstat(mount_fd).st_dev)}"
    with opened(os.open(device, os.O_RDWR | os.O_CLOEXEC)) as device_fd:
        try:
            os.truncate(image, size_bytes)
            fcntl.ioctl(device_fd, _LOOP_SET_CAPACITY, 0)
            fcntl.ioctl(mount_fd, _RESIZE_EXT4, struct.pack("=Q", size_bytes // _BLOCK_BYTES))
        except OSError:
            os.truncate(image, before)
            fcntl.ioctl(device_fd, _LOOP_SET_CAPACITY, 0)
            raise


def _grow_unused(image: str, size_bytes: int) -> None:
    """Make an image that is not mounted at least so large. Raises: OSError."""
    before = os.path.getsize(image)
    if size_bytes <= before:
        return
    os.truncate(image, size_bytes)
    try:
        _run("resize2fs", "-f", image)
    except OSError:
        os.truncate(image, before)
        raise


def _devices_on(image: str) -> list[str]:
    found = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if entry.read_text().rstrip("\n") == os.path.realpath(image):
                found.append(f"/dev/{entry.parts[3]}")
    return found


def _wait_released(image: str) -> None:
    """Wait until no loop device uses the image: two would corrupt it, and the last one stays a moment after its use.

    Raises:
        OSError: EBUSY, a process has a file of it open.
    """
    deadline = time.monotonic() + _RELEASE_SECONDS
    while _devices_on(image):
        if time.monotonic() >= deadline:
            raise OSError(errno.EBUSY, "a process of the host still has a file of the sandbox open")
        time.sleep(0.002)


def _attach_loop(image: str, *, read_only: bool = False) -> tuple[int, str]:
    mode = os.O_RDONLY if read_only else os.O_RDWR
    flags = _AUTOCLEAR | (_READ_ONLY if read_only else 0)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    with opened(control), opened(os.open(image, mode | os.O_CLOEXEC)) as backing:
        while True:
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            device_fd = os.open(device, mode | os.O_CLOEXEC)
            information = struct.pack("=5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, flags, b"corral", b"", b"", 0, 0)
            try:
                fcntl.ioctl(device_fd, _LOOP_CONFIGURE, struct.pack("=II", backing, 4096) + information + bytes(64))
            except OSError as error:
                os.close(device_fd)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device_fd, device
