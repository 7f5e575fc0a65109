"""Running git inside: by argument list, with credentials outside of it, and git's errors as error responses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from corral.errors import InvalidCommandError, WorkdirError
from corral.results import NOT_FOUND_EXIT_CODE, ExecResult
from corral.server.faults import Fault, bad_request, not_found
from corral.server.living import Handle
from corral.server.routes.toolbox.git_login import (
    CA_BUNDLES,
    SCRIPT,
    Credentials,
    Login,
    check_named,
    check_unchanged,
    find_proxy,
    name_host,
    seal_reading,
    seal_settings,
    seal_variables,
)
from corral.server.routes.toolbox.git_status import split_entries

_GIT_SECONDS = 3600
"""The time limit of git; a client that disconnects ends it sooner."""
_MAX_TOLD = 2000
_OUTPUT_BYTES = 1024 * 1024
"""Output is parsed and sent as a whole, so it is bounded by what other requests may have to wait for."""
_SECRET_IN_URL = re.compile(r"://[^/@\s]+@")

# Looked through from the top. The texts are git's own, in the C locale.
_REFUSALS: tuple[tuple[str, int, str], ...] = (
    (
        (
            r"Authentication failed|could not read (Username|Password)|Invalid username or (password|token)"
            r"|returned error: 40[13]\b|HTTP 40[13]\b|Permission denied \(|terminal prompts disabled"
            r"|Access denied|Host key verification failed"
        ),
        401,
        "GIT_AUTH_FAILED",
    ),
    (
        r"\[remote rejected\]|pre-receive hook declined|remote hook declined|protected branch",
        422,
        "GIT_REMOTE_REJECTED",
    ),
    (r"! \[rejected\]|non-fast-forward|fetch first|Updates were rejected", 409, "GIT_PUSH_REJECTED"),
    (
        (
            r"CONFLICT \(|Automatic merge failed|[Ff]ix conflicts|unmerged (files|paths)|needs merge"
            r"|You have not concluded|Not possible to fast-forward|divergent branches|resolve your current index first"
        ),
        409,
        "GIT_MERGE_CONFLICT",
    ),
    (
        (
            r"would be overwritten by|commit your changes or stash|have unstaged changes|contains uncommitted changes"
            r"|not uptodate"
        ),
        409,
        "GIT_DIRTY_WORKTREE",
    ),
    (
        (
            r"[Rr]emote branch .* not found|couldn't find remote ref|src refspec .* does not match"
            r"|branch '[^']*' not found|pathspec '[^']*' did not match any file\(s\) known to git|invalid reference"
            r"|not a valid (branch point|object name|ref)|no such (branch|ref)|unknown revision|ambiguous argument"
            r"|no upstream branch|reference is not a tree|not our ref|unable to read tree"
        ),
        404,
        "GIT_BRANCH_NOT_FOUND",
    ),
    (r"[Aa] branch named .* already exists", 409, "GIT_BRANCH_EXISTS"),
    (
        (
            r"not a git repository|does not appear to be a git repo|[Rr]epository .*not found|returned error: 404"
            r"|repository '[^']*' does not exist|No such remote|No configured push destination|cannot change to"
        ),
        404,
        "GIT_REPO_NOT_FOUND",
    ),
    (
        (
            r"Could not resolve host|unable to access|Connection (refused|reset|timed out|closed)|Failed to connect"
            r"|Could not read from remote|RPC failed|early EOF|hung up unexpectedly|SSL|unable to look up"
            r"|transport .* not allowed|Network is unreachable|unable to connect"
        ),
        502,
        "GIT_TRANSPORT_FAILED",
    ),
    (r"already exists|checked out at|used by worktree|could not lock", 409, "CONFLICT"),
)


class Git:
    """git in one directory of one sandbox."""

    def __init__(self, handle: Handle, path: str | None) -> None:
        self._handle = handle
        self._folder = handle.resolve(path) if path else handle.home
        self._named = path is not None

    async def run(
        self,
        *arguments: str,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        settings: Sequence[tuple[str, str]] = (),
        login: Login | None = None,
        insecure: bool = False,
        accept: Sequence[int] = (0,),
    ) -> ExecResult:
        """Run it. A `login` is used for the host of its URL alone (see `git_login`), and takes standard input.

        Raises:
            Fault: git failed; with the status and code for the reason.
        """
        argv = ["git", *arguments]
        variables = {**self._handle.environment(), **_BASE_ENV}
        chosen = [("safe.directory", "*"), *settings]
        if login is not None:
            stdin, argv = login.credentials.spell(), ["/bin/sh", "-c", SCRIPT, *argv]
            given = self._given
            chosen += seal_settings(login, proxy=find_proxy(login.url, given), insecure=insecure)
            variables |= seal_variables(login, given, bundle=await self._find_bundle(login))
        elif insecure:
            chosen.append(("http.sslVerify", "false"))
        try:
            result = await self._handle.box.exec(
                argv,
                cwd=self._folder,
                env={**variables, **_as_variables(chosen), **(env or {})},
                stdin=stdin if stdin is not None else "",
                user=self._handle.program_user,
                timeout=_GIT_SECONDS,
                output_limit_bytes=_OUTPUT_BYTES,
            )
        except WorkdirError as error:
            raise not_found(
                f"repository not found: {self._folder} does not exist", code="GIT_REPO_NOT_FOUND"
            ) from error
        except InvalidCommandError as error:
            raise bad_request(f"{error}") from error
        if result.exit_code not in accept or result.reason != "exited":
            raise _refusal(result, login)
        return result

    @property
    def _given(self) -> dict[str, str]:
        """The variables that callers have set for the sandbox."""
        return {**self._handle.box.spec.env, **self._handle.environment()}

    @property
    def _sealed(self) -> dict[str, str]:
        return seal_reading(self._given)

    async def _find_bundle(self, login: Login) -> str | None:
        if not login.url.startswith("https:"):
            return None
        for path in CA_BUNDLES:
            if await self._handle.box.files.exists(path):
                return path
        return None

    async def log_in(self, given: Credentials | None, remote: str, *, push: bool = False) -> Login | None:
        """The login for a remote, by its name or its URL; None without credentials.

        Raises:
            Fault: 400, its URL takes no credentials, is rewritten by a setting, or has a host that no caller has named.
        """
        if given is None:
            return None
        urls = (await self._values(f"remote.{remote}.pushurl") if push else []) or await self._values(
            f"remote.{remote}.url"
        )
        if not urls:
            if "://" not in remote:
                raise not_found(f"remote {remote[:100]!r} not found", code="GIT_REPO_NOT_FOUND")
            urls = [remote]
            name_host(self._handle, remote)
        pattern = r"^url\..*\.(insteadof|pushinsteadof)$"
        found = await self.run("config", "-z", "--includes", "--get-regexp", pattern, env=self._sealed, accept=(0, 1))
        for url in urls:
            check_named(self._handle, url)
        check_unchanged(urls, [entry.partition("\n")[2] for entry in split_entries(found.stdout)])
        return Login(credentials=given, url=urls[0], remote=remote)

    async def _values(self, key: str) -> list[str]:
        found = await self.run("config", "-z", "--includes", "--get-all", "--", key, env=self._sealed, accept=(0, 1))
        return [value for value in split_entries(found.stdout) if value]


_BASE_ENV = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "SSH_ASKPASS": "/bin/false",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GIT_EDITOR": "true",
    "GIT_PAGER": "cat",
}


def _as_variables(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Settings for one call, which git reads from its environment."""
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables


def check_revision(text: str, what: str) -> str:
    """A branch, commit or remote that git can't take for an option. Raises: Fault, 400."""
    if not text or text.startswith("-") or "\0" in text or "\n" in text:
        raise bad_request(f"{text[:100]!r} is not a valid {what} name")
    return text


def _refusal(result: ExecResult, login: Login | None) -> Fault:
    if result.exit_code == NOT_FOUND_EXIT_CODE:
        return bad_request("git is not installed in this sandbox")
    if result.timed_out:
        return Fault(408, f"timeout: git was killed after {_GIT_SECONDS} s", code="PROCESS_EXECUTION_TIMEOUT")
    text = result.output.strip()
    if login is not None and login.credentials.password:
        text = text.replace(login.credentials.password, "***")
    text = _SECRET_IN_URL.sub("://***@", text)[-_MAX_TOLD:] or f"git exited with code {result.exit_code}"
    for pattern, status, code in _REFUSALS:
        if re.search(pattern, text):
            return Fault(status, text, code=code)
    return bad_request(text, code="BAD_REQUEST")
