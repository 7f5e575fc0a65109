"""Every error that Corral raises.

CorralError
├── SpecError (ValueError)                    the wish is wrong: a value, a combination, a name
│   ├── UnknownLanguageError                  no such language
│   └── VariableError (LookupError)           variables of an environment that the context does not have
├── BackendError                              the maker can't
│   ├── BackendUnavailableError               this machine or service can't; the hint says how to get it
│   │   ├── RateLimitedError                  the service takes no more calls for now
│   │   └── HostExhaustedError                this process, its user or the machine has no descriptors or memory left
│   ├── UnknownBackendError (ValueError)      no such backend
│   ├── CapabilityError (NotImplementedError) this backend does not support that
│   └── EnvironmentFullError                  an environment holds as many sandboxes as it may, and all are in use
├── SandboxError                              the sandbox as a whole
│   ├── SandboxGoneError                      it has ended, or never was; nothing replaces it in silence
│   │   └── SandboxStoppedError               it was stopped, and its files are there: start it
│   ├── SandboxPausedError                    it stands still: resume it
│   ├── SnapshotNotFoundError (LookupError)   there is no snapshot of that id or name
│   ├── SandboxClosedError                    you closed it
│   └── LeftBehindError                       sandboxes that could not be deleted, with the reason for each
├── ExecError                                 starting or ending a program
│   ├── InvalidCommandError (ValueError)      empty, NUL-carrying or oversized argument, bad env, bad timeout
│   ├── WorkdirError (FileNotFoundError)      the folder to run in is not there
│   ├── NameTakenError                        a recorded program, session or terminal of that name is there already
│   ├── NotRecordedError (LookupError)        there is none of that name, or no such command in a session
│   ├── SessionEndedError                     the session's shell has exited, and takes no more commands
│   └── ExitError                             check=True and the program failed; carries the result
│       └── ExecTimeoutError (TimeoutError)   check=True and the program was out of time
├── SandboxFileError (OSError)                one file operation
│   ├── SandboxFileNotFoundError (FileNotFoundError)
│   ├── SandboxFileExistsError (FileExistsError)
│   ├── SandboxPermissionError (PermissionError)
│   ├── SandboxIsFolderError (IsADirectoryError)
│   ├── SandboxNotFolderError (NotADirectoryError)
│   ├── SandboxFileKindError                  a FIFO, device or the like where a regular file is needed
│   ├── SandboxLinkError                      a link has taken the place of a part of the path since rules were asked
│   ├── SandboxFileTooLargeError              over the limit of the call
│   ├── SandboxFileInterruptedError           a program inside has ended the file agent; it may or may not be done
│   ├── SandboxNoSpaceError                   the sandbox's disk or inodes are used up
│   ├── EditError                             the text is not there, or not once
│   └── EditConflictError                     the file is no longer what was read
├── PolicyError (PermissionError)             a rule of the caller forbids it
├── RunFolderError                            a contest's folder is none, is in use, or belongs to another contest
├── JudgeError                                a judge of a contest failed; no candidate loses by it
└── EngineFaultError                          the engine broke a promise of its own: a bug, please report it

Each class has a `code`, its identity on the wire and in logs, which never changes. Messages name the value, say what to
do, and carry no secret and no path of the host.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from corral.results import ExecResult


class CorralError(Exception):
    """The root. `hint` says what to do; `retryable` whether the same call may succeed later."""

    code: ClassVar[str] = "corral"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, sandbox_id: str | None = None, op: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.sandbox_id = sandbox_id
        self.op = op
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class SpecError(CorralError, ValueError):
    """The wish is wrong."""

    code = "spec"


class UnknownLanguageError(SpecError):
    """No such language."""

    code = "unknown_language"


class VariableError(SpecError, LookupError):
    """Variables that nobody gave a value; `names` are all of them."""

    code = "variable"

    def __init__(
        self,
        message: str,
        *,
        names: tuple[str, ...] = (),
        sandbox_id: str | None = None,
        op: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, sandbox_id=sandbox_id, op=op, hint=hint)
        self.names = names


class BackendError(CorralError):
    """The maker of sandboxes can't."""

    code = "backend"


class BackendUnavailableError(BackendError):
    """This machine or service can't make such a sandbox; the hint says how it could."""

    code = "backend_unavailable"


class RateLimitedError(BackendUnavailableError):
    """The service takes no more calls for now, however often they were tried again."""

    code = "rate_limited"
    retryable = True


class HostExhaustedError(BackendUnavailableError):
    """This process, its user or the machine has none left of something that Corral needs to reach a sandbox.

    The sandbox may well be alive. The message says what is used up, the hint what to do.
    """

    code = "host_exhausted"
    retryable = True


class UnknownBackendError(BackendError, ValueError):
    """No backend of that name."""

    code = "unknown_backend"


class CapabilityError(BackendError, NotImplementedError):
    """This backend does not support that operation."""

    code = "capability"


class EnvironmentFullError(BackendError):
    """An environment holds as many sandboxes as it may, and none of them is free."""

    code = "environment_full"
    retryable = True


class SandboxError(CorralError):
    """The sandbox as a whole."""

    code = "sandbox"


class SandboxGoneError(SandboxError):
    """The sandbox has ended, or there never was one of that name."""

    code = "sandbox_gone"


class SandboxStoppedError(SandboxGoneError):
    """It was stopped: its processes are gone, its files are there, and it can be started again."""

    code = "sandbox_stopped"


class SandboxPausedError(SandboxError):
    """It is paused: nothing can be done in it before it is resumed."""

    code = "sandbox_paused"


class SnapshotNotFoundError(SandboxError, LookupError):
    """There is no snapshot of that id or name."""

    code = "snapshot_not_found"


class SandboxClosedError(SandboxError):
    """You closed it."""

    code = "sandbox_closed"


class LeftBehindError(SandboxError):
    """Sandboxes that could not be deleted: `failures` says which, and why. Closing again tries again."""

    code = "left_behind"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        failures: Mapping[str, Exception] | None = None,
        sandbox_id: str | None = None,
        op: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, sandbox_id=sandbox_id, op=op, hint=hint)
        self.failures = dict(failures or {})


class ExecError(CorralError):
    """Starting or ending a program."""

    code = "exec"


class InvalidCommandError(ExecError, ValueError):
    """A command that no kernel could run."""

    code = "invalid_command"


class WorkdirError(ExecError, FileNotFoundError):
    """The folder to run in is not there, or not a folder."""

    code = "workdir"


class NameTakenError(ExecError):
    """A recorded program, session or terminal of that name is there already."""

    code = "name_taken"


class NotRecordedError(ExecError, LookupError):
    """There is no recorded program, session, terminal or command of that name."""

    code = "not_recorded"


class SessionEndedError(ExecError):
    """The session's shell has ended, and takes no more commands."""

    code = "session_ended"


class ExitError(ExecError):
    """The program failed and `check=True` was given."""

    code = "exit"

    def __init__(
        self, message: str, *, result: ExecResult, sandbox_id: str | None = None, op: str | None = None
    ) -> None:
        super().__init__(message, sandbox_id=sandbox_id, op=op)
        self.result = result

    def __reduce__(self) -> tuple[object, ...]:
        # Between processes: exceptions are rebuilt from positional arguments, and the result is not one.
        return _rebuild, (type(self), self.message, self.result, self.sandbox_id, self.op)


def _rebuild(
    kind: type[ExitError], message: str, result: ExecResult, sandbox_id: str | None, op: str | None
) -> ExitError:
    return kind(message, result=result, sandbox_id=sandbox_id, op=op)


class ExecTimeoutError(ExitError, TimeoutError):
    """The program was out of time and `check=True` was given."""

    code = "exec_timeout"


class SandboxFileError(CorralError, OSError):
    """One file operation failed. `path` is the path inside."""

    code = "file"

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        sandbox_id: str | None = None,
        op: str | None = None,
        hint: str = "",
    ) -> None:
        CorralError.__init__(self, message, sandbox_id=sandbox_id, op=op, hint=hint)
        self.path = path


class SandboxFileNotFoundError(SandboxFileError, FileNotFoundError):
    """No such file or folder inside."""

    code = "file_not_found"


class SandboxFileExistsError(SandboxFileError, FileExistsError):
    """Something of that name is there already."""

    code = "file_exists"


class SandboxPermissionError(SandboxFileError, PermissionError):
    """The user inside may not."""

    code = "file_permission"


class SandboxIsFolderError(SandboxFileError, IsADirectoryError):
    """A folder where a file is needed."""

    code = "is_folder"


class SandboxNotFolderError(SandboxFileError, NotADirectoryError):
    """A file where a folder is needed."""

    code = "not_folder"


class SandboxFileKindError(SandboxFileError):
    """A FIFO, socket, device or /proc file where a regular one is needed."""

    code = "file_kind"


class SandboxLinkError(SandboxFileError):
    """A part of the path has become a link since rules were asked about it, so it may lead past them."""

    code = "file_link"


class SandboxFileTooLargeError(SandboxFileError):
    """More bytes than the call may return."""

    code = "file_too_large"


class SandboxFileInterruptedError(SandboxFileError):
    """A program inside has killed the file agent in the middle (rootless, where it can)."""

    code = "file_interrupted"


class SandboxNoSpaceError(SandboxFileError):
    """The sandbox's disk or inodes are used up."""

    code = "no_space"


class EditError(SandboxFileError):
    """The text to replace is not in the file, or not exactly once; `count` says how often."""

    code = "edit"

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        sandbox_id: str | None = None,
        op: str | None = None,
        hint: str = "",
        count: int = 0,
    ) -> None:
        super().__init__(message, path=path, sandbox_id=sandbox_id, op=op, hint=hint)
        self.count = count


class EditConflictError(SandboxFileError):
    """The file is no longer what was read."""

    code = "edit_conflict"
    retryable = True


class PolicyError(CorralError, PermissionError):
    """A rule of the caller forbids it."""

    code = "policy"


class RunFolderError(CorralError):
    """A folder is not that of a contest, is used by somebody else, or belongs to another contest."""

    code = "run_folder"


class JudgeError(CorralError):
    """A judge of a contest failed: `judge` names the gate or score, `candidate` at whom it looked, if at one alone."""

    code = "judge"

    def __init__(
        self,
        message: str,
        *,
        judge: str = "",
        candidate: str | None = None,
        sandbox_id: str | None = None,
        op: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, sandbox_id=sandbox_id, op=op, hint=hint)
        self.judge = judge
        self.candidate = candidate


class EngineFaultError(CorralError):
    """The engine broke a promise of its own."""

    code = "engine_fault"


FILE_ERRORS_BY_ERRNO: dict[int, type[SandboxFileError]] = {
    errno.ENOENT: SandboxFileNotFoundError,
    errno.ELOOP: SandboxFileNotFoundError,  # a link that leads nowhere
    errno.EEXIST: SandboxFileExistsError,
    errno.ENOTEMPTY: SandboxFileExistsError,
    errno.EACCES: SandboxPermissionError,
    errno.EPERM: SandboxPermissionError,
    errno.EROFS: SandboxPermissionError,
    errno.EISDIR: SandboxIsFolderError,
    errno.ENOTDIR: SandboxNotFolderError,
    errno.ENOSPC: SandboxNoSpaceError,
    errno.EDQUOT: SandboxNoSpaceError,
    errno.EFBIG: SandboxNoSpaceError,
    errno.EINVAL: SandboxFileKindError,
}
"""The one table from a kernel's word to a class of ours."""


def became_a_link(path: str, *, sandbox_id: str | None, op: str) -> SandboxLinkError:
    """What is told of a path without links that has one by now."""
    shown = path if len(path) <= 300 else f"{path[:150]} … {path[-100:]}"
    return SandboxLinkError(
        f"{shown}: a part of this path became a symlink after its permission was checked",
        path=path,
        sandbox_id=sandbox_id,
        op=op,
        hint="check its target, and try again",
    )


def all_error_classes() -> list[type[CorralError]]:
    """Every class of the tree, root first."""
    found: list[type[CorralError]] = []
    queue: list[type[CorralError]] = [CorralError]
    while queue:
        current = queue.pop(0)
        if current not in found:
            found.append(current)
            queue.extend(current.__subclasses__())
    return found
