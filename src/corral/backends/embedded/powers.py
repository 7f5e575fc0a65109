"""Snapshots, forks, stops, pauses and other limits of a sandbox that runs: its holder is asked for them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from corral.backends.embedded import exchange
from corral.backends.embedded.seam import mapped
from corral.base.docstrings import Documented
from corral.base.powers import POWERS
from corral.engine import sweep, wire
from corral.engine.client import check
from corral.engine.errors import EngineError, GoneError, RefusedError
from corral.engine.layers import LayerStore, process_mark
from corral.engine.state import DataFolder, read_state
from corral.errors import SandboxStoppedError
from corral.results import SandboxState
from corral.spec import Resources, Spec, as_another, check_name

if TYPE_CHECKING:
    from corral.backends.embedded.sandbox import EmbeddedSandbox


class SandboxPowers(Documented, promises=POWERS):
    """A sandbox's side. See `corral.base.powers`: CanSnapshot, CanFork, CanStop, CanPause, CanResize."""

    _id: str
    _spec: Spec
    _grip: Any
    _data_folder: Path
    is_paused = False
    is_stopped = False
    maker: Callable[[Spec], Awaitable[EmbeddedSandbox]] | None = None
    """Makes another one, for a fork."""

    async def snapshot(self, name: str | None = None) -> str:
        """See `CanSnapshot`."""
        check_name(name)
        return await self._ask_for_snapshot(name=name)

    async def fork(self, spec: Spec | None = None) -> EmbeddedSandbox:
        """See `CanFork`."""
        assert self.maker is not None  # given by the backend that made this handle
        snapshot_id = await self.snapshot_for_fork()
        return await make_from(self._data_folder, self.maker, spec or as_another(self._spec), snapshot_id)

    async def snapshot_for_fork(self) -> str:
        """One that nobody lists, and that goes with this process if we don't come to delete it."""
        return await self._ask_for_snapshot(name=None, passing=process_mark(os.getpid()))

    async def _ask_for_snapshot(self, **wish: object) -> str:
        def forget(answer: wire.Message) -> None:
            if "snapshot" in answer:
                forget_snapshot(self._data_folder, str(answer["snapshot"]))

        return str((await self._ask_holder("snapshot", forget, **wish))["snapshot"])

    async def stop(self) -> None:
        """See `CanStop`."""
        with contextlib.suppress(SandboxStoppedError):
            if self._grip.owned:
                if self._spec.ephemeral:
                    with mapped(sandbox_id=self._id, op="stop"):
                        raise RefusedError(
                            "an ephemeral sandbox can't be stopped: its files are in memory", code="ephemeral"
                        )
                await self.detach()
            await self._ask_holder("stop")
        self.is_stopped = True

    async def pause(self) -> None:
        """See `CanPause`."""
        await self._ask_holder("pause")
        self.is_paused = True

    async def resume(self) -> None:
        """See `CanPause`."""
        await self._ask_holder("resume")
        self.is_paused = False

    def _standing(self) -> SandboxState:
        return "stopped" if self.is_stopped else "paused" if self.is_paused else "running"

    async def resize(
        self,
        *,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        disk_bytes: int | None = None,
        processes: int | None = None,
    ) -> None:
        """See `CanResize`."""
        given = {"cpus": cpus, "memory_bytes": memory_bytes, "disk_bytes": disk_bytes, "processes": processes}
        resources, limits = check_limits(self._spec.resources, given)
        if limits:
            await self._ask_holder("resize", limits=limits)
            self._spec = dataclasses.replace(self._spec, resources=resources)

    async def _ask_holder(
        self, operation: str, lost: Callable[[wire.Message], object] | None = None, **message: object
    ) -> wire.Message:
        self._ensure_open()
        with mapped(sandbox_id=self._id, op=operation), self._noticing_stop(operation):
            return check(await exchange.answer(await self._grip.ask({"op": operation, **message}), lost=lost))

    @contextlib.contextmanager
    def _noticing_stop(self, operation: str) -> Iterator[None]:
        """One that does not answer may be gone for good, or only be stopped."""
        try:
            yield
        except GoneError:
            if not self._grip.owned:
                state = read_state(DataFolder(self._data_folder).folder(self._id)) or {}
                if state.get("stopped"):
                    say_stopped(self._id, operation)
            raise

    if TYPE_CHECKING:

        def _ensure_open(self) -> None: ...
        async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str: ...


def check_limits(resources: Resources, given: Mapping[str, float | None]) -> tuple[Resources, dict[str, Any]]:
    """The new resources, and those of the limits that were given. Raises: SpecError."""
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    changed = dataclasses.replace(resources, **wanted)
    return changed, {name: getattr(changed, name) for name in wanted}


async def make_from(
    data_folder: Path, make: Callable[[Spec], Awaitable[EmbeddedSandbox]], spec: Spec, snapshot_id: str
) -> EmbeddedSandbox:
    """A sandbox on a snapshot that was made for nobody else, and that is then forgotten."""
    try:
        return await make(dataclasses.replace(spec, snapshot=snapshot_id))
    finally:
        forget_snapshot(data_folder, snapshot_id)


def forget_snapshot(data_folder: Path, snapshot_id: str) -> None:
    """Delete one whose id nobody has, or will ever have."""
    with contextlib.suppress(EngineError, OSError):
        delete_snapshot(data_folder, snapshot_id)


def delete_snapshot(data_folder: Path, wanted: str) -> None:
    """Forget a snapshot, and remove what nobody uses any more. Raises: RefusedError."""
    data = DataFolder(data_folder)
    data.prepare()
    LayerStore(data).delete(wanted)
    sweep.empty_trash(data, patience_seconds=sweep.PATIENCE_SECONDS)


def say_stopped(sandbox_id: str, operation: str) -> NoReturn:
    raise SandboxStoppedError(
        "the sandbox is stopped", sandbox_id=sandbox_id, op=operation, hint="start it: backend.start(id)"
    )
