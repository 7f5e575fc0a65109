"""Files and trees between the host and a sandbox, and as tar streams."""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import stat
import tarfile
from pathlib import Path

from corral.client.sandbox import AsyncSandbox
from corral.errors import SandboxFileError, SandboxFileNotFoundError, SandboxFileTooLargeError
from corral.testing.check import Context, check, equal, flat_memory, make_tar, pieces, raises, still_works, true


def plant_host_tree(root: Path) -> None:
    """Create a tree with modes, links, an empty folder and odd names."""
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "plain.txt").write_bytes(b"plain\r\n\xff")
    (root / "plain.txt").chmod(0o640)
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "sub" / "new\nline").write_text("odd")
    (root / "bad-\udcff").mkdir()
    (root / "sub" / "link").symlink_to("../plain.txt")
    (root / "dangling").symlink_to("nowhere")
    (root / "sub" / "empty").chmod(0o700)


def describe_host_tree(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Give every path with its kind, its mode and its content or target."""
    found = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder) / name
            info = path.lstat()
            kind = stat.S_IFMT(info.st_mode)
            content = (
                os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            )
            mode = 0 if path.is_symlink() else stat.S_IMODE(info.st_mode)
            found[os.path.relpath(path, root)] = (oct(kind), mode, content)
    return found


@check("files.upload", "A tree is uploaded and downloaded with modes, links, empty folders and odd names")
async def tree_makes_the_round_trip(context: Context, box: AsyncSandbox) -> None:
    source, back = context.scratch / "source", context.scratch / "back"
    source.mkdir()
    plant_host_tree(source)
    await box.files.upload(source, "project")
    equal((await box.exec(["./run.sh"], cwd="project")).stdout, "ran\n")
    equal((await box.files.stat("project/sub/empty")).mode, 0o700)
    equal((await box.files.stat("project/sub/link", follow=False)).target, "../plain.txt")
    await box.files.download("project", back)
    equal(describe_host_tree(back), describe_host_tree(source))


@check("files.upload", "One file is uploaded to a name, into a folder, or over another; its mode is kept",
       raises="FileNotFoundError")  # fmt: skip
async def single_files_are_copied(context: Context, box: AsyncSandbox) -> None:
    source = context.scratch / "tool.sh"
    source.write_text("#!/bin/sh\n")
    source.chmod(0o750)
    await box.files.upload(source, "new/name.sh")
    await box.files.upload(str(source), "folder/")
    await box.files.mkdir("there")
    await box.files.upload(source, "there")
    for path in ("new/name.sh", "folder/tool.sh", "there/tool.sh"):
        equal((await box.files.stat(path)).mode, 0o750, path)
    await raises(FileNotFoundError, box.files.upload(context.scratch / "missing", "x"))
    os.mkfifo(context.scratch / "fifo")
    await raises(SandboxFileError, box.files.upload(context.scratch / "fifo", "x"))


@check("files.download", "A file is downloaded to a name, a folder or over another; none is left partial",
       raises="SandboxFileNotFoundError SandboxFileTooLargeError FileExistsError")  # fmt: skip
async def single_files_come_out(context: Context, box: AsyncSandbox) -> None:
    await box.files.write("data.bin", bytes(range(256)), mode=0o600)
    await box.files.write("tree/file", b"x" * 2000)
    home = context.scratch / "home"
    await box.files.download("data.bin", home / "deep" / "copy.bin")
    await box.files.download("data.bin", home)
    await box.files.download("data.bin", home / "data.bin")
    equal((home / "deep" / "copy.bin").read_bytes(), bytes(range(256)))
    equal(stat.S_IMODE((home / "data.bin").stat().st_mode), 0o600)
    await raises(SandboxFileNotFoundError, box.files.download("missing", home / "missing"))
    await raises(SandboxFileTooLargeError, box.files.download("data.bin", home / "big", max_bytes=255))
    await raises(SandboxFileTooLargeError, box.files.download("tree", home / "bigtree", max_bytes=1000))
    await raises(FileExistsError, box.files.download("tree", home / "data.bin"))
    os.mkfifo(home / "fifo")
    await raises(FileExistsError, box.files.download("data.bin", home / "fifo"))
    names = sorted(path.name for path in home.iterdir() if path.name != "bigtree")
    equal(names, ["data.bin", "deep", "fifo"], "what is left on the host")


@check("files.download", "Links out of the folder are not downloaded, and no link is followed")
async def hostile_links_stay_inside(context: Context, box: AsyncSandbox) -> None:
    secret = context.scratch / "secret"
    secret.mkdir()
    (secret / "key").write_text("hush")
    links = {"abs": str(secret), "up": "../secret", "far": "../../../etc", "fine": "inner/file",
             "inner/out": str(secret / "key")}  # fmt: skip
    await box.files.write("tree/inner/file", "inside")
    for name, target in links.items():
        await box.files.symlink(f"tree/{name}", target)
    goal = context.scratch / "out"
    await box.files.download("tree", goal)
    links = {str(path.relative_to(goal)): str(path.readlink()) for path in goal.rglob("*") if path.is_symlink()}
    equal(links, {"fine": "inner/file"})
    equal((goal / "inner" / "file").read_text(), "inside")
    # A link of the host that is in the way is not followed either.
    (goal / "inner" / "file").unlink()
    (goal / "inner" / "file").symlink_to(secret / "key")
    await box.files.download("tree", goal)
    equal((secret / "key").read_text(), "hush")


@check("files.download", "setuid bits and devices never reach the host")
async def privileges_stay_inside(context: Context, box: AsyncSandbox) -> None:
    await box.files.write("tree/su", "x")
    await box.files.chmod("tree/su", 0o4755)
    await box.exec(["mkfifo", "tree/fifo"])
    await box.files.download("tree", context.scratch / "out")
    await box.files.download("tree/su", context.scratch / "single")
    equal(stat.S_IMODE((context.scratch / "out" / "su").stat().st_mode), 0o755)
    equal(stat.S_IMODE((context.scratch / "single").stat().st_mode), 0o755)
    true(not (context.scratch / "out" / "fifo").exists(), "a FIFO came out")


@check("files.pack", "pack gives a tar with relative names; unpack extracts one and counts its members",
       raises="SandboxFileNotFoundError")  # fmt: skip
async def archives_are_packed_and_unpacked(box: AsyncSandbox) -> None:
    await box.files.write("tree/a/file", "content", mode=0o600)
    await box.files.mkdir("tree/empty", mode=0o711)
    await box.files.symlink("tree/link", "a/file")
    data = b"".join([chunk async for chunk in box.files.pack("tree")])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = {posixpath.normpath(member.name): member for member in tar}
    equal(sorted(names), [".", "a", "a/file", "empty", "link"])
    equal((names["a/file"].mode, names["empty"].mode, names["link"].linkname), (0o600, 0o711, "a/file"))
    for content in (data, gzip.compress(data)):
        count = await box.files.unpack("copy", pieces(content))
        equal(count, 5)
        equal(await box.files.read("copy/link"), b"content")
        equal((await box.files.stat("copy/empty")).mode, 0o711)
        await box.files.remove("copy", recursive=True)
    await raises(SandboxFileNotFoundError, anext(box.files.pack("missing")))
    single = b"".join([chunk async for chunk in box.files.pack("tree/a/file")])
    with tarfile.open(fileobj=io.BytesIO(single)) as tar:
        equal(tar.getnames(), ["file"])


@check("files.unpack", "A broken archive, or a member outside of the folder, is refused", raises="SandboxFileError")
async def hostile_archives_are_refused(box: AsyncSandbox) -> None:
    await box.files.mkdir("target")
    whole = make_tar(("file", b"x" * 5000))
    for number, data in enumerate(
        (
            b"no archive at all" * 100,
            b"",
            whole[:2000],
            make_tar(("../escaped", b"x")),
            make_tar(("a/../../escaped", b"x")),
        )
    ):
        await raises(SandboxFileError, box.files.unpack("target", pieces(data)))
        true(not await box.files.exists("escaped"), f"archive {number} wrote outside of its folder")
    through = make_tar(("out", "/tmp"), ("out/escaped", b"x"))
    await raises(SandboxFileError, box.files.unpack("target", pieces(through)))
    true(not await box.files.exists("/tmp/escaped"), "a member went through a link")
    await still_works(box)


@check("4", "Copying a tree of 64 MB does not grow our own memory", needs="bounded")
async def large_tree_is_bounded(context: Context, box: AsyncSandbox) -> None:
    source = context.scratch / "large"
    source.mkdir()
    for number in range(4):
        with (source / f"{number}.bin").open("wb") as file:
            for _ in range(16):
                file.write(os.urandom(1 << 20))
    with flat_memory():
        await box.files.upload(source, "large")
        await box.files.download("large", context.scratch / "back")
    equal(describe_host_tree(context.scratch / "back") == describe_host_tree(source), True, "64 MiB come back the same")
