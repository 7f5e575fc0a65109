"""The seam: errors of the SDK are translated into Corral's, only here; and calls are retried where that is safe.

The SDK turns most failures into `DaytonaError`, but not all: `code_run` and some services let the exceptions of the
generated client through, and a websocket those of aiohttp. They may or may not carry a status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from corral.errors import (
    BackendError,
    BackendUnavailableError,
    CapabilityError,
    CorralError,
    PolicyError,
    RateLimitedError,
    SandboxError,
    SandboxGoneError,
    SandboxPausedError,
    SandboxStoppedError,
    SpecError,
    gone,
)

T = TypeVar("T")

INSTALL = "pip install 'corral[daytona]'"
_TRIES = 5
_FIRST_PAUSE_SECONDS = 0.3
_LONGEST_PAUSE_SECONDS = 20.0
_TOO_MANY = 429
_NETWORK = "network: "
"""What `corral serve` says of more network than it permits begins with this."""
_AGAIN = frozenset({502, 503, 504})
_UNSENT = frozenset({"ClientConnectorError", "InvalidURL"})
"""By name: they come from a package that the SDK uses, and we don't."""


class ServiceError(Exception):
    """An error of the service: its status (None without an answer), message and headers."""

    def __init__(
        self, status: int | None, message: str, *, code: str | None = None, headers: Any = None, unsent: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers: Mapping[str, Any] = dict(headers or {})
        self.unsent = unsent
        """The connection failed, so no request was sent."""
        self.tries = 1
        """How many attempts were made."""

    @property
    def retry_after(self) -> float | None:
        """The `Retry-After` header, in seconds."""
        for name, value in self.headers.items():
            if name.lower() == "retry-after":
                with contextlib.suppress(ValueError):
                    return max(0.0, float(value))
        return None


def read(error: Exception) -> ServiceError:
    """An exception of the SDK, of whatever class, as a `ServiceError`."""
    if isinstance(error, ServiceError):
        return error
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    message, code = str(getattr(error, "message", "") or error), getattr(error, "code", None)
    body = getattr(error, "body", None)
    if isinstance(body, str | bytes):  # a raw exception of the generated client
        with contextlib.suppress(ValueError):
            parsed = json.loads(body)
            if isinstance(parsed, dict):
                message, code = str(parsed.get("message") or message), parsed.get("code")
    return ServiceError(
        status if isinstance(status, int) and status >= 100 else None,
        message.strip() or type(error).__name__,
        code=code if isinstance(code, str) else None,
        headers=getattr(error, "headers", None),
        unsent=_was_never_sent(error),
    )


def _was_never_sent(error: BaseException | None) -> bool:
    """True if the connection could not be opened. The SDK keeps the causes of what it raises."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, ConnectionRefusedError) or any(kind.__name__ in _UNSENT for kind in type(error).__mro__):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Around every call into the SDK: it raises a `ServiceError` or a `CorralError`."""
    try:
        yield
    except (CorralError, ServiceError):
        raise
    except Exception as error:
        raise read(error) from error


@contextlib.contextmanager
def mapped(*, sandbox_id: str | None = None, op: str) -> Iterator[None]:
    """Around a whole operation: a `ServiceError` becomes a `CorralError`."""
    try:
        yield
    except ServiceError as error:
        raise translate(error, sandbox_id=sandbox_id, op=op) from error


def translate(error: ServiceError, *, sandbox_id: str | None, op: str) -> CorralError:
    """The `CorralError` for a status of the service."""
    text, status = error.message, error.status
    where: dict[str, Any] = {"sandbox_id": sandbox_id, "op": op}
    if status == 404:
        hint = "make a new one" if sandbox_id else "backend.list() lists the existing ones"
        return SandboxGoneError("sandbox not found: it has been deleted, or never existed", hint=hint, **where)
    if status == 403 and _NETWORK in text:
        return PolicyError(text.partition(_NETWORK)[2], hint="ask the operator of the service", **where)
    if status in (401, 403):
        hint = "check DAYTONA_API_KEY (or api_key=) and the key's permissions"
        return BackendUnavailableError(f"the service rejected the API key: {text}", hint=hint, **where)
    if status == 409:
        return SpecError(text, hint="choose another name, or delete the existing one", **where)
    if status in (400, 422):
        return SpecError(f"the service rejected the request: {text}", **where)
    if status == 501:
        hint = "capabilities() lists what this server supports"
        return CapabilityError(f"the service does not support this: {text}", hint=hint, **where)
    if status == _TOO_MANY:
        return RateLimitedError(f"the service's rate limit is exceeded: {text}", hint="try again later", **where)
    if status is None:
        hint = "check DAYTONA_API_URL (or api_url=), and that the server is running"
        return BackendUnavailableError(f"can't reach the service: {text}", hint=hint, **where)
    return BackendError(f"the service failed ({status}): {text}", **where)


def state_error(state: str | None, *, sandbox_id: str, op: str) -> CorralError | None:
    """The error that a sandbox's state is the reason for; None if it runs."""
    where: dict[str, Any] = {"sandbox_id": sandbox_id, "op": op}
    if state in ("started", "starting", "resizing", "snapshotting", "forking"):
        return None
    if state in ("stopped", "stopping", "archived", "archiving"):
        return SandboxStoppedError("the sandbox is stopped", hint="start it: backend.start(id)", **where)
    if state in ("paused", "pausing"):
        return SandboxPausedError("the sandbox is paused", hint="resume() it", **where)
    if state in ("error", "build_failed"):
        return SandboxError("the sandbox is in the error state", hint="look at the service's dashboard", **where)
    return gone(**where)


async def repeat(call: Callable[[], Awaitable[T]], *, safe: bool, first: bool = False) -> T:
    """Call the SDK, and again after a pause while the service is too busy.

    After a 429 any call may be repeated, because nothing was done. After a 502 to 504, or without an answer, the work
    may have been done: only a call that is `safe` is repeated. `first`: the service has never answered, so a failed
    connection is not retried; a service that has answered before may be restarting.
    """
    pause = _FIRST_PAUSE_SECONDS
    for attempt in range(1, _TRIES + 1):
        try:
            with reading():
                return await call()
        except ServiceError as error:
            error.tries = attempt
            if first and error.unsent and attempt == 1:
                raise
            busy = error.status == _TOO_MANY or (safe and (error.status in _AGAIN or error.status is None))
            if not busy or attempt == _TRIES:
                raise
            seconds = error.retry_after if error.retry_after is not None else pause * random.uniform(0.7, 1.3)  # noqa: S311 - spreads callers, keeps no secret
            if seconds > _LONGEST_PAUSE_SECONDS:
                raise
        await asyncio.sleep(seconds)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
    raise AssertionError("unreachable")
