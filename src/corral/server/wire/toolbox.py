"""Models of what is done inside one sandbox: programs, files, sessions, terminals, interpreters, and facts about it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from corral.server.wire.base import Model, Query

# A path inside, as a client gives it; what the kernel would refuse anyway is refused at the door.
PathText = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10**7)]
Side = Annotated[int, msgspec.Meta(ge=1, le=1000)]

# ------------------------------------------------------------------------------------------------------------ programs


class ExecuteRequest(Model):
    """A shell text to run."""

    command: str
    cwd: str | None = None
    envs: dict[str, str] | None = None
    timeout: Seconds | None = None


class ExecuteResponse(Model):
    """How it ended, and both streams in the order they were written."""

    exit_code: int
    result: str


class CodeRunRequest(Model):
    """A snippet to run in a fresh process."""

    code: str
    language: str = ""
    argv: list[str] | None = None
    envs: dict[str, str] | None = None
    timeout: Seconds | None = None


class Artifacts(Model):
    """What a snippet drew: charts, whose keys are snake_case."""

    charts: list[dict[str, Any]]


class CodeRunResponse(Model):
    """How a snippet ended."""

    exit_code: int
    result: str
    artifacts: Artifacts | None = None


# --------------------------------------------------------------------------------------------------------------- files


class PathQuery(Query):
    """About one path."""

    path: PathText


class ListQuery(Query):
    """A folder, and how deep to look."""

    path: PathText = "."
    depth: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1


class FolderQuery(Query):
    """A folder to make."""

    path: PathText
    mode: str = "0755"


class DeleteQuery(Query):
    """Something to delete."""

    path: PathText
    recursive: bool = False


class MoveQuery(Query):
    """Something to rename."""

    source: PathText
    destination: PathText


class FindQuery(Query):
    """What to look for, and below what."""

    path: PathText
    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=65536)]


class PermissionsQuery(Query):
    """What shall be set."""

    path: PathText
    mode: str | None = None
    owner: str | None = None
    group: str | None = None


class SignedQuery(Query):
    """A path, perhaps with a signature that stands for a key."""

    path: PathText
    expires: str | None = None
    signature: str | None = None


class FileInfo(Model):
    """About one file."""

    name: str
    is_dir: bool
    size: int
    mode: str
    mod_time: str
    owner: str
    group: str
    permissions: str
    modified_at: str
    path: str


class Match(Model):
    """A line that was found."""

    file: str
    line: int
    content: str


class SearchFilesResponse(Model):
    """Paths whose names match."""

    files: list[str]


class ReplaceRequest(Model):
    """Plain text to replace in files."""

    files: Annotated[list[str], msgspec.Meta(max_length=10_000)]
    pattern: Annotated[str, msgspec.Meta(min_length=1)]
    new_value: str


class ReplaceResult(Model):
    """What became of one file."""

    file: str
    success: bool
    error: str | None = None


class FilesDownloadRequest(Model):
    """What to send back."""

    paths: Annotated[list[str], msgspec.Meta(max_length=10_000)]


class StoredFile(Model):
    """One file that has arrived."""

    path: str
    bytes: int


class UploadFilesResponse(Model):
    """All that have arrived."""

    files: list[StoredFile]


class UploadedFile(Model):
    """One file that has arrived, by the newer call."""

    name: str
    path: str
    type: str


# ------------------------------------------------------------------------------------------------------------ sessions


class CreateSessionRequest(Model):
    """A session to open."""

    session_id: Name


class SessionExecuteRequest(Model):
    """A command for a session's shell."""

    command: str
    run_async: bool | None = None
    legacy_async: bool | None = msgspec.field(default=None, name="async")
    suppress_input_echo: bool | None = None


class SessionExecuteResponse(Model):
    """A command that was started, and, if it was waited for, how it ended."""

    cmd_id: str
    exit_code: int | None = None
    output: str | None = None
    stdout: str | None = None
    stderr: str | None = None


class Command(Model):
    """A session's command; no exit code as long as it runs."""

    id: str
    command: str
    exit_code: int | None = None


class Session(Model):
    """A session, with all its commands."""

    session_id: str
    commands: list[Command]


class SessionCommandLogsResponse(Model):
    """A command's log: `output` as it came, with marks before each piece, and the two streams apart."""

    output: str
    stdout: str
    stderr: str


class SessionSendInputRequest(Model):
    """Input for a running command."""

    data: str


class FollowQuery(Query):
    """Whether to go on telling."""

    follow: bool = False


# ----------------------------------------------------------------------------------------------------------- terminals


class PtyCreateRequest(Model):
    """A terminal to open."""

    id: Name | None = None
    cwd: str | None = None
    envs: dict[str, str] | None = None
    cols: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    rows: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    lazy_start: bool | None = None


class PtyCreateQuery(Query):
    """The same, where it is opened and watched in one go."""

    id: Name | None = None
    cwd: str | None = None
    cols: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    rows: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None


class PtyCreateResponse(Model):
    """The terminal's name."""

    session_id: str


class PtyResizeRequest(Model):
    """A new size."""

    cols: Side
    rows: Side


class PtySessionInfo(Model):
    """A terminal as a list shows it."""

    id: str
    cwd: str
    envs: dict[str, str]
    cols: int
    rows: int
    created_at: str
    active: bool
    lazy_start: bool


class PtyListResponse(Model):
    """All terminals."""

    sessions: list[PtySessionInfo]


# --------------------------------------------------------------------------------------------------------- interpreter


class CreateContextRequest(Model):
    """A context to open."""

    cwd: str | None = None
    language: str | None = None


class InterpreterContext(Model):
    """A context."""

    id: str
    cwd: str
    created_at: str
    active: bool
    language: str


class ListContextsResponse(Model):
    """All contexts but the default one."""

    contexts: list[InterpreterContext]


class InterpreterRun(Model):
    """The first frame of an execution."""

    code: str
    context_id: str | None = None
    envs: dict[str, str] | None = None
    timeout: Seconds | None = None


# ---------------------------------------------------------------------------------------------------- about a sandbox


class DirResponse(Model):
    """A folder."""

    dir: str


class UpdateEnvRequest(Model):
    """Variables for programs to come."""

    set: dict[str, str] | None = None
    unset: list[str] | None = None
    unset_value_prefix: str | None = None


class InitializeRequest(Model):
    """What the platform tells a daemon at its start."""

    token: str | None = None


class PortList(Model):
    """Ports on which somebody listens."""

    ports: list[int]


class IsPortInUseResponse(Model):
    """Whether somebody listens."""

    is_in_use: bool


class SystemMetrics(Model):
    """What a sandbox may use, and uses. What nobody could count is left out."""

    timestamp: str
    timestamp_unix: int
    cpu_count: int
    mem_total: int
    disk_total: int
    cpu_used_pct: float | None = None
    mem_used: int | None = None
    mem_cache: int | None = None
    disk_used: int | None = None
    disk_free: int | None = None
    oom_kills: int | None = None
    """How often something was ended for want of memory. The wire has no such field; clients pass over it."""
