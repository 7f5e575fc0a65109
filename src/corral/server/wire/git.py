"""Models of the git routes. Their keys are snake_case, except for those of a status."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from corral.server.wire.base import Model, Query
from corral.server.wire.toolbox import PathText

Word = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Paths = Annotated[list[str], msgspec.Meta(max_length=100_000)]
StatusWord = Literal[
    "Unmodified", "Untracked", "Modified", "Added", "Deleted", "Renamed", "Copied", "Updated but unmerged"
]


class GitModel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A JSON object with snake_case keys."""


class GitRequest(GitModel):
    """A request about one repository."""

    path: PathText


class GitConfigQuery(Query):
    """A setting."""

    key: Word
    path: str | None = None
    scope: str | None = None


class GitCloneRequest(GitModel):
    """A repository to clone, and the path for it."""

    url: Word
    path: PathText
    branch: str | None = None
    commit_id: str | None = None
    depth: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    insecure_skip_tls: bool | None = None
    username: str | None = None
    password: str | None = None


class GitAddRequest(GitRequest):
    """Files to stage."""

    files: Paths


class GitCommitRequest(GitRequest):
    """A commit of the staged changes."""

    message: str
    author: str
    email: str
    allow_empty: bool | None = None


class GitCommitResponse(GitModel):
    """The commit's hash."""

    hash: str


class GitTransferRequest(GitRequest):
    """A branch to push or pull, and credentials."""

    remote: str | None = None
    branch: str | None = None
    set_upstream: bool | None = None
    username: str | None = None
    password: str | None = None


class GitBranchRequest(GitRequest):
    """A branch to create or delete."""

    name: Word


class GitCheckoutRequest(GitRequest):
    """A branch or commit to check out."""

    branch: Word


class ListBranchResponse(GitModel):
    """The local branches."""

    branches: list[str]
    current: str | None = None


class GitInitRequest(GitRequest):
    """A repository to create."""

    bare: bool | None = None
    initial_branch: str | None = None


class GitResetRequest(GitRequest):
    """A commit to reset to, or files to unstage."""

    mode: str | None = None
    target: str | None = None
    files: Paths | None = None


class GitRestoreRequest(GitRequest):
    """Files to restore."""

    files: Paths
    source: str | None = None
    staged: bool | None = None
    worktree: bool | None = None


class GitRemote(GitModel):
    """A remote."""

    name: str
    url: str


class ListRemotesResponse(GitModel):
    """The remotes."""

    remotes: list[GitRemote]


class GitAddRemoteRequest(GitRequest):
    """A remote to add."""

    name: Word
    url: Word
    fetch: bool | None = None
    overwrite: bool | None = None


class GitConfigResponse(GitModel):
    """The value of a setting; null if it is not set."""

    value: str | None = None


class GitSetConfigRequest(GitModel):
    """A setting."""

    key: Word
    value: str
    path: str | None = None
    scope: str | None = None


class GitConfigureUserRequest(GitModel):
    """The name and email address for commits."""

    name: str
    email: str
    path: str | None = None
    scope: str | None = None


class GitAuthenticateRequest(GitModel):
    """Credentials for git's plain-text store."""

    username: str
    password: str
    host: str | None = None
    protocol: str | None = None


class GitCommitInfo(GitModel):
    """A commit."""

    hash: str
    author: str
    email: str
    message: str
    timestamp: str


class FileStatus(Model):
    """A changed file."""

    name: str
    staging: StatusWord
    worktree: StatusWord
    extra: str
    """Its former name, if it was renamed or copied."""


class GitStatus(Model):
    """The status of a working tree."""

    current_branch: str
    file_status: list[FileStatus]
    ahead: int
    behind: int
    branch_published: bool
    detached: bool
    upstream: str | None = None
