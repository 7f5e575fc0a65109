"""Which folders of the host may be mounted: those that the operator has listed, and nothing by default.

The list comes from the program that creates the backend, or from `CORRAL_HOST_FOLDERS`. A mount names a folder on the
list or below one. The path is resolved once, here; what is mounted later is opened without following any link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corral.errors import MountError, PolicyError, SpecError
from corral.mount import Mount

VARIABLE = "CORRAL_HOST_FOLDERS"
_NEVER_BELOW = ("/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/var/run")


@dataclass(frozen=True, slots=True)
class Permitted:
    """A folder on the operator's list."""

    path: str
    writable: bool


def read_host_folders(value: str | Sequence[str]) -> tuple[Permitted, ...]:
    """From "~/data,~/project:rw", or a list of such entries. Raises: SpecError."""
    entries = value.split(",") if isinstance(value, str) else value
    return tuple(_read(entry.strip()) for entry in entries if entry.strip())


def _read(entry: str) -> Permitted:
    path, colon, mode = entry.rpartition(":")
    if not colon or mode not in ("ro", "rw"):
        path, mode = entry, "ro"
    folder = Path(path).expanduser()
    if not folder.is_absolute():
        raise SpecError(
            f"host_folders: {entry!r} is not an absolute path", hint="use entries such as ~/data or /srv/project:rw"
        )
    return Permitted(os.path.realpath(folder), mode == "rw")


def permit(mount: Mount, permitted: Sequence[Permitted], *, data_folder: Path) -> str:
    """The real path of a mount's folder.

    Raises:
        PolicyError: the operator's list does not allow it.
        MountError: it is missing, not a folder, or of a kind that is never mounted.
    """
    asked = str(Path(str(mount.source)).expanduser())
    path = os.path.realpath(asked)
    rights = [entry.writable for entry in permitted if path == entry.path or path.startswith(_as_prefix(entry.path))]
    if not rights:
        raise PolicyError(
            f"the folder {asked} is not one that sandboxes may mount",
            op="create",
            hint=f"if they may, list it: {VARIABLE}={path}, host_folders in config.toml"
            ", or EmbeddedBackend(host_folders=…)",
        )
    if mount.mode == "rw" and not any(rights):
        raise PolicyError(
            f"the folder {asked} may be mounted for reading only",
            op="create",
            hint=f'use mode="overlay" and apply(), or list it for writing: {path}:rw',
        )
    _refuse_unsafe(path, asked, data_folder=data_folder, writing=mount.mode == "rw")
    return path


def _refuse_unsafe(path: str, asked: str, *, data_folder: Path, writing: bool) -> None:
    data = os.path.realpath(data_folder)
    kept = {
        "the whole file system": path == "/",
        "a folder of the system": any(path == each or path.startswith(f"{each}/") for each in _NEVER_BELOW),
        "a home folder, or above one": _holds(path, os.path.realpath(Path.home())),
        "Corral's own data folder, or above it": _holds(path, data) or path.startswith(_as_prefix(data)),
    }
    for what, applies in kept.items():
        if applies:
            raise MountError(f"{asked} is {what}, which is never mounted", op="create", hint="mount a folder below it")
    try:
        found = Path(path).lstat()
    except OSError as error:
        raise MountError(f"{asked}: {error.strerror}", op="create", hint="create the folder first") from error
    if not stat.S_ISDIR(found.st_mode):
        raise MountError(f"{asked} is not a folder", op="create", hint="mount the folder that it is in")
    if os.geteuid() != 0 and found.st_uid != os.geteuid():
        raise MountError(f"{asked} belongs to another user", op="create", hint="mount a folder of your own")
    if os.geteuid() == 0 and found.st_uid == 0 and writing:
        # A program inside acts as the folder's owner there: it could leave a program that runs as root on the host.
        raise MountError(
            f"{asked} belongs to root, so it is not mounted for writing",
            op="create",
            hint='give it to another user, or use mode="overlay" and apply()',
        )


def _holds(path: str, other: str) -> bool:
    return path == other or other.startswith(_as_prefix(path))


def _as_prefix(path: str) -> str:
    return path.rstrip("/") + "/"
