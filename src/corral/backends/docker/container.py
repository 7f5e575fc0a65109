"""A container's configuration, its labels, and its name, which says whose it is."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from corral.backends.docker.enter import make_mount, open_to_key
from corral.backends.docker.insidescripts import KEEPER
from corral.backends.docker.settings import Settings
from corral.errors import SpecError
from corral.protocol import lacking
from corral.spec import Lifetime, LimitOptions, NetworkPolicy, Resources, Spec, given_limits

LABEL = "dev.corral.sandbox"
SPEC_LABEL = "dev.corral.spec"
OWNER_LABEL = "dev.corral.owner"
CREATED_LABEL = "dev.corral.created"
KEY_LABEL = "dev.corral.view-key"
"""For later clients that use views. Containers can't read labels."""
IMAGE_LABEL = "dev.corral.image"
"""On images of ours: `snapshot`, `stopped`, `fork` or `build`."""
GVISOR_RUNTIME = "runsc"

_ANY_KEY = f"{0x5EC7E7 << 39:x}"
_NAME = re.compile(r"/?corral_(?P<id>[0-9a-f-]{36})_(?:o|k_(?P<deadline>\d+)_(?P<name>.*))")


@dataclass(frozen=True, slots=True)
class ContainerName:
    """What a container's name says: renaming is the one change that is atomic and that every client sees."""

    sandbox_id: str
    kept: bool = False
    deadline: float | None = None
    """As Unix time."""
    name: str | None = None

    def __str__(self) -> str:
        if not self.kept:
            return f"corral_{self.sandbox_id}_o"
        return f"corral_{self.sandbox_id}_k_{int((self.deadline or 0) * 1000)}_{self.name or ''}"

    @classmethod
    def parse(cls, name: str) -> ContainerName | None:
        """Read a container's name; None if it is not one of ours."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        if found["deadline"] is None:
            return cls(found["id"])
        deadline = int(found["deadline"]) / 1000 or None
        return cls(found["id"], kept=True, deadline=deadline, name=found["name"] or None)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until its deadline."""
        return None if self.deadline is None else self.deadline - time.time()


# The spec, as a label.


def dump_spec(spec: Spec) -> str:
    """The spec as text, for later clients."""
    resources = {name: getattr(spec.resources, name) for name in Resources.__slots__}
    image = spec.image if spec.image is None or isinstance(spec.image, str) else None
    return json.dumps(
        {
            "image": image, "resources": resources, "network": [spec.network.mode, list(spec.network.hosts)],
            "env": dict(spec.env), "workdir": spec.workdir, "lifetime": [spec.lifetime.seconds, None],
            "name": spec.name, "labels": dict(spec.labels), "hostname": spec.hostname,
            "exec_timeout": spec.exec_timeout, "output_limit_bytes": spec.output_limit_bytes,
        }
    )  # fmt: skip


def load_spec(text: str) -> Spec:
    """The inverse of `dump_spec`."""
    told: dict[str, Any] = json.loads(text)
    mode, hosts = told.pop("network")
    return Spec(
        **{
            **told,
            "resources": Resources(**told["resources"]).as_usual(),
            "network": NetworkPolicy(mode, tuple(hosts)),
            "lifetime": Lifetime(told["lifetime"][0]),
        }
    )


# The owner.


@cache
def _find_boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return "elsewhere"


def _find_start(pid: int) -> str | None:
    """When a process started, so that a reused pid is noticed; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def describe_owner() -> str:
    """This process, for a label."""
    return f"{_find_boot()}/{os.getpid()}/{_find_start(os.getpid())}"


def is_orphan(owner: str) -> bool:
    """True if the process that a label names ran on this machine and has ended."""
    boot, _, rest = owner.rpartition("/")[0].rpartition("/")
    pid, start = rest, owner.rpartition("/")[2]
    if boot != _find_boot() or boot == "elsewhere" or not pid.isdigit():
        return False
    return _find_start(int(pid)) != start


# The configuration.


@cache
def _load_seccomp(*, with_key: bool) -> str:
    profile = json.loads((files("corral.backends.docker") / "seccomp.json").read_text())
    return json.dumps(open_to_key(profile, _ANY_KEY) if with_key else profile, separators=(",", ":"))


def read_seccomp(view_key: str | None = None) -> str:
    """Our seccomp profile, made from the engine's table by tools/export-seccomp."""
    text = _load_seccomp(with_key=view_key is not None)
    # Parsing it again would take long, so the key is replaced in the text.
    return text if view_key is None else text.replace(str(int(_ANY_KEY, 16)), str(int(view_key, 16)))


def make_limits(resources: Resources, settings: Settings) -> dict[str, Any]:
    """The limits that the daemon enforces, and can change later."""
    memory = settings.find_memory(resources)
    return {
        "Memory": memory,
        "MemorySwap": memory,  # both together: no swap
        "NanoCpus": int(resources.cpus * 1e9),
        "PidsLimit": resources.processes,
    }


def resized(resources: Resources, limits: LimitOptions, *, sandbox_id: str) -> Resources:
    """The new limits. Raises: SpecError; CapabilityError for the disk, whose size is fixed when it is created."""
    if limits.get("disk_bytes") is not None:
        hint = "create a sandbox with another disk"
        raise lacking("docker", "resizing a disk", sandbox_id=sandbox_id, op="resize", hint=hint)
    try:
        return replace(resources, **given_limits(limits))
    except SpecError as error:
        error.sandbox_id = sandbox_id
        raise


def make_config(
    spec: Spec, settings: Settings, *, image: str, sandbox_id: str, disk: bool, view_key: str | None = None
) -> dict[str, Any]:
    """A container's configuration, strict by default: no network or capabilities, our filter, all limits."""
    host: dict[str, Any] = {
        **make_limits(spec.resources, settings),
        "AutoRemove": True,
        "NetworkMode": "default" if spec.network.permits_something else "none",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges", f"seccomp={read_seccomp(view_key)}"],
        "Ulimits": [
            {"Name": "nofile", "Soft": spec.resources.open_files, "Hard": spec.resources.open_files},
            {"Name": "core", "Soft": 1, "Hard": 1},  # with 0 the kernel may start a program of the host for a crash
        ],
        "LogConfig": {"Type": "none"},
        "IpcMode": "private",
        "Init": False,
    }
    if settings.isolation == "gvisor":
        host["Runtime"] = GVISOR_RUNTIME
    if view_key is not None:
        host["Mounts"] = [make_mount()]
    if disk:
        host["StorageOpt"] = {"size": str(spec.resources.disk)}
    return {
        "Image": image,
        **({"User": settings.user} if settings.user is not None else {}),
        "Hostname": spec.hostname,
        "Entrypoint": ["/bin/sh", "-c", KEEPER, "corral-keeper"],
        "Cmd": [],
        "WorkingDir": "/",
        "OpenStdin": True,
        "StdinOnce": True,  # the attached process holds it: when that process ends, so does the container
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": False,
        "Tty": False,
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {
            LABEL: sandbox_id,
            SPEC_LABEL: dump_spec(spec),
            OWNER_LABEL: describe_owner(),
            CREATED_LABEL: f"{time.time():.3f}",
            **({KEY_LABEL: view_key} if view_key is not None else {}),
        },
        "HostConfig": host,
    }
