"""The seam: the engine's errors become Corral's, here and nowhere else."""

from __future__ import annotations

import contextlib
import errno as errno_module
from collections.abc import Iterator

from corral.engine import errors as engine
from corral.engine.wire import Message
from corral.errors import (
    FILE_ERRORS_BY_ERRNO,
    BackendUnavailableError,
    CapabilityError,
    CorralError,
    EditConflictError,
    EditError,
    EngineFaultError,
    ExecError,
    HostExhaustedError,
    InvalidCommandError,
    SandboxError,
    SandboxFileError,
    SandboxFileKindError,
    SandboxFileTooLargeError,
    SandboxGoneError,
    SandboxIsFolderError,
    SandboxPausedError,
    SnapshotNotFoundError,
    SpecError,
    WorkdirError,
    became_a_link,
)


@contextlib.contextmanager
def mapped(*, sandbox_id: str | None = None, op: str) -> Iterator[None]:
    """Around every call into the engine."""
    try:
        yield
    except engine.EngineError as error:
        raise translate(error, sandbox_id=sandbox_id, op=op) from error
    except CorralError:
        raise  # some of them are an OSError as well, with the errno of a file inside
    except OSError as error:
        shortage = engine.explain_shortage(error)
        if shortage is None:
            raise
        raise translate(shortage, sandbox_id=sandbox_id, op=op) from error


def translate(error: engine.EngineError, *, sandbox_id: str | None, op: str) -> CorralError:
    """The table."""
    text = str(error)
    if isinstance(error, engine.GoneError):
        return SandboxGoneError("the sandbox has ended", sandbox_id=sandbox_id, op=op, hint="make a new one")
    if isinstance(error, engine.ExhaustedError):
        return HostExhaustedError(text, sandbox_id=sandbox_id, op=op, hint=error.hint)
    if isinstance(error, engine.UnsupportedError | engine.SetupError):
        return BackendUnavailableError(text, sandbox_id=sandbox_id, op=op, hint=error.hint or "run `corral doctor`")
    if isinstance(error, engine.RefusedError) and error.code in _REFUSALS:
        kind, hint = _REFUSALS[error.code]
        return kind(text, sandbox_id=sandbox_id, op=op, hint=error.hint or hint)
    return EngineFaultError(text, sandbox_id=sandbox_id, op=op)


_REFUSALS: dict[str, tuple[type[CorralError], str]] = {
    "paused": (SandboxPausedError, "resume() it"),
    "no_snapshot": (SnapshotNotFoundError, "list_snapshots() lists the existing ones"),
    "name_taken": (SpecError, "take another name, or delete that one"),
    "ephemeral": (CapabilityError, "make it without ephemeral=True"),
    "too_deep": (CapabilityError, "copy its files into a new sandbox"),
    "no_such_limit": (CapabilityError, "capabilities() says what is bounded here"),
    "not_still": (SandboxError, "try again"),
    "os": (BackendUnavailableError, "the host refused: is there room in the data folder?"),
}
"""Requests that were understood and can't be carried out: the engine's code → what is raised, and what to do."""


def exec_error(answer: Message, *, cwd: str, sandbox_id: str) -> CorralError:
    """Why a program could not be started."""
    code, text = str(answer.get("error")), str(answer.get("text", ""))
    if code == "cwd":
        return WorkdirError(
            f"can't run in {cwd!r}: {text.rpartition(': ')[2]}",
            sandbox_id=sandbox_id,
            op="exec",
            hint="create the folder, or pass another cwd",
        )
    if code == "paused":
        return SandboxPausedError("the sandbox is paused", sandbox_id=sandbox_id, op="exec", hint="resume() it")
    if code == "too_big":
        return InvalidCommandError(
            "arguments and environment exceed the kernel's limit",
            sandbox_id=sandbox_id,
            op="exec",
            hint="pass data as stdin= or in a file",
        )
    if code == "view":
        return InvalidCommandError(f"can't create a restricted view: {text}", sandbox_id=sandbox_id, op="exec")
    if code in ("fork", "pty"):
        hint = "end some processes or terminals, or raise resources.processes"
        return ExecError(text, sandbox_id=sandbox_id, op="exec", hint=hint)
    return EngineFaultError(f"a program could not be set up: {text}", sandbox_id=sandbox_id, op="exec")


def file_error(answer: Message, *, path: str, sandbox_id: str, op: str) -> SandboxFileError | CapabilityError:
    """Why a file operation was refused."""
    code, text, number = str(answer.get("error")), str(answer.get("text", "")), _int(answer.get("errno"))
    message = f"{path}: {text}"
    if code == "not_regular":
        kind = SandboxIsFolderError if number == errno_module.EISDIR else SandboxFileKindError
        return kind(message, path=path, sandbox_id=sandbox_id, op=op)
    if code == "link":
        return became_a_link(path, sandbox_id=sandbox_id, op=op)
    if code == "too_big":
        return SandboxFileTooLargeError(message, path=path, sandbox_id=sandbox_id, op=op)
    if code in ("no_match", "ambiguous"):
        hint = "include more of the text, or pass replace_all=True" if code == "ambiguous" else "read the file again"
        return EditError(message, path=path, sandbox_id=sandbox_id, op=op, hint=hint, count=_int(answer.get("count")))
    if code == "conflict":
        return EditConflictError(message, path=path, sandbox_id=sandbox_id, op=op, hint="read it again and retry")
    if code == "os":
        found = FILE_ERRORS_BY_ERRNO.get(number, SandboxFileError)
        return found(message, path=path, sandbox_id=sandbox_id, op=op)
    return SandboxFileError(message, path=path, sandbox_id=sandbox_id, op=op)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
