"""Every error that Corral raises.

CorralError
├── SpecError (ValueError)                    the request is invalid: a value, a combination, a name
│   ├── UnknownLanguageError                  unknown language
│   └── VariableError (LookupError)           variables of an environment without a value
├── BackendError                              the backend failed
│   ├── BackendUnavailableError               not possible on this machine or service; see the hint
│   │   ├── RateLimitedError                  the service's rate limit is exceeded
│   │   └── HostExhaustedError                this process or machine is out of file descriptors or memory
│   ├── UnknownBackendError (ValueError)      unknown backend
│   ├── CapabilityError (NotImplementedError) the backend does not support the operation
│   └── EnvironmentFullError                  all sandboxes of an environment are in use
├── SandboxError                              a sandbox failed or is unusable
│   ├── SandboxGoneError                      sandbox not found: it has ended, or never existed
│   │   └── SandboxStoppedError               it is stopped; its files are kept: start it
│   ├── SandboxPausedError                    it is paused: resume it
│   ├── SnapshotNotFoundError (LookupError)   snapshot not found
│   ├── SandboxClosedError                    you closed the sandbox
│   ├── PortClosedError (ConnectionRefusedError)  nothing inside listens on that port
│   └── LeftBehindError                       sandboxes that could not be deleted, with the reason for each
├── ExecError                                 a program could not be started or controlled
│   ├── InvalidCommandError (ValueError)      empty, NUL-carrying or oversized argument, bad env, bad timeout
│   ├── WorkdirError (FileNotFoundError)      the working folder does not exist
│   ├── NameTakenError                        a recorded program, session or terminal of that name already exists
│   ├── NotRecordedError (LookupError)        recorded program, session, terminal or command not found
│   ├── SessionEndedError                     the session's shell has exited
│   └── ExitError                             check=True and the program failed; carries the result
│       └── ExecTimeoutError (TimeoutError)   check=True and the program timed out
├── SandboxFileError (OSError)                a file operation failed
│   ├── SandboxFileNotFoundError (FileNotFoundError)
│   ├── SandboxFileExistsError (FileExistsError)
│   ├── SandboxPermissionError (PermissionError)
│   ├── SandboxIsFolderError (IsADirectoryError)
│   ├── SandboxNotFolderError (NotADirectoryError)
│   ├── SandboxFileKindError                  a FIFO, device or the like where a regular file is needed
│   ├── SandboxLinkError                      a part of the path became a symlink after its permission was checked
│   ├── SandboxFileTooLargeError              larger than the limit of the call
│   ├── SandboxFileInterruptedError           a program inside killed the file agent; the operation may be done
│   ├── SandboxNoSpaceError                   the sandbox's disk or inodes are used up
│   ├── EditError                             the text to replace was not found, or not exactly once
│   └── EditConflictError                     the file has changed since it was read
├── VolumeError                               a volume or a mount can't be used
│   ├── VolumeNotFoundError (LookupError)     volume not found
│   ├── VolumeExistsError (FileExistsError)   a volume of that name already exists
│   ├── VolumeInUseError                      sandboxes use the volume
│   ├── MountError                            a volume or a folder of the host can't be mounted there
│   └── ApplyConflictError                    files of the host have changed since they were mounted
├── PolicyError (PermissionError)             a rule of the caller forbids the operation
├── RunFolderError                            not a contest's run folder, in use, or of another contest
├── JudgeError                                a judge of a contest failed; candidates are not penalised
└── EngineFaultError                          a bug in the engine: please report it

Each class has a `code`, its identity on the wire and in logs, which never changes. Messages name the value, say what to
do, and contain no secret and no host path.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypedDict, Unpack

if TYPE_CHECKING:
    from corral.results import ExecResult


class Details(TypedDict, total=False):
    """What every error may carry beside its message; see `CorralError`."""

    sandbox_id: str | None
    op: str | None
    hint: str


class CorralError(Exception):
    """The base class. `hint` says what to do; `retryable` is True if the same call may succeed later."""

    code: ClassVar[str] = "corral"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str | None = None, retryable: bool | None = None) -> None:
        """A class without these keywords has those of its base class."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code
        if retryable is not None:
            cls.retryable = retryable

    def __init__(self, message: str, *, sandbox_id: str | None = None, op: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.sandbox_id = sandbox_id
        self.op = op
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class SpecError(CorralError, ValueError, code="spec"):
    """The request is invalid."""


class UnknownLanguageError(SpecError, code="unknown_language"):
    """Unknown language."""


class VariableError(SpecError, LookupError, code="variable"):
    """Variables without a value; `names` lists all of them."""

    def __init__(self, message: str, *, names: tuple[str, ...] = (), **details: Unpack[Details]) -> None:
        super().__init__(message, **details)
        self.names = names


class BackendError(CorralError, code="backend"):
    """The backend failed."""


class BackendUnavailableError(BackendError, code="backend_unavailable"):
    """Not possible on this machine or service; the hint says how to make it possible."""


class RateLimitedError(BackendUnavailableError, code="rate_limited", retryable=True):
    """The service's rate limit is exceeded, also after retries."""


class HostExhaustedError(BackendUnavailableError, code="host_exhausted", retryable=True):
    """This process, its user or the machine is out of file descriptors or memory.

    The sandbox may still be running. The message says what is used up, the hint what to do.
    """


class UnknownBackendError(BackendError, ValueError, code="unknown_backend"):
    """Unknown backend."""


class CapabilityError(BackendError, NotImplementedError, code="capability"):
    """The backend does not support the operation."""


class EnvironmentFullError(BackendError, code="environment_full", retryable=True):
    """The environment is at its limit of sandboxes, and all of them are in use."""


class SandboxError(CorralError, code="sandbox"):
    """A sandbox failed or is unusable."""


class SandboxGoneError(SandboxError, code="sandbox_gone"):
    """Sandbox not found: it has ended, or never existed."""


class SandboxStoppedError(SandboxGoneError, code="sandbox_stopped"):
    """The sandbox is stopped: its processes have ended, its files are kept, and it can be started again."""


class SandboxPausedError(SandboxError, code="sandbox_paused"):
    """The sandbox is paused: resume it before using it."""


class SnapshotNotFoundError(SandboxError, LookupError, code="snapshot_not_found"):
    """Snapshot not found."""


class SandboxClosedError(SandboxError, code="sandbox_closed"):
    """You closed the sandbox."""


class PortClosedError(SandboxError, ConnectionRefusedError, code="port_closed", retryable=True):
    """Nothing inside listens on that port."""


class LeftBehindError(SandboxError, code="left_behind", retryable=True):
    """Sandboxes that could not be deleted: `failures` has the error for each id. Closing again retries."""

    def __init__(
        self, message: str, *, failures: Mapping[str, Exception] | None = None, **details: Unpack[Details]
    ) -> None:
        super().__init__(message, **details)
        self.failures = dict(failures or {})


class ExecError(CorralError, code="exec"):
    """A program could not be started or controlled."""


class InvalidCommandError(ExecError, ValueError, code="invalid_command"):
    """The command, its environment or its timeout is invalid."""


class WorkdirError(ExecError, FileNotFoundError, code="workdir"):
    """The working folder does not exist, or is not a folder."""


class NameTakenError(ExecError, code="name_taken"):
    """A recorded program, session or terminal of that name already exists."""


class NotRecordedError(ExecError, LookupError, code="not_recorded"):
    """Recorded program, session, terminal or command not found."""


class SessionEndedError(ExecError, code="session_ended"):
    """The session's shell has exited."""


class ExitError(ExecError, code="exit"):
    """The program failed and `check=True` was given."""

    def __init__(self, message: str, *, result: ExecResult, **details: Unpack[Details]) -> None:
        super().__init__(message, **details)
        self.result = result

    def __reduce__(self) -> tuple[object, ...]:
        # Between processes: exceptions are rebuilt from positional arguments, and the result is not one.
        rebuild = partial(type(self), result=self.result, sandbox_id=self.sandbox_id, op=self.op, hint=self.hint)
        return rebuild, (self.message,)


class ExecTimeoutError(ExitError, TimeoutError, code="exec_timeout"):
    """The program timed out and `check=True` was given."""


class SandboxFileError(CorralError, OSError, code="file"):
    """A file operation failed. `path` is the path inside."""

    def __init__(self, message: str, *, path: str | None = None, **details: Unpack[Details]) -> None:
        CorralError.__init__(self, message, **details)
        self.path = path


class SandboxFileNotFoundError(SandboxFileError, FileNotFoundError, code="file_not_found"):
    """No such file or folder inside."""


class SandboxFileExistsError(SandboxFileError, FileExistsError, code="file_exists"):
    """The file or folder already exists, or a folder is not empty."""


class SandboxPermissionError(SandboxFileError, PermissionError, code="file_permission"):
    """The user inside has no permission."""


class SandboxIsFolderError(SandboxFileError, IsADirectoryError, code="is_folder"):
    """A folder where a file is needed."""


class SandboxNotFolderError(SandboxFileError, NotADirectoryError, code="not_folder"):
    """A file where a folder is needed."""


class SandboxFileKindError(SandboxFileError, code="file_kind"):
    """A FIFO, socket, device or /proc file where a regular one is needed."""


class SandboxLinkError(SandboxFileError, code="file_link"):
    """A part of the path became a symlink after its permission was checked."""


class SandboxFileTooLargeError(SandboxFileError, code="file_too_large"):
    """The file is larger than the limit of the call."""


class SandboxFileInterruptedError(SandboxFileError, code="file_interrupted"):
    """A program inside killed the file agent during the operation (possible as an ordinary user)."""


class SandboxNoSpaceError(SandboxFileError, code="no_space"):
    """The sandbox's disk or inodes are used up."""


class EditError(SandboxFileError, code="edit"):
    """The text to replace is not in the file, or not exactly once; `count` says how often."""

    def __init__(self, message: str, *, path: str | None = None, count: int = 0, **details: Unpack[Details]) -> None:
        super().__init__(message, path=path, **details)
        self.count = count


class EditConflictError(SandboxFileError, code="edit_conflict", retryable=True):
    """The file has changed since it was read."""


class VolumeError(CorralError, code="volume"):
    """A volume or a mount can't be used."""


class VolumeNotFoundError(VolumeError, LookupError, code="volume_not_found"):
    """Volume not found."""


class VolumeExistsError(VolumeError, FileExistsError, code="volume_exists"):
    """A volume of that name already exists."""


class VolumeInUseError(VolumeError, code="volume_in_use", retryable=True):
    """The volume can't be deleted, or not be used alone, because sandboxes use it: the message names them."""


class MountError(VolumeError, code="mount"):
    """A volume or a folder of the host can't be mounted at that path."""


class ApplyConflictError(VolumeError, code="apply_conflict"):
    """Files of the host have changed since they were mounted: `paths` names them. Nothing was applied."""

    def __init__(self, message: str, *, paths: tuple[str, ...] = (), **details: Unpack[Details]) -> None:
        super().__init__(message, **details)
        self.paths = paths


class PolicyError(CorralError, PermissionError, code="policy"):
    """A rule of the caller forbids the operation."""


class RunFolderError(CorralError, code="run_folder"):
    """Not a contest's run folder, in use by another process, or of another contest."""


class JudgeError(CorralError, code="judge"):
    """A judge of a contest failed: `judge` names the gate or score, `candidate` the candidate, if only one."""

    def __init__(
        self, message: str, *, judge: str = "", candidate: str | None = None, **details: Unpack[Details]
    ) -> None:
        super().__init__(message, **details)
        self.judge = judge
        self.candidate = candidate


class EngineFaultError(CorralError, code="engine_fault"):
    """A bug in the engine."""


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
"""Which class is raised for an errno of the kernel."""


def shorten_path(path: str) -> str:
    """A path as messages show it: the middle of a long one is left out."""
    return path if len(path) <= 300 else f"{path[:150]} … {path[-100:]}"


def became_a_link(path: str, *, sandbox_id: str | None, op: str) -> SandboxLinkError:
    """The error for a path that had no symlink when its permission was checked, and has one now."""
    return SandboxLinkError(
        f"{shorten_path(path)}: a part of this path became a symlink after its permission was checked",
        path=path,
        sandbox_id=sandbox_id,
        op=op,
        hint="check its target, and try again",
    )


def gone(sandbox_id: str | None, *, op: str | None = None) -> SandboxGoneError:
    """The error for a sandbox that has ended."""
    return SandboxGoneError("the sandbox has ended", sandbox_id=sandbox_id, op=op, hint="make a new one")


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """The hint for an unknown name: the most similar known one; `otherwise` if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


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
