"""Stopped sandboxes and snapshots: files that no process holds.

Work on a stopped sandbox is done in a thread that holds the lock of its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from corral.backends.embedded import keepers, seam
from corral.backends.embedded.datafolder import open_data
from corral.backends.embedded.sandbox import (
    EmbeddedSandbox,
    check_limits,
    delete_snapshot,
    forget_snapshot,
    make_from,
)
from corral.backends.embedded.seam import mapped
from corral.client.sandbox import AsyncSandbox
from corral.engine import sweep, wire
from corral.engine.base import identify
from corral.engine.client import LauncherClient, check
from corral.engine.errors import GoneError, RefusedError
from corral.engine.layers import LayerStore, process_mark
from corral.engine.recipe import Layer, Recipe, Tree
from corral.engine.state import lock, note_limits, read_state
from corral.errors import BackendUnavailableError, SandboxGoneError, SandboxStoppedError
from corral.protocol import Backend
from corral.results import SnapshotInfo
from corral.spec import LimitOptions, Resources, Spec, as_another, check_name

_LOCK_SECONDS = 5.0
_ATTEMPTS = 200
GROUND_ATTEMPTS = 5
"""How often a start is retried because another version of Corral has removed its base."""

T = TypeVar("T")


class StoppedSandboxes(Backend):
    """The part of the embedded backend that works on stopped sandboxes and snapshots."""

    def __init__(self, data_folder: Path) -> None:
        self.data_folder = data_folder
        self._launcher = LauncherClient(data_folder)

    async def ask_launcher(self, message: wire.Message, *descriptors: int) -> wire.Message:
        """The launcher's answer. The launcher is started if it does not run. Raises: EngineError, OSError."""
        if not self._launcher.started:
            await asyncio.to_thread(self._launcher.start)
        return await seam.answer(await seam.ask(self._launcher.peer, message, descriptors))

    # What it needs of the other part.

    @abstractmethod
    async def make(self, spec: Spec) -> EmbeddedSandbox:
        """As `create`, without a handle."""

    @abstractmethod
    async def adopt(self, sandbox_id: str) -> EmbeddedSandbox:
        """As `connect`, without a handle."""

    @abstractmethod
    async def refuse_unkept(self, resources: Resources, *, op: str) -> None:
        """Raises: CapabilityError for an explicit limit that this machine can't enforce."""

    @abstractmethod
    async def renew_ground(self, spec: Spec, trees: Sequence[Tree]) -> dict[str, tuple[str, ...]]:
        """New lowers for the trees of a stopped sandbox whose old ones are gone or not trusted. Raises: as `create`."""

    def identify(self, trees: Sequence[Tree]) -> list[tuple[int, int] | None]:
        """The folders of a sandbox's base in the data folder, by their identity."""
        mine = f"{self.data_folder}/"
        return [identify(lower) for tree in trees for lower in tree.lowers if lower.startswith(mine)]

    def stands(self, trees: Sequence[Tree], before: Sequence[tuple[int, int] | None]) -> bool:
        """True if the base exists, and was not replaced meanwhile. Another version of Corral that starts with this data
        folder removes our base as an old one, unless a running sandbox uses it."""
        return None not in before and self.identify(trees) == before

    # Stopped sandboxes.

    async def start(self, sandbox_id: str) -> AsyncSandbox:
        found = keepers.find(self.data_folder, sandbox_id, op="start")
        for _ in range(_ATTEMPTS):
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
        for patience in reversed(range(GROUND_ATTEMPTS)):
            lowers = await self.renew_ground(keepers.spec_from(found.state["info"]), trees)
            used = [dataclasses.replace(tree, lowers=lowers.get(tree.target, tree.lowers)) for tree in trees]
            before = self.identify(used)
            try:
                await self._launch_again(found, lowers)
            except BackendUnavailableError:
                if not patience or self.stands(used, before):
                    raise
            else:
                return

    async def _launch_again(self, found: keepers.DetachedFolder, lowers: dict[str, tuple[str, ...]]) -> None:
        ours, theirs = wire.make_pair()
        try:
            with mapped(sandbox_id=found.sandbox_id, op="start"):
                # If this is cancelled, `ours` is closed below: init sees that its owner is gone, and the sandbox stays
                # stopped.
                request = {"op": "start", "id": found.sandbox_id, "lowers": lowers}
                answer = await self.ask_launcher(request, theirs.fileno())
                if answer.get("error") == "held":
                    raise GoneError("another process is using it")
                check(answer)
                info = (read_state(found.folder) or found.state)["info"]
                check(await self.ask_launcher({"op": "detach", "id": found.sandbox_id, "info": info}))
        finally:
            ours.close()
            theirs.close()

    async def stop(self, sandbox_id: str) -> None:
        box = await self._connect_unless_stopped(sandbox_id)
        if box is not None:
            await _and_close(box, box.stop())

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

        return await self._work_on_stopped(sandbox_id, push_down, op="snapshot", lost=forget)

    async def _taken(self, box: EmbeddedSandbox, taking: Awaitable[str]) -> str:
        """The id of a snapshot, after closing the handle. If this is cancelled, the snapshot is deleted again."""
        snapshot_id: str | None = None
        try:
            try:
                snapshot_id = await taking
            finally:
                await box.aclose()
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
            snapshot_id = await self._taken(box, box.snapshot_for_fork())
        else:
            snapshot_id = await self._snapshot_stopped(found.sandbox_id, name=None, passing=process_mark(os.getpid()))
        made = await make_from(self.data_folder, self.make, wanted, snapshot_id)
        return AsyncSandbox.around(made, event="created")

    async def rollback(self, sandbox_id: str, snapshot_id: str) -> None:
        found = keepers.find(self.data_folder, sandbox_id, op="rollback")
        with mapped(sandbox_id=found.sandbox_id, op="rollback"):
            LayerStore(open_data(self.data_folder, op="rollback")).find(snapshot_id)  # before anything is stopped
        await self.stop(found.sandbox_id)

        def roll_back(store: LayerStore, folder: Path, state: dict[str, Any]) -> None:
            store.roll_back(folder, state, snapshot_id)

        await self._work_on_stopped(found.sandbox_id, roll_back, op="rollback")

    async def resize(self, sandbox_id: str, **limits: Unpack[LimitOptions]) -> None:
        box = await self._connect_unless_stopped(sandbox_id)
        if box is not None:
            await _and_close(box, box.resize(**limits))
            return
        if (cpus := limits.get("cpus")) is not None:
            await self.refuse_unkept(Resources(cpus=cpus), op="resize")

        def note(store: LayerStore, folder: Path, state: dict[str, Any]) -> None:
            _, changed = check_limits(keepers.spec_from(state["info"]).resources, limits)
            disk_bytes = state["recipe"]["limits"]["disk_bytes"]
            if changed.get("disk_bytes", disk_bytes) < disk_bytes:
                text = "a disk can be enlarged, but not shrunk"
                raise RefusedError(text, code="no_such_limit", hint="fork it with a smaller disk")
            note_limits(folder, state, changed)

        await self._work_on_stopped(sandbox_id, note, op="resize")

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

    async def _work_on_stopped(
        self,
        sandbox_id: str,
        work: Callable[[LayerStore, Path, dict[str, Any]], T],
        *,
        op: str,
        lost: Callable[[T], object] | None = None,
    ) -> T:
        """Work with its folder locked, so that it can't be started. `lost` gets the result of a cancelled call."""
        data = open_data(self.data_folder, op=op)

        def locked(folder: Path) -> T:
            with _holding(folder):
                state = read_state(folder) or {}
                if not state.get("stopped"):
                    raise GoneError("it has been started in the meantime")
                try:
                    return work(LayerStore(data), folder, state)
                finally:
                    sweep.empty_trash(data, patience_seconds=sweep.PATIENCE_SECONDS)

        found = keepers.find(self.data_folder, sandbox_id, op=op)
        with mapped(sandbox_id=found.sandbox_id, op=op):
            return await _finished(lambda: locked(found.folder), lost)

    async def delete_stopped(self, sandbox_id: str) -> None:
        """Remove a stopped sandbox."""
        data = open_data(self.data_folder, op="delete")

        def discard(store: LayerStore, folder: Path, state: dict[str, Any]) -> None:
            sweep.discard(data, folder)
            store.collect()

        await self._work_on_stopped(sandbox_id, discard, op="delete")


@contextlib.contextmanager
def _holding(folder: Path) -> Iterator[None]:
    """Holds the lock of a stopped sandbox, which a sweeper may take for a moment, too. Raises: GoneError."""
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        while (descriptor := lock(folder)) is None:
            if time.monotonic() >= deadline:
                raise GoneError("another process is working on it")
            time.sleep(0.01)
    except FileNotFoundError as error:
        raise GoneError("it has been deleted in the meantime") from error
    try:
        yield
    finally:
        os.close(descriptor)


async def _finished(work: Callable[[], T], lost: Callable[[T], object] | None) -> T:
    """Run in a thread, which can't be cancelled: a cancelled call waits for it, so that nothing happens afterwards."""
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with contextlib.suppress(
                asyncio.CancelledError
            ):  # repeated cancellation changes nothing: it takes a moment
                await asyncio.wait([working])
        if lost is not None and not working.cancelled() and working.exception() is None:
            lost(working.result())
        raise


async def _and_close(box: EmbeddedSandbox, work: Awaitable[T]) -> T:
    try:
        return await work
    finally:
        await box.aclose()
