"""What a server needs first: its data folder, and a backend that starts while the rest of the server is loaded."""

from __future__ import annotations

import asyncio

from corral.client.registry import need_isolation
from corral.concurrency.waiting import cancel_all
from corral.protocol import Backend
from corral.results import Capabilities
from corral.server.log import LOGGER
from corral.server.settings import ServerSettings
from corral.server.store.database import Database


class Beginning:
    """A locked data folder, and the first calls to the backend, under way. Needs no HTTP modules, so it loads fast."""

    def __init__(self, settings: ServerSettings, backend: Backend) -> None:
        """Raises: BackendUnavailableError, when another server uses the folder; CapabilityError, without isolation."""
        need_isolation(backend, who="the server")
        self.database = Database(settings.state_folder, serving=True)
        self.backend = backend
        # Only after the folder is locked: another server could still change what is found.
        self.found = asyncio.create_task(backend.list())
        self._warming = asyncio.create_task(backend.capabilities())  # most backends start a process first

    async def warmed(self) -> None:
        """Wait until the backend is started. If that fails, the calls that need the backend report it."""
        (found,) = await asyncio.gather(self._warming, return_exceptions=True)
        if isinstance(found, Capabilities) and found.cpu == "none":
            # Clients send a number of CPUs with every sandbox, so it can't be refused; see `make_spec`.
            LOGGER.warning("CPU limits are not available on this machine: see `corral doctor`")

    async def close(self) -> None:
        """Release the data folder."""
        await cancel_all(self.found, self._warming)
        self.database.close()
