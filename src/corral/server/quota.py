"""Quotas: how much of anything an organisation may have.

Whoever takes something asks in the same step in which it is written down that it is taken, with no await between: two
requests at the same time can't both have the last of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from corral.server.creating import Resize
from corral.server.faults import Fault
from corral.server.routing import Services
from corral.server.store.rows import Sandbox, Snapshot

RUNNING = frozenset({"creating", "starting", "started", "restoring", "resuming", "forking", "snapshotting", "resizing"})
"""States in which a sandbox uses processors."""
IN_MEMORY = RUNNING | {"pausing", "paused", "stopping"}
"""States in which it uses memory: what is frozen has not given it back."""


def check_quota(
    services: Services,
    organisation_id: str,
    *,
    sandboxes: int = 0,
    cpu: int = 0,
    memory: int = 0,
    disk: int = 0,
    leaving_out: str | None = None,
) -> None:
    """Whether so much more may be had. An archived sandbox and a snapshot need their disk, too. Raises: Fault 403."""
    organisation = services.keyring.organisations[organisation_id]
    rows = [row for row in services.sandboxes.rows_of(organisation_id) if row.id != leaving_out]
    held = [(row, _largest(row)) for row in rows]
    running = [has for row, has in held if row.state in RUNNING]
    in_memory = [has for row, has in held if row.state in IN_MEMORY]
    kept = _disk_of_snapshots(row for row in services.snapshots.all() if row.organisation_id == organisation_id)
    for what, limit, wanted in (
        ("sandboxes", organisation.max_sandboxes, len(rows) + sandboxes),
        ("processors", organisation.max_cpu, sum(has[0] for has in running) + cpu),
        ("GiB of memory", organisation.max_memory_gib, sum(has[1] for has in in_memory) + memory),
        ("GiB of disk", organisation.max_disk_gib, sum(has[2] for _, has in held) + kept + disk),
    ):
        if limit is not None and wanted > limit:
            raise Fault(
                403, f"quota exceeded: the organisation's limit is {limit} {what}, and this would need {wanted}"
            )


def _largest(row: Sandbox) -> tuple[int, int, int]:
    """Processors, memory and disk; while it gets other limits, the larger of the two."""
    resize = Resize.from_intent(row.intent)
    if resize is None:
        return row.cpu, row.memory, row.disk
    return max(row.cpu, resize.cpu or 0), max(row.memory, resize.memory or 0), max(row.disk, resize.disk or 0)


def _disk_of_snapshots(rows: Iterable[Snapshot]) -> int:
    """At most what the sandboxes had from which they were made; two names for the same one count once."""
    own = {row.engine_id or row.id: row.disk for row in rows if row.engine_id is not None or row.intent == "create"}
    return sum(own.values())
