"""Files by shell, with the shell of this machine: the whole of `ShellFiles`, and the tar streams under it."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from corral.base.shellfiles.answers import make_error
from corral.base.shellfiles.files import ShellFiles
from corral.base.shellfiles.search import find_unreadable
from corral.base.shellfiles.tarstream import Checked, read_members
from corral.errors import (
    CapabilityError,
    EditConflictError,
    SandboxFileError,
    SandboxFileExistsError,
    SandboxFileKindError,
    SandboxFileNotFoundError,
    SandboxIsFolderError,
    SandboxNoSpaceError,
    SandboxNotFolderError,
)
from corral.inside.tars.reading import BrokenArchiveError
from support.localshell import local_shell

ODD_NAMES = ("new\nline", "ends\n", "-dash", "quo'te\"", " ", "$(id)", "*", "inv\udcff", "n" * 255)


@pytest.fixture
def files(tmp_path: Path) -> ShellFiles:
    """Of a folder of this machine."""
    return ShellFiles(local_shell(), user="", workdir=str(tmp_path), sandbox_id="local", guard=lambda: None)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_odd_names_and_bytes_make_the_round_trip(files: ShellFiles, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        assert await files.write(f"odd/{name}", f"of {name}") == len(os.fsencode(f"of {name}"))
        await files.edit(f"odd/{name}", "of", "from")
        assert await files.read(f"odd/{name}") == os.fsencode(f"from {name}")
        assert (await files.stat(f"odd/{name}")).name == name
    assert [info.name for info in await files.list("odd")] == sorted(ODD_NAMES)
    assert sorted(path.name for path in (tmp_path / "odd").iterdir()) == sorted(ODD_NAMES)
    found = await files.grep("from", fixed=True)
    assert sorted({match.path.rpartition("odd/")[2] for match in found.matches}) == sorted(ODD_NAMES)


async def test_a_long_stream_is_whole_or_nothing(files: ShellFiles, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (1 << 20)
        raise ZeroDivisionError("of the caller's own")

    assert await files.write("big", pieces(*[b"y" * (1 << 20)] * 3)) == 3 << 20
    with pytest.raises(ZeroDivisionError):
        await files.write("big", broken())
    assert (tmp_path / "big").read_bytes() == b"y" * (3 << 20)
    assert [path.name for path in tmp_path.iterdir()] == ["big"]


async def test_a_reply_without_a_size_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    lying = tmp_path / "shell"
    lying.write_text("#!/bin/sh\nhead -c 1000000 /dev/zero\n")
    lying.chmod(0o755)
    files = ShellFiles(local_shell(str(lying)), user="", workdir="/", sandbox_id="local", guard=lambda: None)
    with pytest.raises(SandboxFileError, match="malformed"):
        await files.read("file")


async def test_a_write_keeps_the_mode_and_follows_links(files: ShellFiles, tmp_path: Path) -> None:
    await files.write("real", "old", mode=0o750)
    await files.symlink("link", "real")
    await files.write("link", "new")
    await files.write("link", b"er", append=True)
    assert (tmp_path / "real").read_text() == "newer"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o750
    assert (await files.stat("link", follow=False)).target == "real"


async def test_an_edit_that_was_overtaken_is_a_conflict(files: ShellFiles) -> None:
    await files.write("file", "one two")
    result = await files.edit("file", "one", "1")
    await files.write("file", "one two three")
    with pytest.raises(EditConflictError):
        await files.edit("file", "two", "2", expected_sha256=result.sha256)
    assert await files.read("file") == b"one two three"


REFUSALS: dict[str, tuple[Callable[[ShellFiles], Awaitable[object]], type[Exception]]] = {
    "read('missing')": (lambda files: files.read("missing"), SandboxFileNotFoundError),
    "read('folder')": (lambda files: files.read("folder"), SandboxIsFolderError),
    "read('/dev/null')": (lambda files: files.read("/dev/null"), SandboxFileKindError),
    "read('/proc/self/status')": (lambda files: files.read("/proc/self/status"), SandboxFileKindError),
    "list('file')": (lambda files: files.list("file"), SandboxNotFolderError),
    "write('folder', 'x')": (lambda files: files.write("folder", "x"), SandboxIsFolderError),
    "write('file', 'x', exclusive=True)": (
        lambda files: files.write("file", "x", exclusive=True),
        SandboxFileExistsError,
    ),
    "write('a/b', 'x', parents=False)": (
        lambda files: files.write("a/b", "x", parents=False),
        SandboxFileNotFoundError,
    ),
    "remove('folder')": (lambda files: files.remove("folder"), SandboxFileExistsError),
    "remove('/', recursive=True)": (lambda files: files.remove("/", recursive=True), SandboxFileError),
    "move('missing', 'x')": (lambda files: files.move("missing", "x"), SandboxFileNotFoundError),
    "move('file', 'folder')": (lambda files: files.move("file", "folder"), SandboxIsFolderError),
    "mkdir('folder', parents=False)": (lambda files: files.mkdir("folder", parents=False), SandboxFileExistsError),
    "symlink('file', 'x')": (lambda files: files.symlink("file", "x"), SandboxFileExistsError),
    "stat('n' * 300)": (lambda files: files.stat("n" * 300), SandboxFileError),
    "grep('(')": (lambda files: files.grep("("), SandboxFileError),
    "anext(watch())": (lambda files: anext(files.watch()), CapabilityError),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_refusals_have_their_class(files: ShellFiles, name: str) -> None:
    call, kind = REFUSALS[name]
    await files.write("file", "x")
    await files.write("folder/inner", "x")
    with pytest.raises(kind):
        await call(files)


async def test_patterns_like_options_and_quotes_are_ordinary(files: ShellFiles) -> None:
    await files.write("-v", "don't --flag -v\n")
    for pattern in ("don't", "-v", "--flag"):
        assert [match.line for match in (await files.grep(pattern, fixed=True)).matches] == [1], pattern
    result = await files.replace("don't", "do", include="-*")
    assert (result.total, await files.read("-v")) == (1, b"do --flag -v\n")


async def test_globs_cross_folders_only_where_asked(files: ShellFiles, tmp_path: Path) -> None:
    for path in ("a.py", "sub/b.py", "sub/deep/c.py", ".hidden/d.py"):
        await files.write(path, "x")

    async def find(pattern: str, *, hidden: bool = True) -> list[str]:
        found = await files.glob(pattern, hidden=hidden)
        return [path.removeprefix(f"{tmp_path}/") for path in found.paths]

    assert await find("*.py") == ["a.py"]
    assert await find("**/*.py") == [".hidden/d.py", "a.py", "sub/b.py", "sub/deep/c.py"]
    assert await find("**/*.py", hidden=False) == ["a.py", "sub/b.py", "sub/deep/c.py"]
    assert (await files.glob("**", limit=2)).truncated


def make_tar(*members: tuple[str, bytes | str], form: int = tarfile.PAX_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return sink.getvalue()


LONG = "folder/" * 40 + "ü" * 60
PLAIN = make_tar(("short", b"1"), (LONG, b"x" * 1000), ("link", "short"))


@pytest.mark.parametrize(
    "squeeze", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["plain", "gzip", "bzip2", "xz"]
)
async def test_archives_are_laid_down(files: ShellFiles, squeeze: object) -> None:
    data = squeeze(PLAIN)  # type: ignore[operator]
    count = await files.unpack("out", pieces(*(data[at : at + 100] for at in range(0, len(data), 100))))
    assert count == 3
    assert await files.read(f"out/{LONG}") == b"x" * 1000
    assert await files.read("out/link") == b"1"
    packed = b"".join([piece async for piece in files.pack("out")])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert f"./{LONG}" in tar.getnames()


@pytest.mark.parametrize(
    "data",
    ids=["empty", "garbage", "cut", "cut gzip", "climbs", "climbs later", "through a link"],
    argvalues=[
        b"",
        b"no archive" * 200,
        PLAIN[:2500],
        gzip.compress(PLAIN)[:-20],
        make_tar(("../out", b"x")),
        make_tar(("a/../../out", b"x")),
        make_tar(("out", "/tmp"), ("out/escaped", b"x")),
    ],
)
async def test_hostile_archives_are_refused(files: ShellFiles, data: bytes, tmp_path: Path) -> None:
    with pytest.raises(SandboxFileError):
        await files.unpack("target", pieces(data))
    assert not (tmp_path / "out").exists()
    assert not Path("/tmp/escaped").exists()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
async def test_a_tar_is_read_to_its_end_whatever_the_pieces(form: int) -> None:
    whole = make_tar(("short", b"1"), (LONG, b"x" * 1000), ("link", "short"), form=form)
    for size in (1, 7, 511, 513, 100_000):
        parts = pieces(*(whole[at : at + size] for at in range(0, len(whole), size)))
        names = [(member.about.name, await member.read()) async for member in read_members(parts)]
        assert names == [("short", b"1"), (LONG, b"x" * 1000), ("link", b"")]
    with pytest.raises(BrokenArchiveError):
        _ = [member async for member in read_members(pieces(PLAIN[:600]))]


async def test_what_is_laid_down_is_plain() -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo(f"member-{kind.decode()}")
            info.type, info.uid, info.uname = kind, 4711, "somebody"
            tar.addfile(info)
    checked = Checked(pieces(sink.getvalue()), path="/x")
    data = b"".join([piece async for piece in checked])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [(info.name, info.uid, info.uname) for info in tar] == [("member-5", 0, "")]
    assert checked.count == 1


@pytest.mark.parametrize(
    ("said", "kind"),
    ids=["a tool's word", "the last word", "our own word", "nonsense"],
    argvalues=[
        (b"cat: x: No such file or directory\n", SandboxFileNotFoundError),
        (b"mv: cannot create regular file 'x: Permission denied': No space left on device\n", SandboxNoSpaceError),
        (b"tool: x: Is a directory\ncorral:EEXIST\n", SandboxFileExistsError),
        (b"an unknown answer\n", SandboxFileError),
    ],
)
def test_what_tools_say_becomes_an_error(said: bytes, kind: type[SandboxFileError]) -> None:
    error = make_error(91, said, path="/x", op="read", sandbox_id="s")
    assert type(error) is kind
    assert (error.path, error.sandbox_id, error.op) == ("/x", "s", "read")


def test_complaints_of_find_name_the_path_as_it_is() -> None:
    said = "find: ‘/w/./a: b’: Permission denied\nfind: '/w/c': Permission denied\nfind: /w/./d: Permission denied\n"
    told = find_unreadable(said.encode(), "/w")
    assert told == ("/w/a: b: Permission denied", "/w/c: Permission denied", "/w/d: Permission denied")
