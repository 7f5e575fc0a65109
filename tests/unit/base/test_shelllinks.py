"""Files by shell: a link that is put there while a script runs leads nowhere. With each kind of shell, and busybox."""

import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from corral.base.shellfiles.files import ShellFiles
from corral.errors import SandboxFileError, SandboxLinkError
from corral.paths import FollowedPath
from support.localshell import local_shell

BUSYBOX = shutil.which("busybox")
APPLETS = "sh cat chmod find head ln mkdir mv readlink rm sha256sum stat tar".split()  # noqa: SIM905 - as one types them
KINDS = [
    "/bin/sh",
    pytest.param("bash", marks=pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")),
    pytest.param("busybox", marks=pytest.mark.needs_busybox),
]
SWAP = """#!/bin/sh
case "$*" in *{when}*)
  if [ ! -L {place} ] && [ ! -e {place}.aside ]; then mv {place} {place}.aside; ln -s {target} {place}; fi ;;
esac
exec {real} "$@"
"""
"""A program of the scripts that puts a link into the path before it does its own work."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which shell, and whose tools."""
    return str(request.param)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a secret in it, and what is harmless."""
    for place, text in (("private/key", "secret\n"), ("folder/key", "harmless\n"), ("folder/inner/key", "harmless\n")):
        (tmp_path / "work" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / place).write_text(text)
    (tmp_path / "programs").mkdir()
    return tmp_path / "work"


def open_files(work: Path, kind: str) -> ShellFiles:
    """The files of that folder."""
    programs = work.parent / "programs"
    if kind == "busybox":
        for applet in APPLETS:
            (programs / applet).symlink_to(str(BUSYBOX))
    words = {"busybox": ("busybox", "sh"), "bash": ("bash", "--posix")}.get(kind, (kind,))
    shell = local_shell(*words, programs=str(programs))
    return ShellFiles(shell, user="", workdir=str(work), sandbox_id="local", guard=lambda: None)


@dataclass(frozen=True)
class Race:
    """What is done to a path, which program swaps in the middle of it, at which of its calls, and what for what."""

    act: Callable[[ShellFiles, FollowedPath], Awaitable[object]]
    path: str
    program: str
    when: str
    place: str
    target: str


RACES = {
    "read of a file": Race(lambda files, path: files.read(path), "folder/key", "readlink", "-f", "folder/key", "key"),
    "read below a folder": Race(lambda files, path: files.read(path), "folder/key", "readlink", "-f", "folder", ""),
    "append": Race(
        lambda files, path: files.write(path, "x", append=True), "folder/key", "stat", "fd/4", "folder/key", "key"
    ),
    "write of a file": Race(
        lambda files, path: files.write(path, "x"), "folder/key", "stat", "fd/4", "folder/key", "key"
    ),
    "write, and a link to a folder": Race(
        lambda files, path: files.write(path, "x"), "folder/key", "mv", ".corral", "folder/key", ""
    ),
    "write below a folder": Race(
        lambda files, path: files.write(path, "x"), "folder/key", "stat", "fd/4", "folder", ""
    ),
    "write into a new folder": Race(
        lambda files, path: files.write(path, "x"), "folder/inner/a/b/new", "readlink", "cwd", "folder/inner", ""
    ),
    "edit": Race(
        lambda files, path: files.edit(path, "harmless", "x"), "folder/key", "sha256sum", "", "folder/key", "key"
    ),
    "grep": Race(lambda files, path: files.grep("secret", path=path), "folder", "tar", "-cf", "folder/inner", ""),
}


# Not busybox: its shell runs its own programs, whatever PATH says.
@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("name", RACES)
async def test_a_link_that_comes_in_the_middle_of_a_script_leads_nowhere(work: Path, kind: str, name: str) -> None:
    race = RACES[name]
    place, program = work / race.place, work.parent / "programs" / race.program
    target = work / "private" / race.target
    real = shutil.which(race.program)
    program.write_text(SWAP.format(when=race.when, place=place, target=target, real=real))
    program.chmod(0o755)
    try:
        answer = str(await race.act(open_files(work, kind), FollowedPath(work / race.path)))
    except SandboxFileError:
        answer = ""
    assert place.with_name(f"{place.name}.aside").exists(), "nothing was swapped"
    assert "secret" not in answer
    assert [entry.name for entry in (work / "private").iterdir()] == ["key"]
    assert (work / "private/key").read_text() == "secret\n"
    for folder, _, names in os.walk(work):
        for path in (Path(folder, each) for each in names):
            assert path.is_symlink() or folder.endswith("/private") or "secret" not in path.read_text(), path


async def test_a_link_that_is_there_already_is_named(work: Path, kind: str) -> None:
    files = open_files(work, kind)
    (work / "link").symlink_to(work / "folder")
    (work / "folder/other").symlink_to(work / "private/key")
    attempts: list[Callable[[FollowedPath], Awaitable[object]]] = [
        files.read,
        files.stat,
        lambda path: files.write(path, "x"),
        lambda path: files.edit(path, "secret", "x"),
        lambda path: files.grep("secret", path=path),
    ]
    for attempt in attempts:
        for path in ("link/key", "folder/other"):
            with pytest.raises(SandboxLinkError, match="became a symlink"):
                await attempt(FollowedPath(work / path))
    for look in (files.list, lambda path: files.glob("**", path=path), lambda path: files.grep("x", path=path)):
        for path in ("link", "link/inner"):
            with pytest.raises(SandboxLinkError):
                await look(FollowedPath(work / path))


async def test_without_links_names_are_the_same(work: Path, kind: str) -> None:
    files = open_files(work, kind)
    (work / "folder/.hidden").mkdir()
    (work / "folder/.hidden/key").write_text("harmless\n")
    (work / "folder/li").symlink_to("inner")
    (work / "folder/new\nline").write_text("harmless\n")
    folder = FollowedPath(work / "folder")
    for path in (folder, FollowedPath(work / "folder/key")):
        for hidden in (True, False):
            first, second = [await files.grep("harm", path=one, hidden=hidden) for one in (path, str(path))]
            assert first == second
            assert first.matches
    assert await files.glob("**", path=folder) == await files.glob("**", path=str(folder))
    assert await files.list(folder) == await files.list(str(folder))
    assert await files.stat(folder) == await files.stat(str(folder))
    for path in (work / "folder/key", work / "folder/in new/folders/key"):
        await files.write(FollowedPath(path), "one\n")
        await files.write(FollowedPath(path), "two\n", append=True)
        await files.edit(FollowedPath(path), "one", "1")
        assert path.read_text() == "1\ntwo\n"
        assert await files.read(FollowedPath(path)) == b"1\ntwo\n"
    assert [entry.name for entry in (work / "folder/in new/folders").iterdir()] == ["key"]
