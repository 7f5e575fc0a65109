"""A tree as a hostile archive, compared with a folder of the host."""

import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.base.changes import Comparison, Origin, compare
from corral.errors import SandboxFileError, SandboxFileTooLargeError

Made = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "same").write_bytes(b"as it was")
    (folder / "same").chmod(0o644)
    (folder / "sparse").write_bytes(bytes(300_000))
    (folder / "sparse").chmod(0o644)
    return Origin("/project", folder, folder, 0, tmp_path / "applied.json", limit_bytes=1 << 20)


def member(name: str, content: bytes | None = None, **values: object) -> Made:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    if content is None:
        info.type = tarfile.DIRTYPE
    info.size = len(content or b"")
    for key, value in values.items():
        setattr(info, key, value)
    return info, content or b""


def pack(*members: Made) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def read(origin: Origin, data: bytes) -> Comparison:
    async def chunks() -> AsyncIterator[bytes]:
        yield data

    return await compare(chunks(), origin)


def differences(comparison: Comparison) -> list[str]:
    return [f"{verdict} {'/'.join(parts)}" for parts, verdict in comparison.differences()]


SAME = member("same", b"as it was")
SPARSE = member("sparse", bytes(300_000))
LINK = member("away", b"", type=tarfile.SYMTYPE, linkname="/etc")


async def test_equal_bytes_are_no_change_and_one_other_byte_is(origin: Origin) -> None:
    with await read(origin, pack(SAME, SPARSE)) as comparison:
        assert differences(comparison) == []
    changed = bytearray(300_000)
    changed[-1] = 1
    with await read(origin, pack(SAME, member("sparse", bytes(changed)))) as comparison:
        assert differences(comparison) == ["modified sparse"]
        kept = comparison.content(comparison.inside["sparse",])
        assert kept(300_000) == bytes(changed)


async def test_another_name_of_a_file_has_its_content(origin: Origin) -> None:
    link = member("again", b"", type=tarfile.LNKTYPE, linkname="same")
    with await read(origin, pack(SAME, SPARSE, link)) as comparison:
        assert differences(comparison) == ["added again"]
        assert comparison.content(comparison.inside["again",])(9) == b"as it was"


@pytest.mark.parametrize(
    "members",
    [
        [member("../up", b"x")],
        [member("a/../../up", b"x")],
        [member("missing/child", b"x")],
        [member("same", b"x"), member("same/child", b"x")],
        [LINK, member("away/passwd", b"x")],
        [SAME, member("same", b"y")],
        [member("folder"), member("folder")],
        [member("hard", b"", type=tarfile.LNKTYPE, linkname="nowhere")],
        [member("hard", b"", type=tarfile.LNKTYPE, linkname="../same")],
        [LINK, member("hard", b"", type=tarfile.LNKTYPE, linkname="away")],
    ],
)
async def test_a_tree_that_can_not_be_is_refused(origin: Origin, members: list[Made]) -> None:
    with pytest.raises(SandboxFileError):
        await read(origin, pack(*members))


async def test_absolute_names_are_below_the_folder(origin: Origin) -> None:
    with await read(origin, pack(SAME, SPARSE, member("/etc"), member("/etc/passwd", b"x"))) as comparison:
        assert differences(comparison) == ["added etc", "added etc/passwd"]


async def test_more_than_the_disk_holds_is_refused_and_leaves_nothing(origin: Origin, tmp_path: Path) -> None:
    with pytest.raises(SandboxFileTooLargeError):
        await read(origin, pack(*(member(f"file-{number}", os.urandom(200_000)) for number in range(6))))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("length", [100, 700, 1500, 4000])
async def test_a_truncated_archive_is_an_error(origin: Origin, length: int) -> None:
    with pytest.raises(SandboxFileError):
        await read(origin, pack(SAME, member("new", b"x" * 5000))[:length])
