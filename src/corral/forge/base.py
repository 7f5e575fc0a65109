"""The base that every attempt starts from: prepared once, so it is the same for all.

If the backend has snapshots, the base is a snapshot, and each sandbox starts with its files. Otherwise each sandbox is
new and the setup runs in each. A snapshot outlives its process, so its name says which process made it, and the next
contest on this machine removes those of killed processes.
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
    """What the sandboxes of one contest start from. `prepare` first, `aclose` last."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self.snapshot: str | None = None
        """The snapshot with the setup done; None if the setup has to run in each sandbox."""
        self.how = "fresh"

    async def prepare(self, spec: Spec) -> None:
        """Create the base, with the spec that all candidates share.

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
            raise SpecError(
                f"the setup failed with exit code {result.exit_code} ({result.reason}): {end}", hint="fix the setup"
            )

    async def aclose(self) -> None:
        """Delete the snapshot."""
        if self.snapshot is None:
            return
        try:
            await self._backend.delete_snapshot(self.snapshot)
        except CorralError as error:
            log.warning("the contest's base %s was not deleted: %s", self.snapshot, error)
        self.snapshot = None


def _new_name() -> str:
    """A name that has the machine and the process that created it."""
    return f"{PREFIX}-{_machine()}-{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(4)}"


async def _sweep(backend: Backend) -> None:
    """Remove the bases of contests on this machine whose process is gone."""
    for info in await backend.list_snapshots():
        parts = (info.name or "").split("-")
        if len(parts) != 5 or parts[:2] != [PREFIX, _machine()] or not parts[2].isdigit():
            continue
        if _started(int(parts[2])) != parts[3]:
            with contextlib.suppress(CorralError):  # another process may sweep too
                await backend.delete_snapshot(info.snapshot_id)


def _machine() -> str:
    """This machine and this set of process ids: in another container the same number is another process."""
    found = os.uname().nodename
    with contextlib.suppress(OSError):
        found += Path("/etc/machine-id").read_text(encoding="ascii")
    with contextlib.suppress(OSError):
        found += str(Path("/proc/self/ns/pid").stat().st_ino)
    return hashlib.sha256(found.encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """The start time of a process, as the kernel counts it; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
