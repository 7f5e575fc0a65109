"""Models of git. Their fields are snake_case on the wire, but for those of a status."""

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
    """A JSON object of git's routes."""


class GitPathQuery(Query):
    """A repository."""

    path: PathText


class GitConfigQuery(Query):
    """A setting."""

    key: Word
    path: str | None = None
    scope: str | None = None


class GitCloneRequest(GitModel):
    """What to clone, and where to."""

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
    """A commit to make of what is staged."""

    path: PathText
    message: str
    author: str
    email: str
    allow_empty: bool | None = None


class GitCommitResponse(GitModel):
    """The commit's hash."""

    hash: str


class GitTransferRequest(GitModel):
    """What to push or pull, and as whom."""

    path: PathText
    remote: str | None = None
    branch: str | None = None
    set_upstream: bool | None = None
    username: str | None = None
    password: str | None = None


class GitBranchRequest(GitModel):
    """A branch to make or delete."""

    path: PathText
    name: Word


class GitCheckoutRequest(GitModel):
    """A branch or commit to check out."""

    path: PathText
    branch: Word


class ListBranchResponse(GitModel):
    """All local branches."""

    branches: list[str]
    current: str | None = None


class GitInitRequest(GitModel):
    """A repository to make."""

    path: PathText
    bare: bool | None = None
    initial_branch: str | None = None


class GitResetRequest(GitModel):
    """Where to go back to."""

    path: PathText
    mode: str | None = None
    target: str | None = None
    files: Paths | None = None


class GitRestoreRequest(GitModel):
    """Files to take back."""

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
    """All remotes."""

    remotes: list[GitRemote]


class GitAddRemoteRequest(GitModel):
    """A remote to add."""

    path: PathText
    name: Word
    url: Word
    fetch: bool | None = None
    overwrite: bool | None = None


class GitConfigResponse(GitModel):
    """A setting's value; none if it is not set."""

    value: str | None = None


class GitSetConfigRequest(GitModel):
    """A setting."""

    key: Word
    value: str
    path: str | None = None
    scope: str | None = None


class GitConfigureUserRequest(GitModel):
    """Who commits."""

    name: str
    email: str
    path: str | None = None
    scope: str | None = None


class GitAuthenticateRequest(GitModel):
    """Credentials that shall be kept, in plain text, by git's own store."""

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
    """One file that is not as it was committed."""

    name: str
    staging: StatusWord
    worktree: StatusWord
    extra: str
    """The name that it had before, if it was renamed or copied."""


class GitStatus(Model):
    """The state of a working tree."""

    current_branch: str
    file_status: list[FileStatus]
    ahead: int
    behind: int
    branch_published: bool
    detached: bool
    upstream: str | None = None
