"""Limits and snapshots, by the service's own calls."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import secrets
from collections.abc import Collection, Sequence
from typing import Any

from corral.backends.daytona import life
from corral.backends.daytona.client import Client
from corral.backends.daytona.loop import get_loop
from corral.backends.daytona.remote import Remote
from corral.concurrency.waiting import wait_for
from corral.errors import CorralError, SandboxGoneError, SnapshotNotFoundError, SpecError
from corral.results import SnapshotInfo
from corral.spec import Resources

GIB = 1024**3
CHANGE_SECONDS = 300.0
"""How long the service may take for one change of state."""
_LIMITS = {"cpu": ("cpus", 1), "memory": ("memory_bytes", GIB), "disk": ("disk_bytes", GIB)}
"""The service's limits → ours, and its unit for them."""


def whole(value: float, unit: float = 1.0) -> int:
    """A value in whole units, rounded up."""
    return max(1, math.ceil(value / unit))


def limits_of(resources: Resources, names: Collection[str] | None = None) -> dict[str, Any]:
    """The named limits, or all that the service knows: by its names, in its whole units."""
    return {
        theirs: whole(getattr(resources, ours), unit)
        for theirs, (ours, unit) in _LIMITS.items()
        if names is None or ours in names
    }


def asked_limits(resources: Resources) -> set[str]:
    """The names of the limits that were given, or differ from the defaults."""
    usual = Resources()
    return {*resources.asked, *(n for n, _ in _LIMITS.values() if getattr(resources, n) != getattr(usual, n))}


async def change_limits(remote: Remote, resources: Resources, names: Collection[str]) -> None:
    """Set the named limits, rounded up to whole processors and GiB. Raises: SpecError if the service refuses."""
    from daytona import Resources as SdkResources

    box = await remote.look("resize")
    change = {name: value for name, value in limits_of(resources, names).items() if value != getattr(box, name)}
    if change:
        limits = SdkResources(**change)
        await remote.call(lambda box: box.resize(limits, timeout=CHANGE_SECONDS), op="resize", finish=True)


async def take_snapshot(remote: Remote, name: str | None) -> str:
    """Take a snapshot; returns its id. If the caller is cancelled, it is taken and then deleted. Raises: SpecError."""
    chosen = name or life.snapshot_name(secrets.token_hex(8))

    async def take() -> str:
        await remote.call(lambda box: box.create_snapshot(chosen, timeout=CHANGE_SECONDS), op="snapshot")
        return str((await find_snapshot(remote.client, chosen)).id)

    taking = remote.client.finish_before_close(get_loop().begin(take()))
    try:
        return await wait_for(taking)
    except SpecError as error:
        if name is None or name in str(error):
            raise
        raise SpecError(f"snapshot {name!r}: {error.message}", op="snapshot", hint=error.hint) from error
    except asyncio.CancelledError:
        remote.client.finish_before_close(get_loop().begin(_delete_taken(remote.client, taking)))
        raise


async def _delete_taken(client: Client, taking: concurrent.futures.Future[str]) -> None:
    """Delete a snapshot whose id no caller received."""
    with contextlib.suppress(CorralError):
        await delete_snapshot(client, await asyncio.wrap_future(taking))


async def find_snapshot(client: Client, wanted: str) -> Any:
    """The SDK's object for a snapshot, by id or name. Raises: SnapshotNotFoundError."""
    try:
        return await client.call(lambda sdk: sdk.snapshot.get(wanted), op="snapshot", safe=True)
    except SandboxGoneError:
        raise SnapshotNotFoundError(
            f"snapshot {wanted!r} not found", op="snapshot", hint="list_snapshots() lists the existing ones"
        ) from None


async def list_snapshots(client: Client) -> Sequence[SnapshotInfo]:
    """All snapshots, oldest first, without those that the service provides to every user."""

    async def ask(sdk: Any) -> list[Any]:
        found: list[Any] = []
        pages = page = 1
        while page <= pages:
            answer = await sdk.snapshot.list(page=page)
            found += answer.items
            pages, page = answer.total_pages or 1, page + 1
        return found

    infos = [
        SnapshotInfo(
            snapshot_id=row.id,
            backend="daytona",
            name=None if life.is_our_name(row.name) else row.name,
            sandbox_id=getattr(row, "source_sandbox_id", None),
            created=life.moment(row.created_at) or 0.0,
            size_bytes=int(row.size * GIB) if isinstance(row.size, int | float) else None,
        )
        for row in await client.call(ask, op="snapshots", safe=True)
        if not row.general
    ]
    return sorted(infos, key=lambda info: info.created)


async def delete_snapshot(client: Client, snapshot_id: str) -> None:
    """Delete a snapshot. Raises: SnapshotNotFoundError."""
    row = await find_snapshot(client, snapshot_id)
    with contextlib.suppress(SandboxGoneError):  # another caller deleted it first
        await client.call(lambda sdk: sdk.snapshot.delete(row), op="snapshot", safe=True, finish=True)
