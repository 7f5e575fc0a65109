"""The one place where the daemon's errors become ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import aiohttp
from aiodocker.exceptions import DockerError

from corral.errors import (
    BackendError,
    BackendUnavailableError,
    CorralError,
    InvalidCommandError,
    SandboxPausedError,
    gone,
)

NOT_FOUND = 404
CONFLICT = 409
_NO_USER = re.compile(r"unable to find user|no matching entries in passwd|invalid user", re.IGNORECASE)
_NO_CONNECTION = 900
"""The client's status for an unreachable daemon."""


@contextlib.contextmanager
def mapped(*, op: str, sandbox_id: str | None = None, host: str = "") -> Iterator[None]:
    """Translates errors of all calls to the daemon."""
    try:
        yield
    except DockerError as error:
        if error.status == _NO_CONNECTION:
            raise unreachable(error, op=op, host=host) from error
        raise translate(error, op=op, sandbox_id=sandbox_id) from error
    except (aiohttp.ClientError, ConnectionError, FileNotFoundError, PermissionError) as error:
        if isinstance(error, CorralError):
            raise
        raise unreachable(error, op=op, host=host) from error
    except TimeoutError as error:
        raise BackendUnavailableError("the Docker daemon does not respond", op=op, sandbox_id=sandbox_id) from error


def translate(error: DockerError, *, op: str, sandbox_id: str | None) -> CorralError:
    """The daemon's error as one of Corral."""
    text = str(error.message)
    if error.status == CONFLICT and "paused" in text:
        return SandboxPausedError("the sandbox is paused", sandbox_id=sandbox_id, op=op, hint="resume() it first")
    if sandbox_id is not None and is_gone(error):
        return gone(sandbox_id, op=op)
    if op == "exec" and says_no_user(text):  # podman's way; Docker says so in the program's output
        return InvalidCommandError("unknown user", sandbox_id=sandbox_id, op=op)
    return BackendError(f"the Docker daemon refused: {text[:300]}", sandbox_id=sandbox_id, op=op)


def says_no_user(text: str) -> bool:
    """True if the text says that a user does not exist."""
    return _NO_USER.search(text) is not None


def is_gone(error: DockerError) -> bool:
    """True if it says that the container, or the program in it, no longer exists."""
    text = str(error.message)
    words = ("is not running", "marked for removal", "removal of container", "is restarting", "can only create exec")
    return error.status == NOT_FOUND or (error.status == CONFLICT and any(word in text for word in words))


def unreachable(error: BaseException, *, op: str, host: str) -> BackendUnavailableError:
    """The error for a daemon that can't be reached."""
    hint = (
        "start it (`systemctl start docker`, or `podman system service`), be in the group `docker`, "
        "or say where it is: CORRAL_DOCKER_HOST"
    )
    # The client's own error says nothing; its cause does.
    cause = (error.__cause__ or error.__context__ or error) if isinstance(error, DockerError) else error
    reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return BackendUnavailableError(f"no Docker daemon responds at {host}: {reason}", op=op, hint=hint)
