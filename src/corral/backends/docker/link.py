"""The thread and the connections of one process to one daemon."""

from __future__ import annotations

from corral.backends.docker.engine_api import EngineApi
from corral.backends.docker.settings import Settings
from corral.backends.docker.views import Views
from corral.concurrency.portal import PerProcess, Portal


class Link:
    """Made when first needed, and anew in a forked child, where the parent's thread does not exist."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.io = Portal("corral-docker")
        self._api: EngineApi | None = None
        self._views: Views | None = None

    @property
    def api(self) -> EngineApi:
        """For what runs in the I/O thread only."""
        if self._api is None:
            self._api = EngineApi(self.settings.host)
        return self._api

    @property
    def views(self) -> Views:
        """For what runs in the I/O thread only."""
        if self._views is None:
            self._views = Views(self.api, self.settings)
        return self._views

    async def close(self) -> None:
        """In the I/O thread."""
        api, self._api, self._views = self._api, None, None
        if api is not None:
            await api.close()


class LinkHolder:
    """The link of this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._links = PerProcess(lambda: Link(settings))

    def get(self) -> Link:
        """The one of this process."""
        return self._links.get()

    def close(self) -> None:
        """End the connections and the thread. The next `get` makes others."""
        link = self._links.get()
        link.io.submit(link.close()).result(timeout=10)
        link.io.stop()
        self._links = PerProcess(lambda: Link(self.settings))
