"""Edits: inside, byte for byte around the change, by compare-and-swap."""

from __future__ import annotations

import asyncio
import hashlib

from corral.errors import (
    EditConflictError,
    EditError,
    SandboxFileKindError,
    SandboxFileNotFoundError,
    SandboxIsFolderError,
)
from corral.testing.check import Context, check, equal, raises, true


@check(
    promise="files.edit", title="An edit changes what was named and not one byte around it, CRLF and Latin-1 included"
)
async def edit_preserves_every_other_byte(context: Context) -> None:
    files = (await context.open()).files
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
    true((await files.read("file")).endswith(b"\n at the end"), "text may be taken out")


@check(promise="files.edit", title="What is not there, or not once, is EditError with the count",
       raises=("files.edit:EditError", "files.edit:SandboxFileNotFoundError"))  # fmt: skip
async def edit_needs_exactly_one_place(context: Context) -> None:
    files = (await context.open()).files
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


@check(promise="files.edit", title="expected_sha256 guards against changes by others",
       raises=("files.edit:EditConflictError",))  # fmt: skip
async def edit_compares_before_it_swaps(context: Context) -> None:
    files = (await context.open()).files
    await files.write("file", "first second")
    known = hashlib.sha256(b"first second").hexdigest()
    result = await files.edit("file", "first", "1st", expected_sha256=known)
    error = await raises(EditConflictError, files.edit("file", "second", "2nd", expected_sha256=known))
    true(error.retryable, "a conflict may be retried")
    equal(await files.read("file"), b"1st second")
    await files.edit("file", "second", "2nd", expected_sha256=result.sha256)
    equal(await files.read("file"), b"1st 2nd")


@check(promise="files.edit", title="Edits at the same time are all kept, or say that they conflict")
async def edits_at_the_same_time_are_not_lost(context: Context) -> None:
    files = (await context.open()).files
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
            true(f"done{number}" in content, f"an edit that was told as done is lost: {content}")
