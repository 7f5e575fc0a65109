"""The content of files: reading, writing whole or not at all, and edits by compare-and-swap."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import PurePosixPath

from corral.base.files import AsyncFiles
from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    EditConflictError,
    EditError,
    SandboxFileExistsError,
    SandboxFileKindError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxIsFolderError,
    SandboxNoSpaceError,
    SandboxNotFolderError,
    SandboxPermissionError,
)
from corral.spec import Resources
from corral.testing.check import Context, broken, check, equal, flat_memory, pieces, raises, repeat, true, write_tree


@check("files.read", "The whole content is read back byte for byte, up to 8 MB")
async def content_comes_back(box: AsyncSandbox) -> None:
    data = os.urandom(8 << 20)
    equal(await box.files.write("random.bin", data), len(data))
    equal(await box.files.read("random.bin") == data, True, "8 MiB come back the same")
    for content in (b"", b"\0", bytes(range(256)), b"\r\n\n\r"):
        await box.files.write("small.bin", content)
        equal(await box.files.read("small.bin"), content)
        equal(await box.files.read(PurePosixPath(box.spec.workdir) / "small.bin"), content)


@check("files.read_text", "Text is decoded as requested; other bytes raise UnicodeDecodeError")
async def text_is_decoded(files: AsyncFiles) -> None:
    await files.write("text.txt", "grüße\n")
    equal(await files.read_text("text.txt"), "grüße\n")
    await files.write("latin.txt", "grüße".encode("latin-1"))
    await raises(UnicodeDecodeError, files.read_text("latin.txt"))
    equal(await files.read_text("latin.txt", encoding="latin-1"), "grüße")
    equal(await files.read_text("latin.txt", errors="replace"), "gr\ufffd\ufffde"[:3] + "\ufffde")
    await raises(SandboxFileTooLargeError, files.read_text("text.txt", max_bytes=3))


@check("files.read", "Missing files, folders and unreadable files raise different classes",
       raises="SandboxFileNotFoundError SandboxIsFolderError files:SandboxPermissionError")  # fmt: skip
async def unreadable_is_told_apart(files: AsyncFiles, home: str) -> None:
    await write_tree(files, {"shut.txt": "x"}, links={"dangling": "missing"}, folders=["folder"])
    await files.chmod("shut.txt", 0)
    for path in ("missing", "folder/missing", "no/such/folder/x", "dangling"):
        error = await raises(SandboxFileNotFoundError, files.read(path))
        true(isinstance(error, FileNotFoundError) and path in str(error), f"{error!r} names {path!r}")
        equal(error.path, f"{home}/{path}")
    await raises(SandboxIsFolderError, files.read("folder"))
    await raises(SandboxPermissionError, files.read("shut.txt"))
    await raises(SandboxNotFolderError, files.read("shut.txt/below"))
    await files.chmod("folder", 0)
    await raises(SandboxPermissionError, files.read("folder/x"))


@check("4", "More than max_bytes is an error, and is not read into memory",
       raises="files.read:SandboxFileTooLargeError")  # fmt: skip
async def too_large_is_refused(files: AsyncFiles) -> None:
    await files.write("ten.txt", b"x" * 10)
    equal(len(await files.read("ten.txt", max_bytes=10)), 10)
    error = await raises(SandboxFileTooLargeError, files.read("ten.txt", max_bytes=9))
    true("9" in str(error) and error.hint, f"names the limit and the remedy: {error}")
    await files.write("empty.txt", b"")
    equal(await files.read("empty.txt", max_bytes=0), b"")


@check("files.read_stream", "A stream gives pieces of at most chunk_bytes; it may be closed early",
       raises="SandboxFileNotFoundError")  # fmt: skip
async def stream_gives_pieces(files: AsyncFiles) -> None:
    await files.write("data.bin", bytes(range(100)))
    parts = [part async for part in files.read_stream("data.bin", chunk_bytes=30)]
    equal(b"".join(parts), bytes(range(100)))
    true(max(map(len, parts)) <= 30, "pieces are no larger than chunk_bytes")
    stream = files.read_stream("data.bin", chunk_bytes=1)
    equal(await anext(stream), b"\0")
    await stream.aclose()
    await raises(SandboxFileNotFoundError, anext(files.read_stream("missing")))
    await files.write("empty", b"")
    equal([part async for part in files.read_stream("empty")], [])


@check("4", "Streaming 64 MB in and out does not grow our own memory", needs="bounded")
async def streams_are_bounded(files: AsyncFiles) -> None:
    piece = os.urandom(1 << 20)
    digest, wanted = hashlib.sha256(), hashlib.sha256()
    for _ in range(64):
        wanted.update(piece)
    with flat_memory():
        equal(await files.write("big.bin", repeat(piece, 64)), 64 << 20)
        async for part in files.read_stream("big.bin"):
            digest.update(part)
    equal(digest.hexdigest(), wanted.hexdigest())


@check("files.stat", "stat gives kind, size, mode, time, owner and a link's target", raises="SandboxFileNotFoundError")
async def stat_tells_what_is_there(files: AsyncFiles, home: str) -> None:
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


@check("files.exists", "exists is false for missing paths and dangling links")
async def exists_follows_links(files: AsyncFiles) -> None:
    await write_tree(files, {"file.txt": "x"}, links={"good": "file.txt", "dangling": "missing", "loop": "loop"})
    names = (".", "file.txt", "good", "dangling", "missing", "no/such", "file.txt/below", "loop")
    equal([await files.exists(name) for name in names], [True, True, True, False, False, False, False, False])


@check("files.list", "A folder's entries are sorted by name, and links are not followed",
       raises="SandboxFileNotFoundError SandboxNotFolderError")  # fmt: skip
async def list_is_sorted(files: AsyncFiles, home: str) -> None:
    names = ("b", "a", ".hidden", "Z", "ä")
    await write_tree(files, dict.fromkeys(names, "x"), links={"link": "/etc"}, folders=["folder/inner"])
    found = await files.list()
    equal([file.name for file in found], sorted([*names, "folder", "link"]))
    equal({file.name: file.kind for file in found if file.kind != "file"}, {"folder": "folder", "link": "link"})
    equal([file.path for file in await files.list("folder")], [f"{home}/folder/inner"])
    equal(list(await files.list("folder/inner")), [])
    await raises(SandboxFileNotFoundError, files.list("missing"))
    await raises(SandboxNotFolderError, files.list("a"))


# Writing files atomically.


async def names_in(box: AsyncSandbox, folder: str = ".") -> list[str]:
    """Give the names in a folder, to show that no partial file is among them."""
    return [file.name for file in await box.files.list(folder)]


@check("files.write", "write takes bytes, text and streams, creates folders, and returns the size")
async def write_takes_every_content(box: AsyncSandbox) -> None:
    equal(await box.files.write("a/b/c.txt", "ü"), 2)
    equal(await box.files.write("a/b/bytes", b"123"), 3)
    equal(await box.files.write("a/b/stream", pieces(b"12", b"", b"345")), 5)
    equal(await box.files.read("a/b/stream"), b"12345")
    equal(await box.files.write("a/b/stream", pieces()), 0)
    equal(await box.files.read("a/b/stream"), b"")
    equal(await names_in(box, "a/b"), ["bytes", "c.txt", "stream"])
    for content in (5, None, ["x"]):
        await raises(TypeError, box.files.write("bad", content))  # type: ignore[arg-type]
    true(not await box.files.exists("bad"), "a refused write left a file")


@check("files.write", "A new file is 0644; a file that is replaced keeps its mode; mode= sets it")
async def write_keeps_the_mode(files: AsyncFiles) -> None:
    await files.write("new", "x")
    equal((await files.stat("new")).mode, 0o644)
    await files.chmod("new", 0o750)
    await files.write("new", "y")
    equal((await files.stat("new")).mode, 0o750)
    await files.write("new", pieces(b"z"), mode=0o600)
    equal((await files.stat("new")).mode, 0o600)


@check("files.write", "append adds, exclusive refuses, parents=False creates no folder",
       raises="SandboxFileExistsError SandboxFileNotFoundError SandboxNotFolderError")  # fmt: skip
async def write_has_its_modes(box: AsyncSandbox) -> None:
    await box.files.write("log", "one\n", append=True)
    equal(await box.files.write("log", pieces(b"two\n"), append=True), 4)
    equal(await box.files.read("log"), b"one\ntwo\n")
    await raises(SandboxFileExistsError, box.files.write("log", "x", exclusive=True))
    await raises(SandboxFileExistsError, box.files.write("log", pieces(b"x"), exclusive=True))
    await box.files.write("fresh", "x", exclusive=True)
    await raises(SandboxFileNotFoundError, box.files.write("no/such/folder/x", "x", parents=False))
    await raises(SandboxNotFolderError, box.files.write("log/below", "x"))
    await raises(SandboxNotFolderError, box.files.write("log/further/below", pieces(b"x")))
    equal(await names_in(box), ["fresh", "log"])


@check("8", "Of many exclusive writers exactly one wins")
async def exclusive_write_has_one_winner(files: AsyncFiles) -> None:
    work = (files.write("lock", str(number), exclusive=True) for number in range(12))
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    equal(sum(not isinstance(outcome, BaseException) for outcome in outcomes), 1, "winners")
    equal(sum(isinstance(outcome, SandboxFileExistsError) for outcome in outcomes), 11, "losers")


@check("files.write", "Writing onto a folder, or below a file, is refused", raises="SandboxIsFolderError")
async def write_onto_a_folder_is_refused(box: AsyncSandbox) -> None:
    await box.files.mkdir("folder")
    await box.files.write("file", "x")
    await raises(SandboxIsFolderError, box.files.write("folder", "x"))
    await raises(SandboxIsFolderError, box.files.write("folder", pieces(b"x")))
    await raises((NotADirectoryError, FileExistsError), box.files.write("file/below", "x"))
    equal(await names_in(box), ["file", "folder"])


@check("files.write", "Writing through a link changes its target and keeps the link")
async def write_follows_links(files: AsyncFiles) -> None:
    await write_tree(files, {"real/file": "old"}, links={"link": "real/file"})
    await files.write("link", "new")
    equal((await files.stat("link", follow=False)).kind, "link")
    equal(await files.read("real/file"), b"new")
    await files.edit("link", "new", "edited")
    equal((await files.stat("link", follow=False)).kind, "link")
    equal(await files.read("real/file"), b"edited")


@check("files.write", "Readers see the old or the new content, never a mixture or an empty file")
async def write_is_atomic(box: AsyncSandbox) -> None:
    contents = [letter * 300_000 for letter in (b"a", b"b")]
    await box.files.write("shared", contents[0])
    done = asyncio.Event()

    async def read() -> int:
        seen = 0
        while not done.is_set():
            content = await box.files.read("shared")
            if content not in contents:  # the message counts letters: too slow for each read
                raise AssertionError(f"a reader saw {len(content)} bytes of {set(content)}")
            seen += 1
        return seen

    readers = [asyncio.ensure_future(read()) for _ in range(3)]
    try:
        for number in range(40):
            await box.files.write("shared", contents[number % 2] if number % 3 else pieces(contents[number % 2]))
            await asyncio.sleep(0)
    finally:  # end the readers before the sandbox, also when a write fails
        done.set()
        counts = await asyncio.gather(*readers)
    true(min(counts) > 0, "every reader should have read")
    equal(await names_in(box), ["shared"])


@check("files.write", "A stream that fails leaves the old content and no partial file")
async def failed_stream_leaves_the_old_content(box: AsyncSandbox) -> None:
    await box.files.write("file", "old")
    await raises(ZeroDivisionError, box.files.write("file", broken()))
    await raises(ZeroDivisionError, box.files.write("new", broken()))
    equal(await box.files.read("file"), b"old")
    equal(await box.files.write("file", "next"), 4)
    equal(await names_in(box), ["file"])


@check("files", "Changes that the user inside has no permission for are refused", raises="SandboxPermissionError")
async def write_needs_permission(box: AsyncSandbox) -> None:
    await box.files.write("shut/file", "x")
    await box.files.write("fixed", "x", mode=0o444)
    await box.files.chmod("shut", 0o555)
    for path in ("/usr/new", "/usr/bin/new", "shut/new", "fixed"):
        await raises(SandboxPermissionError, box.files.write(path, "x"))
    await raises(SandboxPermissionError, box.files.write("/usr/new", pieces(b"x")))
    await raises(SandboxPermissionError, box.files.mkdir("/usr/folder"))
    await raises(SandboxPermissionError, box.files.remove("shut/file"))
    await raises(SandboxPermissionError, box.files.chmod("/usr", 0o777))
    equal(await names_in(box, "shut"), ["file"])


@check("files", "A full disk is SandboxNoSpaceError, keeps the old content, and later writes work",
       needs="ephemeral", raises="SandboxNoSpaceError")  # fmt: skip
async def full_disk_is_told(context: Context) -> None:
    box = await context.open(ephemeral=True, resources=Resources(disk_bytes="8MiB"))
    await box.files.write("file", "old")
    await raises(SandboxNoSpaceError, box.files.write("file", b"x" * (12 << 20)))
    await raises(SandboxNoSpaceError, box.files.write("file", repeat(b"x" * (1 << 20), 12)))
    equal(await box.files.read("file"), b"old")
    equal(await names_in(box), ["file"])
    equal(await box.files.write("file", b"y" * (1 << 20)), 1 << 20)


# Edits: carried out inside, by compare-and-swap, with all other bytes kept.


@check("files.edit", "An edit changes the given text and no other byte, also with CRLF and Latin-1")
async def edit_preserves_every_other_byte(files: AsyncFiles) -> None:
    content = b"\xef\xbb\xbfone\r\ntwo \xe9\r\n\0three\nno newline at the end"
    await files.write("file", content, mode=0o640)
    result = await files.edit("file", "two", "zwei")
    wanted = content.replace(b"two", b"zwei")
    equal(await files.read("file"), wanted)
    equal((result.replacements, result.size, result.sha256), (1, len(wanted), hashlib.sha256(wanted).hexdigest()))
    equal((await files.stat("file")).mode, 0o640)
    await files.edit("file", b"\xe9\r\n", b"\xe8\n")
    equal(await files.read("file"), wanted.replace(b"\xe9\r\n", b"\xe8\n"))
    await files.edit("file", "no newline", "")
    true((await files.read("file")).endswith(b"\n at the end"), "text may be removed")


@check("files.edit", "Files refuse values of other types, and a refused call changes nothing")
async def edit_refuses_other_types(files: AsyncFiles) -> None:
    await files.write("file", b"\0\0\0\0\0 five")
    for wrong in (5, None, [0]):  # bytes(5) would be five NUL bytes
        await raises(TypeError, files.edit("file", wrong, "x"))  # type: ignore[arg-type]
        await raises(TypeError, files.edit("file", "five", wrong))  # type: ignore[arg-type]
        await raises(TypeError, files.replace("five", wrong))  # type: ignore[arg-type]
        await raises(TypeError, files.replace(wrong, "x"))  # type: ignore[arg-type]
        await raises(TypeError, files.grep(wrong))  # type: ignore[arg-type]
        await raises(TypeError, files.glob(wrong))  # type: ignore[arg-type]
        await raises(TypeError, files.write(wrong, "x"))  # type: ignore[arg-type]
    await raises(TypeError, files.grep("five", include=5))  # type: ignore[arg-type]
    equal([file.path.rpartition("/")[2] for file in await files.list()], ["file"])
    equal(await files.read("file"), b"\0\0\0\0\0 five")
    await files.edit("file", bytearray(b"five"), memoryview(b"six"))  # type: ignore[arg-type]
    equal(await files.read("file"), b"\0\0\0\0\0 six")


@check("files.edit", "A text that is missing, or there more than once, is EditError with the count",
       raises="EditError SandboxFileNotFoundError")  # fmt: skip
async def edit_needs_exactly_one_place(files: AsyncFiles) -> None:
    await files.write("file", "a b a b a")
    for old, count in (("", 0), ("x", 0), ("a", 3)):
        error = await raises(EditError, files.edit("file", old, "y"))
        equal(error.count, count, f"count for {old!r}")
    equal(await files.read("file"), b"a b a b a", "a refused edit changes nothing")
    result = await files.edit("file", "a", "aa", replace_all=True)
    equal((result.replacements, await files.read("file")), (3, b"aa b aa b aa"))
    await raises(EditError, files.edit("file", "x", "y", replace_all=True))
    await raises(SandboxFileNotFoundError, files.edit("missing", "a", "b"))
    await files.mkdir("folder")
    await raises((SandboxIsFolderError, SandboxFileKindError), files.edit("folder", "a", "b"))


@check("files.edit", "expected_sha256 refuses an edit after another change", raises="EditConflictError")
async def edit_compares_before_it_swaps(files: AsyncFiles) -> None:
    await files.write("file", "first second")
    known = hashlib.sha256(b"first second").hexdigest()
    result = await files.edit("file", "first", "1st", expected_sha256=known)
    error = await raises(EditConflictError, files.edit("file", "second", "2nd", expected_sha256=known))
    true(error.retryable, "a conflict may be retried")
    equal(await files.read("file"), b"1st second")
    await files.edit("file", "second", "2nd", expected_sha256=result.sha256)
    equal(await files.read("file"), b"1st 2nd")


@check("files.edit", "Concurrent edits are all kept, or raise a conflict")
async def edits_at_the_same_time_are_not_lost(files: AsyncFiles) -> None:
    words = [f"<{number}>" for number in range(12)]
    await files.write("file", " ".join(words))
    work = (files.edit("file", word, f"done{number}") for number, word in enumerate(words))
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    content = (await files.read("file")).decode()
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, BaseException):
            true(isinstance(outcome, EditConflictError), f"only a conflict may refuse: {outcome!r}")
            true(words[number] in content, f"a refused edit left a trace: {content}")
        else:
            true(f"done{number}" in content, f"an edit that succeeded is lost: {content}")
