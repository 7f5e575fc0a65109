"""The capabilities of containers, and the specs that are refused."""

from __future__ import annotations

from typing import Any

from corral.backends.docker.settings import Settings
from corral.errors import CapabilityError
from corral.protocol import refuse_given
from corral.results import DERIVED_POWERS, Capabilities
from corral.spec import NetworkLimits, Resources, Spec

POWERS = DERIVED_POWERS | {
    "detach", "pty", "users", "images", "snapshot", "fork", "stop", "pause", "resize", "dial", "expose"
}  # fmt: skip


def refuse_what_is_missing(spec: Spec) -> None:
    """Raises: CapabilityError for a spec that containers can't meet."""
    unsupported = {
        "packages": (
            bool(spec.packages),
            "use image= with one that has them; Image.debian_slim().pip_install(…) builds it",
        ),
        "venv": (spec.venv is not None, "build an image that has it"),
        "ephemeral": (spec.ephemeral, "leave it out: containers always write to the daemon's disk"),
        f"network={str(spec.network)!r}": (
            spec.network.mode == "packages" or bool(spec.network.hosts),
            'use backend="embedded", or network="none", or "open" for all that the daemon\'s network reaches',
        ),
        "limits of the network": (
            spec.network.limits != NetworkLimits() and spec.network.permits_something,
            'leave them out, or use backend="embedded"',
        ),
        "mounts": (bool(spec.mounts), "bring files with files.upload, or use backend='embedded'"),
        "secrets": (bool(spec.secrets), "use backend='embedded', or give values in env=, where programs see them"),
        "idle_seconds": (spec.lifetime.idle_seconds is not None, "use lifetime seconds instead"),
    }
    refuse_given("docker", unsupported)


def refuse_unkept(resources: Resources, info: dict[str, Any], *, disk: bool) -> None:
    """Raises: CapabilityError for a limit that was requested, and that the daemon does not enforce."""
    kept = {
        "memory_bytes": bool(info.get("MemoryLimit")),
        "processes": bool(info.get("PidsLimit")),
        "cpus": _limits_cpu(info),
        "disk_bytes": disk,
        "inodes": False,
    }
    for name, is_kept in kept.items():
        if name in resources.asked and not is_kept:
            raise CapabilityError(
                f"{name}={getattr(resources, name)!r} is not supported by this Docker daemon",
                op="create",
                hint="leave it out, or see docs/backends.md for the daemon's requirements",
            )


def _limits_cpu(info: dict[str, Any]) -> bool:
    return bool(info.get("CpuCfsQuota", info.get("CPUCfsQuota")))


def describe(info: dict[str, Any], settings: Settings, *, disk: bool, no_views: str | None) -> Capabilities:
    """What the daemon supports. `no_views`: why views are unsupported."""
    gvisor = settings.isolation == "gvisor"
    notes = [
        "between stdout and stderr the order is only close: the daemon reads them apart",
        "an exit code above 128 is told as a signal: the daemon does not tell them apart",
        'network="open" is the daemon\'s own network: private addresses and this machine are reached as well',
        "a call's tree is found by parent, session and environment: who leaves all three is not ended with it",
    ]
    if not disk:
        notes.append(f"the storage driver {info.get('Driver')} has no limit for one container's disk here")
    if no_views is not None:
        notes.append(f"no views: {no_views}")
    return Capabilities(
        isolation="gVisor (runsc)" if gvisor else "container: namespaces, no capabilities, seccomp, cgroups",
        memory="hard" if info.get("MemoryLimit") else "none",
        processes="hard" if info.get("PidsLimit") else "none",
        cpu="hard" if _limits_cpu(info) else "none",
        disk="hard" if disk else "none",
        network=("none", "open"),
        powers=POWERS if no_views is not None else POWERS | {"views"},
        notes=tuple(notes),
    )
