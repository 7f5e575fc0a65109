"""Telling events: into the log first, then to whoever listens."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from corral.forge.events import ForgeEvent, Listener
from corral.forge.runfolder import RunWriter

log = logging.getLogger(__name__)


class Teller:
    """Tells the events of one run, with the time of each. `offset` is what a resumed run has behind it."""

    def __init__(self, writer: RunWriter, listeners: Sequence[Listener], *, offset: float = 0.0) -> None:
        self._writer = writer
        self._listeners = list(listeners)
        self._begun = time.monotonic() - offset

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun

    def tell(self, kind: str, candidate: str | None = None, number: int | None = None, /, **data: object) -> None:
        """Something happened."""
        event = ForgeEvent(kind, self.seconds, candidate, number, data)
        self._writer.append(event)
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception as error:  # a listener's bug must not end the contest
                log.exception("a listener of the contest failed, and is not called again")
                self._listeners.remove(listener)
                self.tell("warning", text=f"a listener failed: {type(error).__name__}")
