"""Makes the namespaces of the test ground, and runs a program there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn

from corral.testing.ground import links, world

_NEWNS, _NEWUSER, _NEWNET = 0x00020000, 0x10000000, 0x40000000
_BIND, _REC, _PRIVATE, _DETACH = 0x1000, 0x4000, 0x40000, 2
_PR_SET_PDEATHSIG = 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_DATA, _DATA_VARIABLE = "corral-data", "CORRAL_DATA_DIR"
_PREFIXES = ("PIP_", "npm_config_", "NPM_CONFIG_", "UV_")
"""Variables that lead a package manager elsewhere."""
_RESOLVER = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
_LOOKUPS = "passwd: files\ngroup: files\nhosts: files dns\n"
_CACHES = ("/run/nscd", "/var/run/nscd", "/run/systemd/resolve", "/run/avahi-daemon")
"""Sockets of the host's own look-up services, which a network namespace does not hide."""


@cache
def _kernel() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)  # not on import: there is no such thing on Windows


class GroundError(Exception):
    """The namespaces could not be made, or something in them leads out."""


def enter(argv: list[str]) -> NoReturn:
    """Become a program on the test ground. The process must have a single thread.

    Raises:
        GroundError: this user can't make such namespaces here, or the program can't be run.
    """
    outside = Path("/proc/self/ns/net").readlink()
    try:
        _unshare()
        if Path("/proc/self/ns/net").readlink() == outside:
            raise GroundError("still in the network namespace that it was started in")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _make_world(ours, theirs)
        links.bring_up("lo")
        # As on no other machine: an ordinary user's program may be a name server or a web server here.
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0", encoding="ascii")
        _hide_the_hosts_names()
        data = os.environ.get(_DATA_VARIABLE)
        if os.geteuid():
            data = _make_own_root(data)
        ours.send(b"{}")  # the cable is there
        if not ours.recv(10):
            raise GroundError("the process that stands for the world ended")
        _connect_to_world()
    except OSError as error:
        raise GroundError(f"{error} (as uid {os.geteuid()})") from error
    ours.set_inheritable(True)
    env = make_environment(os.environ.items()) | {world.SOCKET_VARIABLE: str(ours.fileno())}
    if data is not None:
        env[_DATA_VARIABLE] = data
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        raise GroundError(f"{argv[0]}: {error.strerror}") from error


def make_environment(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """An environment without what leads programs elsewhere: proxies, and indexes of packages."""
    return {
        name: value
        for name, value in variables
        if not name.lower().endswith("_proxy") and not name.startswith(_PREFIXES)
    }


def _unshare() -> None:
    """As an ordinary user, by a user namespace in which the user stays who it is: corral then works as for any user."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_kernel().unshare(_NEWNS | _NEWNET | (_NEWUSER if uid else 0)), "unshare")
    if uid:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
    _mount("none", "/", flags=_REC | _PRIVATE)


def _make_world(ours: socket.socket, theirs: socket.socket) -> None:
    """Start the process that stands for the world, in its own namespace, and lay the cable to it."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            _kernel().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() == parent:
                _check(_kernel().unshare(_NEWNET), "unshare")
                theirs.send(b"{}")
                world.serve(theirs)
        except BaseException as error:  # noqa: BLE001 - a forked child must end here, whatever happened
            sys.stderr.write(f"the world ended: {error!r}\n")
        finally:
            os._exit(1)
    theirs.close()
    if not ours.recv(10):
        raise GroundError("no second network namespace")
    links.make_pair(world.NEAR, peer=world.FAR, peer_process=pid)


def _connect_to_world() -> None:
    links.add_address(world.NEAR, f"{world.OWN_ADDRESS}/30")
    links.add_address(world.NEAR, f"{world.OWN_ADDRESS_6}/64")
    links.bring_up(world.NEAR)
    links.add_route(world.NEAR, "0.0.0.0/0", through=world.GATEWAY)
    links.add_route(world.NEAR, "::/0", through=world.GATEWAY_6)


def _hide_the_hosts_names() -> None:
    """Bind files of our own over the host's; no look-up may reach a service of the host by a socket in a folder.

    They live in memory, as long as the namespace does.
    """
    with _in_memory() as folder:
        for name, text in {"hosts": world.HOSTS, "resolv.conf": _RESOLVER, "nsswitch.conf": _LOOKUPS}.items():
            file = folder / name
            file.write_text(text, encoding="ascii")
            file.chmod(0o666)  # also when root has made the ground for a program of another user
            if Path("/etc", name).exists():
                _mount(file, f"/etc/{name}", flags=_BIND)
        (folder / "empty").mkdir()
        for place in _CACHES:
            if Path(place).is_dir():
                _mount(folder / "empty", place, flags=_BIND)
        for name in ("hosts", "resolv.conf"):
            if not Path("/etc", name).exists() or not Path("/etc", name).samefile(folder / name):
                raise GroundError(f"/etc/{name} is not there, and so can't be covered")
        _check(_kernel().umount2(bytes(folder), _DETACH), "umount")


def _make_own_root(data: str | None) -> str | None:
    """Give an ordinary user a root folder of its own with everything of the old one; the data folder's new path.

    In a user namespace that maps one user, files of root seem to be another user's, and a data folder below such a
    folder is refused.
    """
    with _in_memory() as folder:
        for entry in Path("/").iterdir():
            new = folder / entry.name
            if entry.is_symlink():
                new.symlink_to(entry.readlink())
            elif entry.is_dir():
                new.mkdir()
                _mount(entry, new, flags=_BIND | _REC)
        if data is not None:
            Path(data).mkdir(mode=0o700, exist_ok=True)
            (folder / _DATA).mkdir()
            _mount(data, folder / _DATA, flags=_BIND)
        here = Path.cwd()
        os.chdir(folder)
        _check(_kernel().syscall(ctypes.c_long(_PIVOT_ROOT[os.uname().machine]), b".", b"."), "pivot_root")
        _check(_kernel().umount2(b".", _DETACH), "umount")  # the old root, which lies upon the new one
        _check(_kernel().umount2(bytes(folder), _DETACH), "umount")  # itself, bound with the folder it was mounted in
        os.chdir(here)
    return None if data is None else f"/{_DATA}"


@contextlib.contextmanager
def _in_memory() -> Iterator[Path]:
    """A folder in memory, which outlives the block where it was bound to, but not its name."""
    folder = Path(tempfile.mkdtemp(prefix="corral-ground-"))
    try:
        _mount("none", folder, kind="tmpfs", options="mode=755")
        yield folder
    finally:
        folder.rmdir()


def _mount(source: Path | str, target: Path | str, *, flags: int = 0, kind: str = "", options: str = "") -> None:
    place = os.fsencode(os.path.realpath(target))
    words = (os.fsencode(source), place, kind.encode() or None)
    done = _kernel().mount(*words, ctypes.c_ulong(flags), options.encode() or None)
    _check(done, f"mount on {target}")


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
