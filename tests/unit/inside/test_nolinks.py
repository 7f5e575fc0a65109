"""The way to a file by descriptors: a link on it is found, wherever it is."""

import os
import resource
from pathlib import Path

import pytest

from corral.inside import nolinks
from corral.inside.nolinks import LinkFoundError, open_file, open_folder, split


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """With a file in a folder, and links to both."""
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "real/inner/file").write_text("content")
    (tmp_path / "to-folder").symlink_to("real")
    (tmp_path / "real/to-file").symlink_to("inner/file")
    (tmp_path / "real/to-nothing").symlink_to("missing")
    return tmp_path


def test_what_is_there_is_opened_through_folders_that_may_not_be_listed(top: Path) -> None:
    (top / "real/inner").chmod(0o311)
    descriptor = open_file(top, ["real", "inner", "file"], os.O_RDONLY)
    with os.fdopen(descriptor) as file:
        assert file.read() == "content"


def test_the_way_to_the_top_may_have_links(top: Path) -> None:
    os.close(open_file(top / "to-folder", ["inner", "file"], os.O_RDONLY))


@pytest.mark.parametrize("path", ["/to-folder/inner/file", "/real/to-file", "/real/to-nothing", "/real/to-nothing/x"])
@pytest.mark.parametrize("make", [False, True])
def test_a_link_is_found_and_nothing_is_made_behind_it(top: Path, path: str, *, make: bool) -> None:
    with pytest.raises(LinkFoundError):
        open_file(top, split(path), os.O_RDONLY)
    with pytest.raises(LinkFoundError):
        open_folder(top, [*split(path), "new"], make=make)
    assert sorted(entry.name for entry in top.rglob("*")) == [
        "file", "inner", "real", "to-file", "to-folder", "to-nothing",
    ]  # fmt: skip


def test_missing_folders_are_made_where_asked(top: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_folder(top, ["real", "new"])
    os.close(open_folder(top, ["real", "new", "er"], make=True))
    assert (top / "real/new/er").is_dir()
    with pytest.raises(NotADirectoryError):
        open_folder(top, ["real", "inner", "file"])


def test_want_of_descriptors_is_not_taken_for_a_kernel_without_the_call(top: Path) -> None:
    has = nolinks._has_openat2()
    nolinks._has_openat2.cache_clear()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            nolinks.open_path(str(top), os.O_RDONLY, magic=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert nolinks._has_openat2() == has, "asked again, not remembered"
