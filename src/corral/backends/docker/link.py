"""The I/O thread and the connections of one process to one daemon."""

from __future__ import annotations

from functools import cached_property

from corral.backends.docker.engine_api import EngineApi
from corral.backends.docker.settings import Settings
from corral.backends.docker.views import Views
from corral.concurrency.portal import PerProcess, Portal


class Link:
    """The thread and the connections. A forked child creates its own: the parent's thread does not exist there."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.io = Portal("corral-docker")

    @cached_property
    def api(self) -> EngineApi:
        """For what runs in the I/O thread only."""
        return EngineApi(self.settings.host)

    @cached_property
    def views(self) -> Views:
        """For what runs in the I/O thread only."""
        return Views(self.api, self.settings)

    async def close(self) -> None:
        """Close the connections. In the I/O thread."""
        if "api" in vars(self):
            await self.api.close()


class LinkHolder(PerProcess[Link]):
    """The link of this process."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(lambda: Link(settings))
        self.settings = settings

    def close(self) -> None:
        """End the connections and the thread. The next `get` creates new ones."""
        link = self.get()
        link.io.submit(link.close()).result(timeout=10)
        link.io.stop()
        self.forget()
