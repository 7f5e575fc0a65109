"""The made-up system around /usr: nothing of the host's /etc or homes, the same description gives the same folder."""

import os
import stat
import threading
from pathlib import Path

import pytest

from corral.engine import base
from corral.engine.base import BaseDescription, HostFile, ToolFolder, build
from corral.engine.recipe import Overlaid


def skeleton_of(trees: tuple[Overlaid, ...]) -> Path:
    return Path(trees[0].lowers[0])


def test_root_is_made_up_and_usr_is_the_hosts(tmp_path: Path) -> None:
    trees = build(tmp_path, BaseDescription())
    assert [tree.target for tree in trees[:2]] == ["/", "/usr"]
    assert trees[0].writable
    assert skeleton_of(trees).parent == tmp_path / "base"
    assert trees[1].lowers == ("/usr",)


def test_usr_is_writable_only_where_files_belong_to_root_inside(tmp_path: Path) -> None:
    assert not build(tmp_path, BaseDescription())[1].writable
    if os.geteuid() == 0:
        assert build(tmp_path, BaseDescription(owned=True))[1].writable


def test_same_description_gives_the_same_folder_and_another_one_another(tmp_path: Path) -> None:
    first = build(tmp_path, BaseDescription())
    assert build(tmp_path, BaseDescription()) == first
    other = build(tmp_path, BaseDescription(commands={"hello": "/usr/bin/env"}))
    assert skeleton_of(other) != skeleton_of(first)
    assert sorted(entry.name for entry in (tmp_path / "base").iterdir()) == sorted(
        skeleton_of(trees).name for trees in (first, other)
    )


def test_etc_holds_nothing_of_the_host(tmp_path: Path) -> None:
    etc = skeleton_of(build(tmp_path, BaseDescription())) / "etc"
    assert not (etc / "shadow").exists()
    assert (etc / "hostname").read_text() == "corral\n"
    names = [line.split(":")[0] for line in (etc / "passwd").read_text().splitlines()]
    assert names == ["root", "daemon", "daytona", "nobody"]
    for file in etc.iterdir():
        assert file.is_symlink() or file.is_dir() or stat.S_ISREG(file.lstat().st_mode)


def test_alternatives_lead_into_usr_only(tmp_path: Path) -> None:
    folder = skeleton_of(build(tmp_path, BaseDescription())) / "etc/alternatives"
    for link in folder.iterdir():
        assert str(link.readlink()).startswith("/usr/")


def test_homes_are_there_and_empty(tmp_path: Path) -> None:
    root = skeleton_of(build(tmp_path, BaseDescription()))
    assert [entry.name for entry in (root / "home").iterdir()] == ["daytona"]
    for name in ("home/daytona", "workspace", "workspaces", "root", "tmp", "mnt", "srv", "var/tmp"):
        assert list((root / name).iterdir()) == []
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777


def test_commands_are_links_or_scripts(tmp_path: Path) -> None:
    commands = {"python3": "/usr/bin/python3", "pip": "#!/bin/sh\nexit 0\n"}
    folder = skeleton_of(build(tmp_path, BaseDescription(commands=commands))) / base.BIN.lstrip("/")
    assert (folder / "python3").readlink() == Path("/usr/bin/python3")
    assert (folder / "pip").read_text() == commands["pip"]
    assert os.access(folder / "pip", os.X_OK)


def test_modes_do_not_depend_on_our_umask(tmp_path: Path) -> None:
    base = BaseDescription(
        commands={"pip": "#!/bin/sh\n"}, tools=(ToolFolder("/srv/python", "/opt/corral/deep/python"),)
    )

    def modes(umask: int) -> dict[str, int]:
        before = os.umask(umask)
        try:
            root = skeleton_of(build(tmp_path / f"{umask:o}", base))
        finally:
            os.umask(before)
        found = {str(path.relative_to(root)): path.lstat().st_mode for path in (root, *root.rglob("*"))}
        return {name: stat.S_IMODE(mode) for name, mode in found.items() if not stat.S_ISLNK(mode)}

    usual = modes(0o022)
    assert (usual["etc/passwd"], usual["opt/corral/bin/pip"], usual["root"]) == (0o644, 0o755, 0o700)
    assert modes(0o077) == modes(0o002) == usual


def test_tools_are_shown_read_only_at_their_target(tmp_path: Path) -> None:
    trees = build(tmp_path, BaseDescription(tools=(ToolFolder("/srv/some/python", "/opt/corral/python"),)))
    assert trees[-1] == Overlaid("/opt/corral/python", ("/srv/some/python",))
    assert (skeleton_of(trees) / "opt/corral/python").is_dir()


def test_where_a_tool_lies_on_the_host_is_not_written_down_inside(tmp_path: Path) -> None:
    one = build(tmp_path, BaseDescription(tools=(ToolFolder("/srv/one", "/opt/corral/python"),)))
    two = build(tmp_path, BaseDescription(tools=(ToolFolder("/srv/two", "/opt/corral/python"),)))
    assert skeleton_of(one) == skeleton_of(two)


def test_many_threads_that_build_at_once_get_one_whole_folder(tmp_path: Path) -> None:
    results: list[tuple[Overlaid, ...]] = []
    threads = [threading.Thread(target=lambda: results.append(build(tmp_path, BaseDescription()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len(set(results)) == 1
    assert [entry.name for entry in (tmp_path / "base").iterdir()] == [skeleton_of(results[0]).name]
    assert (skeleton_of(results[0]) / "etc/mtab").is_symlink()


def test_failure_leaves_no_half_made_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        build(tmp_path, BaseDescription(commands={"x" * 300: "/usr/bin/env"}))
    assert list((tmp_path / "base").iterdir()) == []


def test_certificates_of_the_host_are_where_programs_look(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("certificates of the host\n")
    (tmp_path / "data").mkdir()
    etc = skeleton_of(build(tmp_path / "data", BaseDescription(certificates=HostFile(str(bundle), (1,))))) / "etc"
    assert (etc / "ssl/certs/ca-certificates.crt").read_bytes() == bundle.read_bytes()
    for name in ("ssl/cert.pem", "pki/tls/cert.pem", "pki/tls/certs/ca-bundle.crt"):
        assert (etc / name).readlink() == Path("/etc/ssl/certs/ca-certificates.crt")


def test_other_certificates_are_another_base(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("certificates of the host\n")
    (tmp_path / "data").mkdir()
    first, second = (
        build(tmp_path / "data", BaseDescription(certificates=HostFile(str(bundle), (mark,)))) for mark in (1, 2)
    )
    assert first != second
