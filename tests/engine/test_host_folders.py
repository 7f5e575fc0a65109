"""Folders of the host in a sandbox: which may be mounted, what it can do to them, and what `apply` brings back."""

import asyncio
import contextlib
import os
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from corral import AsyncSandbox, FolderChange, Mount, Resources, Spec
from corral.backends.embedded import EmbeddedBackend
from corral.engine.copies import make_copies
from corral.engine.errors import SetupError
from corral.engine.recipe import Overlaid
from corral.engine.state import DataFolder
from corral.engine.sweep import discard_dead
from corral.errors import ApplyConflictError, MountError, PolicyError, SandboxFileError, SpecError
from corral.inside.nolinks import open_file, opened
from support.user import OrdinaryUser

pytestmark = pytest.mark.needs_userns
OWNER = 12345
WRITING = ("copy", "overlay")
ROOT = os.geteuid() == 0


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def folder(public: Path) -> Path:
    """A project of a user of the host."""
    top = public / "project"
    (top / "src" / "deep").mkdir(parents=True)
    (top / "README").write_text("read me\n")
    (top / "src" / "main.py").write_text("print(1)\n")
    (top / "src" / "deep" / "data").write_bytes(bytes(300_000) + b"end")
    (top / "gone").write_text("x")
    (top / "old" / "inner").mkdir(parents=True)
    (top / "old" / "inner" / "file").write_text("x")
    (top / "link").symlink_to("README")
    (top / "outer").symlink_to("/etc/passwd")
    give_away(top)
    return top


def give_away(top: Path) -> None:
    for path in (top, *top.rglob("*")):
        if ROOT:
            os.lchown(path, OWNER, OWNER)


@pytest.fixture
async def backend(tmp_path: Path, folder: Path) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path / "data", host_folders=[f"{folder}:rw"])
    yield backend
    await backend.aclose()


def work(folder: Path, mode: str) -> Spec:
    return Spec(mounts=[Mount("/project", source=folder, mode=mode)], workdir="/project")  # type: ignore[arg-type]


def listing(folder: Path) -> dict[str, tuple[str, int, object]]:
    """Everything that a change of the folder would change."""
    found: dict[str, tuple[str, int, object]] = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (stat.filemode(info.st_mode), info.st_uid, content)
    return found


def brief(changes: tuple[FolderChange, ...]) -> list[str]:
    return [f"{each.kind} {each.file} {each.path}{' !' if each.conflict else ''}" for each in changes]


CHANGE = r"""
set -e
cat README > /dev/null
echo more >> README
echo new > src/new.py
mkdir -p made/empty && echo 1 > made/one
printf X | dd of=src/deep/data bs=1 seek=10 conv=notrunc status=none
touch -d @1 src/deep/data
rm gone && rm -r old && echo file > old
chmod 755 src/main.py
ln -s new.py src/alias && ln -sfn src link
"""
CHANGED = [
    "modified file README",
    "deleted file gone",
    "modified link link",
    "added folder made",
    "added folder made/empty",
    "added file made/one",
    "modified file old",
    "deleted folder old/inner",
    "deleted file old/inner/file",
    "added link src/alias",
    "modified file src/deep/data",
    "modified file src/main.py",
    "added file src/new.py",
]


@pytest.mark.parametrize("mode", WRITING)
async def test_what_was_changed_is_shown_and_then_applied(backend: EmbeddedBackend, folder: Path, mode: str) -> None:
    before = listing(folder)
    async with await backend.create(work(folder, mode)) as box:
        assert await box.diff() == ()
        await box.exec(CHANGE, check=True)
        assert brief(await box.diff("/project")) == CHANGED
        assert listing(folder) == before
        done = await box.apply()
        assert (brief(done.changes), done.left_out) == (CHANGED, ())
        assert await box.diff() == ()
        await box.exec("echo again >> README; rm made/one", check=True)
        assert brief(await box.diff()) == ["modified file README", "deleted file made/one"]
        await box.apply()
    after = listing(folder)
    assert (folder / "README").read_text() == "read me\nmore\nagain\n"
    assert after["src/main.py"] == ("-rwxr-xr-x", before["src/main.py"][1], b"print(1)\n")
    assert (folder / "src/deep/data").read_bytes() == bytes(10) + b"X" + bytes(300_000 - 11) + b"end"
    assert ((folder / "old").read_text(), (folder / "link").readlink()) == ("file\n", Path("src"))
    assert not (folder / "made/one").exists()
    assert {owner for _, owner, _ in after.values()} == {folder.stat().st_uid}


@pytest.mark.parametrize("mode", WRITING)
async def test_what_the_host_has_changed_meanwhile_is_not_replaced(
    backend: EmbeddedBackend, folder: Path, mode: str
) -> None:
    (folder / "both").write_text("begin\n")
    give_away(folder)
    async with await backend.create(work(folder, mode)) as box:
        await box.exec("echo box > README; echo box > both; rm gone; echo box > fine", check=True)
        (folder / "README").write_text("host\n")
        (folder / "both").write_text("host\n")
        (folder / "gone").write_text("host\n")
        (folder / "src/main.py").write_text("of the host alone\n")
        before = listing(folder)
        changes = await box.diff()
        assert {each.path for each in changes if each.conflict} == {"README", "both", "gone"}
        with pytest.raises(ApplyConflictError, match="README") as caught:
            await box.apply()
        assert caught.value.paths == ("README", "both", "gone")
        assert listing(folder) == before
        done = await box.apply(overwrite=True)
        assert done.left_out == ("gone",)  # what the host has changed is replaced if asked, but never deleted
    assert {name: (folder / name).read_text() for name in ("README", "both", "gone", "fine", "src/main.py")} == {
        "README": "box\n", "both": "box\n", "gone": "host\n", "fine": "box\n", "src/main.py": "of the host alone\n"
    }  # fmt: skip


async def test_a_copy_does_not_follow_the_host_and_an_overlay_does(backend: EmbeddedBackend, folder: Path) -> None:
    async with (
        await backend.create(work(folder, "copy")) as copy,
        await backend.create(work(folder, "overlay")) as overlay,
    ):
        (folder / "README").write_text("changed on the host\n")
        (folder / "later").write_text("later\n")
        assert (await copy.exec("cat README; ls later")).stdout == "read me\n"
        assert (await overlay.exec("cat README later")).stdout == "changed on the host\nlater\n"
        assert (await copy.diff(), await overlay.diff()) == ((), ())


async def test_a_file_that_the_host_adds_to_a_listed_folder_was_not_deleted(
    backend: EmbeddedBackend, folder: Path
) -> None:
    async with await backend.create(work(folder, "overlay")) as box:
        await box.exec("echo x > src/mine; ls src; find . > /dev/null", check=True)
        (folder / "src/later").write_text("of the host\n")
        assert brief(await box.diff()) == ["added file src/mine"]
        await box.apply(overwrite=True)
    assert (folder / "src/later").read_text() == "of the host\n"


@pytest.mark.parametrize("mode", WRITING)
async def test_links_lead_apply_nowhere(backend: EmbeddedBackend, folder: Path, public: Path, mode: str) -> None:
    """Links that were planted inside, and a folder of the host that becomes a link before its files are written."""
    outside = public / "outside"
    outside.mkdir()
    (outside / "main.py").write_text("outside\n")
    for path in (outside, outside / "main.py"):
        path.chmod(0o777)
    async with await backend.create(work(folder, mode)) as box:
        await box.exec(
            f"ln -s {outside} planted; ln -s ../outside up; ln -s src/../../outside round; ln -sfn {outside} link; "
            "rm -r old; ln -s ../outside old; echo evil > src/main.py; echo evil > src/more; ln -s src fine",
            check=True,
        )
        done = await box.apply()
        assert done.left_out == ("link", "old", "planted", "round", "up")
        assert (folder / "fine").readlink() == Path("src")
        assert (folder / "link").readlink() == Path("README")
        await box.exec("echo evil > src/main.py; echo evil > src/deep/more; rm src/more", check=True)
        (folder / "src").rename(folder / "was")
        (folder / "src").symlink_to(outside)
        with pytest.raises((ApplyConflictError, SandboxFileError)):
            await box.apply()
        with contextlib.suppress(SandboxFileError):
            await box.apply(overwrite=True)
    assert list(listing(outside)) == ["main.py"]
    assert (outside / "main.py").read_text() == "outside\n"


@pytest.mark.parametrize("mode", WRITING)
async def test_a_link_in_the_place_of_the_folder_is_not_followed(
    tmp_path: Path, folder: Path, public: Path, mode: str
) -> None:
    """Another sandbox that may write to the folder above can put it there."""
    above = public / "above"
    above.mkdir()
    folder.rename(above / "project")
    if ROOT:
        os.chown(above, OWNER, OWNER)
    outside = public / "outside"
    outside.mkdir()
    (outside / "precious").write_text("untouched\n")
    backend = EmbeddedBackend(tmp_path / "data", host_folders=[f"{above}:rw"])
    async with (
        await backend.create(work(above / "project", mode)) as box,
        await backend.create(Spec(mounts=[Mount("/above", source=above, mode="rw")])) as other,
    ):
        await box.exec("echo evil > evil", check=True)
        await other.exec(f"cd /above && mv project was && ln -s {outside} project", check=True)
        for overwrite in (False, True):
            with pytest.raises(MountError, match="link"):
                await box.apply(overwrite=overwrite)
        with pytest.raises(MountError, match="link"):
            await box.diff()
    assert (outside / "precious").read_text() == "untouched\n"
    assert list(listing(outside)) == ["precious"]
    await backend.aclose()


async def test_special_files_and_set_user_ids_are_not_brought_back(backend: EmbeddedBackend, folder: Path) -> None:
    async with await backend.create(work(folder, "overlay")) as box:
        await box.exec(
            "mkfifo fifo; rm gone; mkfifo gone; cp /bin/true suid; chmod 6777 suid; rm README; "
            "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"README\")'",
            check=True,
        )
        assert brief(await box.diff()) == ["added file suid"]
        await box.apply()
    assert stat.S_IMODE((folder / "suid").stat().st_mode) == 0o777
    assert (folder / "README").read_text() == "read me\n"
    assert (folder / "gone").is_file()


ODD = ["-rf", "two\nlines", "\x1b[31mred", "ümlaut", "a b", "%2e%2e", "..x", "x..", "con.", "*"]
MAKE_ODD = f"""
import os
for name in {ODD!r}:
    open(name, "w").write(name)
open(b"bad\\xff\\xfe", "w").write("bytes")
with open("sparse", "wb") as file:
    file.truncate(1 << 30); file.seek(1 << 29); file.write(b"middle")
os.link("src/main.py", "src/hard")
os.makedirs("deep"); os.chdir("deep")
for _ in range(15):
    os.mkdir("d" * 200); os.chdir("d" * 200)
open("bottom", "w").write("found")
"""


@pytest.mark.parametrize("mode", WRITING)
async def test_odd_names_and_deep_trees_come_back_as_they_are(
    backend: EmbeddedBackend, folder: Path, mode: str
) -> None:
    async with await backend.create(work(folder, mode)) as box:
        await box.run_code(MAKE_ODD, cwd="/project", check=True)
        done = await box.apply()
        assert done.left_out == ()
        assert await box.diff() == ()
    for name in ODD:
        assert (folder / name).read_text() == name
    assert (folder / os.fsdecode(b"bad\xff\xfe")).read_text() == "bytes"
    assert ((folder / "sparse").stat().st_size, (folder / "sparse").stat().st_blocks < 1024) == (1 << 30, True)
    assert (folder / "src/hard").read_text() == "print(1)\n"
    with opened(open_file(folder, ("deep", *["d" * 200] * 15, "bottom"), os.O_RDONLY)) as file:
        assert os.read(file, 10) == b"found"


async def test_what_git_would_run_is_left_out(backend: EmbeddedBackend, folder: Path) -> None:
    (folder / ".git/hooks").mkdir(parents=True)
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git/config").write_text("[core]\n\trepositoryformatversion = 0\n")
    give_away(folder)
    async with await backend.create(work(folder, "overlay")) as box:
        await box.exec(
            "echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; rm .git/config; mkdir .git/refs; "
            "echo 0 > .git/refs/tip; mkdir -p sub; echo y > sub/file",
            check=True,
        )
        done = await box.apply()
        assert done.left_out == (".git/config", ".git/hooks/pre-commit")
        assert (folder / ".git/refs/tip").exists()
        assert (folder / ".git/config").exists()
        assert (await box.apply(git_settings=True)).left_out == ()
    assert (folder / ".git/hooks/pre-commit").exists()
    assert not (folder / ".git/config").exists()


async def test_a_folder_that_is_left_out_is_not_said_to_be_applied(backend: EmbeddedBackend, folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    give_away(folder)
    async with await backend.create(work(folder, "copy")) as box:
        await box.exec("mkdir .git/hooks; echo x > .git/hooks/post-merge; echo y > new", check=True)
        done = await box.apply()
        assert [change.path for change in done.changes] == ["new"]
        assert done.left_out == (".git/hooks", ".git/hooks/post-merge")
    assert not (folder / ".git/hooks").exists()


@pytest.mark.parametrize("mode", WRITING)
async def test_changes_outlive_a_stop_another_process_and_a_fork(
    backend: EmbeddedBackend, folder: Path, mode: str
) -> None:
    box = await backend.create(work(folder, mode))
    await box.exec("echo changed > README", check=True)
    if mode == "copy":
        (folder / "src/main.py").write_text("later\n")
    fork = await box.fork()
    assert (await fork.exec("cat README src/main.py")).stdout == "changed\nprint(1)\n"
    await fork.exec("echo forked > fork; rm README", check=True)
    assert brief(await fork.diff()) == ["deleted file README", "added file fork"]
    await fork.aclose()
    await box.stop()
    await box.aclose()
    again = await backend.start(box.id)
    assert (await again.exec("stat -c %U . src/main.py; cat README")).stdout == "daytona\ndaytona\nchanged\n"
    assert brief(await again.diff()) == ["modified file README"]
    snapshot = await again.snapshot()
    await again.aclose()
    connected = await AsyncSandbox.connect(box.id, backend=backend)
    await connected.apply()
    await connected.kill()
    await connected.aclose()
    assert (folder / "README").read_text() == "changed\n"
    assert not (folder / "fork").exists()
    async with await backend.create(replace(work(folder, mode), snapshot=snapshot)) as other:
        assert (await other.exec("cat README")).stdout == "changed\n"
        assert await other.diff() == ()
    assert not list(backend.data_folder.glob("copies/.*"))


async def test_a_folder_larger_than_the_disk_is_not_copied(backend: EmbeddedBackend, folder: Path) -> None:
    small = replace(work(folder, "copy"), resources=Resources(disk_bytes=24 << 20))
    (folder / "large").write_bytes(os.urandom(30 << 20))
    give_away(folder)
    with pytest.raises(MountError, match="as many as the sandbox's disk holds"):
        await backend.create(small)
    assert not list(backend.data_folder.glob("copies/.*"))
    assert not list(backend.data_folder.glob("sandboxes/*"))


async def test_a_copy_follows_no_link_that_took_the_folders_place(tmp_path: Path, folder: Path) -> None:
    data = DataFolder(tmp_path / "data")
    data.prepare()
    (folder.parent / "way").symlink_to(folder)
    for path in (folder.parent / "way", folder.parent / "way" / "src"):
        tree = Overlaid("/project", (str(path),), writable=True, outside=True, copied=True)
        with pytest.raises(SetupError, match="can't be copied"):
            make_copies(data, [tree], sources={}, limit_bytes=1 << 30)
    assert not list(data.path.glob("copies/.*"))


async def test_a_cancelled_or_killed_copy_leaves_nothing(backend: EmbeddedBackend, folder: Path) -> None:
    for number in range(200):
        (folder / f"file-{number}").write_bytes(os.urandom(20_000))
    give_away(folder)
    for pause in (0.0, 0.02, 0.1):
        making = asyncio.ensure_future(backend.create(work(folder, "copy")))
        await asyncio.sleep(pause)
        making.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await making).aclose()
    assert not list(backend.data_folder.glob("copies/.*"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    draft = backend.data_folder / "copies" / f".new-{ended.pid}-00ff"
    (draft / "2").mkdir(parents=True)
    discard_dead(DataFolder(backend.data_folder))
    assert not draft.exists()


async def test_which_folder_is_meant(backend: EmbeddedBackend, folder: Path) -> None:
    two = [Mount("/a", source=folder, mode="copy"), Mount("/b", source=folder, mode="overlay")]
    async with await backend.create(Spec(mounts=two)) as box:
        with pytest.raises(SpecError, match="/a, /b"):
            await box.diff()
        await box.exec("echo a > /a/new; echo b > /b/other", check=True)
        assert brief(await box.diff("/a")) == ["added file new"]
        assert brief(await box.diff("/b")) == ["added file other"]
        with pytest.raises(MountError, match="at /c"):
            await box.apply("/c")
    async with await backend.create(Spec()) as box:
        with pytest.raises(MountError, match="in this sandbox"):
            await box.diff()


async def test_a_program_that_changes_its_tree_meanwhile_harms_nobody(
    backend: EmbeddedBackend, folder: Path, public: Path
) -> None:
    """What is applied is what was compared: a tree that never rests gives an old file, a new one, or an error."""
    (public / "victim").write_text("untouched\n")
    async with await backend.create(work(folder, "overlay")) as box:
        churn = await box.start(
            "while :; do rm -rf src; ln -s ../victim src; rm -f src; mkdir src; echo new > src/main.py; done"
        )
        for _ in range(10):
            with contextlib.suppress(SandboxFileError, ApplyConflictError):
                await box.apply(overwrite=True)
        await churn.kill()
    assert (public / "victim").read_text() == "untouched\n"
    assert sorted(path.name for path in public.iterdir()) == ["project", "victim"]


# What may be mounted at all.


async def test_only_folders_on_the_operators_list_are_mounted(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "project-2").mkdir()
    (folder / "way-out").symlink_to("/etc")
    for listed in ("", f"{folder}/src", f"{folder}-2"):
        backend = EmbeddedBackend(tmp_path / "data", host_folders=listed)
        for mode in ("ro", "rw", *WRITING):
            with pytest.raises(PolicyError, match="is not one that sandboxes may mount"):
                await backend.create(work(folder, mode))
        await backend.aclose()
    monkeypatch.setenv("CORRAL_HOST_FOLDERS", str(folder))
    backend = EmbeddedBackend(tmp_path / "data")
    for source in (folder / "way-out", folder / ".." / "project-2", Path("/etc"), Path("/")):
        with pytest.raises((PolicyError, MountError)):
            await backend.create(work(source, "ro"))
    with pytest.raises(PolicyError, match="for reading only"):
        await backend.create(work(folder, "rw"))
    with pytest.raises(MountError, match="No such file"):
        await backend.create(work(folder / "missing", "ro"))
    with pytest.raises(MountError, match="not a folder"):
        await backend.create(work(folder / "README", "ro"))
    async with await backend.create(Spec(mounts=[Mount("/in", source=folder / "src")])) as box:
        seen = await box.exec("cat /in/main.py; echo x > /in/new; rm /in/main.py; chmod 777 /in")
        assert seen.stdout == "print(1)\n"
        assert seen.stderr.count("Read-only file system") == 3
    await backend.aclose()


async def test_a_writable_folder_belongs_to_its_owner_inside_and_outside(
    backend: EmbeddedBackend, folder: Path
) -> None:
    async with await backend.create(work(folder, "rw")) as box:
        await box.exec("echo x > made; chmod 4755 made; mkdir dir; ln -s /etc/shadow stolen", check=True)
        assert (await box.exec("cat stolen")).exit_code != 0
        assert (await box.exec("mknod null c 1 3")).exit_code != 0
        with pytest.raises(MountError):
            await box.diff()
    assert (folder / "made").stat().st_uid == folder.stat().st_uid


@pytest.mark.needs_root
async def test_a_folder_of_root_is_read_or_overlaid_but_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "roots"
    folder.mkdir()
    (folder / "file").write_text("x")
    backend = EmbeddedBackend(tmp_path / "data", host_folders=[f"{folder}:rw"])
    with pytest.raises(MountError, match="belongs to root"):
        await backend.create(work(folder, "rw"))
    for mode in WRITING:
        async with await backend.create(work(folder, mode)) as box:
            await box.exec("echo y > file; cp /bin/true suid; chmod 4777 suid", check=True)
            assert (folder / "file").read_text() == "x"
            await box.apply()
        assert (folder / "file").read_text() == "y\n"
        assert stat.S_IMODE((folder / "suid").stat().st_mode) == 0o777
        (folder / "file").write_text("x")
        (folder / "suid").unlink()
    await backend.aclose()


@pytest.mark.needs_root
async def test_as_root_apply_has_the_rights_of_the_folders_owner(
    backend: EmbeddedBackend, folder: Path, tmp_path: Path
) -> None:
    """A part of the folder that its owner may not write is not written by root for it."""
    locked = folder / "locked"
    locked.mkdir()
    (locked / "file").write_text("of root\n")
    async with await backend.create(work(folder, "overlay")) as box:
        await box.exec("echo evil > locked/file; chown -R root locked", user="root", check=True)
        with pytest.raises(SandboxFileError, match="Permission denied"):
            await box.apply()
    assert (locked / "file").read_text() == "of root\n"
    private = tmp_path / "private"
    private.mkdir()
    os.chown(private, OWNER, OWNER)
    mine = EmbeddedBackend(tmp_path / "other", host_folders=[str(private)])
    async with await mine.create(work(private, "copy")) as box:
        await box.exec("echo x > file", check=True)
        with pytest.raises(MountError, match=f"user {OWNER}, can't enter it"):
            await box.apply()
    await mine.aclose()


ROOTLESS = """
import asyncio, sys
from pathlib import Path
from corral import AsyncSandbox, Mount
from corral.backends.embedded import EmbeddedBackend
async def main():
    home = Path(sys.argv[1])
    folder = home / "project"
    folder.mkdir()
    (folder / "file").write_text("one\\n")
    (folder / "gone").write_text("x")
    backend = EmbeddedBackend(home / "data", host_folders=[f"{folder}:rw", "/tmp", "~"])
    for mode in ("copy", "overlay"):
        mount = Mount("/project", source=folder, mode=mode)
        async with AsyncSandbox(backend=backend, mounts=[mount], workdir="/project") as box:
            await box.exec("echo two >> file; rm gone; mkdir d; echo x > d/new", check=True)
            print([f"{c.kind} {c.path}" for c in await box.diff()])
            await box.apply()
            print(await box.diff(), sorted(p.name for p in folder.rglob("*")), (folder / "file").read_text().split())
        (folder / "gone").write_text("x")
        (folder / "d/new").unlink()
        (folder / "d").rmdir()
        (folder / "file").write_text("one\\n")
    for refused in ("~", "/tmp", "/"):
        try:
            await AsyncSandbox(backend=backend, mounts=[Mount("/project", source=refused)])
        except Exception as error:
            print("refused:", type(error).__name__)
    await backend.aclose()
asyncio.run(main())
"""


def test_an_ordinary_user_has_copies_and_overlays(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(ROOTLESS, args=[str(ordinary_user.home)])
    assert done.returncode == 0, done.stderr
    changed = "['added d', 'added d/new', 'modified file', 'deleted gone']\n"
    assert done.stdout == 2 * f"{changed}() ['d', 'file', 'new'] ['one', 'two']\n" + (
        "refused: MountError\nrefused: MountError\nrefused: PolicyError\n"
    )
