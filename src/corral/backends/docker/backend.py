"""The Docker backend: creates, finds and deletes containers."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from aiodocker.exceptions import DockerError

from corral.backends.docker.agent import python_check
from corral.backends.docker.capable import describe, refuse_unkept, refuse_what_is_missing
from corral.backends.docker.container import (
    CREATED_LABEL,
    GVISOR_RUNTIME,
    KEY_LABEL,
    OWNER_LABEL,
    SPEC_LABEL,
    ContainerName,
    is_orphan,
    load_spec,
    make_config,
    resized,
)
from corral.backends.docker.control import Control
from corral.backends.docker.engine_api import EngineApi, Json, make_entry, make_tar
from corral.backends.docker.enter import FOLDER, make_key
from corral.backends.docker.images import ensure_image
from corral.backends.docker.keeping import OWN_IMAGES, STOPPED, Keeping
from corral.backends.docker.link import LinkHolder
from corral.backends.docker.sandbox import NAME, DockerSandbox
from corral.backends.docker.seam import mapped
from corral.backends.docker.settings import DEFAULT_IMAGE, DEFAULT_MEMORY_BYTES, Isolation, Settings, find_host
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.portal import Portal
from corral.concurrency.tokens import TokenBook
from corral.errors import BackendUnavailableError, SandboxStoppedError, gone
from corral.protocol import Backend, OnEvent
from corral.results import Capabilities, SandboxInfo, SnapshotInfo
from corral.spec import LimitOptions, Spec, as_another, check_name

_IDENTIFY = 'id -u; id -g; id -un 2>/dev/null || id -u; python3 -I -S -c "$1" >/dev/null 2>&1 && echo agent; exit 0'
_STALE_SECONDS = 600.0

log = logging.getLogger("corral.docker")


@dataclass(frozen=True, slots=True)
class _Identity:
    """What an image is asked once: its user, and whether it has a Python for the agent."""

    uid: int
    gid: int
    user: str
    has_agent: bool


class DockerBackend(Backend):
    """Docker, or podman, as `corral.protocol.Backend`.

    `host` is the daemon's address; the default is CORRAL_DOCKER_HOST, DOCKER_HOST, Docker's own socket, or podman's.
    `image` is used for specs without an image (CORRAL_DOCKER_IMAGE), `memory_bytes` for those that leave memory at its
    default. `isolation="gvisor"` runs containers with `runsc`. `pull=False` never fetches an image.
    """

    name = NAME

    def __init__(
        self,
        *,
        host: str | None = None,
        image: str | None = None,
        memory_bytes: int | None = None,
        isolation: Isolation = "runc",
        pull: bool = True,
        user: str | None = None,
    ) -> None:
        self.settings = Settings(
            host=find_host(host),
            image=image or os.environ.get("CORRAL_DOCKER_IMAGE") or DEFAULT_IMAGE,
            memory_bytes=memory_bytes if memory_bytes is not None else DEFAULT_MEMORY_BYTES,
            isolation=isolation,
            pull=pull,
            user=user,
        )
        self._links = LinkHolder(self.settings)
        self._pid = os.getpid()
        self._owned: set[DockerSandbox] = set()
        self._keeping = Keeping(self._links, make=self._make, forget=self._owned.discard)
        self._tokens: TokenBook[DockerSandbox] = TokenBook()
        self._identities: dict[str, _Identity] = {}
        self._swept = False
        self._disk: bool | None = None

    @property
    def _io(self) -> Portal:
        return self._links.get().io

    @property
    def _api(self) -> EngineApi:
        return self._links.get().api

    def _own(self) -> set[DockerSandbox]:
        """The sandboxes of this process: a forked child does not own those of its parent."""
        if self._pid != os.getpid():
            self._pid, self._tokens = os.getpid(), TokenBook()
            self._owned.clear()
        return self._owned

    def count_living(self) -> int:
        """The number of Corral's containers, in any state and of any owner."""
        return len(self._io.submit(self._keeping.find_all()).result(timeout=60))

    # Creating.

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        return AsyncSandbox.around(await self._make(spec), on_event=on_event, event="created")

    async def _make(
        self,
        spec: Spec,
        *,
        image: str | None = None,
        trash: str | None = None,
        sandbox_id: str | None = None,
    ) -> DockerSandbox:
        """From any event loop. `image`: one that Corral committed, used in place of the spec's."""
        refuse_what_is_missing(spec)
        self._own()

        async def create() -> DockerSandbox:
            with mapped(op="create", host=self.settings.host):
                await self._prepare()
                return await self._tokens.make_once(
                    spec.client_token, lambda: self._build(spec, image, trash, sandbox_id)
                )

        return await self._io.arun(create(), undo=self._undo)

    async def _undo(self, sandbox: DockerSandbox) -> None:
        if sandbox.spec.client_token is None:  # with a token, other callers may have been given the same sandbox
            await sandbox.end()

    async def _prepare(self) -> None:
        """Once: check that the daemon has what we need, and remove what ended processes left behind."""
        if self._swept:
            return
        info = await self._api.info()
        if self.settings.isolation == "gvisor" and GVISOR_RUNTIME not in (info.get("Runtimes") or {}):
            raise BackendUnavailableError(
                "isolation='gvisor' needs the runtime runsc, which the Docker daemon does not have", op="create",
                hint="install gVisor, run `runsc install`, and restart the daemon: https://gvisor.dev/docs/user_guide/install",
            )  # fmt: skip
        self._swept = True
        await self.sweep()

    async def _build(self, spec: Spec, image: str | None, trash: str | None, sandbox_id: str | None) -> DockerSandbox:
        if image is None and spec.snapshot is not None:
            image = await self._keeping.find_snapshot(spec.snapshot)
        if image is None:
            image = await ensure_image(self._api, self.settings, spec.image)
        standing = ContainerName(sandbox_id or str(uuid.uuid4()))
        key = make_key() if self.settings.isolation == "runc" else None
        sandbox = DockerSandbox(
            standing, spec, self._links, self._keeping, created=time.time(), view_key=key, trash=trash
        )
        creating = asyncio.ensure_future(self._create_container(spec, image, standing, key))
        try:
            sandbox.container = await asyncio.shield(creating)
            await self._bring_up(sandbox, image)
            await sandbox.begin_life()
        except BaseException:
            self._io.spawn(self._clear_up(creating, sandbox))
            raise
        self._owned.add(sandbox)
        return sandbox

    async def _create_container(self, spec: Spec, image: str, standing: ContainerName, key: str | None = None) -> str:
        for disk in (True, False) if await self._limits_disk() else (False,):
            refuse_unkept(spec.resources, await self._api.info(), disk=disk)
            config = make_config(
                spec, self.settings, image=image, sandbox_id=standing.sandbox_id, disk=disk, view_key=key
            )
            try:
                return await self._api.create_container(config, name=str(standing))
            except DockerError as error:
                if not disk or "storage-opt" not in str(error.message):
                    raise
                self._disk = False
        raise AssertionError("the last try returns or raises")

    async def _bring_up(self, sandbox: DockerSandbox, image: str) -> None:
        control = Control(self._api.attach(sandbox.container), on_end=sandbox.has_ended)
        sandbox.control, sandbox.control_pid = control, os.getpid()
        await control.open()
        found = self._identities.get(image)
        if found is not None:
            await self._make_workdir(sandbox, found)
        if sandbox.view_key is not None and not await self._api.is_folder(sandbox.container, FOLDER):
            # Checked before anything of the image runs: through a link, the volume would be mounted elsewhere.
            raise BackendUnavailableError(
                f"the image has a link at {FOLDER}, where views are mounted", op="create", hint="use another image"
            )
        await self._api.start_container(sandbox.container)
        if found is None:
            found = await self._identify(sandbox)
            if image.partition(":")[0] not in OWN_IMAGES:  # there is one for each fork
                self._identities[image] = found
            await self._make_workdir(sandbox, found)
        sandbox.user, sandbox.has_agent = found.user, found.has_agent

    async def _identify(self, sandbox: DockerSandbox) -> _Identity:
        """Who the image's user is, and whether it has a Python for the agent. Asked once for each image."""
        _, said = await sandbox.run_inside(_IDENTIFY, python_check(), user="")
        words = said.decode("utf-8", "replace").splitlines()
        if len(words) not in (3, 4) or not (words[0].isdigit() and words[1].isdigit()):
            if not await sandbox.runs():
                raise gone(sandbox.id, op="create")
            raise BackendUnavailableError(
                "the image has no POSIX shell with coreutils", op="create", hint="use another image"
            )
        return _Identity(int(words[0]), int(words[1]), words[2], has_agent=words[3:] == ["agent"])

    async def _make_workdir(self, sandbox: DockerSandbox, user: _Identity) -> None:
        """Create the user's working folder through the daemon, since the user may not have the permission."""
        path = sandbox.spec.workdir
        if path.strip("/") and not await self._api.has_path(sandbox.container, path):
            info = make_entry(path.strip("/"), mode=0o755, size=None, uid=user.uid, gid=user.gid)
            await self._api.put_archive(sandbox.container, "/", make_tar((info, b"")))

    async def _clear_up(self, creating: asyncio.Future[str], sandbox: DockerSandbox) -> None:
        """Remove everything that a failed or cancelled create has left."""
        try:
            sandbox.container = await creating
            await sandbox.end()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - no caller waits for this; the next start sweeps
            log.warning("what was left of sandbox %s could not be removed: %s", sandbox.id, error)

    # Finding.

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        return AsyncSandbox.around(await self._adopted(sandbox_id))

    async def _adopted(self, sandbox_id: str) -> DockerSandbox:
        return await self._io.arun(self._connect(sandbox_id))

    async def _connect(self, wanted: str) -> DockerSandbox:
        with mapped(op="connect", host=self.settings.host):
            for standing, container in await self._keeping.find_kept():
                if wanted in (standing.sandbox_id, standing.name):
                    return await self._adopt(standing, container)
            if await self._keeping.find_stopped(wanted) is not None:
                raise SandboxStoppedError(
                    f"the sandbox {wanted!r} is stopped", sandbox_id=wanted, op="connect", hint="backend.start() it"
                )
        raise gone(wanted, op="connect")

    async def _adopt(self, standing: ContainerName, container: Json) -> DockerSandbox:
        labels = container["Labels"]
        sandbox = DockerSandbox(
            standing, load_spec(labels[SPEC_LABEL]), self._links, self._keeping, container=str(container["Id"]),
            created=float(labels[CREATED_LABEL]), view_key=labels.get(KEY_LABEL),
            is_paused=container.get("State") == "paused",
        )  # fmt: skip
        found = self._identities.get(str(container.get("Image")))
        if found is None and not sandbox.is_paused:
            found = await self._identify(sandbox)
        if found is not None:
            sandbox.user, sandbox.has_agent = found.user, found.has_agent
        sandbox.watch_deadline()
        return sandbox

    async def list(self) -> Sequence[SandboxInfo]:
        return await self._io.arun(self._list())

    async def _list(self) -> Sequence[SandboxInfo]:
        with mapped(op="list", host=self.settings.host):
            found = [
                SandboxInfo(
                    standing.sandbox_id, NAME, standing.name,
                    "paused" if container.get("State") == "paused" else "running",
                    float(container["Labels"][CREATED_LABEL]), standing.seconds_left,
                    dict(load_spec(container["Labels"][SPEC_LABEL]).labels),
                )
                for standing, container in await self._keeping.find_kept()
            ]  # fmt: skip
            return [*found, *(info for info, _ in await self._keeping.list_stopped())]

    async def delete(self, sandbox_id: str) -> None:
        await self._io.arun(self._delete(sandbox_id))

    async def _delete(self, wanted: str) -> None:
        with mapped(op="delete", host=self.settings.host):
            found = False
            for standing, container in await self._keeping.find_kept():
                if wanted in (standing.sandbox_id, standing.name):
                    await self._api.remove(str(container["Id"]))
                    found = True
            stopped = await self._keeping.find_stopped(wanted)
            if stopped is not None:
                await self._keeping.discard(f"{STOPPED}:{stopped[0].sandbox_id}")
                found = True
            await self._keeping.sweep_trash()
        if not found:
            raise gone(wanted, op="delete")

    # Stopped sandboxes and snapshots.

    async def start(self, sandbox_id: str) -> AsyncSandbox:
        stopped = await self._find_stopped(sandbox_id)
        if stopped is None:
            return await self.connect(sandbox_id)
        info, spec = stopped
        image = f"{STOPPED}:{info.sandbox_id}"
        sandbox = await self._make(spec, image=image, sandbox_id=info.sandbox_id)
        await self._io.arun(self._finish_start(sandbox, info, image))
        return AsyncSandbox.around(sandbox)

    async def _finish_start(self, sandbox: DockerSandbox, info: SandboxInfo, image: str) -> None:
        await sandbox.keep(info.name, None)
        self._owned.discard(sandbox)
        await self._keeping.discard(image)

    async def _find_stopped(self, wanted: str) -> tuple[SandboxInfo, Spec] | None:
        with mapped(op="start", host=self.settings.host):
            return await self._io.arun(self._keeping.find_stopped(wanted))

    async def stop(self, sandbox_id: str) -> None:
        if await self._find_stopped(sandbox_id) is None:
            await (await self._adopted(sandbox_id)).stop()

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> str:
        check_name(name)
        stopped = await self._find_stopped(sandbox_id)
        if stopped is None:
            return await (await self._adopted(sandbox_id)).snapshot(name)
        return await self._io.arun(self._keeping.snapshot_stopped(stopped[0].sandbox_id, name))

    async def fork(self, sandbox_id: str, spec: Spec | None = None) -> AsyncSandbox:
        stopped = await self._find_stopped(sandbox_id)
        if stopped is None:
            return await (await self._adopted(sandbox_id)).fork(spec)
        info, known = stopped
        sandbox = await self._make(spec or as_another(known), image=f"{STOPPED}:{info.sandbox_id}")
        return AsyncSandbox.around(sandbox, event="created")

    async def rollback(self, sandbox_id: str, snapshot_id: str) -> None:
        image = await self._find_snapshot(snapshot_id)
        await self.stop(sandbox_id)
        stopped = await self._find_stopped(sandbox_id)
        if stopped is None:
            raise gone(sandbox_id, op="rollback")
        await self._io.arun(self._keeping.relabel(image, *stopped))

    async def _find_snapshot(self, wanted: str) -> str:
        with mapped(op="snapshot", host=self.settings.host):
            return await self._io.arun(self._keeping.find_snapshot(wanted))

    async def resize(self, sandbox_id: str, **limits: Unpack[LimitOptions]) -> None:
        stopped = await self._find_stopped(sandbox_id)
        if stopped is None:
            await (await self._adopted(sandbox_id)).resize(**limits)
            return
        info, spec = stopped
        changed = replace(spec, resources=resized(spec.resources, limits, sandbox_id=info.sandbox_id))
        await self._io.arun(self._keeping.relabel(f"{STOPPED}:{info.sandbox_id}", info, changed))

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        return await self._io.arun(self._keeping.list_snapshots())

    async def delete_snapshot(self, snapshot_id: str) -> None:
        image = await self._find_snapshot(snapshot_id)
        await self._io.arun(self._keeping.discard(image))

    # Life.

    async def capabilities(self) -> Capabilities:
        return await self._io.arun(self._capabilities())

    async def _capabilities(self) -> Capabilities:
        with mapped(op="capabilities", host=self.settings.host):
            info = await self._api.info()
            disk = await self._limits_disk()
            lack = await self._links.get().views.find_lack()
            return describe(info, self.settings, disk=disk, no_views=lack)

    async def _limits_disk(self) -> bool:
        """True if the storage driver may be able to limit one container's disk; on XFS, the first container shows."""
        if self._disk is None:
            info = await self._api.info()
            driver = str(info.get("Driver", ""))
            about = dict(pair for pair in info.get("DriverStatus") or [] if len(pair) == 2)
            on_xfs = driver.startswith("overlay") and about.get("Backing Filesystem") == "xfs"
            self._disk = driver in ("btrfs", "zfs") or on_xfs
        return self._disk

    async def sweep(self) -> None:
        """Remove containers of ended processes of this machine, and expired ones. In the I/O thread."""
        for standing, container in await self._keeping.find_all():
            left = standing.seconds_left
            abandoned = not standing.kept and is_orphan(str(container["Labels"].get(OWNER_LABEL, "")))
            stale = container.get("State") not in ("running", "paused", "created") or (
                container.get("State") == "created" and time.time() - float(container["Created"]) > _STALE_SECONDS
            )
            if abandoned or stale or (left is not None and left < 0):
                log.info("removing what was left of sandbox %s", standing.sandbox_id)
                await self._api.remove(str(container["Id"]))
        await self._keeping.sweep_trash()

    async def aclose(self) -> None:
        owned = [sandbox for sandbox in self._own() if sandbox.owned]
        await asyncio.gather(*(self._io.arun(sandbox.end()) for sandbox in owned), return_exceptions=True)
        await asyncio.to_thread(self._links.close)
