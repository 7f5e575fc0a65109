"""Models of what is done inside one sandbox: programs, files, sessions, terminals, interpreters, and facts about it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from corral.server.wire.base import Model, Query

# A path inside, as a client sends it; what the kernel would refuse is refused before.
PathText = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10**7)]
Side = Annotated[int, msgspec.Meta(ge=1, le=1000)]

# ------------------------------------------------------------------------------------------------------------ programs


class ExecuteRequest(Model):
    """A shell command to run."""

    command: str
    cwd: str | None = None
    envs: dict[str, str] | None = None
    timeout: Seconds | None = None


class ExecuteResponse(Model):
    """The exit code of a command, and its output: both streams in order."""

    exit_code: int
    result: str


class CodeRunRequest(Model):
    """A code snippet to run in a new process."""

    code: str
    language: str = ""
    argv: list[str] | None = None
    envs: dict[str, str] | None = None
    timeout: Seconds | None = None


class Artifacts(Model):
    """Charts that a snippet has drawn; their keys are snake_case."""

    charts: list[dict[str, Any]]


class CodeRunResponse(ExecuteResponse):
    """The exit code of a snippet, its output and its charts."""

    artifacts: Artifacts | None = None


# --------------------------------------------------------------------------------------------------------------- files


class PathQuery(Query):
    """A path."""

    path: PathText


class ListQuery(Query):
    """A directory, and how deep to list it."""

    path: PathText = "."
    depth: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1


class FolderQuery(PathQuery):
    """A directory to create."""

    mode: str = "0755"


class DeleteQuery(PathQuery):
    """A path to delete."""

    recursive: bool = False


class MoveQuery(Query):
    """A path to move, and its destination."""

    source: PathText
    destination: PathText


class FindQuery(PathQuery):
    """A pattern, and the directory to search."""

    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=65536)]


class PermissionsQuery(PathQuery):
    """Mode, owner and group to set."""

    mode: str | None = None
    owner: str | None = None
    group: str | None = None


class SignedQuery(PathQuery):
    """A path; with a signature instead of an API key, if the URL is signed."""

    expires: str | None = None
    signature: str | None = None


class FileInfo(Model):
    """Information about a file or directory."""

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
    """A line that contains the pattern."""

    file: str
    line: int
    content: str


class SearchFilesResponse(Model):
    """Paths of files and directories that match."""

    files: list[str]


class ReplaceRequest(Model):
    """A string to replace in files."""

    files: Annotated[list[str], msgspec.Meta(max_length=10_000)]
    pattern: Annotated[str, msgspec.Meta(min_length=1)]
    new_value: str


class ReplaceResult(Model):
    """Whether a file was changed."""

    file: str
    success: bool
    error: str | None = None


class FilesDownloadRequest(Model):
    """Paths of files to download."""

    paths: Annotated[list[str], msgspec.Meta(max_length=10_000)]


class StoredFile(Model):
    """A file that was uploaded."""

    path: str
    bytes: int


class UploadFilesResponse(Model):
    """The files that were uploaded."""

    files: list[StoredFile]


class UploadedFile(Model):
    """A file that was uploaded by itself."""

    name: str
    path: str
    type: str


# ------------------------------------------------------------------------------------------------------------ sessions


class CreateSessionRequest(Model):
    """A session to create."""

    session_id: Name


class SessionExecuteRequest(Model):
    """A command to run in a session."""

    command: str
    run_async: bool | None = None
    legacy_async: bool | None = msgspec.field(default=None, name="async")
    suppress_input_echo: bool | None = None


class SessionExecuteResponse(Model):
    """A command that was started; with its exit code and output if it has ended."""

    cmd_id: str
    exit_code: int | None = None
    output: str | None = None
    stdout: str | None = None
    stderr: str | None = None


class Command(Model):
    """A command of a session; without an exit code while it runs."""

    id: str
    command: str
    exit_code: int | None = None


class Session(Model):
    """A session and its commands."""

    session_id: str
    commands: list[Command]


class SessionCommandLogsResponse(Model):
    """A command's log: `output` in order, with a marker before each piece, and the two streams separately."""

    output: str
    stdout: str
    stderr: str


class SessionSendInputRequest(Model):
    """Input for a running command."""

    data: str


class FollowQuery(Query):
    """Whether to follow the log."""

    follow: bool = False


# ----------------------------------------------------------------------------------------------------------- terminals


class PtyCreateRequest(Model):
    """A terminal to create."""

    id: Name | None = None
    cwd: str | None = None
    envs: dict[str, str] | None = None
    cols: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    rows: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    lazy_start: bool | None = None


class PtyCreateQuery(Query):
    """A terminal to create and connect to."""

    id: Name | None = None
    cwd: str | None = None
    cols: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    rows: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None


class PtyCreateResponse(Model):
    """The id of a terminal."""

    session_id: str


class PtyResizeRequest(Model):
    """A new size of a terminal."""

    cols: Side
    rows: Side


class PtySessionInfo(Model):
    """A terminal."""

    id: str
    cwd: str
    envs: dict[str, str]
    cols: int
    rows: int
    created_at: str
    active: bool
    lazy_start: bool


class PtyListResponse(Model):
    """The terminals of a sandbox."""

    sessions: list[PtySessionInfo]


# --------------------------------------------------------------------------------------------------------- interpreter


class CreateContextRequest(Model):
    """An interpreter context to create."""

    cwd: str | None = None
    language: str | None = None


class InterpreterContext(Model):
    """An interpreter context."""

    id: str
    cwd: str
    created_at: str
    active: bool
    language: str


class ListContextsResponse(Model):
    """The interpreter contexts, without the default one."""

    contexts: list[InterpreterContext]


class InterpreterRun(Model):
    """The first frame of an execution: the code."""

    code: str
    context_id: str | None = None
    envs: dict[str, str] | None = None
    timeout: Seconds | None = None


# ---------------------------------------------------------------------------------------------------- about a sandbox


class DirResponse(Model):
    """A directory."""

    dir: str


class UpdateEnvRequest(Model):
    """Environment variables for later programs."""

    set: dict[str, str] | None = None
    unset: list[str] | None = None
    unset_value_prefix: str | None = None


class InitializeRequest(Model):
    """Sent by Daytona's platform to its daemon; ignored."""

    token: str | None = None


class PortList(Model):
    """Ports on which programs listen."""

    ports: list[int]


class IsPortInUseResponse(Model):
    """Whether a program listens on the port."""

    is_in_use: bool


class SystemMetrics(Model):
    """A sandbox's limits and resource usage. Values that could not be measured are omitted."""

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
    """How many processes were killed for lack of memory. Not in Daytona's API; clients ignore it."""
