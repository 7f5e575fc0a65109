"""Creates and deletes sandboxes without isolation, and warns each time."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import warnings
import weakref
from pathlib import Path

from corral.backends.unsafe_subprocess import UnsafeWarning
from corral.backends.unsafe_subprocess.agent import Agents
from corral.backends.unsafe_subprocess.folders import HostFolder, discard, find_base, make_folder, sweep
from corral.backends.unsafe_subprocess.sandbox import NAME, HostSandbox
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.tokens import TokenBook
from corral.protocol import Backend, OnEvent, lacking, refuse_given
from corral.results import DERIVED_POWERS, Capabilities
from corral.spec import Spec

WARNING = (
    "the unsafe-subprocess backend has NO ISOLATION: programs run as you, on this machine, "
    "with your files and your network"
)
_NOTES = (
    "NO ISOLATION: programs run as your user, with all files and the network of the host",
    "no limits: resources= is not looked at",
    "ports are the host's: expose() forwards to whatever listens there, also what is not the sandbox's",
    "programs see real paths: spec.workdir is a temporary folder, and /tmp is the sandbox's own for the file methods",
)
_NOTES_ELSEWHERE = (
    "between stdout and stderr the order is only close",
    "a call's tree is found by parent and process group: a process that leaves both is not ended with it",
)

_HINT_FOR_DETACHED = "its sandboxes end with their owner: use the embedded backend for detached ones"

log = logging.getLogger("corral.unsafe")


class UnsafeSubprocessBackend(Backend):
    """Creates sandboxes that are plain child processes. Usable from any thread and event loop."""

    name = NAME
    isolated = False

    def __init__(self, folder: Path | str | None = None) -> None:
        self._folder = folder
        self._swept = False
        self._agents: weakref.WeakSet[Agents] = weakref.WeakSet()
        self._tokens: TokenBook[HostSandbox] = TokenBook()

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        _refuse_unsupported(spec)
        warnings.warn(WARNING, UnsafeWarning, stacklevel=2)
        log.warning(WARNING)
        sandbox = await self._tokens.make_once(spec.client_token, lambda: self._make(spec))
        return AsyncSandbox.around(sandbox, on_event=on_event, event="created")

    async def _make(self, spec: Spec) -> HostSandbox:
        base = find_base(self._folder)
        if not self._swept:
            self._swept = True
            await asyncio.to_thread(sweep, base)
        place = make_folder(base)
        try:
            agents = Agents(place, seconds=spec.lifetime.seconds)
        except BaseException:
            discard(place.root)
            raise
        finally:
            os.close(place.lock)  # the agent has it; if the agent does not start, the folder will be swept
        try:
            await agents.start()
        except BaseException:
            agents.owner.close()
            threading.Thread(target=_discard, args=(agents, place), name="corral-unsafe-end", daemon=True).start()
            raise
        self._agents.add(agents)
        return HostSandbox(place=place, agents=agents, spec=spec)

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        raise lacking(NAME, "connect", hint=_HINT_FOR_DETACHED)

    async def delete(self, sandbox_id: str) -> None:
        raise lacking(NAME, "delete", hint=_HINT_FOR_DETACHED)

    async def capabilities(self) -> Capabilities:
        return Capabilities(
            isolation="none",
            memory="none",
            processes="none",
            cpu="none",
            disk="none",
            network=("open",),
            powers=DERIVED_POWERS | {"pty", "dial", "expose"},
            notes=_NOTES if sys.platform == "linux" else (*_NOTES, *_NOTES_ELSEWHERE),
        )

    async def aclose(self) -> None:
        ours = [agents for agents in list(self._agents) if agents.owner.is_ours]
        for agents in ours:
            agents.owner.close()
        await asyncio.gather(*(agents.wait_end() for agents in ours))

    def count_living(self) -> int:
        """The number of sandboxes that have a folder, of all processes."""
        return sum(path.is_dir() for path in find_base(self._folder).iterdir())


def _discard(agents: Agents, place: HostFolder) -> None:
    """Undo a failed creation. Once the agent knows the folder, it removes it itself."""
    agents.owner.finish()
    discard(place.root)


def _refuse_unsupported(spec: Spec) -> None:
    unsupported = {
        "images": (spec.image is not None, "it runs the host's own programs; backend='docker' runs images"),
        f"network={str(spec.network)!r}": (
            spec.network.mode in ("allow", "packages") or bool(spec.network.hosts),
            "leave it out: its programs use the host's network",
        ),
        "secrets": (bool(spec.secrets), "its programs see all that you see: give values in env="),
        "packages": (bool(spec.packages), "install them on the host"),
        "venv": (spec.venv is not None, "put its bin folder on PATH: env={'PATH': …}"),
        "ephemeral": (spec.ephemeral, "set TMPDIR to a folder in memory"),
        "snapshot": (spec.snapshot is not None, "copy files with files.upload"),
        "mounts": (bool(spec.mounts), "its programs see the host's own folders"),
        "idle_seconds": (spec.lifetime.idle_seconds is not None, "use lifetime seconds instead"),
    }
    refuse_given(NAME, unsupported)
