"""From a spec to a new sandbox: what is refused, the SDK's parameters, and what is set afterwards."""

from __future__ import annotations

import time
from typing import Any

from corral.backends.daytona import life
from corral.backends.daytona.powers import asked_limits, limits_of
from corral.backends.daytona.seam import ServiceError, repeat
from corral.errors import CapabilityError
from corral.image import Image
from corral.protocol import refuse_given
from corral.spec import HOME, Spec


def refuse_unsupported(spec: Spec) -> None:
    """Raises: CapabilityError for an option that no Daytona service supports."""
    unsupported = {
        "packages=": (
            bool(spec.packages),
            "`corral serve --package NAME` has them in every sandbox; elsewhere use image= with one that has them",
        ),
        "venv=": (spec.venv is not None, "`corral serve --venv DIR` has it in every sandbox; elsewhere use an image"),
        "secrets=": (bool(spec.secrets), "store them at the service, or give values in env=, where programs see them"),
        "ephemeral=": (spec.ephemeral, "leave it out: an owned sandbox is deleted with its files"),
        "a limit for inodes": ("inodes" in spec.resources.asked, "leave it out; disk_bytes is supported"),
        "mounts=": (bool(spec.mounts), "use the vendor's SDK for its volumes, or backend='embedded'"),
        "hostname=": (spec.hostname != "corral", "leave it out"),
    }
    refuse_given("daytona", unsupported)
    if spec.image is not None and spec.snapshot is not None:
        raise CapabilityError("image= and snapshot= can't be combined", op="create", hint="leave one of them out")


def make_params(
    spec: Spec,
    labels: dict[str, str],
    deadline: float | None,
    *,
    os_user: str | None,
    target: str | None,
    network: dict[str, Any],
) -> Any:
    """The SDK's parameters for creating a sandbox."""
    from daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams
    from daytona import Image as SdkImage
    from daytona import Resources as SdkResources

    name = spec.name
    if name is None and spec.client_token is not None:
        name = life.token_name(spec.client_token)
    idle = spec.lifetime.idle_seconds
    params: dict[str, Any] = {
        "name": name,
        "os_user": os_user,
        "env_vars": dict(spec.env),
        "labels": labels,
        "auto_stop_interval": life.OWNER_MINUTES if idle is None else max(life.OWNER_MINUTES, life.minutes(idle)),
        "auto_delete_interval": 0,
        "ttl_minutes": life.minutes(deadline - time.time()) if deadline is not None else None,
        "target": target,
        **{name: value for name, value in network.items() if value},
    }
    if spec.image is None:
        return CreateSandboxFromSnapshotParams(snapshot=spec.snapshot, **params)
    image: Any = spec.image
    if isinstance(image, Image):
        built = SdkImage.base("scratch")
        built._dockerfile = image.dockerfile  # noqa: SLF001 - the SDK takes a Dockerfile only as a file
        image = built
    limits = SdkResources(**limits_of(spec.resources))
    return CreateSandboxFromImageParams(image=image, resources=limits, **params)


async def make_workdir(box: Any, workdir: str) -> None:
    """Create the working folder. Raises: CapabilityError without the permission; ServiceError."""
    try:
        await repeat(lambda: box.fs.create_folder(workdir, "755"), safe=True)
    except ServiceError as error:
        if error.status in (400, 403):
            raise CapabilityError(
                f"the sandbox's user can't create the folder {workdir!r}",
                op="create",
                hint=f"give a workdir below {HOME}, /workspace or /tmp, or an image that has it",
            ) from error
        if error.status != 409:  # it exists
            raise


async def set_limits(box: Any, spec: Spec) -> None:
    """Set the requested limits of a new sandbox: a snapshot brings its own. Raises: ServiceError."""
    from daytona import Resources as SdkResources

    asked = limits_of(spec.resources, asked_limits(spec.resources))
    # A disk can't shrink.
    change: dict[str, Any] = {
        name: value
        for name, value in asked.items()
        if (value > box.disk if name == "disk" else value != getattr(box, name))
    }
    if change:
        await repeat(lambda: box.resize(SdkResources(**change)), safe=False)
