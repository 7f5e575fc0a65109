"""Quotas: how many sandboxes, CPUs, memory and disk an organisation may have.

A quota is checked in the same step in which the use is written down, with no await between: two concurrent requests
can't both take the last of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.server.creating import resize_of_intent
from corral.server.faults import Fault
from corral.server.store.rows import Sandbox

if TYPE_CHECKING:
    from corral.server.app import Server

RUNNING = frozenset({"creating", "starting", "started", "restoring", "resuming", "forking", "snapshotting", "resizing"})
"""States in which a sandbox uses CPUs."""
IN_MEMORY = RUNNING | {"pausing", "paused", "stopping"}
"""States in which a sandbox uses memory: a paused one keeps it."""


def check_quota(
    server: Server,
    organisation_id: str,
    *,
    sandboxes: int = 0,
    cpu: int = 0,
    memory: int = 0,
    disk: int = 0,
    leaving_out: str | None = None,
) -> None:
    """Check that this much more is allowed. Archived sandboxes and snapshots need disk, too. Raises: Fault 403."""
    organisation = server.keyring.organisations[organisation_id]
    rows = [row for row in server.sandboxes.rows_of(organisation_id) if row.id != leaving_out]
    held = [(row, _largest(row)) for row in rows]
    running = [has for row, has in held if row.state in RUNNING]
    in_memory = [has for row, has in held if row.state in IN_MEMORY]
    # At most the disks of the sandboxes that they were made from; two names for the same snapshot count once.
    snapshots = {
        row.engine_id or row.id: row.disk
        for row in server.snapshots.all()
        if row.organisation_id == organisation_id and (row.engine_id is not None or row.intent == "create")
    }
    disk_held = sum(has[2] for _, has in held) + server.volumes.gib_of(organisation_id)
    for what, limit, wanted in (
        ("sandboxes", organisation.max_sandboxes, len(rows) + sandboxes),
        ("CPUs", organisation.max_cpu, sum(has[0] for has in running) + cpu),
        ("GiB of memory", organisation.max_memory_gib, sum(has[1] for has in in_memory) + memory),
        ("GiB of disk", organisation.max_disk_gib, disk_held + sum(snapshots.values()) + disk),
    ):
        if limit is not None and wanted > limit:
            raise Fault(
                403, f"quota exceeded: the organisation's limit is {limit} {what}, and this would need {wanted}"
            )


def _largest(row: Sandbox) -> tuple[int, int, int]:
    """CPUs, memory and disk; during a resize the larger of old and new."""
    resize = resize_of_intent(row.intent)
    if resize is None:
        return row.cpu, row.memory, row.disk
    return max(row.cpu, resize.cpu or 0), max(row.memory, resize.memory or 0), max(row.disk, resize.disk or 0)
