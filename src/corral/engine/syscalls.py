"""The system calls that Python's `os` does not offer, as thin typed functions.

Nothing here decides anything: each function makes one call and raises `OSError` when the kernel refuses.
Numbers of calls newer than 2019 are the same on every architecture; the older ones are in a table.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping
from typing import Final

from corral.inside.nolinks import opened

# PyDLL keeps the GIL during the call. `clone3` needs that: the child must come back holding the lock, as after os.fork.
_libc_gil = ctypes.PyDLL(None, use_errno=True)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc_gil.syscall.restype = ctypes.c_long
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_libc.setfsuid.argtypes = _libc.setfsgid.argtypes = (ctypes.c_uint,)

_OLD_NUMBERS: Final = {
    "x86_64": {"pivot_root": 155, "capset": 126, "kcmp": 312},
    "aarch64": {"pivot_root": 41, "capset": 91, "kcmp": 272},
}
_NR_OPEN_TREE, _NR_MOVE_MOUNT, _NR_FSOPEN, _NR_FSCONFIG, _NR_FSMOUNT = 428, 429, 430, 431, 432
_NR_CLONE3, _NR_CLOSE_RANGE, _NR_MOUNT_SETATTR = 435, 436, 442
_NR_LANDLOCK_CREATE, _NR_LANDLOCK_RESTRICT = 444, 446

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_INTO_CGROUP = 0x200000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 0x1, 0x2, 0x4, 0x8
MOUNT_ATTR_IDMAP = 0x00100000
FSCONFIG_SET_FLAG, FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 0, 1, 6

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER = 24, 28, 36
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECBIT_NO_SETUID_FIXUP = 1 << 2

_KCMP_FILES: Final = 2
_MACHINE: Final = platform.machine()


def _number(name: str) -> int:
    try:
        return _OLD_NUMBERS[_MACHINE][name]
    except KeyError:
        raise OSError(errno.ENOSYS, f"no number for {name} on {_MACHINE}") from None


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def _raw(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char], what: str) -> int:
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *converted), what)


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(os.fsencode(source), os.fsencode(target), os.fsencode(kind), flags, os.fsencode(data))
    _check(result, f"mount {kind or 'flags'} on {target}")


def umount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    _raw(_number("pivot_root"), os.fsencode(new), os.fsencode(old), what="pivot_root")


def open_tree(path: str) -> int:
    """A detached copy of the mount at `path`, as a descriptor."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC
    return _raw(_NR_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags, what=f"open_tree {path}")


def open_tree_at(folder_fd: int) -> int:
    """A detached copy of the mount that a folder is in, with that folder as its root."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH
    return _raw(_NR_OPEN_TREE, folder_fd, b"", flags, what="open_tree")


def move_mount_onto(tree_fd: int, folder_fd: int) -> None:
    """Attach a detached mount on an open folder."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _raw(_NR_MOVE_MOUNT, tree_fd, b"", folder_fd, b"", flags, what="move_mount")


def move_mount(tree_fd: int, target: str) -> None:
    """Attach a detached mount at `target`."""
    _raw(_NR_MOVE_MOUNT, tree_fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH, what="move_mount")


def mount_setattr(tree_fd: int, *, attr_set: int, userns_fd: int = 0) -> None:
    """Set attributes of a detached mount; with MOUNT_ATTR_IDMAP, `userns_fd` gives the mapping."""
    arguments = ctypes.create_string_buffer(struct.pack("=QQQQ", attr_set, 0, 0, userns_fd), 32)
    _raw(_NR_MOUNT_SETATTR, tree_fd, b"", AT_EMPTY_PATH, arguments, 32, what="mount_setattr")


def make_filesystem_mount(
    kind: str, source: str, *, flags: tuple[str, ...] = (), options: Mapping[str, str] | None = None, attributes: int
) -> int:
    """Mount a file system without attaching it anywhere; the descriptor is the only reference."""
    with opened(_raw(_NR_FSOPEN, os.fsencode(kind), 1, what=f"fsopen {kind}")) as context:
        _raw(_NR_FSCONFIG, context, FSCONFIG_SET_STRING, b"source", os.fsencode(source), 0, what="fsconfig source")
        for flag in flags:
            _raw(_NR_FSCONFIG, context, FSCONFIG_SET_FLAG, flag.encode(), 0, 0, what=f"fsconfig {flag}")
        for name, value in (options or {}).items():
            text = os.fsencode(value)
            _raw(_NR_FSCONFIG, context, FSCONFIG_SET_STRING, name.encode(), text, 0, what=f"fsconfig {name}")
        _raw(_NR_FSCONFIG, context, FSCONFIG_CMD_CREATE, 0, 0, 0, what=f"fsconfig create {kind}")
        return _raw(_NR_FSMOUNT, context, 1, attributes, what=f"fsmount {kind}")


def clone(flags: int, *, cgroup_fd: int | None = None) -> int:
    """clone3(2) used like fork: 0 in the child, its pid in the parent. Only for single-threaded processes."""
    import signal

    if cgroup_fd is not None:
        flags |= CLONE_INTO_CGROUP
    arguments = ctypes.create_string_buffer(
        struct.pack("=11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup_fd or 0), 88
    )
    # The interpreter's own locks are handled exactly as os.fork would.
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _libc_gil.syscall(ctypes.c_long(_NR_CLONE3), arguments, ctypes.c_long(88))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    code = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, os.strerror(code), "clone3")
    return pid


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    """prctl(2)."""
    _check(_libc.prctl(option, value, third, 0, 0), f"prctl {option}")


def set_process_name(name: str) -> None:
    """The short name that `ps` and the kernel log show."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _check(_libc.prctl(PR_SET_NAME, ctypes.addressof(buffer), 0, 0, 0), "prctl name")


def close_range(first: int, last: int = 0x7FFFFFFF, *, cloexec: bool = False) -> None:
    """close_range(2): close, or mark close-on-exec, every descriptor in the range."""
    _raw(_NR_CLOSE_RANGE, first, last, 4 if cloexec else 0, what="close_range")


def close_all_but(keep: tuple[int, ...]) -> None:
    """Close every descriptor except those named."""
    start = 0
    for descriptor in sorted(set(keep)):
        if descriptor > start:
            close_range(start, descriptor - 1)
        start = descriptor + 1
    close_range(start)


_CAPABILITY_HEADER: Final = struct.pack("=II", 0x20080522, 0)


def share_descriptors(thread: int, other: int) -> bool:
    """True if two threads have the same table of descriptors. Raises: OSError, also if the kernel has no kcmp."""
    return _raw(_number("kcmp"), thread, other, _KCMP_FILES, 0, 0, what="kcmp") == 0


def set_capabilities(mask: int) -> None:
    """Permitted and effective sets become `mask`; nothing is inheritable."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    _raw(_number("capset"), _CAPABILITY_HEADER, data, what="capset")


def set_file_identity(uid: int, gid: int) -> None:
    """Act on files as this user, with a process that this user can't signal."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    # setfsuid reports no error, but a call with an impossible id returns the current one.
    if _libc.setfsuid(0xFFFFFFFF) != uid or _libc.setfsgid(0xFFFFFFFF) != gid:
        raise PermissionError(errno.EPERM, "setfsuid was refused")


def forbid_looking_at_others() -> None:
    """Landlock: this process and its children can no longer reach into processes that are not theirs.

    A ruleset that forbids next to nothing suffices: a process in a Landlock domain may only trace, and use
    /proc/PID/root of, processes of the same domain.
    """
    make_block_device = 1 << 10
    attributes = ctypes.create_string_buffer(struct.pack("=Q", make_block_device), 8)
    with opened(_raw(_NR_LANDLOCK_CREATE, attributes, 8, 0, what="landlock_create_ruleset")) as ruleset:
        _raw(_NR_LANDLOCK_RESTRICT, ruleset, 0, what="landlock_restrict_self")


def overwrite_memory(start: int, length: int, content: bytes) -> None:
    """Write over a known writable range of this process (its own argument strings)."""
    ctypes.memmove(start, content[:length].ljust(length, b"\0"), length)
