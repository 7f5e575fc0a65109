"""Snapshots and stopped sandboxes: images, whose tags say what they are."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from corral.backends.docker.container import (
    CREATED_LABEL,
    IMAGE_LABEL,
    LABEL,
    SPEC_LABEL,
    ContainerName,
    dump_spec,
    load_spec,
)
from corral.backends.docker.engine_api import EngineApi, Json
from corral.backends.docker.link import LinkHolder
from corral.backends.docker.seam import mapped
from corral.errors import SnapshotNotFoundError, SpecError
from corral.results import SandboxInfo, SnapshotInfo
from corral.spec import Spec

if TYPE_CHECKING:
    from corral.backends.docker.sandbox import DockerSandbox

SNAPSHOTS = "corral-snapshot"
STOPPED = "corral-stopped"
TRASH = "corral-trash"
"""Images that only a container still uses: removed after that has ended."""
OWN_IMAGES = frozenset({SNAPSHOTS, STOPPED, TRASH})
_FORK_SECONDS = 300.0
NAME_LABEL = "dev.corral.name"


class Keeping:
    """For use in the I/O thread, unless said otherwise."""

    def __init__(
        self,
        links: LinkHolder,
        *,
        make: Callable[..., Awaitable[DockerSandbox]],
        forget: Callable[[DockerSandbox], None],
    ) -> None:
        self._links = links
        self._make = make
        self.forget = forget

    @property
    def _api(self) -> EngineApi:
        return self._links.get().api

    # Names.

    async def find_all(self) -> list[tuple[ContainerName, Json]]:
        """Corral's containers, in any state and of any owner."""
        found = []
        for container in await self._api.find_containers(LABEL):
            standing = next(filter(None, map(ContainerName.parse, container.get("Names") or [])), None)
            if standing is not None:
                found.append((standing, container))
        return found

    async def find_kept(self) -> list[tuple[ContainerName, Json]]:
        """The running or paused containers that are detached."""
        return [each for each in await self.find_all() if each[0].kept and each[1]["State"] in ("running", "paused")]

    async def claim_name(self, name: str | None, sandbox_id: str) -> None:
        """Raises: SpecError if another sandbox has the name."""
        if name is None:
            return
        taken = {standing.name: standing.sandbox_id for standing, _ in await self.find_kept()}
        taken |= {info.name: info.sandbox_id for info, _ in await self.list_stopped()}
        if taken.get(name, sandbox_id) != sandbox_id:
            raise SpecError(f"the name {name!r} is taken", sandbox_id=sandbox_id, op="detach", hint="use another")

    # Stopped sandboxes.

    async def keep_files(self, container: str, sandbox_id: str, spec: Spec, name: str | None, created: float) -> None:
        """Keep the files of a container as those of a stopped sandbox."""
        await self.claim_name(name, sandbox_id)
        await self._commit(container, STOPPED, sandbox_id, sandbox_id, name, spec=spec, created=created)

    async def find_stopped(self, wanted: str) -> tuple[SandboxInfo, Spec] | None:
        """A stopped sandbox, by id or name."""
        known = await self.list_stopped()
        return next(((info, spec) for info, spec in known if wanted in (info.sandbox_id, info.name)), None)

    async def list_stopped(self) -> list[tuple[SandboxInfo, Spec]]:
        """All stopped sandboxes."""
        found = []
        for image in await self._find(STOPPED):
            labels = image["Labels"]
            spec = load_spec(labels[SPEC_LABEL])
            info = SandboxInfo(
                labels[LABEL], "docker", labels.get(NAME_LABEL) or None, "stopped",
                float(labels[CREATED_LABEL]), None, dict(spec.labels),
            )  # fmt: skip
            found.append((info, spec))
        return found

    async def relabel(self, image: str, info: SandboxInfo, spec: Spec) -> None:
        """Make the files of an image those of a stopped sandbox."""
        async with self._unstarted(image) as container:
            await self._commit(
                container, STOPPED, info.sandbox_id, info.sandbox_id, info.name, spec=spec, created=info.created
            )

    @contextlib.asynccontextmanager
    async def _unstarted(self, image: str) -> AsyncIterator[str]:
        """A container of an image that never runs."""
        host = {"NetworkMode": "none"}
        container = await self._api.create_container(
            {"Image": image, "Entrypoint": ["/bin/sh"], "HostConfig": host},
            name=f"corral-relabel-{uuid.uuid4().hex}",
        )
        try:
            yield container
        finally:
            await self._api.remove(container)

    # Snapshots.

    async def snapshot(self, container: str, sandbox_id: str, name: str | None) -> str:
        """Take a snapshot; returns its id. Raises: SpecError if the name is taken."""
        with mapped(op="snapshot", sandbox_id=sandbox_id):
            if name is not None and any(info.name == name for info in await self.list_snapshots()):
                raise SpecError(f"a snapshot named {name!r} already exists", op="snapshot", hint="use another name")
            snapshot_id = str(uuid.uuid4())
            await self._commit(container, SNAPSHOTS, snapshot_id, sandbox_id, name)
        return snapshot_id

    async def snapshot_stopped(self, sandbox_id: str, name: str | None) -> str:
        """Take a snapshot of a stopped sandbox; returns its id."""
        async with self._unstarted(f"{STOPPED}:{sandbox_id}") as container:
            return await self.snapshot(container, sandbox_id, name)

    async def find_snapshot(self, wanted: str) -> str:
        """The image of a snapshot, by id or name. Raises: SnapshotNotFoundError."""
        for info in await self.list_snapshots():
            if wanted in (info.snapshot_id, info.name):
                return f"{SNAPSHOTS}:{info.snapshot_id}"
        raise SnapshotNotFoundError(f"snapshot {wanted!r} not found", op="snapshot", hint="list_snapshots() lists them")

    async def list_snapshots(self) -> list[SnapshotInfo]:
        """All snapshots, oldest first."""
        found = [
            SnapshotInfo(
                image["Tag"], "docker", image["Labels"].get(NAME_LABEL) or None, image["Labels"].get(LABEL),
                float(image["Labels"][CREATED_LABEL]),
            )
            for image in await self._find(SNAPSHOTS)
        ]  # fmt: skip
        return sorted(found, key=lambda info: info.created)

    async def discard(self, image: str) -> None:
        """Remove an image's name; layers that containers still use are removed with the last of these."""
        tag = image.partition(":")[2]
        await self._api.tag_image(image, repo=TRASH, tag=tag)
        await self._api.remove_image(image)
        await self._api.remove_image(f"{TRASH}:{tag}")

    async def sweep_trash(self) -> None:
        """Remove unused images. A new one is kept, because a fork may be about to start from it."""
        for image in await self._find(TRASH):
            age = time.time() - float(image["Labels"][CREATED_LABEL])
            if not image["Labels"].get(LABEL) and age < _FORK_SECONDS:
                continue
            await self._api.remove_image(f"{TRASH}:{image['Tag']}")

    async def make_trash(self, container: str) -> str:
        """An image of a container's files, for one other sandbox."""
        tag = str(uuid.uuid4())
        await self._commit(container, TRASH, tag, "", None)
        return f"{TRASH}:{tag}"

    async def fork(self, container: str, spec: Spec) -> DockerSandbox:
        """Create a sandbox with the same files. From any event loop."""
        with mapped(op="fork"):
            image = await self._links.get().io.arun(self.make_trash(container))
        return await self._make(spec, image=image, trash=image)

    # Images.

    async def _commit(
        self, container: str, repo: str, tag: str, sandbox_id: str, name: str | None,
        *, spec: Spec | None = None, created: float | None = None,
    ) -> None:  # fmt: skip
        labels = {
            IMAGE_LABEL: repo,
            LABEL: sandbox_id,
            NAME_LABEL: name or "",
            CREATED_LABEL: f"{created if created is not None else time.time():.3f}",
        }
        if spec is not None:
            labels[SPEC_LABEL] = dump_spec(spec)
        await self._api.commit(container, repo=repo, tag=tag, labels=labels)

    async def _find(self, repo: str) -> list[dict[str, Any]]:
        """Our images of one repository, each with its tag. One image may have several."""
        found = []
        for image in await self._api.find_images(f"{IMAGE_LABEL}"):
            for name in image.get("RepoTags") or []:
                if name.startswith(f"{repo}:"):
                    found.append({**image, "Tag": name.partition(":")[2]})  # noqa: PERF401
        return found
