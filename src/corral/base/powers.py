"""Optional powers, each a small protocol of its own. A backend without one answers `CapabilityError`, never silence.

Sessions and terminals, which every sandbox built on `SandboxBase` has, are in `corral.sessions.record`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from corral.protocol import AsyncSandbox
from corral.results import SnapshotInfo
from corral.spec import Spec

if TYPE_CHECKING:
    from corral.sessions.interpreter.contexts import Interpreter

Power = Literal["snapshot", "fork", "stop", "pause", "resize", "expose", "sessions", "interpreter", "network"]


@runtime_checkable
class CanSnapshot(Protocol):
    """Keep the files of one moment, for others to begin from."""

    async def snapshot(self, name: str | None = None) -> str:
        """Gives the snapshot's id, for `Spec.snapshot`. Programs run on, and wait while they would write.

        Raises: SpecError for a name that can't be or is taken; CapabilityError where files can't be kept (`ephemeral`).
        """


@runtime_checkable
class CanFork(Protocol):
    """A second sandbox that starts from this one's files."""

    async def fork(self, spec: Spec | None = None) -> AsyncSandbox:
        """Gives the new one, owned. Without a `spec` it is as this one, without its name. Raises: as `snapshot`."""


@runtime_checkable
class CanStop(Protocol):
    """End the processes, keep the files."""

    async def stop(self) -> None:
        """From now on it is detached, and lies there until `start` or `delete` of its backend. Idempotent."""


@runtime_checkable
class CanPause(Protocol):
    """Every process stands still; exec and files raise `SandboxPausedError`. Deadlines and timeouts hold."""

    async def pause(self) -> None:
        """Stand still. Idempotent."""

    async def resume(self) -> None:
        """Go on. Idempotent."""


@runtime_checkable
class CanResize(Protocol):
    """Change limits while running."""

    async def resize(
        self, *, cpus: float | None = None, memory_bytes: int | None = None, disk_bytes: int | None = None,
        processes: int | None = None,
    ) -> None:  # fmt: skip
        """Set new limits; what is not given stays. Raises: SpecError; CapabilityError where one can't be changed."""


@runtime_checkable
class TellsEnd(Protocol):
    """A sandbox whose end is told, so that nobody has to ask for it again and again."""

    async def wait_until_gone(self) -> None:
        """Return when the sandbox has ended, whoever ended it. Cancel it before this handle is closed."""


@runtime_checkable
class GlancesAtSandboxes(Protocol):
    """A backend that can see which sandboxes are there without asking any of them."""

    async def glance(self) -> frozenset[str]:
        """The ids of all of which anything is left, in whatever state. Cheap enough for every second."""


@runtime_checkable
class KeepsSandboxes(Protocol):
    """A backend whose sandboxes can be stopped, and that keeps snapshots. All by id or name.

    Every method raises `SandboxGoneError` and `SnapshotNotFoundError` for what is not there.
    """

    async def start(self, sandbox_id: str) -> AsyncSandbox:
        """Bring a stopped sandbox up, detached: same files, id, name, environment. Of one that runs: as `connect`."""

    async def stop(self, sandbox_id: str) -> None:
        """As `CanStop.stop`; of one that is stopped, nothing."""

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> str:
        """As `CanSnapshot.snapshot`, also of a stopped one."""

    async def fork(self, sandbox_id: str, spec: Spec | None = None) -> AsyncSandbox:
        """As `CanFork.fork`, also of a stopped one."""

    async def rollback(self, sandbox_id: str, snapshot_id: str) -> None:
        """The files become those of the snapshot. Its processes are ended: `start` it afterwards."""

    async def resize(
        self, sandbox_id: str, *, cpus: float | None = None, memory_bytes: int | None = None,
        disk_bytes: int | None = None, processes: int | None = None,
    ) -> None:  # fmt: skip
        """As `CanResize.resize`, also of a stopped one, whose next start has the new limits."""

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        """All of them, oldest first."""

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget it. Sandboxes that began from it, and snapshots of those, are not touched."""


@runtime_checkable
class CanExpose(Protocol):
    """Reach a port inside."""

    async def expose(self, port: int) -> str:
        """Gives a URL on this machine."""


@runtime_checkable
class CanInterpret(Protocol):
    """Code that keeps its state from one run to the next. Every sandbox built on `SandboxBase` has it."""

    @property
    def interpreter(self) -> Interpreter:
        """Its contexts, the shared default one among them."""


POWERS: tuple[type, ...] = (CanSnapshot, CanFork, CanStop, CanPause, CanResize, CanExpose, CanInterpret)
"""What a sandbox may have beyond `AsyncSandbox`, sessions and terminals."""
