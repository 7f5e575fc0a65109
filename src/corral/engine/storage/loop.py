"""Uppers in a file system of their own, in a sparse file: a hard quota of bytes and inodes on any disk.

mkfs runs once per size; each sandbox gets a sparse copy of that template (about 1 MiB of real data). The loop device
clears itself and the mount is never attached to the host's tree, so that a killed launcher leaves only the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess

from corral.engine import syscalls
from corral.engine.recipe import Identity, Recipe
from corral.engine.storage.layout import make_uppers

_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR = 4
_NO_ACCESS_TIME = 0x10
_SMALLEST_BYTES = 4 * 1024 * 1024
_INODE_BYTES = 256
_TABLES_BYTES = 2 * 1024 * 1024


class LoopStorage:
    """A file `disk.img` inside the sandbox's folder."""

    kind = "loop"
    hard = True

    def __init__(self, templates: str) -> None:
        self._templates = templates

    @staticmethod
    def available() -> bool:
        """Whether loop devices and mkfs.ext4 are here. Found out by trying, not by reading settings."""
        if _mkfs() is None:
            return False
        try:
            control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
        except OSError:
            return False
        finally:
            os.close(control)
        return os.path.exists(f"/dev/loop{number}")

    def prepare(self, recipe: Recipe, identity: Identity) -> int | None:
        """See `Storage`."""
        template = self._template(recipe.limits.disk_bytes, recipe.limits.inodes)
        image = os.path.join(recipe.folder, "disk.img")
        _copy_sparse(template, image)
        mount = self.mount(image)
        try:
            make_uppers(recipe, identity, directory_fd=mount)
        except BaseException:
            os.close(mount)
            raise
        return mount

    @staticmethod
    def mount(image: str) -> int:
        """A detached mount of an image file."""
        device_fd, device = _attach_loop(image)
        try:
            attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | _NO_ACCESS_TIME
            # Barriers would flush the host's disk for every sync inside; a sandbox's files do not outlive a power cut.
            return syscalls.make_filesystem_mount(
                "ext4", device, flags=("nobarrier", "noinit_itable"), attributes=attributes
            )
        finally:
            os.close(device_fd)

    def _template(self, size_bytes: int, inodes: int) -> str:
        # The file system's own tables come on top, so that the sandbox can use what it was promised.
        size_bytes = max(size_bytes, _SMALLEST_BYTES) + inodes * _INODE_BYTES + _TABLES_BYTES
        path = os.path.join(self._templates, f"{size_bytes}-{inodes}.img")
        if os.path.exists(path):
            return path
        os.makedirs(self._templates, mode=0o700, exist_ok=True)
        unfinished = f"{path}.{os.getpid()}"
        try:
            with open(unfinished, "wb") as file:
                file.truncate(size_bytes)
            options = [
                "-q",
                "-F",
                "-b",
                "4096",
                "-m",
                "0",
                "-O",
                "^has_journal,^resize_inode",
                "-N",
                str(inodes),
                "-I",
                str(_INODE_BYTES),
            ]
            mkfs = _mkfs()
            assert mkfs is not None
            subprocess.run(
                [mkfs, *options, "-E", "lazy_itable_init=1,nodiscard", unfinished],
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                env={"PATH": "/usr/sbin:/sbin"},
            )
            os.rename(unfinished, path)  # two launchers may race: either result is good
        except subprocess.CalledProcessError as error:
            raise OSError(errno.ENOSPC, f"mkfs.ext4: {error.stderr.decode(errors='replace').strip()[:200]}") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
        return path


def _mkfs() -> str | None:
    return shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin:/bin")


def _copy_sparse(source: str, target: str) -> None:
    with open(source, "rb", buffering=0) as reader, open(target, "xb", buffering=0) as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        position = 0
        while position < size:
            try:
                start = os.lseek(reader.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break  # only a hole is left
                raise
            position = end = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            while start < end:
                start += os.copy_file_range(reader.fileno(), writer.fileno(), end - start, start, start)


def _attach_loop(image: str) -> tuple[int, str]:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            device_fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            information = struct.pack("=5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, b"corral", b"", b"", 0, 0)
            try:
                fcntl.ioctl(device_fd, _LOOP_CONFIGURE, struct.pack("=II", backing, 4096) + information + bytes(64))
            except OSError as error:
                os.close(device_fd)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device_fd, device
    finally:
        os.close(backing)
        os.close(control)
