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


class GitPathQuery(Query):
    """A repository."""

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


class GitAddRequest(GitModel):
    """Files to stage."""

    path: PathText
    files: Paths


class GitCommitRequest(GitModel):
    """A commit of the staged changes."""

    path: PathText
    message: str
    author: str
    email: str
    allow_empty: bool | None = None


class GitCommitResponse(GitModel):
    """The commit's hash."""

    hash: str


class GitTransferRequest(GitModel):
    """A branch to push or pull, and credentials."""

    path: PathText
    remote: str | None = None
    branch: str | None = None
    set_upstream: bool | None = None
    username: str | None = None
    password: str | None = None


class GitBranchRequest(GitModel):
    """A branch to create or delete."""

    path: PathText
    name: Word


class GitCheckoutRequest(GitModel):
    """A branch or commit to check out."""

    path: PathText
    branch: Word


class ListBranchResponse(GitModel):
    """The local branches."""

    branches: list[str]
    current: str | None = None


class GitInitRequest(GitModel):
    """A repository to create."""

    path: PathText
    bare: bool | None = None
    initial_branch: str | None = None


class GitResetRequest(GitModel):
    """A commit to reset to, or files to unstage."""

    path: PathText
    mode: str | None = None
    target: str | None = None
    files: Paths | None = None


class GitRestoreRequest(GitModel):
    """Files to restore."""

    path: PathText
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


class GitAddRemoteRequest(GitModel):
    """A remote to add."""

    path: PathText
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
