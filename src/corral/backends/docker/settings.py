"""The daemon's address, and the defaults for containers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corral.errors import BackendUnavailableError, SpecError
from corral.spec import Resources

DEFAULT_IMAGE = "python:3.12-slim"
DEFAULT_MEMORY_BYTES = 512 * 1024**2
DOCKER_SOCKET = "/var/run/docker.sock"
Isolation = Literal["runc", "gvisor"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a backend: from its constructor, else from the environment."""

    host: str
    image: str = DEFAULT_IMAGE
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    isolation: Isolation = "runc"
    pull: bool = True
    user: str | None = None
    """The user that programs run as; None is the image's own."""

    def __post_init__(self) -> None:
        if self.isolation not in ("runc", "gvisor"):
            raise SpecError(f"isolation={self.isolation!r} is unknown", hint="use 'runc' or 'gvisor'")

    def find_memory(self, resources: Resources) -> int:
        """The memory limit of a container: a spec with the library's default gets the backend's, which is stricter.

        A dataclass can't tell a default from the same value given by hand. To get exactly the library's default, pass
        it to the backend.
        """
        return self.memory_bytes if resources.memory == Resources().memory else resources.memory


_SCHEMES = ("/", "unix://", "tcp://", "http://", "https://")


def find_host(given: str | None, env: Mapping[str, str] = os.environ) -> str:
    """The daemon's address: as given, as the environment says, Docker's own socket, or podman's.

    Raises:
        BackendUnavailableError: malformed address.
    """
    for host in (given, env.get("CORRAL_DOCKER_HOST"), env.get("DOCKER_HOST")):
        if host:
            if not host.startswith(_SCHEMES):
                raise BackendUnavailableError(
                    f"{host!r} is not the URL of a Docker daemon",
                    op="create",
                    hint="set host= or CORRAL_DOCKER_HOST to a path, or to a unix://, tcp://, http:// or https:// URL",
                )
            return f"unix://{host}" if host.startswith("/") else host
    podman = [f"{folder}/podman/podman.sock" for folder in (env.get("XDG_RUNTIME_DIR"), "/run") if folder]
    found = next((path for path in (DOCKER_SOCKET, *podman) if Path(path).exists()), DOCKER_SOCKET)
    return f"unix://{found}"
