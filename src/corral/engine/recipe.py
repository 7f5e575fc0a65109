"""What the engine is asked to create: plain frozen values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

CODE_UID = CODE_GID = 1000
"""The ids of the code's user. Clients expect the user `daytona` to have these."""

UID_RANGE_SIZE = 65536
BASE_FIRST_UID = 0x7FFF_0000
"""The first id of the base's files on disk, as root: in a range without sandboxes and logins."""


@dataclass(frozen=True, slots=True)
class Overlaid:
    """One overlay: host folders, uppermost first, shown at `target`; writes go to the sandbox's own storage."""

    target: str
    lowers: tuple[str, ...]
    writable: bool = False
    outside: bool = False
    """A folder of the host that the user asked for, which is no part of the base."""
    copied: bool = False
    """The sandbox has a copy of that folder, in its own folder on the host, and shows this."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A volume or a folder of the host, shown at `target`: what is written goes there."""

    target: str
    source: str
    """The id of a volume, or the real path of a folder."""
    volume: bool
    subpath: str = ""
    """A folder below the source; links on it are not followed."""
    writable: bool = False
    exclusive: bool = False
    """No other sandbox may use the volume at the same time."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The files that a sandbox wrote up to some moment: never changed, and shared by all sandboxes on it."""

    name: str
    folder: str
    kind: str
    """How its files are stored: `loop` (disk.img) or `folder` (disk)."""
    first_uid: int | None
    """The owner of its files on disk: the first id of a range, or None if there is one id only."""
    trees: dict[str, int]
    """Target of a writable tree → its number on this disk."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one sandbox may use."""

    memory_bytes: int
    processes: int
    cpus: float
    disk_bytes: int
    inodes: int
    open_files: int = 4096
    shared_memory_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything needed to create one sandbox."""

    sandbox_id: str
    folder: str
    trees: tuple[Overlaid, ...]
    limits: Limits
    hostname: str = "corral"
    ephemeral: bool = False
    files: dict[str, str] = field(default_factory=dict)
    """Small text files that are written before anything runs: path → content. A path that ends in "/" is a folder."""
    layers: tuple[Layer, ...] = ()
    """Between the base and new writes, uppermost first."""
    mounts: tuple[Bound, ...] = ()
    copies: str = ""
    """A folder with copies of folders of the host, by the number of their tree. The sandbox's folder takes it in."""
    redirect: bool = False
    """True if its connections go to its window; otherwise nothing can be reached, and connecting fails at once."""

    def to_json(self) -> dict[str, Any]:
        """As a message, and as stored. Earlier versions know neither mounts nor networks, so none are left out."""
        data = asdict(self)
        for name in ("mounts", "copies", "redirect"):
            if not data[name]:
                del data[name]
        for tree in data["trees"]:
            for name in ("outside", "copied"):
                if not tree[name]:
                    del tree[name]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recipe:
        """The inverse of `to_json`."""
        trees = tuple(Overlaid(**{**tree, "lowers": tuple(tree["lowers"])}) for tree in data["trees"])
        layers = tuple(Layer(**layer) for layer in data.get("layers", ()))
        mounts = tuple(Bound(**bound) for bound in data.get("mounts", ()))
        parts = {"trees": trees, "layers": layers, "mounts": mounts, "limits": Limits(**data["limits"])}
        return cls(**{**data, **parts})


@dataclass(frozen=True, slots=True)
class Identity:
    """How ids inside map to ids outside.

    As root a sandbox owns a whole range (init is 0 inside, code is 1000). As an ordinary user there is one id, and
    init and code share it.
    """

    rootless: bool
    outer_uid: int
    outer_gid: int

    @property
    def init_uid(self) -> int:
        """Init's id inside."""
        return CODE_UID if self.rootless else 0

    @property
    def uid_map(self) -> str:
        """The line for /proc/PID/uid_map."""
        return f"{CODE_UID} {self.outer_uid} 1" if self.rootless else f"0 {self.outer_uid} {UID_RANGE_SIZE}"

    @property
    def gid_map(self) -> str:
        """The line for /proc/PID/gid_map."""
        return f"{CODE_GID} {self.outer_gid} 1" if self.rootless else f"0 {self.outer_gid} {UID_RANGE_SIZE}"
