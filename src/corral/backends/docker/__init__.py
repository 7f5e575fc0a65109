"""The Docker backend: sandboxes are containers of a Docker Engine, or of podman behind the same API.

    with Sandbox(backend="docker", image="python:3.12-slim") as box:
        box.exec("python -V")

Needs the extra `corral[docker]`, and a daemon that answers. See docs/backends.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corral.errors import BackendUnavailableError

if TYPE_CHECKING:
    from corral.backends.docker.backend import DockerBackend

__all__ = ["DockerBackend", "open_backend"]


def open_backend(**options: Any) -> DockerBackend:
    """For the registry: what is not given comes from the environment. Raises: BackendUnavailableError."""
    return __getattr__("DockerBackend")(**options)


def __getattr__(name: str) -> type[DockerBackend]:
    if name != "DockerBackend":
        raise AttributeError(name)
    try:
        from corral.backends.docker.backend import DockerBackend
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(
            f"the docker backend needs {error.name}", hint="pip install 'corral[docker]'"
        ) from error
    return DockerBackend
