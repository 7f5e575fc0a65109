"""From Corral's errors to error responses: one table, and nowhere else."""

from __future__ import annotations

import errno
import os

from corral import errors
from corral.server import log
from corral.server.faults import Fault

TABLE: tuple[tuple[type[errors.CorralError], int, str | None, str], ...] = (
    # The first match counts, so a class comes before its parents.
    (errors.SandboxGoneError, 404, None, "not found"),
    (errors.SandboxClosedError, 404, None, "not found"),
    (errors.ExecTimeoutError, 408, "PROCESS_EXECUTION_TIMEOUT", "timeout"),
    (errors.ExitError, 422, None, ""),
    (errors.InvalidCommandError, 400, None, ""),
    (errors.WorkdirError, 400, None, ""),
    (errors.NameTakenError, 409, "CONFLICT", "already exists"),
    (errors.NotRecordedError, 404, "PROCESS_NOT_FOUND", "not found"),
    (errors.SessionEndedError, 410, "SESSION_ENDED", ""),
    (errors.ExecError, 400, None, ""),
    (errors.SandboxFileNotFoundError, 404, "FILE_NOT_FOUND", ""),
    (errors.SandboxPermissionError, 403, "FILE_ACCESS_DENIED", "permission denied"),
    (errors.SandboxFileExistsError, 409, "CONFLICT", "already exists"),
    (errors.SandboxIsFolderError, 400, "INVALID_FILE_PATH", "is a directory"),
    (errors.SandboxNotFolderError, 400, "INVALID_FILE_PATH", "not a directory"),
    (errors.SandboxFileKindError, 400, "INVALID_FILE_PATH", ""),
    (errors.SandboxLinkError, 409, "CONFLICT", ""),
    (errors.SandboxFileTooLargeError, 413, None, ""),
    (errors.SandboxNoSpaceError, 507, None, "no space left"),
    (errors.SandboxFileInterruptedError, 503, "FILE_READ_FAILED", ""),
    (errors.EditConflictError, 409, "CONFLICT", ""),
    (errors.EditError, 400, "BAD_REQUEST", ""),
    (errors.SandboxFileError, 400, "BAD_REQUEST", ""),
    (errors.SpecError, 400, None, ""),
    (errors.CapabilityError, 501, None, ""),
    (errors.UnknownBackendError, 503, None, ""),
    (errors.BackendUnavailableError, 503, None, ""),
    (errors.BackendError, 503, None, ""),
    (errors.PolicyError, 403, None, ""),
    (errors.RunFolderError, 409, None, ""),
    (errors.JudgeError, 409, None, ""),
    (errors.VolumeNotFoundError, 404, None, "not found"),
    (errors.VolumeExistsError, 409, "CONFLICT", "already exists"),
    (errors.VolumeInUseError, 409, "CONFLICT", "in use"),
    (errors.MountError, 400, None, ""),
    (errors.VolumeError, 409, None, ""),
    (errors.SnapshotNotFoundError, 404, None, "not found"),
    (errors.SandboxError, 409, None, ""),
)
"""The error, the status and code of its response, and words that its message must contain: clients that have no class
for the code search for them."""
_KERNELS_WORDS = f": {os.strerror(errno.ENOENT)}"


def translate(error: errors.CorralError) -> Fault | None:
    """The response for an error; None for one that is a bug, and becomes a 500."""
    for kind, status, code, _ in TABLE:
        if isinstance(error, kind):
            return Fault(status, phrase(error), code=code)
    return None


def phrase(error: errors.CorralError) -> str:
    """The message of an error, with the words that clients search for."""
    text = log.text_of(error)
    if isinstance(error, errors.SandboxFileNotFoundError):
        # Not in the kernel's words: some clients take "No such file or directory" to be about a directory.
        return f"file not found: {text.replace(_KERNELS_WORDS, '')}"
    words = next((words for kind, _, _, words in TABLE if isinstance(error, kind)), "")
    return text if words in text.lower() else f"{text} ({words})"
