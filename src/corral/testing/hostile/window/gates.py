"""What the host sees of the gates that probes attack: their processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from corral.testing.hostile.probe import Finding, Scene, breached, unproven

_NAME = "corral-gate"


def find_gates() -> list[int]:
    """The gates below this process, by the name that they give themselves."""
    parents, named = {}, []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid, status = int(entry.name), read_status(int(entry.name))
            parents[pid] = int(status["PPid"])
            if status["Name"] == _NAME:
                named.append(pid)
    return [pid for pid in named if os.getpid() in _ancestors(pid, parents)]


def read_status(pid: int) -> dict[str, str]:
    """What `/proc/PID/status` says of a process. Raises: OSError."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def resident_bytes(pid: int) -> int:
    """How much memory a process has; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


async def look_at_gates(scene: Scene) -> Finding | None:
    """Whether a gate has what it could do without, should a program inside take it over."""
    gates = find_gates()
    if not gates:
        return unproven("no process of a gate was found")
    for pid in gates:
        try:
            status = read_status(pid)
        except OSError as error:
            return unproven(f"gate {pid}: {error}")
        if int(status["CapEff"], 16) or int(status["CapPrm"], 16) or int(status["CapInh"], 16):
            return breached(f"a gate has the capabilities {status['CapPrm']}")
        if status["NoNewPrivs"] != "1":
            return breached("a gate could gain privileges: NoNewPrivs is not set")
        users = set(map(int, status["Uid"].split()))
        if os.geteuid() == 0 and (0 in users or len(users) > 1):
            return breached(f"a gate runs as root: {status['Uid']}")
        if os.geteuid() == 0 and status["Groups"]:
            return breached(f"a gate has the groups {status['Groups']}")
    return None


def _ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    while pid in parents and pid not in found:
        found.add(pid)
        pid = parents[pid]
    return found
