"""What comes out of pip's sandbox: read, compared with what was asked for, unpacked. The wheels are made by hand."""

import base64
import hashlib
import importlib.metadata
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from corral.backends.embedded import unpacking, wheels
from corral.backends.embedded.unpacking import unpack_wheels
from corral.backends.embedded.wheels import check_wheels, read_wheel
from corral.errors import SpecError
from support.wheels import make_wheel


def add(wheel: Path, name: str, text: str | bytes = "", *, mode: int = 0) -> Path:
    """Add a file to a wheel."""
    with zipfile.ZipFile(wheel, "a") as file:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        file.writestr(entry, text)
    return wheel


def unpack(tmp_path: Path, *paths: Path) -> Path:
    folder = tmp_path / "tree"
    unpack_wheels([read_wheel(path) for path in paths], folder)
    return folder


def test_all_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    make_wheel(tmp_path, "one")
    make_wheel(tmp_path, "fast_part", "2.0")
    found = check_wheels(tmp_path, ["One", "fast.part>1", "absent; python_version < '3'"])
    assert sorted(map(str, found)) == ["fast-part 2.0", "one 1.0"]
    with pytest.raises(SpecError, match="no wheel was found for two"):
        check_wheels(tmp_path, ["two"])
    with pytest.raises(SpecError, match=r"one 1\.0 is not one>1"):
        check_wheels(tmp_path, ["one>1"])


def test_folder_may_hold_nothing_but_sound_wheels(tmp_path: Path) -> None:
    make_wheel(tmp_path, "one")
    make_wheel(tmp_path, "one", "2.0")
    with pytest.raises(SpecError, match="two wheels of one"):
        check_wheels(tmp_path, [])
    (tmp_path / "one-2.0-py3-none-any.whl").unlink()
    (tmp_path / "two-1.0-py3-none-any.whl").symlink_to("/etc/passwd")
    with pytest.raises(SpecError, match="is not a wheel"):
        check_wheels(tmp_path, [])


def test_wheel_of_another_machine_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path, "one").rename(tmp_path / "one-1.0-cp27-none-win32.whl")
    with pytest.raises(SpecError, match="not for this Python"):
        check_wheels(tmp_path, ["one"])


def test_crowd_of_wheels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "MAX_WHEELS", 2)
    for number in range(3):
        make_wheel(tmp_path, f"a{number}")
    with pytest.raises(SpecError, match="more than 2 wheels"):
        check_wheels(tmp_path, [])


KINDS = ["none", "bomb", "two", "twice", "dotted", "lie", "not-a-zip", "no-wheel", "other-name", "other-version"]


@pytest.mark.parametrize("kind", KINDS)
def test_wheel_that_can_not_be_read_is_a_typed_error(tmp_path: Path, kind: str) -> None:
    more = "\n" + "x" * (9 << 20) if kind in ("bomb", "lie") else ""
    wheel = make_wheel(tmp_path, "odd", more=more, metadata=kind != "none")
    text = "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n"
    with zipfile.ZipFile(wheel, "a") as file:
        if kind == "two":
            file.writestr("odd-2.0.dist-info/METADATA", text)
        elif kind == "dotted":  # pip takes it for the same, and the last one counts
            file.writestr("odd-1.0.dist-info/./METADATA", text)
        elif kind == "twice":
            with pytest.warns(UserWarning, match="Duplicate name"):
                file.writestr("odd-1.0.dist-info/METADATA", text)
    if kind == "not-a-zip":
        wheel.write_bytes(b"PK no")
    elif kind == "lie":  # the directory says that it is small
        data = wheel.read_bytes()
        with zipfile.ZipFile(wheel) as file:
            size = file.getinfo("odd-1.0.dist-info/METADATA").file_size
        wheel.write_bytes(data.replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little")))
    elif kind == "no-wheel":
        wheel = wheel.rename(tmp_path / "odd-1.0.tar.gz")
    elif kind == "other-name":
        wheel = wheel.rename(tmp_path / "oddly-1.0-py3-none-any.whl")
    elif kind == "other-version":
        wheel = wheel.rename(tmp_path / "odd-1.1-py3-none-any.whl")
    with pytest.raises(SpecError, match="odd"):
        read_wheel(wheel)


def test_archive_with_a_huge_directory_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_MAX_DIRECTORY_BYTES", 100)
    with pytest.raises(SpecError, match="too many files"):
        read_wheel(make_wheel(tmp_path, "odd"))


def test_files_go_where_pip_puts_them(tmp_path: Path) -> None:
    """Compared with pip itself, but for the texts of programs and pip's own notes."""
    wheel = make_wheel(tmp_path, "one", program="tell")
    for name in ("purelib/pure.py", "platlib/deep/plat.py", "data/share/one/data.txt"):
        add(wheel, f"one-1.0.data/{name}", name)
    add(wheel, "one-1.0.data/scripts/run-me", "#!python\nimport one; print(one.version)\n")
    add(wheel, "lib/tool", "#!/bin/sh\n", mode=0o100755)
    ours = unpack(tmp_path, wheel)
    theirs = tmp_path / "theirs"
    argv = f"-m pip install -q --no-index --no-deps --no-compile --target {theirs} {wheel}".split()
    subprocess.run([sys.executable, *argv], check=True, capture_output=True)

    def list_files(folder: Path) -> set[str]:
        notes = ("INSTALLER", "REQUESTED", "direct_url.json")
        return {
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name not in notes
        }

    assert list_files(ours) == list_files(theirs)
    for name in ("lib/tool", "bin/tell", "one.py"):
        ran = (ours / name).stat().st_mode & stat.S_IXUSR
        assert ran == (theirs / name).stat().st_mode & stat.S_IXUSR, name
    code = "import importlib.metadata, one; print(importlib.metadata.version('one'), one.version)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ours)}, capture_output=True, text=True)
    assert done.stdout == "1.0 1.0\n", done.stderr
    done = subprocess.run(
        [sys.executable, ours / "bin/tell"], env={"PYTHONPATH": str(ours)}, capture_output=True, text=True
    )
    assert done.stdout == "1.0\n", done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/tmp/x",
        "a/../../x",
        "a//x",
        "./x",
        "a\\..\\x",
        "one-1.0.data/scripts/../../../x",
        "one-1.0.data/data/../../x",
    ],
)
def test_file_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="odd path"):
        unpack(tmp_path, add(make_wheel(tmp_path, "one"), name))
    assert not (tmp_path / "x").exists()


def test_link_in_an_archive_becomes_a_file(tmp_path: Path) -> None:
    wheel = add(make_wheel(tmp_path, "one"), "link", "/etc/passwd", mode=stat.S_IFLNK | 0o777)
    tree = unpack(tmp_path, wheel)
    assert not (tree / "link").is_symlink()
    assert (tree / "link").read_text() == "/etc/passwd"


def test_file_in_the_place_of_a_folder_is_a_typed_error(tmp_path: Path) -> None:
    first = add(make_wheel(tmp_path, "one"), "both/inner.py")
    second = add(make_wheel(tmp_path, "two"), "both")
    with pytest.raises(SpecError, match=r"two 1\.0 can't be unpacked"):
        unpack(tmp_path, first, second)


@pytest.mark.parametrize("name", ["/tmp/x", "../../x", "a b", ""])
def test_program_that_would_be_written_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    wheel = make_wheel(tmp_path, "odd")
    text = f"[types]\ntext/plain = a:b\n[console_scripts]\nfine = odd:main\n{name} = odd:main\n"
    with pytest.raises(SpecError, match="odd 1"):
        unpack(tmp_path, add(wheel, "odd-1.0.dist-info/entry_points.txt", text))


@pytest.mark.parametrize("function", ["os; evil()", "a:b;c", "a:b\n  import evil", "a.b", "__import__('os').x:y"])
def test_program_calls_a_function_and_nothing_else(tmp_path: Path, function: str) -> None:
    wheel = add(make_wheel(tmp_path, "odd"), "odd-1.0.dist-info/entry_points.txt", f"[gui_scripts]\nx = {function}\n")
    with pytest.raises(SpecError, match="odd name or function"):
        unpack(tmp_path, wheel)


def test_other_entry_points_are_taken(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "even")
    text = "[console_scripts]\n# a/b\nEven-3.11 = even:Main.run [extra]\n[types]\ntext/plain = even:show\n"
    tree = unpack(tmp_path, add(wheel, "even-1.0.dist-info/entry_points.txt", text))
    assert "from even import Main\n" in (tree / "bin/Even-3.11").read_text()
    assert "Main.run()" in (tree / "bin/Even-3.11").read_text()
    found = importlib.metadata.distributions(path=[str(tree)])
    assert {point.name for each in found for point in each.entry_points} == {"Even-3.11", "text/plain"}


def test_file_is_what_its_record_says(tmp_path: Path) -> None:
    def make(content: bytes, recorded: bytes) -> Path:
        digest = base64.urlsafe_b64encode(hashlib.sha256(recorded).digest()).rstrip(b"=").decode()
        path = tmp_path / f"{content.decode()}/one-1.0-py3-none-any.whl"
        path.parent.mkdir()
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("one.py", content)
            file.writestr("one-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n")
            file.writestr("one-1.0.dist-info/RECORD", f"one.py,sha256={digest},{len(content)}\n")
        return path

    assert (unpack(tmp_path / "a", make(b"good", b"good")) / "one.py").read_bytes() == b"good"
    with pytest.raises(SpecError, match=r"one\.py is not the file that its RECORD lists"):
        unpack(tmp_path / "b", make(b"evil", b"good"))


def test_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = add(make_wheel(tmp_path, "one"), "zeros", bytes(5 << 20))
    monkeypatch.setattr(unpacking, "_MAX_BYTES", 4 << 20)
    with pytest.raises(SpecError, match="too large"):
        unpack(tmp_path, wheel)
    assert sum(path.stat().st_size for path in (tmp_path / "tree").rglob("*")) <= 5 << 20
    monkeypatch.setattr(unpacking, "_MAX_FILES", 3)
    with pytest.raises(SpecError, match="too many files"):
        unpack(tmp_path / "again", wheel)
