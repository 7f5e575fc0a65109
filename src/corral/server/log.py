"""Logs as JSON lines. Fields are named one by one, so that nothing gets in by accident: no header, no body, no key.

An error that is none of Corral's own is told by its class and by where it was raised, in modules and lines: its message
may hold anything. `CORRAL_DEBUG` adds the whole traceback.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import msgspec

from corral import errors

_PATH = re.compile(r"(?<![\w./])/[^\s:;,'\"()]+")
_OF_THE_HOST = (errors.BackendError, errors.SandboxError, errors.EngineFaultError)
"""Errors about what is done on the host; the paths in others are paths inside, and belong to whoever asked."""

LOGGER = logging.getLogger("corral.server")
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""On whose behalf something is done; what a request leaves to others to finish has it, too."""
_FIELDS = "fields"


def event(message: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """One line."""
    if LOGGER.isEnabledFor(level):
        if error is not None:
            fields |= _describe(error)
        fields.setdefault("request_id", REQUEST_ID.get())
        LOGGER.log(level, message, extra={_FIELDS: fields})


def text_of(error: errors.CorralError) -> str:
    """What an error says, to callers and in the log: no path of the host, even where whoever wrote it forgot that."""
    return _PATH.sub("…", str(error)) if isinstance(error, _OF_THE_HOST) else str(error)


def _describe(error: BaseException) -> dict[str, Any]:
    name = type(error).__name__
    told: dict[str, Any] = {
        "error": f"{name}: {text_of(error)}"[:2000] if isinstance(error, errors.CorralError) else name
    }
    if not isinstance(error, errors.CorralError):
        steps = [
            f"{frame.f_globals.get('__name__', '?')}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        told["at"] = steps[-12:]
    if os.environ.get("CORRAL_DEBUG"):
        told["trace"] = "".join(traceback.format_exception(error))[-8000:]
    return told


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {key: value for key, value in getattr(record, _FIELDS, {}).items() if value is not None}
        return msgspec.json.encode(line).decode()


class Stderr(logging.Handler):
    """Writes to stderr, whatever that is at the time."""

    def __init__(self, before: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._before = before

    def emit(self, record: logging.LogRecord) -> None:
        """See logging."""
        try:
            if self._before is not None:
                self._before()
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # nobody is there to read it


def from_loop(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What an event loop has to tell when nobody else can: without its words, which are full of paths."""
    event("left over", level=logging.ERROR, error=context.get("exception"))


def set_up(*, level: int = logging.INFO, before: Callable[[], None] | None = None) -> None:
    """Our log goes to stderr, to nowhere else; and nothing else goes there with a traceback.

    `before` makes room for a line, where something else is shown.
    """
    handler = Stderr(before)
    handler.setFormatter(JsonLines())
    LOGGER.handlers = [handler]
    LOGGER.setLevel(level)
    LOGGER.propagate = False
    # aiohttp tells of each request that is no HTTP, with a traceback and what was sent: anybody could write our log.
    for other in ("aiohttp", "asyncio"):
        logging.getLogger(other).setLevel(logging.CRITICAL + 1)
    threading.excepthook = lambda left: event("thread failed", level=logging.ERROR, error=left.exc_value)
    sys.unraisablehook = lambda left: event("left over", level=logging.ERROR, error=left.exc_value)
