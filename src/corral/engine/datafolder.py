"""Checks that a data folder is safe: only its owner can change its path, or reach anything below it.

The path is walked from / by directory descriptors, never through a link. Each folder on it belongs to root or to us,
and no other user can write there, unless it is sticky like /tmp: there others can't rename or remove our files.
The data folder itself belongs to us, and has mode 0700. So no other user can replace any part of the path, neither now
nor later, and the rest of the engine may use the paths below as plain strings.

Earlier versions left the folder open to readers, and parts of `base/` to writers. Such a folder is made private when it
is found; what others could have changed until then is renamed, and the sweeper removes it once no running sandbox uses
it.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
import stat
from pathlib import Path

from corral.engine.errors import UnsafeFolderError, UnsupportedError
from corral.inside.nolinks import opened

FORMAT = 1
"""The format of a whole data folder. Raised when Corral writes something that the version before can't read."""

SET_ASIDE = ".old-"
_PARTS = (
    "base", "copies", "disks", "layers", "packages", "runtimes", "sandboxes", "server", "snapshots", "trash", "volumes"
)  # fmt: skip
_SHOWN = ("base", "packages", "runtimes")
"""Parts with files that sandboxes can see."""
_LOCKS = ("founding.lock", "layers.lock", "names.lock", "trash.lock", "volumes.lock")
_FORMAT_FILE = "format"
_OURS = frozenset((*_PARTS, *_LOCKS, _FORMAT_FILE, "instance", "lost+found"))
_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHOOSE = "set CORRAL_DATA_DIR (or --data-dir) to a folder of your own"


def secure(path: Path | str, *, make: bool = True) -> None:
    """Check that a data folder is safe, and correct its mode if only that is wrong. With `make`, create it if missing.

    Raises:
        UnsafeFolderError: others could change it, or it can't be created; the hint says what to do.
        UnsupportedError: a newer version of Corral has written it.
    """
    whole = str(Path(path).absolute())  # each `..` is kept: its meaning depends on links
    try:
        folder = _walk(whole, make=make)
        if folder is None:
            return
        with opened(folder):
            _close(folder, whole)
            _check_format(folder, make=make)
    except OSError as error:
        raise UnsafeFolderError(f"the data folder {whole} can't be used: {error.strerror}", hint=_CHOOSE) from error


def _check_format(folder: int, *, make: bool) -> None:
    """Refuse a folder of a newer format before anything in it is read, or swept as unreadable.

    Folders of 0.1.0 have no such file, and have format 1.
    """
    try:
        descriptor = os.open(_FORMAT_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        if make:
            _write_format(folder)
        return
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(32).strip()
    if not text.isdigit() or int(text) > FORMAT:
        raise UnsupportedError(
            f"the data folder has format {text.decode('ascii', 'replace')}, and this version of Corral knows {FORMAT}",
            hint=f"use the version of Corral that wrote it, or {_CHOOSE}",
        )


def _write_format(folder: int) -> None:
    unfinished = f".format-{os.getpid()}-{os.urandom(4).hex()}"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{FORMAT}\n")
    os.rename(unfinished, _FORMAT_FILE, src_dir_fd=folder, dst_dir_fd=folder)  # complete when it appears


def make_part(path: Path | str, name: str) -> Path:
    """One of the folders in a data folder, created if it is missing. Raises: as `secure`."""
    secure(path)
    part = Path(path) / name
    with contextlib.suppress(FileExistsError):
        part.mkdir(mode=0o700)
    return part


def _walk(path: str, *, make: bool) -> int | None:
    """A descriptor of the folder at the end of the path; None if it does not exist and is not to be created."""
    here = os.open("/", _LOOK)
    try:
        so_far = ""
        for name in path.split("/")[1:]:
            _ensure_stable(here, so_far or "/", path)
            so_far += f"/{name}"
            below = _enter(here, name, so_far, path, make=make)
            if below is None:
                return None
            os.close(here)
            here = below
        return os.dup(here)
    finally:
        os.close(here)


def _enter(above: int, name: str, so_far: str, path: str, *, make: bool) -> int | None:
    try:
        return os.open(name, _LOOK, dir_fd=above)
    except FileNotFoundError:
        if not make:
            return None
    except OSError as error:
        if not stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            raise
        raise UnsafeFolderError(
            f"the data folder {path} is refused: {so_far} is a link, and links are not followed",
            hint=f"give the real path: CORRAL_DATA_DIR={os.path.realpath(path)} (or --data-dir)",
        ) from error
    with contextlib.suppress(FileExistsError):
        # Never writable by others, regardless of the umask. Its owner is checked afterwards.
        os.mkdir(name, 0o700 if so_far == path else 0o755, dir_fd=above)
    return os.open(name, _LOOK, dir_fd=above)


def _ensure_stable(folder: int, so_far: str, path: str) -> None:
    """Check that only root and this user can replace the contents of this folder."""
    found = os.fstat(folder)
    refused = f"the data folder {path} is refused: "
    if found.st_uid not in (0, os.geteuid()):
        raise UnsafeFolderError(f"{refused}{so_far} belongs to another user ({_name(found.st_uid)})", hint=_CHOOSE)
    if not found.st_mode & stat.S_ISVTX and _others_write(folder, found):
        raise UnsafeFolderError(
            f"{refused}others can write to {so_far} (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"chmod go-w {so_far}, or {_CHOOSE}",
        )


def _close(folder: int, path: str) -> None:
    """Check the data folder itself: owned by this user and not writable by others; then make it private."""
    found = os.fstat(folder)
    refused = f"the data folder {path} is refused: "
    if found.st_uid != os.geteuid():
        name = _name(found.st_uid)
        raise UnsafeFolderError(f"{refused}it belongs to another user ({name})", hint=f"run as {name}, or {_CHOOSE}")
    if _others_write(folder, found):
        raise UnsafeFolderError(
            f"{refused}others can write to it (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"remove it; or check its contents, and chmod 700 {path}",
        )
    if _is_closed(folder, path):
        return
    with opened(os.open(".", _LIST, dir_fd=folder)) as inside:
        fcntl.flock(inside, fcntl.LOCK_EX)  # a second process must not set aside what the first has just created
        _close_all(inside, path)
        if not _is_closed(folder, path):  # vfat and network shares may accept a mode and ignore it
            raise UnsafeFolderError(
                f"{refused}others can read it, and its mode can't be changed on this file system", hint=_CHOOSE
            )


def _is_closed(folder: int, path: str) -> bool:
    return not os.fstat(folder).st_mode & 0o077 and all(_is_part_closed(folder, name, path) for name in _PARTS)


def _is_part_closed(folder: int, name: str, path: str) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return True
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UnsafeFolderError(
            f"the data folder {path} is refused: {name} in it is not a folder that you own",
            hint="move a data folder as a whole: set CORRAL_DATA_DIR (or --data-dir) to where it is",
        )
    if name not in _SHOWN and found.st_mode & 0o022:
        raise UnsafeFolderError(
            f"the data folder {path} is refused: others can write to {name} in it",
            hint=f"remove it; or check its contents, and chmod 700 {path}/{name}",
        )
    return not found.st_mode & 0o077


def _close_all(folder: int, path: str) -> None:
    if os.fstat(folder).st_mode & 0o077:
        names = set(os.listdir(folder))
        if "instance" not in names and not names <= _OURS:
            raise UnsafeFolderError(
                f"the data folder {path} is refused: others can read it, and it holds more than Corral's data",
                hint=f"give it a folder of its own; or chmod 700 {path}, if no other user needs its contents",
            )
        os.fchmod(folder, 0o700)  # from here on no other user can enter
    for name in _PARTS:
        if not _is_part_closed(folder, name, path):
            with opened(os.open(name, _LIST, dir_fd=folder)) as part:
                if name in _SHOWN:
                    _set_aside(part, everything=name == "base")
                os.fchmod(part, 0o700)  # last: if we are killed before, the next process starts again


def _set_aside(part: int, *, everything: bool) -> None:
    """Rename what others could have changed. Every base has a /tmp that all can write to, so all bases."""
    everything = everything or _others_write(part, os.fstat(part))
    for name in os.listdir(part):
        if not name.startswith(SET_ASIDE) and (everything or not _is_untouched(part, name)):
            os.rename(name, f"{SET_ASIDE}{name}-{os.urandom(4).hex()}", src_dir_fd=part, dst_dir_fd=part)


def _is_untouched(part: int, name: str) -> bool:
    if not _is_ours_alone(part, name):
        return False
    for _, folders, files, inside in os.fwalk(name, dir_fd=part):
        if not all(_is_ours_alone(inside, entry) for entry in (*folders, *files)):
            return False
    return True


def _is_ours_alone(folder: int, name: str) -> bool:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if found.st_uid != os.geteuid():
        return False
    return stat.S_ISLNK(found.st_mode) or not (found.st_mode & 0o002 or _is_shared(found))


def _others_write(folder: int, found: os.stat_result) -> bool:
    if found.st_mode & 0o002:
        return True
    return bool(found.st_mode & 0o020) and (_is_shared(found) or _has_access_list(folder))


def _is_shared(found: os.stat_result) -> bool:
    """True if a group with other members may write.

    Many distributions give each user a group of the same name and a umask of 0002, so that new files are writable for
    that group: this means no other user.
    """
    if not found.st_mode & 0o020:
        return False
    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return True
    private = owner.pw_gid == found.st_gid and group.gr_name == owner.pw_name
    if not private or any(member != owner.pw_name for member in group.gr_mem):
        return True
    return any(each.pw_gid == found.st_gid and each.pw_uid != found.st_uid for each in pwd.getpwall())


def _has_access_list(folder: int) -> bool:
    """True if the group's bits stand for an access control list (see acl(5)). Through /proc, since listxattr refuses
    descriptors opened with O_PATH."""
    try:
        return "system.posix_acl_access" in os.listxattr(f"/proc/self/fd/{folder}")
    except (OSError, AttributeError):  # no such lists on this file system, or on this system at all
        return False


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
