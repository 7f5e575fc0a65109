"""Resource usage of a sandbox: measured on request, because no history is kept."""

from __future__ import annotations

import asyncio
import time

from corral.client.sandbox import AsyncSandbox
from corral.results import SandboxUsage, timestamp
from corral.server.routing import ApiCall, Table
from corral.server.settings import GIB
from corral.server.wire import control
from corral.server.wire.base import seconds_of

TABLE = Table("control")
_SAMPLE_SECONDS = 0.1
_CLOCKS_SECONDS = 60.0
"""How far a client's clock may be from ours: it asks for a range up to its own present."""


@TABLE.add("GET", "/sandbox/{sandboxIdOrName}/telemetry/metrics", query=control.MetricsQuery)
async def get_sandbox_metrics(call: ApiCall) -> control.MetricsResponse:
    """Current resource usage; empty for past time ranges, and if the sandbox is not started."""
    row = call.find_sandbox().row
    if row.state != "started" or not _is_about_now(call.query):
        return control.MetricsResponse(series=[])
    async with call.server.sandboxes.use(row.id, organisation_id=row.organisation_id, activity=False) as handle:
        usage, cpu_percent = await measure(handle.box, cpus=row.cpu)
    measured: dict[str, float | None] = {
        "daytona.sandbox.cpu.utilization": cpu_percent,
        "daytona.sandbox.cpu.limit": row.cpu,
        "daytona.sandbox.memory.limit": row.memory * GIB,
        "daytona.sandbox.memory.usage": usage.memory_bytes,
        "daytona.sandbox.filesystem.total": row.disk * GIB,
        "daytona.sandbox.filesystem.usage": usage.disk_bytes,
    }
    now = timestamp(time.time())
    wanted = {name for text in call.query.metric_names for name in text.split(",")}
    return control.MetricsResponse(
        series=[
            control.MetricSeries(
                metric_name=name, data_points=[control.MetricDataPoint(timestamp=now, value=float(value))]
            )
            for name, value in measured.items()
            if value is not None and (not wanted or name in wanted)
        ]
    )


def _is_about_now(query: control.MetricsQuery) -> bool:
    now = time.time()
    since, until = seconds_of(query.since), seconds_of(query.until)
    return (since is None or since <= now + _CLOCKS_SECONDS) and (until is None or until >= now - _CLOCKS_SECONDS)


async def measure(box: AsyncSandbox, *, cpus: float) -> tuple[SandboxUsage, float | None]:
    """What a sandbox uses, and in percent how much of its CPUs, over a short while."""
    began, before = time.monotonic(), await box.usage()
    await asyncio.sleep(_SAMPLE_SECONDS)
    now, wall = await box.usage(), time.monotonic() - began
    if before.cpu_seconds is None or now.cpu_seconds is None:
        return now, None
    return now, round(100 * max(0.0, now.cpu_seconds - before.cpu_seconds) / wall / cpus, 2)
