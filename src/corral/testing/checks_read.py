"""Reading files, and what is known of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import PurePosixPath

from corral.errors import (
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxIsFolderError,
    SandboxNotFolderError,
    SandboxPermissionError,
)
from corral.testing.check import Context, check, equal, raises, repeat, true
from corral.testing.checks_output import OWN_LIMIT_BYTES, read_peak, start_peak


@check(promise="files.read", title="The whole content comes back byte for byte, 8 MB too")
async def content_comes_back(context: Context) -> None:
    box = await context.open()
    data = os.urandom(8 << 20)
    equal(await box.files.write("random.bin", data), len(data))
    equal(await box.files.read("random.bin") == data, True, "8 MiB come back the same")
    for content in (b"", b"\0", bytes(range(256)), b"\r\n\n\r"):
        await box.files.write("small.bin", content)
        equal(await box.files.read("small.bin"), content)
        equal(await box.files.read(PurePosixPath(box.spec.workdir) / "small.bin"), content)


@check(promise="files.read_text", title="Text is decoded as asked; what is not text says so")
async def text_is_decoded(context: Context) -> None:
    files = (await context.open()).files
    await files.write("text.txt", "grüße\n")
    equal(await files.read_text("text.txt"), "grüße\n")
    await files.write("latin.txt", "grüße".encode("latin-1"))
    await raises(UnicodeDecodeError, files.read_text("latin.txt"))
    equal(await files.read_text("latin.txt", encoding="latin-1"), "grüße")
    equal(await files.read_text("latin.txt", errors="replace"), "gr\ufffd\ufffde"[:3] + "\ufffde")
    await raises(SandboxFileTooLargeError, files.read_text("text.txt", max_bytes=3))


@check(promise="files.read", title="What is missing, a folder, or not to be read is a class of its own",
       raises=("files.read:SandboxFileNotFoundError", "files.read:SandboxIsFolderError",
               "files:SandboxPermissionError"))  # fmt: skip
async def unreadable_is_told_apart(context: Context) -> None:
    box = await context.open()
    files, home = box.files, box.spec.workdir
    await files.mkdir("folder")
    await files.write("shut.txt", "x")
    await files.chmod("shut.txt", 0)
    await files.symlink("dangling", "missing")
    for path in ("missing", "folder/missing", "no/such/folder/x", "dangling"):
        error = await raises(SandboxFileNotFoundError, files.read(path))
        true(isinstance(error, FileNotFoundError) and path in str(error), f"{error!r} names {path!r}")
        equal(error.path, f"{home}/{path}")
    await raises(SandboxIsFolderError, files.read("folder"))
    await raises(SandboxPermissionError, files.read("shut.txt"))
    await raises(SandboxNotFolderError, files.read("shut.txt/below"))
    await files.chmod("folder", 0)
    await raises(SandboxPermissionError, files.read("folder/x"))


@check(promise="4", title="More than max_bytes is an error, before it is in our memory",
       raises=("files.read:SandboxFileTooLargeError",))  # fmt: skip
async def too_large_is_refused(context: Context) -> None:
    files = (await context.open()).files
    await files.write("ten.txt", b"x" * 10)
    equal(len(await files.read("ten.txt", max_bytes=10)), 10)
    error = await raises(SandboxFileTooLargeError, files.read("ten.txt", max_bytes=9))
    true("9" in str(error) and error.hint, f"names the limit and the remedy: {error}")
    await files.write("empty.txt", b"")
    equal(await files.read("empty.txt", max_bytes=0), b"")


@check(promise="files.read_stream", title="A stream gives pieces no larger than asked for; leaving it early is fine",
       raises=("files.read_stream:SandboxFileNotFoundError",))  # fmt: skip
async def stream_gives_pieces(context: Context) -> None:
    files = (await context.open()).files
    await files.write("data.bin", bytes(range(100)))
    parts = [part async for part in files.read_stream("data.bin", chunk_bytes=30)]
    equal(b"".join(parts), bytes(range(100)))
    true(max(map(len, parts)) <= 30, "pieces are no larger than chunk_bytes")
    stream = files.read_stream("data.bin", chunk_bytes=1)
    equal(await anext(stream), b"\0")
    await stream.aclose()  # type: ignore[attr-defined]  # every one of ours is an async generator
    await raises(SandboxFileNotFoundError, anext(files.read_stream("missing")))
    await files.write("empty", b"")
    equal([part async for part in files.read_stream("empty")], [])


@check(promise="4", title="64 MB in and out as streams leave our own memory flat", needs=frozenset({"bounded"}))
async def streams_are_bounded(context: Context) -> None:
    files = (await context.open()).files
    before, piece = start_peak(), os.urandom(1 << 20)
    equal(await files.write("big.bin", repeat(piece, 64)), 64 << 20)
    digest, wanted = hashlib.sha256(), hashlib.sha256()
    for _ in range(64):
        wanted.update(piece)
    async for part in files.read_stream("big.bin"):
        digest.update(part)
    equal(digest.hexdigest(), wanted.hexdigest())
    grown = read_peak() - before
    true(grown < OWN_LIMIT_BYTES, f"our own memory grew by {grown >> 20} MiB")


@check(promise="files.stat", title="stat tells kind, size, mode, time, owner and a link's target",
       raises=("files.stat:SandboxFileNotFoundError",))  # fmt: skip
async def stat_tells_what_is_there(context: Context) -> None:
    box = await context.open()
    files, home = box.files, box.spec.workdir
    await files.write("file.txt", "12345", mode=0o640)
    await files.mkdir("folder", mode=0o750)
    await files.symlink("link", "file.txt")
    info = await files.stat("file.txt")
    equal((info.kind, info.size, info.mode, info.path, info.name), ("file", 5, 0o640, f"{home}/file.txt", "file.txt"))
    true(info.modified > 1e9, f"modified is seconds since 1970: {info.modified}")
    folder = await files.stat("folder")
    equal((folder.kind, folder.mode, folder.is_folder), ("folder", 0o750, True))
    equal((await files.stat("link")).kind, "file")
    link = await files.stat("link", follow=False)
    equal((link.kind, link.target), ("link", "file.txt"))
    await raises(SandboxFileNotFoundError, files.stat("missing"))


@check(promise="files.exists", title="exists is false for what is missing and for links that lead nowhere")
async def exists_follows_links(context: Context) -> None:
    files = (await context.open()).files
    await files.write("file.txt", "x")
    await files.symlink("good", "file.txt")
    await files.symlink("dangling", "missing")
    await files.symlink("loop", "loop")
    names = (".", "file.txt", "good", "dangling", "missing", "no/such", "file.txt/below", "loop")
    equal([await files.exists(name) for name in names], [True, True, True, False, False, False, False, False])


@check(promise="files.list", title="A folder's entries are sorted by name, with links not followed",
       raises=("files.list:SandboxFileNotFoundError", "files.list:SandboxNotFolderError"))  # fmt: skip
async def list_is_sorted(context: Context) -> None:
    box = await context.open()
    files, home = box.files, box.spec.workdir
    for name in ("b", "a", ".hidden", "Z", "ä"):
        await files.write(name, name)
    await files.mkdir("folder/inner")
    await files.symlink("link", "/etc")
    found = await files.list()
    equal([file.name for file in found], sorted(["b", "a", ".hidden", "Z", "ä", "folder", "link"]))
    equal({file.name: file.kind for file in found if file.kind != "file"}, {"folder": "folder", "link": "link"})
    equal([file.path for file in await files.list("folder")], [f"{home}/folder/inner"])
    equal(list(await files.list("folder/inner")), [])
    await raises(SandboxFileNotFoundError, files.list("missing"))
    await raises(SandboxNotFolderError, files.list("a"))
