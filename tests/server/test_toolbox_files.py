"""Files through the official SDK: looking, searching, changing."""

import pytest
from daytona import (
    AsyncDaytona,
    DaytonaBadRequestError,
    DaytonaConflictError,
    DaytonaNotFoundError,
    Sandbox,
)
from daytona.common.errors import DaytonaFileAccessDeniedError, DaytonaFileNotFoundError, DaytonaInvalidFilePathError


@pytest.fixture
def tree(sandbox: Sandbox) -> Sandbox:
    """A sandbox with a few files."""
    for path, content in {
        "tree/a.py": b"import os\nprint('needle')\n",
        "tree/b.txt": b"one needle\nand two\n",
        "tree/inner/c.py": b"nothing\n",
        "tree/inner/.hidden.py": b"needle\n",
        "tree/inner/binary.py": b"needle\0needle",
    }.items():
        sandbox.fs.upload_file(content, path)
    return sandbox


def test_a_folder_is_listed_with_modes_and_owners(tree: Sandbox) -> None:
    tree.fs.set_file_permissions("tree/a.py", mode="640")
    found = {info.name: info for info in tree.fs.list_files("tree")}
    assert sorted(found) == ["a.py", "b.txt", "inner"]
    file = found["a.py"]
    assert (file.is_dir, file.size, file.mode, file.permissions) == (False, 26, "-rw-r-----", "0640")
    assert (file.owner, file.group, file.path) == ("daytona", "daytona", "/home/daytona/tree/a.py")
    assert file.mod_time.startswith("20")
    assert found["inner"].is_dir
    assert found["inner"].mode.startswith("d")


def test_a_listing_goes_as_deep_as_it_is_asked_to(tree: Sandbox) -> None:
    tree.fs.upload_file(b"", "tree/inner/deep/er/x")
    two = [info.path for info in tree.fs.list_files("/home/daytona/tree", depth=2)]
    assert "/home/daytona/tree/inner/deep" in two
    assert "/home/daytona/tree/inner/deep/er" not in two
    assert "/home/daytona/tree/inner/deep/er/x" in [info.path for info in tree.fs.list_files("tree", depth=9)]


def test_one_file_is_described(tree: Sandbox) -> None:
    info = tree.fs.get_file_info("tree/b.txt")
    assert (info.name, info.size, info.is_dir) == ("b.txt", 19, False)
    with pytest.raises(DaytonaFileNotFoundError):
        tree.fs.get_file_info("tree/none")


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_a_path_that_can_be_none_is_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(DaytonaBadRequestError):
        sandbox.fs.get_file_info(path)


def test_a_path_that_climbs_stays_inside(sandbox: Sandbox) -> None:
    climbed = sandbox.fs.download_file("../../../../../../etc/hostname")
    assert climbed == sandbox.process.exec("cat /etc/hostname").result.encode()


def test_folders_are_made_with_those_above_and_their_mode(sandbox: Sandbox) -> None:
    sandbox.fs.create_folder("a/b/c", "700")
    assert sandbox.fs.get_file_info("a/b/c").permissions == "0700"
    sandbox.fs.create_folder("a/b/c", "755")  # there already: left as it is
    assert sandbox.fs.get_file_info("a/b/c").permissions == "0700"
    sandbox.fs.create_folder("/tmp", "755")
    sandbox.fs.upload_file(b"", "a/file")
    with pytest.raises((DaytonaBadRequestError, DaytonaConflictError)):
        sandbox.fs.create_folder("a/file", "755")
    with pytest.raises(DaytonaBadRequestError, match="mode"):
        sandbox.fs.create_folder("a/d", "rwx")


def test_a_folder_is_deleted_only_with_all_in_it(tree: Sandbox) -> None:
    with pytest.raises(DaytonaBadRequestError, match="recursive"):
        tree.fs.delete_file("tree")
    tree.fs.delete_file("tree/a.py")
    tree.fs.delete_file("tree", recursive=True)
    with pytest.raises(DaytonaNotFoundError):
        tree.fs.delete_file("tree")
    with pytest.raises(DaytonaInvalidFilePathError):
        tree.fs.delete_file("/", recursive=True)


def test_moving_overwrites_nothing(tree: Sandbox) -> None:
    tree.fs.move_files("tree/a.py", "tree/moved.py")
    assert tree.fs.download_file("tree/moved.py").startswith(b"import os")
    with pytest.raises(DaytonaConflictError):
        tree.fs.move_files("tree/moved.py", "tree/b.txt")
    with pytest.raises(DaytonaNotFoundError):
        tree.fs.move_files("tree/moved.py", "nowhere/moved.py")
    with pytest.raises(DaytonaNotFoundError):
        tree.fs.move_files("tree/a.py", "tree/x")
    with pytest.raises(DaytonaInvalidFilePathError):
        tree.fs.move_files("tree", "tree/inner/tree")


def test_lines_are_found_by_plain_text(tree: Sandbox) -> None:
    found = [(match.file, match.line, match.content) for match in tree.fs.find_files("/home/daytona/tree", "needle")]
    assert sorted(found) == [
        ("/home/daytona/tree/a.py", 2, "print('needle')"),
        ("/home/daytona/tree/b.txt", 1, "one needle"),
        ("/home/daytona/tree/inner/.hidden.py", 1, "needle"),
    ]
    assert [match.file for match in tree.fs.find_files("tree", "print('")] == ["tree/a.py"]
    assert tree.fs.find_files("tree", "n.edle") == []


def test_files_are_found_by_their_names(tree: Sandbox) -> None:
    assert sorted(tree.fs.search_files("tree", "*.py").files) == [
        "tree/a.py",
        "tree/inner/.hidden.py",
        "tree/inner/binary.py",
        "tree/inner/c.py",
    ]
    assert tree.fs.search_files("/home/daytona/tree", "b.*").files == ["/home/daytona/tree/b.txt"]
    with pytest.raises(DaytonaNotFoundError):
        tree.fs.search_files("nowhere", "*")


def test_text_is_replaced_file_by_file(tree: Sandbox) -> None:
    results = tree.fs.replace_in_files(["tree/a.py", "tree/inner/c.py", "tree/none"], "needle", "pin")
    assert [(result.file, result.success) for result in results] == [
        ("tree/a.py", True),
        ("tree/inner/c.py", True),
        ("tree/none", False),
    ]
    assert "not found" in results[2].error, "as everywhere where a file is missing"
    assert tree.fs.download_file("tree/a.py") == b"import os\nprint('pin')\n"
    assert tree.fs.download_file("tree/inner/c.py") == b"nothing\n"


def test_permissions_are_set_as_far_as_there_are_users(tree: Sandbox) -> None:
    tree.fs.set_file_permissions("tree/a.py", mode="0751", owner="daytona", group="daytona")
    assert tree.fs.get_file_info("tree/a.py").permissions == "0751"
    with pytest.raises(DaytonaBadRequestError):
        tree.fs.set_file_permissions("tree/a.py", mode="999")
    try:
        tree.fs.set_file_permissions("tree/b.txt", owner="root")
    except DaytonaFileAccessDeniedError:
        assert tree.fs.get_file_info("tree/b.txt").owner == "daytona"
    else:
        assert tree.fs.get_file_info("tree/b.txt").owner == "root"


def test_what_the_user_may_not_is_denied(sandbox: Sandbox) -> None:
    with pytest.raises(DaytonaFileAccessDeniedError):
        sandbox.fs.create_folder("/usr/mine", "755")


async def test_the_async_client_does_the_same(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        await box.fs.create_folder("d", "755")
        await box.fs.upload_file(b"text", "d/x")
        await box.fs.move_files("d/x", "d/y")
        assert [info.name for info in await box.fs.list_files("d")] == ["y"]
        assert (await box.fs.search_files("d", "y")).files == ["d/y"]
        assert (await box.fs.find_files("d", "tex"))[0].content == "text"
        assert (await box.fs.replace_in_files(["d/y"], "text", "word"))[0].success
        await box.fs.set_file_permissions("d/y", mode="600")
        assert (await box.fs.get_file_info("d/y")).permissions == "0600"
        await box.fs.delete_file("d", recursive=True)
        with pytest.raises(DaytonaFileNotFoundError):
            await box.fs.list_files("d")
    finally:
        await async_daytona.delete(box)
