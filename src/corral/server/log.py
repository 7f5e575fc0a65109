"""What a server reports to its operator: a log of JSON lines, and counters for Prometheus.

Fields of the log are named one by one, so that nothing gets in by accident: no header, no body, no key.

Of an error that is not Corral's own, the log has its class and where it was raised, in modules and lines: its message
could contain anything. `CORRAL_DEBUG` adds the whole traceback.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, get_args

import msgspec

from corral import errors
from corral.results import DenialRule, timestamp

_PATH = re.compile(r"(?<![\w./])/[^\s:;,'\"()]+")
_OF_THE_HOST = (errors.BackendError, errors.SandboxError, errors.EngineFaultError)
"""Errors about the host; the paths in others are paths inside a sandbox, which its owner may see."""

LOGGER = logging.getLogger("corral.server")
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The request that something is done for, also in the background tasks of the request."""
_FIELDS = "fields"
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
"""Others are counted together: a client can invent methods, and each would need memory."""
_RULES = frozenset(get_args(DenialRule))
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


def event(message: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Log one line."""
    if LOGGER.isEnabledFor(level):
        if error is not None:
            fields |= _describe(error)
        fields.setdefault("request_id", REQUEST_ID.get())
        LOGGER.log(level, message, extra={_FIELDS: fields})


def text_of(error: errors.CorralError) -> str:
    """The message of an error, for callers and the log, with paths of the host removed."""
    return _PATH.sub("…", str(error)) if isinstance(error, _OF_THE_HOST) else str(error)


def _describe(error: BaseException) -> dict[str, Any]:
    name = type(error).__name__
    described: dict[str, Any] = {
        "error": f"{name}: {text_of(error)}"[:2000] if isinstance(error, errors.CorralError) else name
    }
    if not isinstance(error, errors.CorralError):
        steps = [
            f"{frame.f_globals.get('__name__', '?')}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        described["at"] = steps[-12:]
    if os.environ.get("CORRAL_DEBUG"):
        described["trace"] = "".join(traceback.format_exception(error))[-8000:]
    return described


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Called by logging."""
        line: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {key: value for key, value in getattr(record, _FIELDS, {}).items() if value is not None}
        return msgspec.json.encode(line).decode()


class Stderr(logging.Handler):
    """Writes to the current `sys.stderr`."""

    def __init__(self, before: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._before = before

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        try:
            if self._before is not None:
                self._before()
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # stderr is closed


def from_loop(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's exception handler: logs the error without asyncio's message, which contains paths."""
    event("unhandled error", level=logging.ERROR, error=context.get("exception"))


def set_up(*, level: int = logging.INFO, before: Callable[[], None] | None = None) -> None:
    """Send our log to stderr, and keep tracebacks of others from it.

    `before` is called before each line, to clear what else is shown on the terminal.
    """
    handler = Stderr(before)
    handler.setFormatter(JsonLines())
    LOGGER.handlers = [handler]
    LOGGER.setLevel(level)
    LOGGER.propagate = False
    # aiohttp logs each malformed request with a traceback and its content: any client could write to our log.
    for other in ("aiohttp", "asyncio"):
        logging.getLogger(other).setLevel(logging.CRITICAL + 1)
    threading.excepthook = lambda left: event("thread failed", level=logging.ERROR, error=left.exc_value)
    sys.unraisablehook = lambda left: event("unhandled error", level=logging.ERROR, error=left.exc_value)


class Metrics:
    """Counters since the start of the server."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._count: Counter[str] = Counter()
        self._denied: Counter[str] = Counter()
        self.sandboxes_made = 0
        self.in_flight = 0

    def count(self, *, operation: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests[operation, method if method in _METHODS else "other", status] += 1
        self._count[operation] += 1
        self._seconds[operation] += seconds  # type: ignore[assignment] # a Counter of floats is fine
        for bucket in _BUCKETS:
            if seconds <= bucket:
                self._buckets[operation, bucket] += 1

    def count_denied(self, rule: str, number: int) -> None:
        """Count attempts that the network of a sandbox refused."""
        self._denied[rule if rule in _RULES else "other"] += number

    def render(self, *, states: Mapping[str, int], websockets: int) -> str:
        """The text of `/metrics`."""
        lines = _head("corral_sandboxes", "gauge", "Sandboxes by state.")
        lines += [f'corral_sandboxes{{state="{state}"}} {number}' for state, number in sorted(states.items())]
        for name, kind, text, value in (
            ("corral_sandboxes_made_total", "counter", "Sandboxes created since the start.", self.sandboxes_made),
            ("corral_requests_in_flight", "gauge", "Requests that are being answered.", self.in_flight),
            ("corral_event_listeners", "gauge", "Clients that listen to events.", websockets),
        ):
            lines += [*_head(name, kind, text), f"{name} {value}"]
        lines += _head(
            "corral_network_denied_total", "counter", "Attempts that networks of sandboxes refused, by rule."
        )
        lines += [
            f'corral_network_denied_total{{rule="{rule}"}} {self._denied[rule]}' for rule in (*sorted(_RULES), "other")
        ]
        lines += _head("corral_requests_total", "counter", "Requests that were answered, by operation and status.")
        lines += [
            f'corral_requests_total{{operation="{operation}",method="{method}",status="{status}"}} {number}'
            for (operation, method, status), number in sorted(self._requests.items())
        ]
        lines += _head("corral_request_seconds", "histogram", "How long requests took, with streams and websockets.")
        for operation in sorted(self._count):
            for bucket in _BUCKETS:
                number = self._buckets[operation, bucket]
                lines.append(f'corral_request_seconds_bucket{{operation="{operation}",le="{bucket}"}} {number}')
            count = self._count[operation]
            lines.append(f'corral_request_seconds_bucket{{operation="{operation}",le="+Inf"}} {count}')
            lines.append(f'corral_request_seconds_sum{{operation="{operation}"}} {self._seconds[operation]:.6f}')
            lines.append(f'corral_request_seconds_count{{operation="{operation}"}} {count}')
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
