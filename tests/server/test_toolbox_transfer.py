"""Files up and down: in bulk, as streams, and by signed URLs."""

import asyncio
import hashlib
import io
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import httpx
import pytest
from daytona import AsyncDaytona, Daytona, DaytonaError, FileDownloadRequest, FileUpload, Sandbox
from daytona.common.errors import DaytonaFileNotFoundError

from support.serving import ServedProcess, make_client

MIB = 1024 * 1024
HALF = (
    b'--x\r\nContent-Disposition: form-data; name="files[0].path"\r\n\r\nbroken\r\n'
    b'--x\r\nContent-Disposition: form-data; name="files[0].file"\r\n\r\nhalf of i'
)
ODD = "d/ä b%20\"q'.bin"


def address(box: Sandbox, path: str) -> str:
    return f"{box.toolbox_proxy_url}/{box.id}{path}"


def peak_memory(server: ServedProcess) -> int:
    """The most that the server has held, in bytes."""
    text = Path(f"/proc/{server.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) * 1024  # type: ignore[index]


def test_what_goes_up_comes_down(sandbox: Sandbox, tmp_path: Path) -> None:
    content = bytes(range(256)) * 3
    sandbox.fs.upload_file(content, "deep/er/x.bin")
    assert sandbox.fs.download_file("deep/er/x.bin") == content
    assert sandbox.fs.download_file("/home/daytona/deep/er/x.bin") == content
    sandbox.fs.upload_file(b"", "empty")
    assert sandbox.fs.download_file("empty") == b""
    (tmp_path / "local").write_bytes(content)
    sandbox.fs.upload_file(str(tmp_path / "local"), ODD)
    sandbox.fs.download_file(ODD, str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == content


def test_many_files_go_at_once(sandbox: Sandbox) -> None:
    names = [f"many/{number}/ü {number}.txt" for number in range(50)]
    sandbox.fs.upload_files([FileUpload(source=name.encode(), destination=name) for name in names])
    results = sandbox.fs.download_files([FileDownloadRequest(source=name) for name in [*names, "many/none", "many"]])
    assert [result.result for result in results[:-2]] == [name.encode() for name in names]
    missing, folder = results[-2:]
    assert missing.error_details.status_code == 404
    assert missing.error_details.error_code == "FILE_NOT_FOUND"
    assert folder.error_details.error_code == "INVALID_FILE_PATH"


def test_small_files_cost_no_process_each(sandbox: Sandbox) -> None:
    """Process numbers inside count every fork, also those of the file agent."""

    def number() -> int:
        return int(sandbox.process.exec("sh -c 'echo $$'; true").result)  # a new process: ours was forked ahead

    before, files = number(), 100
    sandbox.fs.upload_files([FileUpload(source=b"x", destination=f"small/{each}") for each in range(files)])
    assert number() - before < files
    assert len(sandbox.fs.list_files("small")) == files


def test_a_missing_file_is_not_found(sandbox: Sandbox) -> None:
    with pytest.raises(DaytonaFileNotFoundError):
        sandbox.fs.download_file("none")


def test_one_bad_file_does_not_stop_the_others(sandbox: Sandbox) -> None:
    bad = FileUpload(source=b"x" * 100_000, destination="/usr/nothing/here")
    with pytest.raises(DaytonaError) as refused:
        sandbox.fs.upload_files([bad, FileUpload(source=b"good", destination="good")])
    assert str(refused.value).count("/usr/nothing/here") == 1
    assert sandbox.fs.download_file("good") == b"good"


async def test_the_async_client_does_the_same(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        files = {"a/b c.txt": b"one", "ä/é.bin": bytes(range(256)) * 5000}
        await box.fs.upload_files([FileUpload(source=data, destination=name) for name, data in files.items()])
        results = await box.fs.download_files([FileDownloadRequest(source=name) for name in [*files, "none"]])
        assert [result.result for result in results] == [*files.values(), None]
        with pytest.raises(DaytonaFileNotFoundError):
            await box.fs.download_file("none")
    finally:
        await async_daytona.delete(box)


@pytest.mark.check
def test_large_files_stream_with_flat_memory(daytona: Daytona, own_server: ServedProcess) -> None:

    box = make_client(own_server).create()
    box.fs.upload_file(b"warm", "warm")
    box.fs.download_file("warm")
    before = peak_memory(own_server)
    size, digest = 300 * MIB, hashlib.sha256()

    class Zeros(io.RawIOBase):
        left = size

        def readable(self) -> bool:
            return True

        def read(self, count: int = -1) -> bytes:
            count = min(self.left, 64 * 1024 if count < 0 else count)
            self.left -= count
            return b"\5" * count

    box.fs.upload_file_stream(Zeros(), "big")
    assert box.fs.get_file_info("big").size == size
    received = 0
    for chunk in box.fs.download_file_stream("big"):
        received += len(chunk)
        digest.update(chunk)
    assert received == size
    assert digest.hexdigest() == box.process.exec("sha256sum big").result.split()[0]
    assert peak_memory(own_server) - before < 64 * MIB


async def test_a_body_without_a_length_is_taken(sandbox: Sandbox, server: ServedProcess) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="files[0].path"\r\n\r\nchun'
        await asyncio.sleep(0)
        yield b'ked\r\n--x\r\nContent-Disposition: form-data; name="files[0].file"; filename="other"\r\n\r\nabc'
        yield b"def\r\n--x--\r\n"

    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "multipart/form-data; boundary=x"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(address(sandbox, "/files/bulk-upload"), data=body()) as response,
    ):
        assert response.status == 200
        assert await response.json() == {"files": [{"path": "chunked", "bytes": 6}]}
    assert sandbox.fs.download_file("chunked") == b"abcdef"


@pytest.mark.parametrize(
    "body",
    [
        HALF,
        b"not multipart at all",
        b"",
    ],
)
def test_a_body_that_breaks_off_leaves_nothing(sandbox: Sandbox, server: ServedProcess, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "multipart/form-data; boundary=x"}
    answer = httpx.post(address(sandbox, "/files/bulk-upload"), content=body, headers=headers)
    assert answer.status_code == 400
    assert sandbox.process.exec("ls -A | grep -c broken").result == "0\n"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ([("files[0].file", b"x")], "path must come first"),
        ([("files[0].path", b"a\0b"), ("files[0].file", b"x")], "NUL"),
        ([("files[0].path", b"a/"), ("files[0].file", b"x")], "directory"),
        ([("files[0].path", b"alone")], "no content"),
    ],
)
def test_a_file_that_can_go_nowhere_is_told(
    sandbox: Sandbox, server: ServedProcess, fields: list[tuple[str, bytes]], told: str
) -> None:
    answer = httpx.post(
        address(sandbox, "/files/bulk-upload"),
        files=[(name, (None, data)) for name, data in fields],
        headers={"Authorization": f"Bearer {server.key}"},
    )
    assert answer.status_code == 400
    assert told in answer.json()["errors"][0]


def test_too_many_parts_are_refused(sandbox: Sandbox, server: ServedProcess) -> None:
    fields = [(f"files[{number}].path", (None, b"x")) for number in range(2100)]
    headers = {"Authorization": f"Bearer {server.key}"}
    answer = httpx.post(address(sandbox, "/files/bulk-upload"), files=fields, headers=headers)
    assert answer.status_code == 400


def test_a_download_says_exactly_what_it_sends(sandbox: Sandbox, server: ServedProcess) -> None:
    sandbox.fs.upload_file(b"0123456789", ODD)
    headers = {"Authorization": f"Bearer {server.key}"}
    answer = httpx.post(address(sandbox, "/files/bulk-download"), json={"paths": [ODD, "none"]}, headers=headers)
    kind, _, boundary = answer.headers["Content-Type"].partition("; boundary=")
    assert kind == "multipart/form-data"
    first, second, end = answer.content.split(f"--{boundary}".encode())[1:]
    assert b"filename*=utf-8''d%2F%C3%A4%20b%2520%22q%27.bin" in first
    assert b"Content-Length: 10\r\n" in first
    assert first.endswith(b"\r\n\r\n0123456789\r\n")
    assert b'name="error"' in second
    assert end == b"--\r\n"


def test_single_files_go_up_and_down_as_old_clients_do_it(sandbox: Sandbox, server: ServedProcess) -> None:
    headers = {"Authorization": f"Bearer {server.key}"}
    for call in ("upload", "upload-v2"):
        url = address(sandbox, f"/files/{call}")
        answer = httpx.post(url, params={"path": f"d/{call}"}, files={"file": ("n", b"hello")}, headers=headers)
        assert answer.status_code == 200
        assert answer.json() == {"name": call, "path": f"/home/daytona/d/{call}", "type": "file"}
        down = httpx.get(address(sandbox, "/files/download"), params={"path": f"d/{call}"}, headers=headers)
        assert (down.content, down.headers["Content-Length"]) == (b"hello", "5")
    none = httpx.get(address(sandbox, "/files/download"), params={"path": "none"}, headers=headers)
    assert (none.status_code, none.json()["code"]) == (404, "FILE_NOT_FOUND")


# -------------------------------------------------------------------------------------------------------------- signed


def test_a_signed_url_needs_no_key(sandbox: Sandbox) -> None:
    path = "/home/daytona/ä.txt"
    up = sandbox.upload_url(path)
    assert httpx.post(up, files={"file": ("any", b"signed")}).status_code == 200
    assert httpx.get(sandbox.download_url(path)).content == b"signed"
    assert httpx.get(sandbox.download_url(path, 0)).content == b"signed"


def test_a_signed_url_opens_only_what_it_was_made_for(sandbox: Sandbox) -> None:
    sandbox.fs.upload_file(b"secret", "/home/daytona/secret")
    sandbox.fs.upload_file(b"other", "/home/daytona/other")
    good = sandbox.download_url("/home/daytona/other", 3600)
    expires = re.search(r"expires=(\d+)", good)[1]  # type: ignore[index]
    for bad in (
        good.replace("other", "secret"),
        good.replace(expires, str(int(expires) + 1)),
        good.replace(expires, "0"),
        good[:-1],
        re.sub(r"signature=.*", "signature=", good),
        re.sub(r"&signature=.*", "", good),
        good.replace("/files/download", "/files/upload-v2"),
    ):
        answer = httpx.get(bad) if "download" in bad else httpx.post(bad, files={"file": ("n", b"x")})
        assert answer.status_code == 401, bad
    for other in ("/files?path=.", "/files/info?path=other"):
        url = address(sandbox, other) + "&" + good.partition("?")[2].partition("&")[2]
        assert httpx.get(url).status_code == 401


def test_a_signed_url_ends_with_its_time_and_with_its_key(sandbox: Sandbox) -> None:
    sandbox.fs.upload_file(b"x", "/home/daytona/x")
    short = sandbox.download_url("/home/daytona/x", 1)
    deadline = time.monotonic() + 60
    while httpx.get(short).status_code != 401:
        assert time.monotonic() < deadline, "it never expires"
        time.sleep(0.2)
    good = sandbox.download_url("/home/daytona/x")
    assert httpx.get(good).status_code == 200
    sandbox.rotate_signing_key()
    assert httpx.get(good).status_code == 401
