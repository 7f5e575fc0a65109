"""Git, run inside the sandbox, so that it can reach only what the sandbox can reach."""

from __future__ import annotations

import contextlib
import posixpath

from corral.errors import CorralError
from corral.server.faults import Fault, bad_request
from corral.server.routes.toolbox.git_login import Login, credentials, credentials_of, find_origin, name_host
from corral.server.routes.toolbox.git_run import Git, check_revision
from corral.server.routes.toolbox.git_status import (
    ENTRY_BYTES,
    LOG_FORMAT,
    parse_log,
    parse_remotes,
    parse_status,
    split_entries,
)
from corral.server.routing import ApiCall, Table
from corral.server.wire import git as wire
from corral.server.wire.toolbox import PathQuery

TABLE = Table("toolbox")

_RESET_MODES = ("soft", "mixed", "hard", "merge", "keep")
_SCOPES = ("global", "local", "system")
_MAX_COMMITS = 10_000


@TABLE.add("POST", "/git/clone", body=wire.GitCloneRequest)
async def clone_repository(call: ApiCall) -> None:
    """Clone a repository, and check out a branch or commit."""
    body = call.body
    target = call.sandbox.resolve(body.path)
    files = call.sandbox.box.files
    existed = await files.exists(target)
    await files.mkdir(posixpath.dirname(target))
    options: list[str] = []
    if body.branch:
        options += ["--branch", check_revision(body.branch, "branch")]
    if body.depth:
        options += ["--depth", str(body.depth)]
    insecure = bool(body.insecure_skip_tls)
    given = credentials(body.username, body.password) or credentials_of(body.url)
    login = Login(credentials=given, url=body.url) if given is not None and find_origin(body.url) else None
    name_host(call.sandbox, body.url)
    commit = check_revision(body.commit_id, "commit") if body.commit_id else None
    await Git(call.sandbox, "/").run(
        "clone", "--quiet", *options, "--", body.url, target, login=login, insecure=insecure
    )
    if commit is not None:
        git = Git(call.sandbox, target)
        try:
            if body.depth:
                depth = ["--depth", str(body.depth)]
                await git.run("fetch", "--quiet", *depth, "--", body.url, commit, login=login, insecure=insecure)
            await git.run("checkout", "--quiet", "--detach", commit, "--")
        except Fault:
            # The clone is not what was asked for, and would be in the way of another attempt.
            if not existed:
                with contextlib.suppress(CorralError):
                    await files.remove(target, recursive=True, missing_ok=True)
            raise


@TABLE.add("GET", "/git/status", query=PathQuery)
async def get_status(call: ApiCall) -> wire.GitStatus:
    """Get the status: branch, distance from its upstream, and changed files."""
    result = await Git(call.sandbox, call.query.path).run(
        "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all"
    )
    return parse_status(_counted(call, result.stdout))


def _counted(call: ApiCall, text: str, separator: str = "\0") -> str:
    """The same text; its parsed form is counted for the key until the answer is sent. Raises: Fault, 400 and 429."""
    call.hold(ENTRY_BYTES * len(split_entries(text, separator)))
    return text


@TABLE.add("POST", "/git/add", body=wire.GitAddRequest)
async def add_files(call: ApiCall) -> None:
    """Stage files, including deleted ones."""
    await _with_paths(Git(call.sandbox, call.body.path), call.body.files, "add", "--all")


async def _with_paths(git: Git, files: list[str], *arguments: str) -> None:
    if not files:
        raise bad_request("files: the list is empty")
    if any(not file or "\0" in file for file in files):
        raise bad_request("files: a name is empty or contains a NUL character", code="INVALID_FILE_PATH")
    # By standard input: there may be more of them than an argument list takes.
    await git.run(*arguments, "--pathspec-from-file=-", "--pathspec-file-nul", stdin="\0".join(files))


@TABLE.add("POST", "/git/commit", body=wire.GitCommitRequest)
async def commit_changes(call: ApiCall) -> wire.GitCommitResponse:
    """Commit the staged changes."""
    body = call.body
    if not body.message.strip():
        raise bad_request("the commit message is empty")
    if any("\0" in text or "\n" in text for text in (body.author, body.email)) or "\0" in body.message:
        raise bad_request("author, email or message contain a character that git can't store")
    git = Git(call.sandbox, body.path)
    env = {
        "GIT_AUTHOR_NAME": body.author,
        "GIT_AUTHOR_EMAIL": body.email,
        "GIT_COMMITTER_NAME": body.author,
        "GIT_COMMITTER_EMAIL": body.email,
    }
    options = ["--allow-empty"] if body.allow_empty else []
    await git.run("commit", "--quiet", "--cleanup=verbatim", "--file=-", *options, stdin=body.message, env=env)
    return wire.GitCommitResponse(hash=(await git.run("rev-parse", "HEAD")).stdout.strip())


@TABLE.add("POST", "/git/push", body=wire.GitTransferRequest)
async def push_changes(call: ApiCall) -> None:
    """Push a branch."""
    body = call.body
    git = Git(call.sandbox, body.path)
    remote = check_revision(body.remote or "origin", "remote")
    login = await git.log_in(credentials(body.username, body.password), remote, push=True)
    # Without a branch, the one that is checked out, to the same name: git's own default asks for an upstream first.
    branch = check_revision(body.branch, "branch") if body.branch else "HEAD"
    options = ["--set-upstream"] if body.set_upstream else []
    await git.run("push", *options, remote, branch, login=login)


@TABLE.add("POST", "/git/pull", body=wire.GitTransferRequest)
async def pull_changes(call: ApiCall) -> None:
    """Fetch and merge. The credentials are used for fetching only, because merging may run hooks and filters."""
    body = call.body
    git = Git(call.sandbox, body.path)
    remote = check_revision(body.remote, "remote") if body.remote else None
    branch = check_revision(body.branch, "branch") if body.branch else None
    if remote is None and branch is None:
        tracked = await git.run("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}", accept=(0, 128))
        current = (await git.run("symbolic-ref", "--short", "HEAD")).stdout.strip()
        if tracked.exit_code == 0:
            found = await git.run("config", "--get", f"branch.{current}.remote", accept=(0, 1))
            remote = check_revision(found.stdout.strip() or "origin", "remote")
        else:
            branch = current
    remote = remote or "origin"
    login = await git.log_in(credentials(body.username, body.password), remote)
    await git.run("fetch", "--quiet", remote, *([branch] if branch else []), login=login)
    await git.run("merge", "--quiet", "--no-edit", "FETCH_HEAD")


@TABLE.add("GET", "/git/branches", query=PathQuery)
async def list_branches(call: ApiCall) -> wire.ListBranchResponse:
    """List local branches, and the current one."""
    git = Git(call.sandbox, call.query.path)
    found = await git.run("for-each-ref", "--format=%(refname:short)", "refs/heads")
    branches = [name for name in split_entries(_counted(call, found.stdout, "\n"), "\n") if name]
    current = (await git.run("symbolic-ref", "--quiet", "--short", "HEAD", accept=(0, 1))).stdout.strip()
    return wire.ListBranchResponse(branches=branches, current=current or None)


@TABLE.add("POST", "/git/branches", body=wire.GitBranchRequest, status=201)
async def create_branch(call: ApiCall) -> None:
    """Create a branch at HEAD."""
    await Git(call.sandbox, call.body.path).run("branch", check_revision(call.body.name, "branch"))


@TABLE.add("DELETE", "/git/branches", body=wire.GitBranchRequest, status=204)
async def delete_branch(call: ApiCall) -> None:
    """Delete a branch, merged or not."""
    await Git(call.sandbox, call.body.path).run("branch", "-D", "--", check_revision(call.body.name, "branch"))


@TABLE.add("POST", "/git/checkout", body=wire.GitCheckoutRequest)
async def checkout_branch(call: ApiCall) -> None:
    """Check out a branch or commit."""
    branch = check_revision(call.body.branch, "branch")
    await Git(call.sandbox, call.body.path).run("checkout", "--quiet", branch, "--")


@TABLE.add("POST", "/git/init", body=wire.GitInitRequest, status=201)
async def init_repository(call: ApiCall) -> None:
    """Create a repository."""
    options = ["--bare"] if call.body.bare else []
    if call.body.initial_branch:
        options.append(f"--initial-branch={check_revision(call.body.initial_branch, 'branch')}")
    target = call.sandbox.resolve(call.body.path)
    await call.sandbox.box.files.mkdir(target)
    await Git(call.sandbox, target).run("init", "--quiet", *options)


@TABLE.add("POST", "/git/reset", body=wire.GitResetRequest)
async def reset_changes(call: ApiCall) -> None:
    """Reset to a commit, or unstage files."""
    body = call.body
    git = Git(call.sandbox, body.path)
    target = [check_revision(body.target, "revision")] if body.target else []
    if body.mode and body.mode not in _RESET_MODES:
        raise bad_request(f"mode {body.mode[:40]!r} is not supported; use one of {', '.join(_RESET_MODES)}")
    if body.files:
        if body.mode not in (None, "", "mixed"):
            raise bad_request(f"mode {body.mode!r} can't be used with files")
        await _with_paths(git, body.files, "reset", "--quiet", *target)
    else:
        await git.run("reset", "--quiet", f"--{body.mode or 'mixed'}", *target, "--")


@TABLE.add("POST", "/git/restore", body=wire.GitRestoreRequest)
async def restore_files(call: ApiCall) -> None:
    """Restore files in the working tree, the index, or both."""
    body = call.body
    options = ["--staged"] if body.staged else []
    if body.worktree or (body.worktree is None and not body.staged):
        options.append("--worktree")
    if not options:
        raise bad_request("set staged, worktree or both to true")
    if body.source:
        options.append(f"--source={check_revision(body.source, 'revision')}")
    await _with_paths(Git(call.sandbox, body.path), body.files, "restore", "--quiet", *options)


@TABLE.add("GET", "/git/remotes", query=PathQuery)
async def list_remotes(call: ApiCall) -> wire.ListRemotesResponse:
    """List remotes."""
    git = Git(call.sandbox, call.query.path)
    await git.run("rev-parse", "--git-dir")
    found = await git.run("config", "-z", "--get-regexp", r"^remote\..*\.url$", accept=(0, 1))
    return wire.ListRemotesResponse(remotes=parse_remotes(_counted(call, found.stdout)))


@TABLE.add("POST", "/git/remotes", body=wire.GitAddRemoteRequest, status=201)
async def add_remote(call: ApiCall) -> None:
    """Add a remote, or change the URL of an existing one."""
    body = call.body
    git = Git(call.sandbox, body.path)
    name = check_revision(body.name, "remote")
    name_host(call.sandbox, body.url)
    there = await git.run("config", "--get", f"remote.{name}.url", accept=(0, 1))
    if there.exit_code == 0 and body.overwrite:
        await git.run("remote", "set-url", "--", name, body.url)
    else:
        await git.run("remote", "add", "--", name, body.url)
    if body.fetch:
        await git.run("fetch", "--quiet", name)


@TABLE.add("GET", "/git/config", query=wire.GitConfigQuery)
async def get_git_config(call: ApiCall) -> wire.GitConfigResponse:
    """Get a setting."""
    git, scope = _scoped(call, call.query.path, call.query.scope)
    key = _check_key(call.query.key)
    found = await git.run("config", scope, "-z", "--get", "--", key, accept=(0, 1))
    return wire.GitConfigResponse(value=found.stdout.removesuffix("\0") if found.exit_code == 0 else None)


@TABLE.add("POST", "/git/config", body=wire.GitSetConfigRequest)
async def set_git_config(call: ApiCall) -> None:
    """Change a setting."""
    git, scope = _scoped(call, call.body.path, call.body.scope)
    await git.run("config", scope, "--replace-all", "--", _check_key(call.body.key), call.body.value)


@TABLE.add("POST", "/git/config/user", body=wire.GitConfigureUserRequest)
async def configure_user(call: ApiCall) -> None:
    """Set the name and email address for commits."""
    git, scope = _scoped(call, call.body.path, call.body.scope)
    await git.run("config", scope, "--replace-all", "--", "user.name", call.body.name)
    await git.run("config", scope, "--replace-all", "--", "user.email", call.body.email)


def _scoped(call: ApiCall, path: str | None, scope: str | None) -> tuple[Git, str]:
    chosen = scope or "global"
    if chosen not in _SCOPES:
        raise bad_request(f"scope {chosen[:40]!r} is not supported; use one of {', '.join(_SCOPES)}")
    if chosen == "local" and not path:
        raise bad_request("path: required for a local setting")
    return Git(call.sandbox, path or None), f"--{chosen}"


def _check_key(key: str) -> str:
    section, dot, name = key.rpartition(".")
    if not dot or not section or not name or key.startswith("-") or "\n" in key or "\0" in key:
        raise bad_request(f"{key[:100]!r} is not a valid key; a valid one is user.name")
    return key


@TABLE.add("POST", "/git/credentials", body=wire.GitAuthenticateRequest)
async def authenticate(call: ApiCall) -> None:
    """Store credentials in the sandbox, in git's plain-text store."""
    body = call.body
    login = credentials(body.username, body.password)
    host, protocol = body.host or "github.com", body.protocol or "https"
    if login is None or not login.username or not login.password:
        raise bad_request("username and password are required")
    if any(set(text) & {"\n", "\r", "\0", "/", " "} for text in (host, protocol)):
        raise bad_request("host or protocol contain invalid characters")
    name_host(call.sandbox, f"{protocol}://{host}")
    git = Git(call.sandbox, None)
    await git.run("config", "--global", "--replace-all", "credential.helper", "store")
    entry = f"protocol={protocol}\nhost={host}\nusername={login.username}\npassword={login.password}\n\n"
    await git.run("credential", "approve", stdin=entry)


@TABLE.add("GET", "/git/history", query=PathQuery)
async def get_commit_history(call: ApiCall) -> list[wire.GitCommitInfo]:
    """List the commits up to HEAD, newest first."""
    git = Git(call.sandbox, call.query.path)
    found = await git.run("log", "-z", f"--max-count={_MAX_COMMITS}", f"--format={LOG_FORMAT}", "--no-color")
    return parse_log(_counted(call, found.stdout))
