"""Large contents of the daytona backend travel by the SDK's own streams, and are as atomic as the small ones."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from corral.backends.daytona import DaytonaBackend
from corral.backends.daytona.files import LARGE_BYTES, DaytonaFiles
from corral.client.sandbox import AsyncSandbox
from corral.errors import SandboxFileExistsError, SandboxPermissionError
from support.serving import ServedProcess

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300)]

LARGE = os.urandom(LARGE_BYTES + 12_345)


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What travelled by the service's own means."""
    told: set[str] = set()
    original = DaytonaFiles._transfer

    async def transfer(self: DaytonaFiles, work: Any, *, path: str, op: str) -> Any:
        told.add(f"{op} {path}")
        return await original(self, work, path=path, op=op)

    monkeypatch.setattr(DaytonaFiles, "_transfer", transfer)
    return told


def run(server: ServedProcess, work: Callable[[Any], Awaitable[None]]) -> None:
    async def open_and_work() -> None:
        backend = DaytonaBackend(api_key=server.key, api_url=server.url)
        try:
            async with AsyncSandbox(backend=backend) as box:
                await work(box)
                left = (await box.exec("find / -xdev -name '.corral-*.tmp*' 2>/dev/null")).stdout
                assert left == ""
        finally:
            await backend.aclose()

    asyncio.run(open_and_work())


async def stream(data: bytes, *, fail: bool = False) -> AsyncIterator[bytes]:
    for offset in range(0, len(data), 100_000):
        yield data[offset : offset + 100_000]
        yield b""
    if fail:
        raise LookupError("the source broke")


def test_content_comes_back(server: ServedProcess, transfers: set[str]) -> None:
    async def work(box: Any) -> None:
        await box.files.write("deep/one", LARGE, mode=0o750)
        assert await box.files.write("two", stream(LARGE)) == len(LARGE)
        assert await box.files.read("deep/one") == LARGE
        assert b"".join([piece async for piece in box.files.read_stream("two", chunk_bytes=1000)]) == LARGE
        said = (await box.exec("stat -c %a deep/one two; [ -O deep/one ] && [ -O two ] && sha256sum <two")).stdout
        assert said == f"750\n644\n{hashlib.sha256(LARGE).hexdigest()}  -\n"

    run(server, work)
    assert {told.replace("//", "/").rsplit("/", 1)[-1] for told in transfers} == {"one", "two"}
    assert {told.partition(" ")[0] for told in transfers} == {"read", "write"}


def test_link_is_written_through_and_append_appends(server: ServedProcess, transfers: set[str]) -> None:
    async def work(box: Any) -> None:
        await box.exec("mkdir far; echo old >far/file; chmod 640 far/file; ln -s far/file link")
        await box.files.write("link", LARGE)
        assert (await box.exec("stat -c '%F %a' link far/file")).stdout == "symbolic link 777\nregular file 640\n"
        await box.files.write("far/file", LARGE, append=True)
        assert (await box.files.stat("far/file")).size == 2 * len(LARGE)

    run(server, work)
    assert transfers


def test_what_is_refused_changes_nothing(server: ServedProcess) -> None:
    async def work(box: Any) -> None:
        await box.files.write("file", b"old")
        with pytest.raises(SandboxFileExistsError):
            await box.files.write("file", LARGE, exclusive=True)
        with pytest.raises(SandboxPermissionError):
            await box.files.write("/etc/file", LARGE)
        with pytest.raises(LookupError, match="the source broke"):
            await box.files.write("file", stream(LARGE, fail=True))
        assert await box.files.read("file") == b"old"

    run(server, work)


def test_cancelled_write_leaves_the_old_content(server: ServedProcess) -> None:
    async def slow(going: asyncio.Event) -> AsyncIterator[bytes]:
        yield LARGE
        yield LARGE
        going.set()
        await asyncio.sleep(3600)

    async def work(box: Any) -> None:
        await box.files.write("file", b"old")
        going = asyncio.Event()
        writing = asyncio.ensure_future(box.files.write("file", slow(going)))
        await going.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await box.files.read("file") == b"old"

    run(server, work)


def test_odd_name_goes_over_the_channel(server: ServedProcess, transfers: set[str]) -> None:
    async def work(box: Any) -> None:
        for name in ('a "quoted" name', "new\nline", "per%20cent", "ü"):
            await box.files.write(name, LARGE)
            assert await box.files.read(name) == LARGE

    run(server, work)
    assert not transfers


def test_reader_that_leaves_frees_the_connection(server: ServedProcess) -> None:
    async def work(box: Any) -> None:
        await box.files.write("file", LARGE)
        for _ in range(5):
            reading = box.files.read_stream("file")
            assert await anext(reading)
            await reading.aclose()
        assert await box.files.read("file") == LARGE

    run(server, work)
