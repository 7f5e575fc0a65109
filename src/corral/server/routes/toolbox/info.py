"""Information about a sandbox: its directories, variables, ports and resource usage."""

from __future__ import annotations

import math
import re
import time

from corral.results import timestamp
from corral.server.faults import bad_request
from corral.server.living import Handle, check_variables
from corral.server.routes.telemetry import measure
from corral.server.routing import ApiCall, Table
from corral.server.wire import toolbox as wire

TABLE = Table("toolbox")

_MAX_ENV_BYTES = 128 * 1024
_LISTENING = re.compile(r"^ *[0-9]+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A ", re.MULTILINE)
"""A line of the kernel's table about a socket that listens, which is 0A there; with its port."""
_LOOK_SECONDS = 10
_TABLE_BYTES = 1024 * 1024
"""Some thousands of sockets. The table is parsed as a whole, so it is bounded by what others may have to wait for."""


@TABLE.add("GET", "/user-home-dir")
async def get_user_home_dir(call: ApiCall) -> wire.DirResponse:
    """The home directory of the user that programs run as."""
    return wire.DirResponse(dir=call.sandbox.home)


@TABLE.add("GET", "/work-dir")
async def get_work_dir(call: ApiCall) -> wire.DirResponse:
    """The working directory, where relative paths start."""
    return wire.DirResponse(dir=call.sandbox.workdir)


@TABLE.add("GET", "/project-dir")
async def get_project_dir(call: ApiCall) -> wire.DirResponse:
    """The working directory, for older clients."""
    return wire.DirResponse(dir=call.sandbox.workdir)


@TABLE.add("POST", "/env", body=wire.UpdateEnvRequest)
async def update_env(call: ApiCall) -> dict[str, str]:
    """Set and unset environment variables for later programs; returns all that are set this way."""
    handle, body = call.sandbox, call.body
    check_variables(body.set or {})
    gone = set(body.unset or ())
    if prefix := body.unset_value_prefix:
        now = {**handle.box.spec.env, **handle.row.set_env}
        gone |= {name for name, value in now.items() if value is not None and value.startswith(prefix)}
    new = {**handle.row.set_env, **dict.fromkeys(gone), **(body.set or {})}
    if sum(len(name.encode()) + len((value or "").encode()) + 2 for name, value in new.items()) > _MAX_ENV_BYTES:
        raise bad_request(f"the variables take more than {_MAX_ENV_BYTES} bytes in total")
    handle.row.set_env = new
    handle.sandbox.save()
    handle.withhold()
    return {name: value for name, value in new.items() if value is not None}


@TABLE.add("GET", "/version")
async def get_version(call: ApiCall) -> dict[str, str]:
    """The server's version."""
    return {"version": call.server.settings.version}


@TABLE.add("POST", "/init", body=wire.InitializeRequest, body_optional=True)
async def initialize(call: ApiCall) -> dict[str, str]:
    """Does nothing: a sandbox is ready when it is started."""
    return {"message": "the sandbox is ready"}


# --------------------------------------------------------------------------------------------------------------- ports


@TABLE.add("GET", "/port")
async def get_ports(call: ApiCall) -> wire.PortList:
    """List the ports on which programs in the sandbox listen."""
    return wire.PortList(ports=sorted(await _listening(call.sandbox)))


@TABLE.add("GET", "/port/{port}/in-use")
async def is_port_in_use(call: ApiCall) -> wire.IsPortInUseResponse:
    """Whether a program in the sandbox listens on a port."""
    text = call.params["port"]
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise bad_request(f"{text[:20]!r} is not a valid port")
    return wire.IsPortInUseResponse(is_in_use=int(text) in await _listening(call.sandbox))


async def _listening(handle: Handle) -> set[int]:
    # A machine without IPv6 has no second table; then cat fails, having shown the first.
    shown = await handle.box.exec(
        ["/bin/cat", "/proc/net/tcp", "/proc/net/tcp6"],
        cwd="/",
        timeout=_LOOK_SECONDS,
        output_limit_bytes=_TABLE_BYTES,
    )
    return parse_listening(shown.stdout)


def parse_listening(table: str) -> set[int]:
    """The ports of sockets that listen, in the kernel's own table; a program inside may have printed anything else."""
    return {int(port, 16) for port in set(_LISTENING.findall(table))}


# ----------------------------------------------------------------------------------------------------------------- use


@TABLE.add("GET", "/system/metrics")
async def get_system_metrics(call: ApiCall) -> wire.SystemMetrics:
    """The sandbox's limits and current resource usage."""
    box = call.sandbox.box
    resources = box.spec.resources
    now, percent = await measure(box, cpus=resources.cpus)
    moment = time.time()
    return wire.SystemMetrics(
        timestamp=timestamp(moment),
        timestamp_unix=int(moment),
        cpu_count=max(1, math.ceil(resources.cpus)),
        cpu_used_pct=percent,
        mem_total=resources.memory,
        mem_used=now.memory_bytes,
        disk_total=resources.disk,
        disk_used=now.disk_bytes,
        disk_free=max(0, resources.disk - now.disk_bytes) if now.disk_bytes is not None else None,
        oom_kills=now.oom_kills,
    )
