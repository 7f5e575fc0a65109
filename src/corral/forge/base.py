"""The base that every attempt begins from: prepared once, and then the same for all by construction.

Where a backend keeps snapshots, the base is one, and each sandbox begins with its files. Elsewhere a sandbox is new
each time and the setup is run in each. A snapshot has no owner that ends with a process, so its name says whose it is,
and the next contest on this machine removes what killed ones have left.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
from pathlib import Path

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError, SpecError
from corral.forge.settings import Settings
from corral.protocol import Backend
from corral.spec import Spec

log = logging.getLogger(__name__)
PREFIX = "forge"


class Base:
    """How sandboxes of one contest begin. `prepare` first, `aclose` last."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self.snapshot: str | None = None
        self.how = "fresh"

    async def prepare(self, spec: Spec) -> None:
        """Make the base, with the needs that all candidates share.

        Raises:
            SpecError: the setup failed, with the end of what it printed.
        """
        if "snapshot" not in (await self._backend.capabilities()).powers:
            self.how = "fresh, the setup is run in each" if self._settings.setup else "fresh"
            return
        await _sweep(self._backend)
        box = await self._backend.create(spec)
        try:
            await self.set_up(box)
            self.snapshot = await box.snapshot(_new_name())
            self.how = "one snapshot for all"
        finally:
            await box.aclose()

    async def set_up(self, box: AsyncSandbox) -> None:
        """Run the setup. Raises: SpecError."""
        if not self._settings.setup:
            return
        result = await box.exec(self._settings.setup, timeout=self._settings.timeouts.create)
        if not result.ok:
            end = "\n".join(result.output.splitlines()[-5:])
            raise SpecError(f"the setup ended with {result.exit_code} ({result.reason}): {end}", hint="mend the setup")

    @property
    def ready_made(self) -> bool:
        """Whether a new sandbox has the setup behind it."""
        return self.snapshot is not None

    async def aclose(self) -> None:
        """Forget the snapshot."""
        if self.snapshot is None:
            return
        try:
            await self._backend.delete_snapshot(self.snapshot)
        except CorralError as error:
            log.warning("the contest's base %s was not deleted: %s", self.snapshot, error)
        self.snapshot = None


def _new_name() -> str:
    """Whose it is: this machine, this process, which of its contests."""
    return f"{PREFIX}-{_machine()}-{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(4)}"


async def _sweep(kept: Backend) -> None:
    """Remove the bases of contests on this machine whose process is gone."""
    for info in await kept.list_snapshots():
        parts = (info.name or "").split("-")
        if len(parts) != 5 or parts[:2] != [PREFIX, _machine()] or not parts[2].isdigit():
            continue
        if _started(int(parts[2])) != parts[3]:
            with contextlib.suppress(CorralError):  # somebody else sweeps too
                await kept.delete_snapshot(info.snapshot_id)


def _machine() -> str:
    """This machine and this set of process ids: in another container the same number is another process."""
    found = os.uname().nodename
    with contextlib.suppress(OSError):
        found += Path("/etc/machine-id").read_text(encoding="ascii")
    with contextlib.suppress(OSError):
        found += str(Path("/proc/self/ns/pid").stat().st_ino)
    return hashlib.sha256(found.encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """When a process began, in the kernel's own count; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
