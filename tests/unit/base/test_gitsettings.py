"""Git's settings stay on the side that they belong to: what comes from a sandbox makes the host's git run nothing."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from corral.base.gitsettings import is_git_folder, is_safe_index
from corral.base.transfer import pack_host_tree, unpack_to_host
from support.tars import folder, hard, link, member, stream, tar

EVIL = b"[core]\n\tfsmonitor = touch /tmp/corral-evil-ran\n"
BARE = (member("b/HEAD", b"ref: refs/heads/main\n"), folder("b/objects"), folder("b/refs"))


async def lay_down(host: Path, *members: tuple[tarfile.TarInfo, bytes]) -> tuple[str, ...]:
    return await unpack_to_host(stream(tar(*members)), host, max_bytes=None)


def names(host: Path) -> set[str]:
    return {str(path.relative_to(host)) for path in host.rglob("*") if not path.is_dir() or path.is_symlink()}


async def test_samples_that_git_brings_itself_are_left_out_without_a_word(tmp_path: Path) -> None:
    sample = member(".git/hooks/pre-commit.sample", b"")
    assert await lay_down(tmp_path, sample, member(".git/hooks/pre-commit", b"")) == (".git/hooks/pre-commit",)
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    "path",
    [
        ".git/config", ".git/config.worktree", ".git/hooks/pre-commit", ".git/info/attributes", ".git/commondir",
        ".git/rebase-merge/git-rebase-todo", ".git/objects/info/alternates", ".git/worktrees/w/gitdir",
        ".git/worktrees/w/config.worktree", ".git/modules/s/config", ".git/modules/a/b/hooks/post-checkout",
        ".git", "sub/.git", ".GIT/config", ".git./config", "git~1/config", ".g\u200cit/config", "a/.git/x/.git/config",
        ".git/refs/x/.git/config",
    ],
)  # fmt: skip
async def test_what_git_would_run_is_left_out_and_named(tmp_path: Path, path: str) -> None:
    assert await lay_down(tmp_path, member(path, EVIL), member("kept", b"")) == (path,)
    assert names(tmp_path) == {"kept"}


@pytest.mark.parametrize("path", [".git/hooks", ".git", ".git/config", "b/hooks", "b/config"])
async def test_links_are_no_way_round(tmp_path: Path, path: str) -> None:
    await lay_down(tmp_path, *BARE, member("b/mine", EVIL), link(path, "mine"))
    assert path not in names(tmp_path)


async def test_a_bare_repository_is_known_by_its_content_in_whatever_order_it_comes(tmp_path: Path) -> None:
    settings = [member("b/config", EVIL), member("b/hooks/pre-commit", b"x"), member("b/commondir", b"../c")]
    for number, members in enumerate(((*settings, *BARE), (*BARE, *settings))):
        assert set(await lay_down(tmp_path / str(number), *members)) == {
            "b/config", "b/hooks/pre-commit", "b/commondir",
        }  # fmt: skip
        assert names(tmp_path / str(number)) == {"b/HEAD"}


async def test_a_repository_can_not_be_put_together_in_several_goes(tmp_path: Path) -> None:
    assert await lay_down(tmp_path, member("b/config", EVIL), *BARE[1:]) == ()
    assert await lay_down(tmp_path, *BARE) == ("b/HEAD",)
    assert names(tmp_path) == {"b/config"}
    assert await lay_down(tmp_path, member("c/HEAD")) == ()
    assert await lay_down(tmp_path, member("c/config", EVIL), folder("c/objects"), folder("c/refs")) == ("c/config",)


async def test_a_repositorys_folder_that_is_asked_for_itself_brings_its_data_alone(tmp_path: Path) -> None:
    members = (member("HEAD"), member("config", EVIL), member("rebase-merge/git-rebase-todo", b"exec id"))
    left = await lay_down(tmp_path / ".git", *members, member("refs/heads/main"))
    assert set(left) == {"config", "rebase-merge/git-rebase-todo"}
    assert names(tmp_path) == {".git/HEAD", ".git/refs/heads/main"}


async def test_other_folders_come_whole(tmp_path: Path) -> None:
    """`hooks` and `config` are usual names, and what is hard linked to a setting is a file like any other."""
    plain = (
        folder("src/hooks", 0o700), member("src/hooks/use.ts", b"1"), member("config", b"2"), folder("app/config"),
        member("app/config/x", b"3"), member(".gitignore", b"4"), member(".git/hooks/h", b"5"),
        hard("tool", ".git/hooks/h"), hard("copy", "config"),
    )  # fmt: skip
    assert await lay_down(tmp_path, *plain) == (".git/hooks/h",)
    assert names(tmp_path) == {"src/hooks/use.ts", "config", "app/config/x", ".gitignore", "tool", "copy"}
    assert (tmp_path / "tool").read_bytes() == b"5"
    assert (tmp_path / "src/hooks").stat().st_mode & 0o777 == 0o700


@pytest.mark.needs_git
async def test_what_was_committed_comes_back_and_nothing_runs(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    git(tmp_path, "init", "-q", str(mine))
    (mine / "a").write_text("1")
    git(mine, "add", "a")
    git(mine, "commit", "-qm", "first")
    git(tmp_path, "clone", "-q", str(mine), str(theirs))
    (theirs / "a").write_text("2")
    git(theirs, "commit", "-qam", "second")
    ran = tmp_path / "ran"
    git(theirs, "config", "core.fsmonitor", f"touch '{ran}'; false")
    hook = theirs / ".git/hooks/post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch '{ran}'\n")
    hook.chmod(0o755)
    before = (mine / ".git/config").read_text()
    left = await unpack_to_host(pack_host_tree(theirs), mine, max_bytes=None)
    assert set(left) == {".git/config", ".git/hooks/post-index-change"}
    assert (mine / ".git/config").read_text() == before
    assert git(mine, "log", "--format=%s").split() == ["second", "first"]
    assert git(mine, "status", "--porcelain") == ""
    assert not ran.exists()
    # The same, asked for.
    await unpack_to_host(pack_host_tree(theirs), mine, max_bytes=None, git_settings=True)
    git(mine, "status")
    assert ran.exists()


@pytest.mark.needs_git
async def test_a_list_of_files_that_names_settings_is_left_out(tmp_path: Path) -> None:
    """Git writes where its index says, without asking whether that is in `.git`."""
    git(tmp_path, "init", "-q", ".")
    for name in ("xgit", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config").write_text("x")
    git(tmp_path, "add", ".")
    for version in ("2", "4"):
        git(tmp_path, "update-index", "--index-version", version)
        good = (tmp_path / ".git/index").read_bytes()
        assert is_safe_index(good)
        assert not is_safe_index(good.replace(b"xgit/", b".git/"))
        assert not is_safe_index(good[:-30])
    assert await lay_down(tmp_path / "host", member(".git/index", b"DIRC")) == (".git/index",)


@pytest.mark.needs_git
async def test_what_settings_of_the_host_name_in_the_tree_is_left_out(tmp_path: Path) -> None:
    mine, ran = tmp_path / "mine", tmp_path / "ran"
    git(tmp_path, "init", "-q", str(mine))
    git(mine, "init", "-q", "inner")
    for name, value in {
        "core.hooksPath": ".husky/_", "include.path": "../team.gitconfig", "core.fsmonitor": "./tools/watch.sh",
        "filter.x.clean": "python tools/clean.py %f", "alias.t": "!cd web && python t.py", "alias.st": "status",
    }.items():  # fmt: skip
        git(mine, "config", name, value)
    git(mine / "inner", "config", "core.hooksPath", "hooks.d")
    (mine / "web").mkdir()
    (mine / ".husky/_").mkdir(parents=True)
    (mine / ".husky/_/same").write_text("same")
    evil = f"#!/bin/sh\ntouch '{ran}'\n".encode()
    bad = (
        ".husky/_/pre-commit", "team.gitconfig", "tools/watch.sh", "tools/clean.py", "t.py", "inner/hooks.d/x",
        "Team.gitconfig",
    )  # fmt: skip
    good = ("web/app.js", "status", "tools/other.py", ".husky/readme", "inner/a", ".husky/_x")
    members = [member(name, evil, mode=0o755) for name in (*bad, *good)]
    assert set(await lay_down(mine, *members, member(".husky/_/same", b"same"), member("web/x"))) == set(bad)
    assert {name for name in names(mine) if not name.startswith((".git/", "inner/.git/"))} == {
        *good, "web/x", ".husky/_/same"
    }  # fmt: skip
    git(mine, "status")
    assert not ran.exists()
    await unpack_to_host(stream(tar(member(bad[2], evil, mode=0o755))), mine, max_bytes=None, git_settings=True)
    git(mine, "status")
    assert ran.exists()


@pytest.mark.needs_git
async def test_what_settings_of_the_host_name_is_not_reached_by_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the settings are the user's own, and the folder is no repository yet."""
    (tmp_path / ".gitconfig").write_text("[core]\n\thooksPath = dev/hooks\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    host = tmp_path / "host"
    (host / "other").mkdir(parents=True)
    (host / "real").mkdir()
    (host / "dev").symlink_to("between")
    (host / "between").symlink_to("real")
    links = [link(name, "other") for name in ("dev", "between", "new")]
    left = await lay_down(host, *links, member("real/hooks/pre-commit", EVIL))
    assert left == ("dev", "between", "real/hooks/pre-commit")
    assert [(host / name).readlink() for name in ("dev", "between")] == [Path("between"), Path("real")]
    assert names(host) == {"dev", "between", "new"}


def test_names_of_the_folder_on_other_file_systems() -> None:
    assert all(
        map(is_git_folder, [".git", ".GiT", ".git ", ".git. .", "GIT~1", ".git::$INDEX_ALLOCATION", ".g\u200dit"])
    )
    assert not any(map(is_git_folder, [".gitignore", "git", ".github", "x.git", ".gitmodules"]))


def git(where: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(where), "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    done = subprocess.run(["git", *identity, *words], cwd=where, env=env, capture_output=True, text=True, check=True)
    return done.stdout
