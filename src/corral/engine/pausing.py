"""Pausing: every process of a sandbox but init is frozen, and continues later.

With a cgroup2 leaf for each call the kernel's freezer does it, and no program can notice. Without, every process gets
SIGSTOP, as Ctrl-Z in a terminal does; those that were stopped before stay stopped afterwards.

*Paused* is requested by the user: requests are refused meanwhile. *Held* is for a moment, while files are copied:
requests wait. Init itself is never frozen, and so notices its holder's end.
"""

from __future__ import annotations

import signal
import time

from corral.engine.trees import Trees, signal_one
from corral.inside.processes import Process, list_processes

_PATIENCE_SECONDS = 2.0


class Pausing:
    """Pauses and holds a sandbox."""

    def __init__(self, trees: Trees) -> None:
        self._trees = trees
        self._stopped_before: set[int] = set()
        self.paused = False
        self.held = False

    @property
    def still(self) -> bool:
        """True if the sandbox is frozen, for any reason."""
        return self.paused or self.held

    def pause(self) -> bool:
        """Freeze it. False if a process could not be stopped in time: then none is."""
        if not self.paused:
            self._trees.end_helpers()  # the next request for files is refused instead of never answered
            if not self._stop():
                return False
            self.paused = True
        return True

    def resume(self) -> None:
        """Resume, unless a copy is in progress."""
        self.paused = False
        if not self.held:
            self._go_on()

    def hold(self) -> bool:
        """Freeze it for a moment. False as for `pause`."""
        if not self.still and not self._stop():
            return False
        self.held = True
        return True

    def release(self) -> None:
        """End `hold`; a paused sandbox stays frozen."""
        self.held = False
        if not self.paused:
            self._go_on()

    def _stop(self) -> bool:
        done = self._trees.freeze()
        if done is None:
            done = self._stop_by_signal()
        if not done:
            self._go_on()
        return done

    def _stop_by_signal(self) -> bool:
        self._stopped_before = {pid for pid, process in list_processes().items() if process.state == b"T"}
        signal_one(-1, signal.SIGSTOP)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _all_still(list_processes()):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
            signal_one(-1, signal.SIGSTOP)  # for those that were being forked
        return True

    def _go_on(self) -> None:
        if self._trees.thaw():
            return
        signal_one(-1, signal.SIGCONT)
        for pid in self._stopped_before:
            signal_one(pid, signal.SIGSTOP)


def _all_still(processes: dict[int, Process]) -> bool:
    """True if all are stopped. A process that called vfork stops only after its child: it may wait for that child."""
    stopped = {pid for pid, process in processes.items() if process.state in b"TtZX"}
    parents = {processes[pid].parent for pid in stopped}
    return all(
        pid == 1 or pid in stopped or (process.state == b"D" and pid in parents) for pid, process in processes.items()
    )
