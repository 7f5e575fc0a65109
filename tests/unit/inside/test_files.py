"""Files, opened and searched without following links: by `openat2`, and by a walk where the kernel has none."""

import errno
import os
import signal
from pathlib import Path

import pytest

from corral.inside import files, nolinks, search
from corral.inside.refusal import RefusedError


@pytest.fixture(params=["openat2", "walk"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "walk":
        monkeypatch.setattr(nolinks, "_has_openat2", lambda: False)
    elif not nolinks._has_openat2():
        pytest.skip("this kernel has no openat2")


@pytest.fixture
def tree(tmp_path: Path) -> str:
    root = tmp_path.resolve()
    (root / "sub").mkdir()
    (root / "sub" / "file").write_bytes(b"one\ntwo\n")
    (root / "link").symlink_to("sub")
    (root / "alias").symlink_to("sub/file")
    return str(root)


def read(path: str, *, links: bool) -> bytes:
    descriptor = files.open_regular(path, links=links)
    try:
        return files.read_all(descriptor, limit=1000)
    finally:
        os.close(descriptor)


def write(path: str, *, links: bool) -> None:
    with files.replacing(path, links=links) as new:
        files.write_all(new.descriptor, b"x")


def names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def test_a_process_that_is_asked_to_end_finishes_its_file_first(tree: str) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with files.replacing(f"{tree}/new") as new:
                os.kill(os.getpid(), signal.SIGTERM)
                files.write_all(new.descriptor, b"whole")
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert names(tree) == ["alias", "link", "new", "sub"]
    assert Path(tree, "new").read_bytes() == b"whole"


def test_file_is_read_without_links(tree: str) -> None:
    assert read(f"{tree}/sub/file", links=False) == b"one\ntwo\n"
    assert read(f"{tree}/link/file", links=True) == b"one\ntwo\n"


@pytest.mark.parametrize("name", ["link/file", "alias"])
def test_link_in_any_part_is_refused(tree: str, name: str) -> None:
    path = f"{tree}/{name}"
    with pytest.raises(nolinks.LinkFoundError):
        read(path, links=False)
    with pytest.raises(nolinks.LinkFoundError):
        files.look(path, links=False)
    with pytest.raises(nolinks.LinkFoundError):
        write(path, links=False)
    with pytest.raises(nolinks.LinkFoundError):
        files.edit(path, b"one", b"x", links=False)
    with pytest.raises(nolinks.LinkFoundError):
        list(search.grep(path, "one", limit=1, outcome=search.Outcome(), links=False))
    assert read(f"{tree}/sub/file", links=True) == b"one\ntwo\n"


def test_search_below_a_link_follows_the_first_only(tree: str) -> None:
    Path(f"{tree}/sub/up").symlink_to("..")
    outcome = search.Outcome()
    found = [item["path"] for item in search.grep(f"{tree}/link", "two", limit=9, outcome=outcome)]
    assert (found, outcome.truncated, outcome.unreadable) == ([f"{tree}/link/file"], False, [])
    assert [item["kind"] for item in search.list_folder(f"{tree}/sub")] == ["file", "link"]


def test_failed_write_leaves_the_file_and_nothing_else(tree: str) -> None:
    def fail() -> None:
        with files.replacing(f"{tree}/sub/file") as new:
            files.write_all(new.descriptor, b"half")
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        fail()
    assert read(f"{tree}/sub/file", links=False) == b"one\ntwo\n"
    assert names(f"{tree}/sub") == ["file"]


def test_staged_file_may_be_made_anew_by_its_writer(tree: str) -> None:
    with files.staging(f"{tree}/alias") as place:
        Path(place).unlink()
        Path(place).write_bytes(b"new")
    assert read(f"{tree}/sub/file", links=False) == b"new"
    assert Path(f"{tree}/alias").is_symlink()
    assert names(f"{tree}/sub") == ["file"]


def test_path_may_be_longer_than_the_kernel_takes(tree: str) -> None:
    parts = ["x" * 200] * 40
    os.close(nolinks.open_folder(tree, parts, make=True))
    descriptor = nolinks.open_file(tree, parts, os.O_RDONLY | os.O_DIRECTORY)
    os.close(descriptor)
    files.remove(f"{tree}/{parts[0]}", recursive=True)
    assert parts[0] not in names(tree)


def test_root_can_not_be_written_as_a_file() -> None:
    for links in (True, False):
        with pytest.raises(RefusedError, match="is a folder") as refused:
            write("/", links=links)
        assert refused.value.errno == errno.EISDIR


def test_folder_is_made_with_those_above_it(tree: str) -> None:
    files.make_folder(f"{tree}/link/a/b/", parents=True, mode=0o2750)
    assert Path(f"{tree}/sub/a/b").stat().st_mode & 0o7777 == 0o2750
    assert Path(f"{tree}/sub/a").stat().st_mode & 0o7777 == 0o755
    files.make_folder(f"{tree}/link", parents=True, mode=0o711)  # follows the link: it is there already
    assert Path(f"{tree}/sub").stat().st_mode & 0o7777 == 0o711
    files.make_folder("/", parents=True)


@pytest.mark.parametrize("name", ["sub", "sub/file", "link", "nowhere", ""])
def test_folder_is_not_made_where_something_is(tree: str, name: str) -> None:
    Path(tree, "nowhere").symlink_to("missing")
    with pytest.raises(FileExistsError):
        files.make_folder(f"{tree}/{name}")
    if name in ("sub/file", "nowhere"):
        with pytest.raises(FileExistsError):
            files.make_folder(f"{tree}/{name}", parents=True)
        with pytest.raises((FileExistsError, NotADirectoryError)):
            files.make_folder(f"{tree}/{name}/below", parents=True)
    assert not Path(tree, "missing").exists()


def test_mode_of_a_new_folder_is_not_given_to_what_takes_its_place(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.mkdir

    def mkdir(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        make(name, mode, dir_fd=dir_fd)
        os.rmdir(name, dir_fd=dir_fd)
        os.symlink("sub", name, dir_fd=dir_fd)

    before = Path(f"{tree}/sub").stat().st_mode
    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(OSError, match=r"link|directory"):
        files.make_folder(f"{tree}/new", mode=0o700)
    assert Path(f"{tree}/sub").stat().st_mode == before
