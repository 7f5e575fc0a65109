"""What a spec may mount: volumes, and folders of the host."""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args, runtime_checkable

from corral.errors import SpecError

MountMode = Literal["ro", "rw", "copy", "overlay"]
MAX_MOUNTS = 16
"""Each is a mount of its own in every call's view, and takes a descriptor while the sandbox is created."""
_MODES: tuple[str, ...] = get_args(MountMode)
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_MAX_PATH_BYTES = 1024
_NEVER_BELOW = (
    "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/run",
    "/opt/corral",
)  # fmt: skip
"""The system of a sandbox, and what Corral itself shows there."""
_NEVER_AT = ("/", "/home", "/opt", "/tmp", "/var", "/var/tmp", "/root")
"""Folders that hold more than a mount could replace; below them anything goes."""


@runtime_checkable
class HasVolumeId(Protocol):
    """What stands for a volume in a short form: a handle or an entry of a list."""

    @property
    def volume_id(self) -> str:
        """Its id."""
        ...


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume, or a folder of the host, that a sandbox shows at `path`."""

    path: str
    """The absolute path inside."""
    volume: str | None = None
    """The name or id of a volume."""
    source: str | os.PathLike[str] | None = None
    """A folder of the host instead; only where the operator's settings allow it."""
    subpath: str = ""
    """A folder of the volume, instead of all of it."""
    mode: MountMode | None = None
    """What the sandbox may do: `ro` reads, `rw` writes. By default "rw" for a volume, and "ro" for a folder.

    `copy` and `overlay` are for folders of the host: the sandbox writes, and the host's folder stays as it is until
    `apply()`.
    """
    exclusive: bool = False
    """No other sandbox may use the volume at the same time."""

    def __post_init__(self) -> None:
        set_value = object.__setattr__
        set_value(self, "path", _check_path(self.path))
        if (self.volume is None) == (self.source is None):
            raise SpecError(
                f"the mount at {self.path} needs either a volume or a source", hint=f"for example {_EXAMPLE}"
            )
        if self.mode is None:
            set_value(self, "mode", "rw" if self.source is None else "ro")
        if self.mode not in _MODES:
            raise SpecError(f"mode={self.mode!r} is not a mode of a mount", hint=f"use one of {', '.join(_MODES)}")
        if self.volume is not None:
            check_volume_name(self.volume)
            if self.mode not in ("ro", "rw"):
                raise SpecError(f"mode={self.mode!r} is for folders of the host", hint='volumes take "ro" or "rw"')
            set_value(self, "subpath", _check_subpath(self.subpath))
            return
        set_value(self, "source", _check_source(self.source))
        if self.subpath or self.exclusive:
            raise SpecError(
                f"the mount at {self.path}: subpath= and exclusive= are for volumes",
                hint="mount the folder itself that you need",
            )

    @property
    def writable(self) -> bool:
        """True if programs inside can write at its path."""
        return self.mode != "ro"


_EXAMPLE = 'Mount("/data", volume="my-volume")'


def read_mounts(value: object) -> tuple[Mount, ...]:
    """From what `mounts=` takes: mounts, or a mapping of paths to volumes: {"/data": "my-volume", "/in": "other:ro"}.

    Raises:
        SpecError: anything else; two mounts of which one hides the other; too many.
    """
    if isinstance(value, Mapping):
        mounts = tuple(_read_short(path, wanted) for path, wanted in value.items())
    elif isinstance(value, Sequence) and all(isinstance(each, Mount) for each in value):
        mounts = tuple(value)
    else:
        raise SpecError(
            f"mounts: {type(value).__name__} is not a list of mounts",
            hint=f'use [{_EXAMPLE}], or {{"/data": "my-volume"}}',
        )
    if len(mounts) > MAX_MOUNTS:
        raise SpecError(f"{len(mounts)} mounts are too many", hint=f"at most {MAX_MOUNTS} are supported")
    paths = sorted(f"{mount.path}/" for mount in mounts)
    for upper, lower in itertools.pairwise(paths):
        if lower.startswith(upper):
            raise SpecError(
                f"the mounts at {upper[:-1]} and {lower[:-1]} overlap", hint="mount them at paths beside each other"
            )
    return mounts


def _read_short(path: object, wanted: object) -> Mount:
    where = _check_path(path)
    if isinstance(wanted, Mount):
        return replace(wanted, path=where)
    if isinstance(wanted, HasVolumeId):
        return Mount(where, volume=wanted.volume_id)
    if not isinstance(wanted, str):
        raise SpecError(f"mounts: {type(wanted).__name__} is not a volume", hint='use a name: {"/data": "my-volume"}')
    name, colon, mode = wanted.partition(":")
    if colon and mode not in ("ro", "rw"):
        raise SpecError(f"mounts: {wanted!r} is not a volume", hint='use a name, or "my-volume:ro"')
    return Mount(where, volume=name, mode="ro" if mode == "ro" else "rw")


def check_volume_name(name: object) -> str:
    """A name or an id of a volume. Raises: SpecError."""
    if not isinstance(name, str) or not _VOLUME.fullmatch(name):
        raise SpecError(
            f"volume={name!r} is not a valid name of a volume",
            hint="letters, digits, '.', '_' and '-', at most 128",
        )
    return name


def _check_path(path: object) -> str:
    if not isinstance(path, str) or not path.startswith("/") or not _is_plain(path):
        raise SpecError(f"mounts: {path!r} is not an absolute path", hint="for example /data, without '.' and '..'")
    normal = posixpath.normpath("/" + path.strip("/"))
    below = next((place for place in _NEVER_BELOW if normal == place or normal.startswith(f"{place}/")), None)
    if below is not None or normal in _NEVER_AT:
        raise SpecError(
            f"nothing can be mounted at {normal}: the sandbox needs what is there",
            hint="mount at a path of your own, such as /data or /home/daytona/data",
        )
    return normal


def _check_subpath(subpath: object) -> str:
    if not isinstance(subpath, str) or subpath.startswith("/") or not _is_plain(subpath):
        raise SpecError(
            f"subpath={subpath!r} is not a path below the volume", hint="for example data/raw, without '.' and '..'"
        )
    return "/".join(part for part in subpath.split("/") if part)


def _is_plain(path: str) -> bool:
    """True for a short path that can only lead downwards."""
    parts = path.split("/")
    return (
        "\0" not in path and "\n" not in path and not {".", ".."} & set(parts) and len(path.encode()) <= _MAX_PATH_BYTES
    )


def _check_source(source: str | os.PathLike[str] | None) -> str:
    text = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise SpecError(f"source={source!r} is not a folder of the host", hint='for example source="~/project"')
    return text
