"""Logs as JSON lines. Fields are named one by one, so that nothing gets in by accident: no header, no body, no key.

An error that is none of Corral's own is told by its class and by where it was raised, in modules and lines: its message
may hold anything. `CORRAL_DEBUG` adds the whole traceback.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from typing import Any

import msgspec

from corral.errors import CorralError

LOGGER = logging.getLogger("corral.server")
_FIELDS = "fields"


def event(message: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """One line."""
    if LOGGER.isEnabledFor(level):
        if error is not None:
            fields |= _describe(error)
        LOGGER.log(level, message, extra={_FIELDS: fields})


def _describe(error: BaseException) -> dict[str, Any]:
    name = type(error).__name__
    told: dict[str, Any] = {"error": f"{name}: {error}"[:2000] if isinstance(error, CorralError) else name}
    if not isinstance(error, CorralError):
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

    def emit(self, record: logging.LogRecord) -> None:
        """See logging."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # nobody is there to read it


def set_up(*, level: int = logging.INFO) -> None:
    """Our log goes to stderr; to nowhere else."""
    handler = Stderr()
    handler.setFormatter(JsonLines())
    LOGGER.handlers = [handler]
    LOGGER.setLevel(level)
    LOGGER.propagate = False
    # It tells of each request that is no HTTP, with a traceback and with what was sent: anybody could write our log.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL + 1)
