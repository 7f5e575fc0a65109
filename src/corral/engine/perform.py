"""The one file that carries plans out. Each step type has one function; the table at the end pairs them."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from corral.engine import plan, syscalls
from corral.engine.errors import SetupError
from corral.engine.recipe import Identity, Recipe
from corral.engine.seccomp.install import Prepared

_STAGING = "/tmp"  # exists on every Linux; covered by our own tmpfs in our own mount namespace


@dataclass(slots=True)
class Stage:
    """What steps need to know besides themselves."""

    recipe: Recipe
    identity: Identity
    seccomp: Prepared
    layers: dict[str, int] = field(default_factory=dict)
    """Detached mounts by short name. As root the launcher fills it; otherwise OpenLayer does."""
    plans: dict[str, list[plan.Step]] = field(default_factory=dict)
    """Plans of programs by user, kept because each program needs the same one."""


def perform(steps: list[plan.Step], stage: Stage) -> None:
    """Carry out a plan; raises `SetupError` that names the step the kernel refused."""
    for step in steps:
        try:
            _PERFORMERS[type(step)](step, stage)
        except OSError as error:
            raise SetupError(f"{step}: {error.strerror}", step=str(step), errno=error.errno or 0) from error


def open_layer(path: str, *, userns_fd: int | None = None, writable: bool = False) -> int:
    """A detached mount of a host folder, shifted into a user namespace when one is given."""
    tree = syscalls.open_tree(path)
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
    try:
        if not writable:
            attributes |= syscalls.MOUNT_ATTR_RDONLY
        if userns_fd is not None:
            attributes |= syscalls.MOUNT_ATTR_IDMAP
        syscalls.mount_setattr(tree, attr_set=attributes, userns_fd=userns_fd or 0)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _open_layer(step: plan.OpenLayer, stage: Stage) -> None:
    if step.name not in stage.layers:
        stage.layers[step.name] = open_layer(step.path, writable=step.name == "d")


def _private_mounts(step: plan.PrivateMounts, stage: Stage) -> None:
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)


def _own_cgroup_view(step: plan.OwnCgroupView, stage: Stage) -> None:
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)


def _staging(step: plan.Staging, stage: Stage) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", _STAGING, "tmpfs", flags, "mode=0755,size=1m,nr_inodes=4k")
    os.chdir(_STAGING)
    for folder in step.folders:
        os.mkdir(folder, 0o755)


def _attach(step: plan.Attach, stage: Stage) -> None:
    descriptor = stage.layers.pop(step.name)
    syscalls.move_mount(descriptor, step.name)
    os.close(descriptor)


def _tmpfs(step: plan.Tmpfs, stage: Stage) -> None:
    flags = syscalls.MS_NOSUID | (syscalls.MS_NODEV if step.target != "root/dev" else 0)
    if not step.executable:
        flags |= syscalls.MS_NOEXEC
    syscalls.mount(
        "tmpfs", step.target, "tmpfs", flags, f"mode={step.mode},size={step.size_bytes},nr_inodes={step.inodes}"
    )


def _make_folders(step: plan.MakeFolders, stage: Stage) -> None:
    for path in step.paths:
        os.makedirs(path, 0o755, exist_ok=True)


def _overlay(step: plan.Overlay, stage: Stage) -> None:
    # Relative names: what mountinfo shows inside is exactly this text. `volatile` spares a sync of the whole host
    # file system at each unmount; durability is promised nowhere in a running sandbox.
    options = f"lowerdir={':'.join(step.lowers)},userxattr"
    if step.upper:
        options += f",upperdir={step.upper}/u,workdir={step.upper}/w,volatile"
    syscalls.mount("overlay", step.target, "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)


def _proc(step: plan.Proc, stage: Stage) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", step.target, "proc", flags, "hidepid=2")


def _limit_namespaces(step: plan.LimitNamespaces, stage: Stage) -> None:
    for name, value in step.values:
        try:
            with open(f"root/proc/sys/user/{name}", "w") as file:
                file.write(str(value))
        except FileNotFoundError:
            continue  # a kernel without this kind of namespace has nothing to limit


def _mask_proc(step: plan.MaskProc, stage: Stage) -> None:
    for name in step.files:
        if os.path.exists(f"root/proc/{name}"):
            syscalls.mount("/dev/null", f"root/proc/{name}", "", syscalls.MS_BIND)
    for name in step.folders:
        if os.path.isdir(f"root/proc/{name}"):
            flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
            syscalls.mount("tmpfs", f"root/proc/{name}", "tmpfs", flags, "mode=0555,size=4k,nr_inodes=2")
    for name in step.read_only:
        path = f"root/proc/{name}"
        syscalls.mount(path, path, "", syscalls.MS_BIND | syscalls.MS_REC)
        _remount_read_only(path, syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)


def _devices(step: plan.Devices, stage: Stage) -> None:
    for name in step.names:
        path = f"{step.target}/{name}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        syscalls.mount(f"/dev/{name}", path, "", syscalls.MS_BIND)
    for name, goal in step.links:
        os.symlink(goal, f"{step.target}/{name}")
    os.mkdir(f"{step.target}/pts", 0o755)
    os.mkdir(f"{step.target}/shm", 0o1777)
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("devpts", f"{step.target}/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620,max=256")


def _read_only(step: plan.ReadOnly, stage: Stage) -> None:
    _remount_read_only(step.target, syscalls.MS_NOSUID | syscalls.MS_NOEXEC)


def _remount_read_only(path: str, flags: int) -> None:
    syscalls.mount("", path, "", syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | flags)


def _pivot(step: plan.Pivot, stage: Stage) -> None:
    os.chdir("root")
    # pivot_root(".", ".") stacks the old root on the new one; detaching "." then lets go of the whole host tree.
    syscalls.pivot_root(".", ".")
    syscalls.umount(".", syscalls.MNT_DETACH)
    os.chdir("/")


def _loopback(step: plan.Loopback, stage: Stage) -> None:
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(sock, get_flags, request))
        fcntl.ioctl(sock, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def _hostname(step: plan.Hostname, stage: Stage) -> None:
    socket.sethostname(step.name)


def _write_files(step: plan.WriteFiles, stage: Stage) -> None:
    uid, gid = plan.CODE_IDS
    for path in step.paths:
        missing = []
        folder = os.path.dirname(path)
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            os.mkdir(folder, 0o755)
            os.chown(folder, uid, gid)
        if path.endswith("/"):
            continue
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "w") as file:
            file.write(stage.recipe.files[path])
        os.chown(path, uid, gid)


def _offer_to_oom(step: plan.OfferToOom, stage: Stage) -> None:
    # While a process is not dumpable its file belongs to the host's root. To be dumpable for a moment is safe: whoever
    # would look must have every capability this process still has.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(descriptor, str(step.score).encode())
        finally:
            os.close(descriptor)
    finally:
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)


def _resource_limits(step: plan.ResourceLimits, stage: Stage) -> None:
    for name, value in step.values:
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _drop_bounding(step: plan.DropBounding, stage: Stage) -> None:
    for capability in step.capabilities:
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:
                break  # past the last capability of this kernel
            raise


def _become_user(step: plan.BecomeUser, stage: Stage) -> None:
    if step.set_groups:
        os.setgroups([])
    if step.uid == 0 and not stage.identity.rootless:
        return
    os.setresgid(step.gid, step.gid, step.gid)
    os.setresuid(step.uid, step.uid, step.uid)


def _set_capabilities(step: plan.SetCapabilities, stage: Stage) -> None:
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.set_capabilities(step.mask)


def _no_new_privileges(step: plan.NoNewPrivileges, stage: Stage) -> None:
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)


def _filter(step: plan.Filter, stage: Stage) -> None:
    stage.seccomp.install()


def _close_others(step: plan.CloseOthers, stage: Stage) -> None:
    syscalls.close_range(3, cloexec=True)


_PERFORMERS: dict[type[plan.Step], Callable[[Any, Stage], None]] = {
    plan.OpenLayer: _open_layer,
    plan.PrivateMounts: _private_mounts,
    plan.OwnCgroupView: _own_cgroup_view,
    plan.Staging: _staging,
    plan.Attach: _attach,
    plan.Tmpfs: _tmpfs,
    plan.MakeFolders: _make_folders,
    plan.Overlay: _overlay,
    plan.Proc: _proc,
    plan.LimitNamespaces: _limit_namespaces,
    plan.MaskProc: _mask_proc,
    plan.Devices: _devices,
    plan.ReadOnly: _read_only,
    plan.Pivot: _pivot,
    plan.Loopback: _loopback,
    plan.Hostname: _hostname,
    plan.WriteFiles: _write_files,
    plan.OfferToOom: _offer_to_oom,
    plan.ResourceLimits: _resource_limits,
    plan.DropBounding: _drop_bounding,
    plan.BecomeUser: _become_user,
    plan.SetCapabilities: _set_capabilities,
    plan.NoNewPrivileges: _no_new_privileges,
    plan.Filter: _filter,
    plan.CloseOthers: _close_others,
}
