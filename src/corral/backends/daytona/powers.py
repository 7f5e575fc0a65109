"""Snapshots, forks, stops and other limits of sandboxes by their ids, by the service's own calls."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import secrets
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from corral.backends.daytona import life
from corral.backends.daytona.client import Client
from corral.backends.daytona.loop import get_loop
from corral.backends.daytona.makings import Making
from corral.backends.daytona.remote import Remote
from corral.backends.daytona.seam import ServiceError, reading
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.waiting import wait_for
from corral.errors import (
    CapabilityError,
    CorralError,
    SandboxGoneError,
    SnapshotNotFoundError,
    SpecError,
)
from corral.protocol import Backend
from corral.results import SnapshotInfo
from corral.spec import LimitOptions, Resources, Spec, as_another, check_name, given_limits

if TYPE_CHECKING:
    from corral.backends.daytona.sandbox import DaytonaSandbox

GIB = 1024**3
CHANGE_SECONDS = 300.0
"""How long the service may take for one change of state."""


def whole(value: float, unit: float = 1.0) -> int:
    """So many whole units as hold it."""
    return max(1, math.ceil(value / unit))


async def change_limits(remote: Remote, resources: Resources, given: Container[str]) -> None:
    """Change the given limits, rounded up: the service counts in whole processors and GiB. Raises: SpecError."""
    from daytona import Resources as SdkResources

    wanted = {
        "cpu": whole(resources.cpus) if "cpus" in given else None,
        "memory": whole(resources.memory, GIB) if "memory_bytes" in given else None,
        "disk": whole(resources.disk, GIB) if "disk_bytes" in given else None,
    }
    box = await remote.look("resize")
    now = {"cpu": box.cpu, "memory": box.memory, "disk": box.disk}
    change: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None and value != now[name]}
    if change:
        limits = SdkResources(**change)
        await remote.call(lambda box: box.resize(limits, timeout=CHANGE_SECONDS), op="resize", finish=True)


async def take_snapshot(remote: Remote, name: str | None) -> str:
    """Gives its id. If who waits is cancelled it is taken all the same, and then forgotten. Raises: SpecError."""
    chosen = name or life.snapshot_name(secrets.token_hex(8))

    async def take() -> str:
        await remote.call(lambda box: box.create_snapshot(chosen, timeout=CHANGE_SECONDS), op="snapshot")
        return str((await find_snapshot(remote.client, chosen)).id)

    taking = remote.client.see_through(get_loop().begin(take()))
    try:
        return await wait_for(taking)
    except SpecError as error:
        if name is None or name in str(error):
            raise
        raise SpecError(f"snapshot {name!r}: {error.message}", op="snapshot", hint=error.hint) from error
    except asyncio.CancelledError:
        remote.client.see_through(get_loop().begin(_forget_snapshot(remote.client, taking)))
        raise


async def _forget_snapshot(client: Client, taking: concurrent.futures.Future[str]) -> None:
    """Nobody will ever have its id."""
    with contextlib.suppress(CorralError):
        snapshot_id = await asyncio.wrap_future(taking)
        await client.call(lambda sdk: _delete_snapshot(sdk, snapshot_id), op="snapshot", safe=True)


async def _delete_snapshot(sdk: Any, snapshot_id: str) -> None:
    await sdk.snapshot.delete(await sdk.snapshot.get(snapshot_id))


async def find_snapshot(client: Client, wanted: str) -> Any:
    """Raises: SnapshotNotFoundError."""
    try:
        return await client.call(lambda sdk: sdk.snapshot.get(wanted), op="snapshot", safe=True)
    except SandboxGoneError:
        raise SnapshotNotFoundError(
            f"snapshot {wanted!r} not found", op="snapshot", hint="list_snapshots() lists the existing ones"
        ) from None


class KeepingBackend(Backend):
    """The part of the backend that works on sandboxes by their ids, running or stopped, and on snapshots."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # What it needs of the other part.

    @abstractmethod
    async def find(self, wanted: str, op: str) -> Any:
        """What the service says of a sandbox that has no owner, by id or name. Raises: SandboxGoneError."""

    @abstractmethod
    async def make(self, spec: Spec) -> DaytonaSandbox:
        """As `create`, without a handle."""

    @abstractmethod
    def hold(self, box: Any, spec: Spec, *, owned: bool) -> DaytonaSandbox:
        """The primitives of a sandbox that the service has."""

    @abstractmethod
    async def ensure_free(self, name: str, sandbox_id: str) -> None:
        """Raises: SpecError when another has that name."""

    @abstractmethod
    async def made(self, making: Making, ask: Callable[[Making], Awaitable[Any]], spec: Spec) -> DaytonaSandbox:
        """Make one on our own loop, to the end; if who waits is cancelled, it is deleted again."""

    # Sandboxes and snapshots.

    async def start(self, sandbox_id: str) -> AsyncSandbox:
        box = await self.find(sandbox_id, "start")
        remote = Remote(self._client, box.id, box)
        if life.state_of(box) != "started":
            await remote.call(lambda box: box.start(timeout=CHANGE_SECONDS), op="start", finish=True)
        return AsyncSandbox.around(self.hold(await remote.look("start"), life.spec_of(box), owned=False))

    async def stop(self, sandbox_id: str) -> None:
        box = await self.find(sandbox_id, "stop")
        if life.state_of(box) not in ("stopped", "archived"):
            remote = Remote(self._client, box.id, box)
            await remote.call(lambda box: box.stop(timeout=CHANGE_SECONDS), op="stop", finish=True)

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> str:
        check_name(name)
        box = await self.find(sandbox_id, "snapshot")
        return await take_snapshot(Remote(self._client, box.id, box), name)

    async def fork(self, sandbox_id: str, spec: Spec | None = None) -> AsyncSandbox:
        box = await self.find(sandbox_id, "fork")
        made = await self.make_fork(Remote(self._client, box.id, box), life.spec_of(box), spec)
        return AsyncSandbox.around(made, event="created")

    async def make_fork(self, remote: Remote, source: Spec, spec: Spec | None) -> DaytonaSandbox:
        """A second sandbox with the files of one."""
        if spec is not None:
            snapshot_id = await take_snapshot(remote, None)
            try:
                return await self.make(replace(spec, snapshot=snapshot_id))
            finally:
                with contextlib.suppress(SnapshotNotFoundError):
                    await asyncio.shield(asyncio.ensure_future(self.delete_snapshot(snapshot_id)))
        another = replace(as_another(source), snapshot=None)

        async def fork(making: Making) -> Any:
            sdk = await self._client.sdk()
            with reading():
                source = await sdk.get(remote.id)
            making.asked = True
            try:
                with reading():
                    copy = await source.fork(life.token_name(making.mark), timeout=CHANGE_SECONDS)
            except ServiceError as error:
                making.note_refusal(error)
                raise
            with reading():
                # What the service copied with it says that it is another's, or nobody's.
                await copy.set_labels(life.owned_labels(another, None, mark=making.mark))
                await copy.set_autostop_interval(life.OWNER_MINUTES)
                await copy.set_auto_delete_interval(0)
            return copy

        return await self.made(Making(self._client, forked=True), fork, another)

    async def rollback(self, sandbox_id: str, snapshot_id: str) -> None:
        # The service has no such call.
        raise CapabilityError(
            "the service does not support rollback",
            sandbox_id=sandbox_id,
            op="rollback",
            hint=f"create a new sandbox from the snapshot: Spec(snapshot={snapshot_id!r})",
        )

    async def resize(self, sandbox_id: str, **limits: Unpack[LimitOptions]) -> None:
        given = given_limits(limits)
        if "processes" in given:
            raise CapabilityError(
                "the service has no limit on processes", sandbox_id=sandbox_id, op="resize", hint="leave it out"
            )
        box = await self.find(sandbox_id, "resize")
        await change_limits(Remote(self._client, box.id, box), Resources(**given), given)

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        # Those of everybody's, which the service brings along, are left out.
        found: list[Any] = []
        page = 1
        while True:
            number = page
            answer = await self._client.call(lambda sdk: sdk.snapshot.list(page=number), op="snapshots", safe=True)  # noqa: B023 - called before the next turn
            found += answer.items
            if page >= (answer.total_pages or 1):
                break
            page += 1
        infos = [
            SnapshotInfo(
                snapshot_id=row.id,
                backend="daytona",
                name=None if life.is_our_name(row.name) else row.name,
                sandbox_id=getattr(row, "source_sandbox_id", None),
                created=life.moment(row.created_at) or 0.0,
                size_bytes=int(row.size * GIB) if isinstance(row.size, int | float) else None,
            )
            for row in found
            if not row.general
        ]
        return sorted(infos, key=lambda info: info.created)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        row = await find_snapshot(self._client, snapshot_id)
        with contextlib.suppress(SandboxGoneError):  # somebody else was faster
            await self._client.call(lambda sdk: sdk.snapshot.delete(row), op="snapshot", safe=True, finish=True)
