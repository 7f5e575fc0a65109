"""`EmbeddedBackend`: creates, finds, starts, stops and deletes embedded sandboxes and their snapshots."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import os
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from corral.backends.embedded import certificates, detached, keepers, mounting, origins, seam, settings, window
from corral.backends.embedded.datafolder import open_data
from corral.backends.embedded.ground import Ground, Grounds
from corral.backends.embedded.hostfolders import VARIABLE, Permitted, read_host_folders
from corral.backends.embedded.packages import tell_as_events
from corral.backends.embedded.pipoutput import Tell
from corral.backends.embedded.registries import find_registries_of
from corral.backends.embedded.sandbox import (
    EmbeddedSandbox,
    Grip,
    check_limits,
    delete_snapshot,
    forget_snapshot,
    make_from,
)
from corral.backends.embedded.seam import mapped
from corral.backends.embedded.stopped import work_on_stopped
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.tokens import TokenBook
from corral.engine import sweep, wire
from corral.engine.client import LauncherClient, check
from corral.engine.errors import GoneError, RefusedError
from corral.engine.layers import LayerStore, process_mark
from corral.engine.recipe import Layer, Limits, Recipe
from corral.engine.state import DataFolder, note_limits, read_state
from corral.errors import BackendUnavailableError, CapabilityError, SandboxGoneError, SandboxStoppedError
from corral.inside.nolinks import opened
from corral.network.settings import Authority, GateSettings
from corral.protocol import Backend, Command, DetachedOptions, OnEvent, refuse_given
from corral.results import DERIVED_POWERS, Capabilities, SandboxInfo, SnapshotInfo, VolumeInfo
from corral.secret import check_known, place_secrets
from corral.sessions.detached import DetachedProgram
from corral.spec import LimitOptions, NetworkPolicy, Resources, Spec, as_another, check_name

_START_ATTEMPTS = 200
_GROUND_ATTEMPTS = 5
"""How often a start is retried because another version of Corral has removed its base."""
NAME = "embedded"
POWERS = DERIVED_POWERS | {
    "detach", "pty", "views", "users", "watch", "packages", "venv", "ephemeral", "snapshot", "fork", "stop", "pause",
    "resize", "dial", "expose", "volumes", "diff", "set_network", "denials", "secrets",
}  # fmt: skip


class EmbeddedBackend(Backend):
    """The engine of this machine, as `corral.protocol.Backend`. One per data folder and process."""

    name = NAME

    def __init__(
        self, data_folder: Path | str | None = None, *, host_folders: str | Sequence[str] | None = None
    ) -> None:
        """`host_folders` are those that sandboxes may mount, such as ["~/data", "~/project:rw"]; by default those of
        `CORRAL_HOST_FOLDERS`."""
        self._host_folders: tuple[Permitted, ...] | None = None
        if host_folders is not None:
            self._host_folders = read_host_folders(host_folders)
        folder = Path(data_folder).absolute() if data_folder is not None else settings.default_data_folder()
        self.data_folder = folder
        self.grounds = Grounds(folder, self.make)
        self._launcher = LauncherClient(folder)
        self._tokens: TokenBook[EmbeddedSandbox] = TokenBook()
        self._lock = threading.Lock()
        self._exit_registered = False

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        made = await self.make(spec, tell=tell_as_events(on_event))
        return AsyncSandbox.around(made, on_event=on_event, event="created")

    async def make(self, spec: Spec, *, parent_id: str | None = None, tell: Tell | None = None) -> EmbeddedSandbox:
        """As `create`, without a handle. `parent_id`: what it is a fork of; `tell` gets what takes a while."""
        _refuse_what_is_missing(spec)
        self._clean_up_at_exit()
        making = partial(self._make, spec, parent_id, tell or tell_as_events(None))
        return await self._tokens.make_once(spec.client_token, making)

    async def _make(self, spec: Spec, parent_id: str | None, tell: Tell) -> EmbeddedSandbox:
        await self._refuse_unkept(spec.resources, op="create")
        check_known(spec.secrets)
        spec = dataclasses.replace(spec, secrets=place_secrets(spec.secrets))
        told = window.make_settings(spec, await find_registries_of(spec.network))
        permitted = (
            read_host_folders(os.environ.get(VARIABLE, "")) if self._host_folders is None else self._host_folders
        )
        mounts, overlaid = mounting.find_mounts(spec, permitted, data_folder=self.data_folder)
        for patience in reversed(range(_GROUND_ATTEMPTS)):
            ground = await self.grounds.prepare(spec, tell=tell)
            sandbox_id = str(uuid.uuid4())
            recipe = self.make_recipe(spec, sandbox_id, ground, layers=self.find_layers(spec))
            recipe = dataclasses.replace(recipe, trees=(*recipe.trees, *overlaid), mounts=mounts)
            mounting.refuse_hidden_files(recipe)
            before = self.grounds.identify(ground.trees)
            try:
                async with origins.copied(
                    recipe.trees,
                    data_folder=self.data_folder,
                    parent_id=parent_id,
                    limit_bytes=spec.resources.disk,
                ) as copies:
                    ours, proxy_port = await self._launch(dataclasses.replace(recipe, copies=copies), told)
            except BackendUnavailableError:
                if not patience or self.grounds.stands(ground.trees, before):
                    raise
                continue
            if not patience or self.grounds.stands(ground.trees, before):
                break
            ours.close()  # init ends: its base is being deleted
        sandbox = EmbeddedSandbox(
            sandbox_id=sandbox_id,
            spec=spec,
            control=ours,
            env=certificates.with_authority(ground.env, own=told.authority is not None),
            grip=Grip(sandbox_id, self._launcher),
            data_folder=self.data_folder,
            root=os.geteuid() == 0,
            proxy_port=proxy_port,
        )
        sandbox.maker = self.make
        sandbox.arm_deadline()
        if told.authority is not None:
            try:
                await sandbox.show_authority(told.authority)
            except BaseException:
                await sandbox.release()
                raise
        return sandbox

    async def _launch(self, recipe: Recipe, told: GateSettings) -> tuple[socket.socket, int | None]:
        """Its control socket, and the port of its proxy if programs have to use it. Raises: as `create`."""
        request = {"op": "create", "recipe": recipe.to_json()}
        with (
            opened(told.to_memfd()) as given,
            wire.offering(socket.socket) as (ours, theirs),
            mapped(op="create"),
        ):
            # If this is cancelled, `ours` is closed: init sees its owner gone and the launcher clears up.
            answer = check(await self._ask_launcher(request, theirs.fileno(), given))
        return ours, answer["proxy_port"]

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        return AsyncSandbox.around(await self.adopt(sandbox_id))

    async def adopt(self, sandbox_id: str) -> EmbeddedSandbox:
        """As `connect`, without a handle."""
        sandbox = await keepers.connect(self.data_folder, sandbox_id)
        sandbox.maker = self.make
        return sandbox

    async def list(self) -> Sequence[SandboxInfo]:
        return await asyncio.to_thread(keepers.list_all, self.data_folder)

    async def glance(self) -> frozenset[str]:
        return await asyncio.to_thread(keepers.glance, self.data_folder)

    async def delete(self, sandbox_id: str) -> None:
        box = await self._connect_unless_stopped(sandbox_id)
        if box is not None:
            async with contextlib.aclosing(box):
                await box.kill()
            return

        def discard(store: LayerStore, folder: Path, state: dict[str, Any]) -> None:
            sweep.discard(DataFolder(self.data_folder), folder)
            store.collect()

        await work_on_stopped(self.data_folder, sandbox_id, discard, op="delete")

    async def start_detached(self, sandbox_id: str, command: Command, **options: Unpack[DetachedOptions]) -> int:
        async with contextlib.aclosing(await self.connect(sandbox_id)) as box:
            return await detached.start(box, self.data_folder, command, **options)

    async def list_detached(self, sandbox_id: str) -> Sequence[DetachedProgram]:
        return await asyncio.to_thread(detached.list_all, self.data_folder, sandbox_id)

    def follow_detached(self, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        return detached.follow_one(self.data_folder, sandbox_id, number, follow=follow)

    async def registries(self) -> tuple[str, ...]:
        return (await find_registries_of(NetworkPolicy("packages"))).rules

    async def capabilities(self) -> Capabilities:
        with mapped(op="capabilities"):
            hello = check(await self._ask_launcher({"op": "hello"}))
        limited = set(hello["limited"])
        root = bool(hello["root"])
        notes = {
            "one user id: /usr can't be changed inside, and user='root' is not there": not root,
            "memory is added up ten times a second: mapped pages and page tables, not pipes or unmapped files": (
                "memory" not in limited
            ),
            "processors are not limited: cpus= is refused, and the usual two are not kept": "cpu" not in limited,
            "disk is measured now and then, deleted files left out; ephemeral=True makes it hard": (
                not hello["hard_disk"]
            ),
            "file locks are counted four times a second; more than 4,096 end the programs of a sandbox": True,
            "one user id: pipes, descriptors in flight and inotify instances are taken from yours, each sandbox's "
            "part of them bounded": not root,
            "/dev has shared with the host: programs inside can see when others open them, and lock them": (
                not hello["own_devices"]
            ),
            "no folder for locks in /run or /var/lib: any local user can take the ranges of user ids": (
                not hello["uid_locks"]
            ),
            "pause stops processes by SIGSTOP: their parents can see it": hello["trees"] != "cgroup",
            "no nf_tables: only programs that use a proxy reach the network": not hello["transparent"],
        }
        shares = {"user": not root, "devices": not hello["own_devices"]}
        return Capabilities(
            isolation="namespaces" if root else "namespaces, rootless",
            memory="hard" if "memory" in limited else "soft",
            processes="hard",
            cpu="hard" if "cpu" in limited else "none",
            disk="hard" if hello["hard_disk"] else "soft",
            network=window.MODES,
            powers=POWERS if root else POWERS - {"users"},
            notes=tuple(text for text, applies in notes.items() if applies),
            locks="soft",
            shares=frozenset(name for name, applies in shares.items() if applies),
        )

    async def aclose(self) -> None:
        await asyncio.to_thread(self._launcher.shutdown)

    # Stopped sandboxes.

    async def start(self, sandbox_id: str) -> AsyncSandbox:
        found = keepers.find(self.data_folder, sandbox_id, op="start")
        for _ in range(_START_ATTEMPTS):
            try:
                return await self.connect(found.sandbox_id)
            except SandboxStoppedError:
                pass
            try:
                await self._start(found)
            except SandboxGoneError:
                if not found.folder.exists():
                    raise
                await asyncio.sleep(0.02)  # another process is starting or stopping it
        return await self.connect(found.sandbox_id)

    async def _start(self, found: keepers.DetachedFolder) -> None:
        trees = Recipe.from_json(found.state["recipe"]).trees
        for patience in reversed(range(_GROUND_ATTEMPTS)):
            lowers = await self.grounds.renew(keepers.spec_from(found.state["info"]), trees)
            used = [dataclasses.replace(tree, lowers=lowers.get(tree.target, tree.lowers)) for tree in trees]
            before = self.grounds.identify(used)
            try:
                authority = await self._launch_again(found, lowers)
            except BackendUnavailableError:
                if not patience or self.grounds.stands(used, before):
                    raise
            else:
                await self._show_authority(found.sandbox_id, authority)
                return

    async def _show_authority(self, sandbox_id: str, authority: Authority | None) -> None:
        if authority is not None:
            async with contextlib.aclosing(await self.adopt(sandbox_id)) as sandbox:
                await sandbox.renew_authority(authority)

    async def _launch_again(
        self, found: keepers.DetachedFolder, lowers: dict[str, tuple[str, ...]]
    ) -> Authority | None:
        """Start it, without the values of its secrets; returns its new authority, if it needs one."""
        info = (read_state(found.folder) or found.state)["info"]
        spec = keepers.spec_from(info)
        told = window.make_settings(spec, await find_registries_of(spec.network))
        ours, theirs = wire.make_pair()
        with (
            ours,
            theirs,
            opened(told.to_memfd()) as given,
            mapped(sandbox_id=found.sandbox_id, op="start"),
        ):
            # If this is cancelled, `ours` is closed: init sees that its owner is gone, and the sandbox stays stopped.
            redirect = spec.network.mode != "none"
            request = {"op": "start", "id": found.sandbox_id, "lowers": lowers, "redirect": redirect}
            answer = await self._ask_launcher(request, theirs.fileno(), given)
            if answer.get("error") == "held":
                raise GoneError("another process is using it")
            check(answer)
            info = (read_state(found.folder) or found.state)["info"]
            check(await self._ask_launcher({"op": "detach", "id": found.sandbox_id, "info": info}))
        return told.authority

    async def stop(self, sandbox_id: str) -> None:
        box = await self._connect_unless_stopped(sandbox_id)
        if box is not None:
            async with contextlib.aclosing(box):
                await box.stop()

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> str:
        check_name(name)
        box = await self._connect_unless_stopped(sandbox_id)
        if box is not None:
            return await self._taken(box, box.snapshot(name))
        return await self._snapshot_stopped(sandbox_id, name=name, passing=None)

    async def _snapshot_stopped(self, sandbox_id: str, *, name: str | None, passing: str | None) -> str:
        def push_down(store: LayerStore, folder: Path, state: dict[str, Any]) -> str:
            store.ensure_name_free(name)
            layers = tuple(store.push_down(folder, state).get("layers") or ())
            snapshot = store.publish(None, below=layers, name=name, sandbox_id=folder.name, passing=passing)
            return snapshot.snapshot_id

        def forget(snapshot_id: str) -> None:
            forget_snapshot(self.data_folder, snapshot_id)

        return await work_on_stopped(self.data_folder, sandbox_id, push_down, op="snapshot", lost=forget)

    async def _taken(self, box: EmbeddedSandbox, taking: Awaitable[str]) -> str:
        """The id of a snapshot, after closing the handle. If this is cancelled, the snapshot is deleted again."""
        snapshot_id: str | None = None
        try:
            async with contextlib.aclosing(box):
                snapshot_id = await taking
        except BaseException:
            if snapshot_id is not None:
                forget_snapshot(self.data_folder, snapshot_id)
            raise
        return snapshot_id

    async def fork(self, sandbox_id: str, spec: Spec | None = None) -> AsyncSandbox:
        found = keepers.find(self.data_folder, sandbox_id, op="fork")
        wanted = spec if spec is not None else as_another(keepers.spec_from(found.state["info"]))
        box = await self._connect_unless_stopped(found.sandbox_id)
        if box is not None:
            wanted = spec if spec is not None else as_another(box.spec)  # with the values of its secrets
            snapshot_id = await self._taken(box, box.snapshot_for_fork())
        else:
            snapshot_id = await self._snapshot_stopped(found.sandbox_id, name=None, passing=process_mark(os.getpid()))
        make = partial(self.make, parent_id=found.sandbox_id)
        made = await make_from(self.data_folder, make, wanted, snapshot_id)
        return AsyncSandbox.around(made, event="created")

    async def rollback(self, sandbox_id: str, snapshot_id: str) -> None:
        found = keepers.find(self.data_folder, sandbox_id, op="rollback")
        with mapped(sandbox_id=found.sandbox_id, op="rollback"):
            LayerStore(open_data(self.data_folder, op="rollback")).find(snapshot_id)  # before anything is stopped
        await self.stop(found.sandbox_id)

        def roll_back(store: LayerStore, folder: Path, state: dict[str, Any]) -> None:
            store.roll_back(folder, state, snapshot_id)

        await work_on_stopped(self.data_folder, found.sandbox_id, roll_back, op="rollback")

    async def resize(self, sandbox_id: str, **limits: Unpack[LimitOptions]) -> None:
        box = await self._connect_unless_stopped(sandbox_id)
        if box is not None:
            async with contextlib.aclosing(box):
                await box.resize(**limits)
            return
        if (cpus := limits.get("cpus")) is not None:
            await self._refuse_unkept(Resources(cpus=cpus), op="resize")

        def note(store: LayerStore, folder: Path, state: dict[str, Any]) -> None:
            _, changed = check_limits(keepers.spec_from(state["info"]).resources, limits)
            disk_bytes = state["recipe"]["limits"]["disk_bytes"]
            if changed.get("disk_bytes", disk_bytes) < disk_bytes:
                text = "a disk can be enlarged, but not shrunk"
                raise RefusedError(text, code="no_such_limit", hint="create a smaller one from a snapshot of it")
            note_limits(folder, state, changed)

        await work_on_stopped(self.data_folder, sandbox_id, note, op="resize")

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        store = LayerStore(open_data(self.data_folder, op="list_snapshots"))
        snapshots = await asyncio.to_thread(store.snapshots)
        return [
            SnapshotInfo(item.snapshot_id, "embedded", item.name, item.sandbox_id, item.created, store.size_bytes(item))
            for item in snapshots
            if item.passing is None
        ]

    async def delete_snapshot(self, snapshot_id: str) -> None:
        with mapped(op="delete_snapshot"):
            await asyncio.to_thread(delete_snapshot, self.data_folder, snapshot_id)

    async def create_volume(self, name: str, *, size_bytes: int | str | None = None, owner: str = "") -> VolumeInfo:
        return await mounting.create_volume(self.data_folder, name, size_bytes=size_bytes, owner=owner)

    async def list_volumes(self, *, owner: str = "") -> Sequence[VolumeInfo]:
        return await mounting.list_volumes(self.data_folder, owner=owner)

    async def delete_volume(self, volume: str, *, owner: str = "") -> None:
        await mounting.delete_volume(self.data_folder, volume, owner=owner)

    def find_layers(self, spec: Spec) -> tuple[Layer, ...]:
        """The layers of a sandbox of this spec above the base. Raises: SnapshotNotFoundError."""
        if spec.snapshot is None:
            return ()
        store = LayerStore(open_data(self.data_folder, op="create"))
        with mapped(op="create"):
            return store.layers(store.find(spec.snapshot).layers)

    async def _connect_unless_stopped(self, sandbox_id: str) -> EmbeddedSandbox | None:
        try:
            return await self.adopt(sandbox_id)
        except SandboxStoppedError:
            return None

    # Parts.

    async def _ask_launcher(self, message: wire.Message, *descriptors: int) -> wire.Message:
        """The launcher's answer. The launcher is started if it does not run. Raises: EngineError, OSError."""
        if not self._launcher.started:
            await asyncio.to_thread(self._launcher.start)
        return await seam.answer(await seam.ask(self._launcher.peer, message, descriptors))

    async def _refuse_unkept(self, resources: Resources, *, op: str) -> None:
        """Raises: CapabilityError for an explicit limit that this machine can't enforce."""
        if "cpus" not in resources.asked:
            return
        with mapped(op=op):
            hello = check(await self._ask_launcher({"op": "hello"}))
        if "cpu" not in hello["limited"]:
            raise CapabilityError(
                f"a limit of {resources.cpus:g} processor(s) is not supported on this machine: no cgroup is available",
                op=op,
                hint="leave it out, run as root, or get a cgroup from systemd: "
                "systemd-run --user --scope -p Delegate=yes YOUR-COMMAND",
            )

    def _clean_up_at_exit(self) -> None:
        with self._lock:
            if not self._exit_registered:
                # Straight to the launcher's socket: at exit there may be no event loop any more.
                atexit.register(self._launcher.shutdown)
                os.register_at_fork(after_in_child=self._launcher.abandon)
                self._exit_registered = True

    def make_recipe(self, spec: Spec, sandbox_id: str, ground: Ground, *, layers: tuple[Layer, ...] = ()) -> Recipe:
        """The request to the engine."""
        resources = spec.resources
        shared_memory_bytes = max(1 << 20, min(resources.memory // 2, 64 << 20))
        limits = Limits(**dataclasses.asdict(resources), shared_memory_bytes=shared_memory_bytes)
        return Recipe(
            sandbox_id=sandbox_id,
            folder=str(self.data_folder / "sandboxes" / sandbox_id),
            trees=ground.trees,
            limits=limits,
            hostname=spec.hostname,
            ephemeral=spec.ephemeral,
            files=ground.files,
            layers=layers,
            redirect=spec.network.mode != "none",
        )


def _refuse_what_is_missing(spec: Spec) -> None:
    unsupported = {
        "images yet": (spec.image is not None, "use packages=[…] for Python packages, or backend='docker' for images"),
    }
    refuse_given("embedded", unsupported)
