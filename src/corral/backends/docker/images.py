"""Images: found, fetched, or built from a `corral.Image`."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import AsyncIterator

import aiohttp
from aiodocker.exceptions import DockerError

from corral.backends.docker.container import IMAGE_LABEL
from corral.backends.docker.engine_api import EngineApi, Json, make_entry, make_tar
from corral.backends.docker.settings import Settings
from corral.errors import BackendUnavailableError
from corral.image import Image

BUILD_REPO = "corral-build"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

log = logging.getLogger("corral.docker")


async def ensure_image(api: EngineApi, settings: Settings, image: str | Image | None) -> str:
    """Fetch or build an image if the daemon does not have it; returns its name.

    Raises:
        BackendUnavailableError: it can't be fetched or built.
    """
    if isinstance(image, Image):
        return await _build(api, image)
    name = image or settings.image
    if await api.inspect_image(name) is None:
        await _pull(api, settings, name)
    return name


async def _pull(api: EngineApi, settings: Settings, name: str) -> None:
    hint = "pull it (`docker pull`), or name a local image: image= or CORRAL_DOCKER_IMAGE"
    if not settings.pull:
        raise BackendUnavailableError(f"the image {name!r} is not on this machine", op="create", hint=hint)
    log.info("fetching the image %s", name)
    await _follow(api.pull(name), name, failure=f"the image {name!r} is missing and can't be pulled", hint=hint)
    log.info("fetched the image %s", name)


async def _build(api: EngineApi, image: Image) -> str:
    """Build an image from its lines, once for the same lines."""
    text = image.dockerfile.encode()
    tag = f"{BUILD_REPO}:{hashlib.sha256(text).hexdigest()[:24]}"
    if await api.inspect_image(tag) is not None:
        return tag
    log.info("building an image")
    steps = api.build(
        make_tar((make_entry("Dockerfile", mode=0o644, size=len(text)), text)), tag=tag, labels={IMAGE_LABEL: "build"}
    )
    hint = "the logger corral.docker has the build steps"
    await _follow(steps, tag, failure="the image could not be built", hint=hint)
    return tag


async def _follow(steps: AsyncIterator[Json], name: str, *, failure: str, hint: str) -> None:
    """Log the steps. Raises: BackendUnavailableError if the daemon refuses, or reports an error in one of them."""
    last = ""
    try:
        async for step in steps:
            if "error" in step:
                reason = f"{step['error']}; last line of output: {last[-200:]}" if last else step["error"]
                raise BackendUnavailableError(f"{failure}: {reason[:300]}", op="create", hint=hint)
            text = _COLOUR.sub("", str(step.get("status") or step.get("stream") or "")).strip()
            last = text or last
            if text and "progressDetail" not in step:
                log.debug("%s: %s", name, text[:200])
    except (DockerError, aiohttp.ClientError) as error:
        reason = str(getattr(error, "message", error))[:300]
        raise BackendUnavailableError(f"{failure}: {reason}", op="create", hint=hint) from error
