"""Git through the official SDK, against a git server inside the sandbox."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from daytona import AsyncDaytona, DaytonaBadRequestError, DaytonaConflictError, Sandbox, SessionExecuteRequest
from daytona.common.errors import (
    DaytonaGitAuthFailedError,
    DaytonaGitBranchExistsError,
    DaytonaGitBranchNotFoundError,
    DaytonaGitDirtyWorktreeError,
    DaytonaGitMergeConflictError,
    DaytonaGitPushRejectedError,
    DaytonaGitRemoteRejectedError,
    DaytonaGitRepoNotFoundError,
    DaytonaGitTransportFailedError,
)

from support.githttp import NAME, PASSWORD
from support.serving import ServedProcess

pytestmark = pytest.mark.needs_git

PORT = 8418
PRIVATE = f"http://127.0.0.1:{PORT}/private/a.git"


@pytest.fixture
def repo(sandbox: Sandbox) -> Sandbox:
    """A sandbox with a repository `r` that has one commit on `main`."""
    sandbox.git.init("r", initial_branch="main")
    sandbox.fs.upload_file(b"first\n", "r/a.txt")
    sandbox.git.add("r", ["a.txt"])
    sandbox.git.commit("r", "first\n\n# and no comment", "Ann", "ann@example.org")
    return sandbox


@pytest.fixture
def remote(repo: Sandbox) -> Iterator[Sandbox]:
    """The same, with a remote that asks for a password."""
    repo.fs.upload_file((Path(__file__).parents[1] / "support" / "githttp.py").read_bytes(), "/tmp/githttp.py")
    repo.git.init("remotes/private/a.git", bare=True, initial_branch="main")
    repo.process.create_session("git-server")
    command = f"python3 /tmp/githttp.py {PORT} /home/daytona/remotes"
    repo.process.execute_session_command("git-server", SessionExecuteRequest(command=command, run_async=True))
    deadline = time.monotonic() + 60
    while repo.process.exec(f"bash -c 'echo > /dev/tcp/127.0.0.1/{PORT}'").exit_code != 0:
        assert time.monotonic() < deadline, "the git server does not answer"
        time.sleep(0.05)
    repo.git.remote_add("r", "origin", PRIVATE)
    yield repo
    repo.process.delete_session("git-server")


def words(box: Sandbox, path: str = "r") -> dict[str, tuple[str, str]]:
    return {file.name: (file.staging.value, file.worktree.value) for file in box.git.status(path).file_status}


def test_a_status_follows_a_file_from_unknown_to_committed(repo: Sandbox) -> None:
    repo.fs.upload_file(b"x", "r/sub/ü b.txt")
    repo.fs.upload_file(b"changed\n", "r/a.txt")
    assert words(repo) == {"sub/ü b.txt": ("Untracked", "Untracked"), "a.txt": ("Unmodified", "Modified")}
    repo.git.add("r", ["."])
    assert words(repo) == {"sub/ü b.txt": ("Added", "Unmodified"), "a.txt": ("Modified", "Unmodified")}
    answer = repo.git.commit("r", "second", "Ben", "ben@example.org")
    assert words(repo) == {}
    assert repo.process.exec("git -C r log -1 --format='%H %an %ae %cn %s'").result.split() == [
        answer.sha, "Ben", "ben@example.org", "Ben", "second",
    ]  # fmt: skip


def test_a_deleted_file_can_be_staged(repo: Sandbox) -> None:
    repo.fs.delete_file("r/a.txt")
    repo.git.add("r", ["a.txt"])
    assert words(repo) == {"a.txt": ("Deleted", "Unmodified")}


def test_a_message_is_kept_as_it_is(repo: Sandbox) -> None:
    assert repo.process.exec("git -C r log -1 --format=%B").result == "first\n\n# and no comment\n"


def test_nothing_is_committed_of_nothing_unless_asked(repo: Sandbox) -> None:
    with pytest.raises(DaytonaBadRequestError, match="nothing to commit"):
        repo.git.commit("r", "empty", "Ann", "a@b")
    assert len(repo.git.commit("r", "empty", "Ann", "a@b", allow_empty=True).sha) == 40


def test_names_are_never_options_nor_shell_text(repo: Sandbox) -> None:
    for name in ("--force", "-D"):
        with pytest.raises(DaytonaBadRequestError):
            repo.git.create_branch("r", name)
    with pytest.raises(DaytonaBadRequestError):
        repo.git.create_branch("r", "x; touch /tmp/broken")
    repo.fs.upload_file(b"", "r/$(touch broken)")
    repo.git.add("r", ["$(touch broken)"])
    assert words(repo) == {"$(touch broken)": ("Added", "Unmodified")}


def test_branches_are_made_checked_out_and_deleted(repo: Sandbox) -> None:
    repo.git.create_branch("r", "topic/one")
    with pytest.raises(DaytonaGitBranchExistsError):
        repo.git.create_branch("r", "topic/one")
    repo.git.checkout_branch("r", "topic/one")
    listed = repo.git.branches("r")
    assert (sorted(listed.branches), listed.current) == (["main", "topic/one"], "topic/one")
    assert repo.git.status("r").current_branch == "topic/one"
    with pytest.raises(DaytonaConflictError):
        repo.git.delete_branch("r", "topic/one")
    repo.git.checkout_branch("r", "main")
    repo.git.delete_branch("r", "topic/one")
    assert repo.git.branches("r").branches == ["main"]
    for call in (repo.git.checkout_branch, repo.git.delete_branch):
        with pytest.raises(DaytonaGitBranchNotFoundError):
            call("r", "topic/one")


def test_changes_that_would_be_lost_are_not(repo: Sandbox) -> None:
    repo.git.create_branch("r", "other")
    repo.fs.upload_file(b"second\n", "r/a.txt")
    repo.git.add("r", ["a.txt"])
    repo.git.commit("r", "second", "Ann", "a@b")
    repo.fs.upload_file(b"not committed\n", "r/a.txt")
    with pytest.raises(DaytonaGitDirtyWorktreeError):
        repo.git.checkout_branch("r", "other")
    repo.git.restore("r", ["a.txt"])
    assert repo.fs.download_file("r/a.txt") == b"second\n"
    repo.git.reset("r", mode="hard", target="HEAD~1")
    assert repo.fs.download_file("r/a.txt") == b"first\n"


def test_what_is_staged_can_be_taken_back(repo: Sandbox) -> None:
    repo.fs.upload_file(b"x", "r/b.txt")
    for take_back in (
        lambda: repo.git.reset("r", files=["b.txt"]),
        lambda: repo.git.reset("r"),
        lambda: repo.git.restore("r", ["b.txt"], staged=True),
    ):
        repo.git.add("r", ["b.txt"])
        assert words(repo) == {"b.txt": ("Added", "Unmodified")}
        take_back()
        assert words(repo) == {"b.txt": ("Untracked", "Untracked")}
    with pytest.raises(DaytonaBadRequestError, match="mode"):
        repo.git.reset("r", mode="wild")


def test_no_repository_is_said_to_be_none(sandbox: Sandbox) -> None:
    sandbox.fs.create_folder("plain", "755")
    for path in ("plain", "nowhere"):
        with pytest.raises(DaytonaGitRepoNotFoundError):
            sandbox.git.status(path)
    with pytest.raises(DaytonaGitRepoNotFoundError):
        sandbox.git.clone("/home/daytona/nowhere", "copy")
    with pytest.raises(DaytonaGitTransportFailedError):
        sandbox.git.clone("http://127.0.0.1:9/x.git", "copy")


def test_a_clone_has_the_branch_or_commit_that_was_asked_for(repo: Sandbox) -> None:
    first = repo.process.exec("git -C r rev-parse HEAD").result.strip()
    repo.git.commit("r", "second", "Ann", "a@b", allow_empty=True)
    repo.git.create_branch("r", "side")
    repo.git.clone("/home/daytona/r", "by/branch", branch="side")
    assert repo.git.status("by/branch").current_branch == "side"
    repo.git.clone("/home/daytona/r", "by/commit", commit_id=first)
    assert repo.git.status("by/commit").detached
    assert repo.process.exec("git -C by/commit rev-parse HEAD").result.strip() == first
    repo.git.clone("file:///home/daytona/r", "shallow", depth=1)
    assert repo.process.exec("git -C shallow rev-list --count HEAD").result == "1\n"
    with pytest.raises(DaytonaGitBranchNotFoundError):
        repo.git.clone("/home/daytona/r", "none", branch="nope")
    with pytest.raises(DaytonaConflictError):
        repo.git.clone("/home/daytona/r", "by/branch")
    for _ in range(2):  # a failed clone is not in the way of the next
        with pytest.raises(DaytonaGitBranchNotFoundError):
            repo.git.clone("/home/daytona/r", "again", commit_id="0123456789" * 4)
    repo.git.clone("/home/daytona/r", "again", commit_id=first)


def test_remotes_are_added_and_overwritten(repo: Sandbox) -> None:
    assert repo.git.remotes("r").remotes == []
    repo.git.remote_add("r", "up", "https://a.example/x.git")
    with pytest.raises(DaytonaConflictError):
        repo.git.remote_add("r", "up", "https://b.example/x.git")
    repo.git.remote_add("r", "up", "https://b.example/x.git", overwrite=True)
    assert repo.git.remote_get("r", "up") == "https://b.example/x.git"


def test_settings_have_scopes(repo: Sandbox) -> None:
    repo.git.configure_user("Ann", "ann@example.org")
    repo.git.set_config("user.name", "Local Ann", scope="local", path="r")
    assert repo.git.get_config("user.name") == "Ann"
    assert repo.git.get_config("user.name", scope="local", path="r") == "Local Ann"
    assert repo.git.get_config("not.set") is None
    repo.git.set_config("some.value", "--unset")
    assert repo.git.get_config("some.value") == "--unset"
    for refused in (
        lambda: repo.git.get_config("user.name", scope="local"),
        lambda: repo.git.get_config("user.name", scope="cosmic"),
        lambda: repo.git.get_config("--list"),
    ):
        with pytest.raises(DaytonaBadRequestError):
            refused()


def test_credentials_of_a_call_open_the_remote_and_are_kept_by_nobody(remote: Sandbox) -> None:
    # A helper that would keep whatever it is told.
    remote.git.set_config("credential.helper", "store")
    with pytest.raises(DaytonaGitAuthFailedError):
        remote.git.push("r")
    with pytest.raises(DaytonaGitAuthFailedError) as raised:
        remote.git.push("r", NAME, "wrong-password")
    assert "wrong-password" not in str(raised.value)
    remote.git.push("r", NAME, PASSWORD, set_upstream=True)
    status = remote.git.status("r")
    assert (status.upstream, status.ahead, status.behind, status.branch_published) == ("origin/main", 0, 0, True)
    remote.git.clone(PRIVATE, "copy", username=NAME, password=PASSWORD)
    found = remote.process.exec(f"grep -rl --exclude=githttp.py {PASSWORD} /home/daytona /tmp; true").result
    assert found == ""


def test_credentials_are_not_for_another_host(remote: Sandbox) -> None:
    with pytest.raises(DaytonaBadRequestError, match="http"):
        remote.git.clone("/home/daytona/r", "copy", username=NAME, password=PASSWORD)


LISTENER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("/tmp/heard", "a") as log:
            print(self.path, self.headers, file=log)
        self.send_response(401 if "Authorization" not in self.headers else 404)
        self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.end_headers()
    do_POST = do_GET
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def thief(remote: Sandbox) -> Iterator[str]:
    """The URL of a server inside that asks every client for a password, and records it."""
    remote.fs.upload_file(LISTENER.encode(), "/tmp/thief.py")
    remote.process.create_session("thief")
    command = f"python3 /tmp/thief.py {PORT + 1}"
    remote.process.execute_session_command("thief", SessionExecuteRequest(command=command, run_async=True))
    deadline = time.monotonic() + 60
    while remote.process.exec(f"bash -c 'echo > /dev/tcp/127.0.0.1/{PORT + 1}'").exit_code != 0:
        assert time.monotonic() < deadline, "the thief does not answer"
        time.sleep(0.05)
    yield f"http://127.0.0.1:{PORT + 1}/"
    remote.process.delete_session("thief")


LIES = (
    "url.{thief}.insteadOf http://127.0.0.1:8418/",
    "url.{thief}.pushInsteadOf http://127.0.0.1:8418/",
    "remote.origin.pushurl {thief}private/a.git",
    "remote.origin.url {thief}private/a.git",
    "include.path /tmp/more",
)


def test_a_login_goes_to_no_host_that_was_chosen_inside(remote: Sandbox, thief: str) -> None:
    remote.process.exec(f"git config -f /tmp/more url.{thief}.insteadOf http:// && cp r/.git/config /tmp/right")
    for lie in LIES:
        assert (
            remote.process.exec(f"cp /tmp/right r/.git/config; git -C r config {lie.format(thief=thief)}").exit_code
            == 0
        )
        with pytest.raises(DaytonaBadRequestError, match="credentials were not used"):
            remote.git.push("r", NAME, PASSWORD)
    assert remote.process.exec("cat /tmp/heard").exit_code != 0


def test_settings_from_inside_do_not_hold_for_a_call_with_a_login(remote: Sandbox, thief: str) -> None:
    hook = "#!/bin/sh\n(env; cat <&9) >> /tmp/seen 2>&1; exit 0\n"
    for name in ("pre-push", "post-merge", "reference-transaction"):
        remote.fs.upload_file(hook.encode(), f"r/.git/hooks/{name}")
        remote.fs.set_file_permissions(f"r/.git/hooks/{name}", mode="755")
    remote.fs.upload_file(hook.encode(), ".local/bin/git")
    remote.fs.set_file_permissions(".local/bin/git", mode="755")
    settings = {
        "http.proxy": thief,
        f"http.{PRIVATE}.proxy": thief,
        "remote.origin.proxy": thief,
        "core.fsmonitor": "/home/daytona/r/.git/hooks/pre-push",
        "credential.helper": "!cat >> /tmp/seen; true",
        "http.extraHeader": "X-Odd: 1",
    }
    for key, value in settings.items():
        assert remote.process.exec(f"/usr/bin/git -C r config '{key}' '{value}'").exit_code == 0
    remote.process.exec(f"/usr/bin/git config --global url.{thief}.insteadOf http://127.0.0.1:{PORT}/")
    remote.git.push("r", NAME, PASSWORD, set_upstream=True)
    assert remote.process.exec("cat /tmp/heard /tmp/seen 2>/dev/null").result == ""
    # Merging runs what the repository wants; by then the password is gone.
    remote.process.exec("rm .gitconfig .local/bin/git")
    remote.git.clone(PRIVATE, "copy", username=NAME, password=PASSWORD)
    remote.git.commit("copy", "more", "Ann", "a@b", allow_empty=True)
    remote.git.push("copy", NAME, PASSWORD)
    remote.git.pull("r", NAME, PASSWORD)
    assert remote.git.status("r").behind == 0
    seen = remote.process.exec("cat /tmp/seen").result
    assert "GIT_" in seen
    assert PASSWORD not in seen


def test_credentials_are_kept_where_that_is_asked_for(remote: Sandbox) -> None:
    remote.git.dangerously_authenticate(NAME, PASSWORD, host=f"127.0.0.1:{PORT}", protocol="http")
    remote.git.push("r")
    remote.git.clone(PRIVATE, "copy")
    assert remote.fs.download_file("copy/a.txt") == b"first\n"


def test_two_who_change_the_same_are_told_apart(remote: Sandbox) -> None:
    git = remote.git
    git.configure_user("Ann", "ann@example.org")
    git.push("r", NAME, PASSWORD, set_upstream=True)
    git.clone(PRIVATE, "copy", username=NAME, password=PASSWORD)
    for path in ("copy", "r"):
        remote.fs.upload_file(f"of {path}\n".encode(), f"{path}/a.txt")
        git.add(path, ["a.txt"])
        git.commit(path, path, "Ann", "a@b")
    git.push("copy", NAME, PASSWORD)
    with pytest.raises(DaytonaGitPushRejectedError):
        git.push("r", NAME, PASSWORD)
    with pytest.raises(DaytonaGitMergeConflictError):
        git.pull("r", NAME, PASSWORD)
    assert words(remote) == {"a.txt": ("Updated but unmerged", "Updated but unmerged")}
    git.reset("r", mode="hard", target="origin/main")
    git.pull("r", NAME, PASSWORD)
    assert remote.fs.download_file("r/a.txt") == b"of copy\n"


def test_a_remote_that_refuses_is_told_from_one_that_is_ahead(remote: Sandbox) -> None:
    hook = "remotes/private/a.git/hooks/pre-receive"
    remote.fs.upload_file(b"#!/bin/sh\necho not today >&2\nexit 1\n", hook)
    remote.fs.set_file_permissions(hook, mode="755")
    with pytest.raises(DaytonaGitRemoteRejectedError, match="not today"):
        remote.git.push("r", NAME, PASSWORD)


def test_a_missing_repository_behind_http_is_not_found(remote: Sandbox) -> None:
    with pytest.raises(DaytonaGitRepoNotFoundError):
        remote.git.clone(f"http://127.0.0.1:{PORT}/nope.git", "copy")


def test_the_history_is_told_newest_first(repo: Sandbox, server: ServedProcess) -> None:
    repo.git.commit("r", "second", "Ben", "ben@example.org", allow_empty=True)
    url = f"{repo.toolbox_proxy_url}/{repo.id}/git/history"
    answer = httpx.get(url, params={"path": "r"}, headers={"Authorization": f"Bearer {server.key}"}).json()
    assert [(commit["author"], commit["message"]) for commit in answer] == [
        ("Ben", "second"),
        ("Ann", "first\n\n# and no comment"),
    ]


async def test_the_async_client_does_the_same(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        await box.git.init("r", initial_branch="main")
        await box.fs.upload_file(b"1", "r/a")
        await box.git.add("r", ["a"])
        await box.git.commit("r", "one", "Ann", "a@b")
        await box.git.create_branch("r", "b")
        await box.git.delete_branch("r", "b")
        assert (await box.git.branches("r")).branches == ["main"]
        assert (await box.git.status("r")).file_status == []
        with pytest.raises(DaytonaGitRepoNotFoundError):
            await box.git.status("none")
    finally:
        await async_daytona.delete(box)
