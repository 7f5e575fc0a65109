"""From Corral's errors to the wire's refusals: one table, and nowhere else."""

from __future__ import annotations

from corral import errors
from corral.server import log
from corral.server.faults import Fault

TABLE: tuple[tuple[type[errors.CorralError], int, str | None], ...] = (
    # Looked through from the top; a class stands before its parents.
    (errors.SandboxGoneError, 404, None),
    (errors.SandboxClosedError, 404, None),
    (errors.ExecTimeoutError, 408, "PROCESS_EXECUTION_TIMEOUT"),
    (errors.ExitError, 422, None),
    (errors.InvalidCommandError, 400, None),
    (errors.WorkdirError, 400, None),
    (errors.NameTakenError, 409, "CONFLICT"),
    (errors.NotRecordedError, 404, "PROCESS_NOT_FOUND"),
    (errors.SessionEndedError, 410, "SESSION_ENDED"),
    (errors.ExecError, 400, None),
    (errors.SandboxFileNotFoundError, 404, "FILE_NOT_FOUND"),
    (errors.SandboxPermissionError, 403, "FILE_ACCESS_DENIED"),
    (errors.SandboxFileExistsError, 409, "CONFLICT"),
    (errors.SandboxIsFolderError, 400, "INVALID_FILE_PATH"),
    (errors.SandboxNotFolderError, 400, "INVALID_FILE_PATH"),
    (errors.SandboxFileKindError, 400, "INVALID_FILE_PATH"),
    (errors.SandboxFileTooLargeError, 413, None),
    (errors.SandboxNoSpaceError, 507, None),
    (errors.SandboxFileInterruptedError, 503, "FILE_READ_FAILED"),
    (errors.EditConflictError, 409, "CONFLICT"),
    (errors.EditError, 400, "BAD_REQUEST"),
    (errors.SandboxFileError, 400, "BAD_REQUEST"),
    (errors.SpecError, 400, None),
    (errors.CapabilityError, 501, None),
    (errors.UnknownBackendError, 503, None),
    (errors.BackendUnavailableError, 503, None),
    (errors.BackendError, 503, None),
    (errors.PolicyError, 403, None),
    (errors.RunFolderError, 409, None),
    (errors.JudgeError, 409, None),
    (errors.SnapshotNotFoundError, 404, None),
    (errors.SandboxError, 409, None),
)


def translate(error: errors.CorralError) -> Fault | None:
    """The refusal for an error of ours; None for one that is a bug, and becomes a 500."""
    for kind, status, code in TABLE:
        if isinstance(error, kind):
            return Fault(status, log.text_of(error), code=code)
    return None
