"""What a server needs first: its folder, and a backend that wakes up while the rest of the server is being loaded."""

from __future__ import annotations

import asyncio

from corral.client.registry import need_isolation
from corral.protocol import Backend
from corral.results import Capabilities
from corral.server.log import LOGGER
from corral.server.settings import ServerSettings
from corral.server.store.database import Database


class Beginning:
    """A claimed folder, and the first questions to the backend, under way. Knows no HTTP, so it is there at once."""

    def __init__(self, settings: ServerSettings, backend: Backend) -> None:
        """Raises: BackendUnavailableError, when another server has the folder; CapabilityError for no isolation."""
        need_isolation(backend, who="the server")
        self.database = Database(settings.state_folder, serving=True)
        self.backend = backend
        # Not before the folder is ours: another server would still change what is found.
        self.found = asyncio.create_task(backend.list())
        self._warming = asyncio.create_task(backend.capabilities())  # most backends have something to start first

    async def warmed(self) -> None:
        """Until the backend is awake. What it can't do, it says to whoever asks for it."""
        (found,) = await asyncio.gather(self._warming, return_exceptions=True)
        if isinstance(found, Capabilities) and found.cpu == "none":
            # Clients send a number of processors with every sandbox, so it can't be refused; see `make_spec`.
            LOGGER.warning("processors are not limited here: `corral doctor` has the remedy")

    async def close(self) -> None:
        """Let go of the folder."""
        for task in (self.found, self._warming):
            task.cancel()
        await asyncio.gather(self.found, self._warming, return_exceptions=True)
        self.database.close()
