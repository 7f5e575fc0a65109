"""What comes out of a sandbox is hostile: tars are unpacked below the target and nowhere else."""

import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.base.transfer import pack_host_tree, read_host_file, unpack_to_host, write_host_file
from corral.errors import SandboxFileError, SandboxFileTooLargeError
from support.tars import folder, hard, link, member, stream, tar


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of the host with a secret beside the target."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("hush")
    return tmp_path


def assert_secret_is_safe(host: Path) -> None:
    assert (host / "secret" / "key").read_text() == "hush"
    assert sorted(path.name for path in (host / "secret").iterdir()) == ["key"]
    assert sorted(path.name for path in host.iterdir()) in (["secret"], ["out", "secret"])


async def test_plain_tree_is_laid_down(host: Path) -> None:
    data = tar(folder("."), folder("sub", 0o500), member("sub/file", b"content", mode=0o4751), link("good", "sub/file"))
    await unpack_to_host(stream(data), host / "out", max_bytes=None)
    assert (host / "out" / "good").read_bytes() == b"content"
    assert stat.S_IMODE((host / "out" / "sub").stat().st_mode) == 0o500
    assert stat.S_IMODE((host / "out" / "sub" / "file").stat().st_mode) == 0o751


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "..", "sub/.."])
async def test_name_that_climbs_is_refused(host: Path, name: str) -> None:
    with pytest.raises(SandboxFileError, match="is outside"):
        await unpack_to_host(stream(tar(member(name))), host / "out", max_bytes=None)
    assert_secret_is_safe(host)


async def test_absolute_name_lands_below(host: Path) -> None:
    await unpack_to_host(stream(tar(member(str(host / "secret" / "key"), b"evil"))), host / "out", max_bytes=None)
    assert_secret_is_safe(host)


HOSTILE_LINKS = ["/etc/passwd", "../secret", "..", "sub/../../secret", "sub/../..", "a/b/../../../secret"]


@pytest.mark.parametrize("target", HOSTILE_LINKS)
async def test_link_that_leads_out_is_left_out(host: Path, target: str) -> None:
    await unpack_to_host(
        stream(tar(folder("sub"), link("evil", target), link("sub/deep", target))), host / "out", max_bytes=None
    )
    for name in ("evil", "sub/deep"):
        path = host / "out" / name
        if path.is_symlink():
            assert (host / "out") in (path.resolve(), *path.resolve().parents)


@pytest.mark.parametrize("target", [*HOSTILE_LINKS, "."])
async def test_nothing_is_written_through_a_link(host: Path, target: str) -> None:
    """An earlier member can't lead a later one out."""
    data = tar(link("way", target), member("way/escaped", b"evil"), member("way/key", b"evil"))
    try:
        await unpack_to_host(stream(data), host / "out", max_bytes=None)
    except SandboxFileError:
        pass
    assert_secret_is_safe(host)


async def test_link_of_the_host_in_the_way_is_not_followed(host: Path) -> None:
    (host / "out").mkdir()
    (host / "out" / "folder").symlink_to(host / "secret")
    (host / "out" / "file").symlink_to(host / "secret" / "key")
    try:
        await unpack_to_host(
            stream(tar(member("file", b"new"), member("folder/key", b"evil"))), host / "out", max_bytes=None
        )
    except SandboxFileError:
        pass
    assert_secret_is_safe(host)


async def test_hard_link_of_a_link_does_not_lead_out_from_its_new_place(host: Path) -> None:
    data = tar(
        folder("a"), folder("a/b"), link("a/b/up", "../../secret"), hard("evil", "a/b/up"), hard("a/b/c", "a/b/up")
    )
    await unpack_to_host(stream(data), host / "out", max_bytes=None)
    assert not (host / "out" / "evil").is_symlink()
    assert (host / "out" / "a" / "b" / "c").readlink() == Path("../../secret")


async def test_hard_link_reaches_only_what_is_below(host: Path) -> None:
    (host / "out").mkdir()
    (host / "out" / "way").symlink_to(host / "secret")
    for target in ("../secret/key", "way/key", str(host / "secret" / "key"), "missing"):
        try:
            await unpack_to_host(stream(tar(hard("stolen", target))), host / "out", max_bytes=None)
        except SandboxFileError:
            pass
        assert not (host / "out" / "stolen").exists(), target
    await unpack_to_host(stream(tar(member("first", b"same"), hard("second", "first"))), host / "out", max_bytes=None)
    assert (host / "out" / "second").read_bytes() == b"same"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
async def test_devices_and_fifos_are_left_out(host: Path, kind: bytes) -> None:
    await unpack_to_host(stream(tar(member("odd", b"", type=kind), member("file"))), host / "out", max_bytes=None)
    assert sorted(path.name for path in (host / "out").iterdir()) == ["file"]


@pytest.mark.parametrize("data", [b"", b"no tar" * 300, tar(member("file", b"x" * 5000))[:2000]])
async def test_broken_archive_is_an_error_of_ours(host: Path, data: bytes) -> None:
    with pytest.raises(SandboxFileError):
        await unpack_to_host(stream(data), host / "out", max_bytes=None)


async def test_too_large_is_refused(host: Path) -> None:
    data = tar(member("a", b"x" * 3000), member("b", b"x" * 3000))
    with pytest.raises(SandboxFileTooLargeError):
        await unpack_to_host(stream(data), host / "out", max_bytes=5000)
    await unpack_to_host(stream(data), host / "fine", max_bytes=6000)


async def test_file_stands_where_a_folder_should(host: Path) -> None:
    for data in (tar(member("x"), member("x/y")), tar(folder("x"), member("x", b"file"))):
        try:
            await unpack_to_host(stream(data), host / "out", max_bytes=None)
        except SandboxFileError:
            pass
    assert_secret_is_safe(host)


async def test_error_of_the_source_is_the_one_that_is_seen(host: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield tar(member("a", b"x" * 5000))[:1000]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await unpack_to_host(broken(), host / "out", max_bytes=None)


async def test_single_file_replaces_whole_or_not_at_all(host: Path) -> None:
    target = host / "out" / "file"
    await write_host_file(stream(b"first"), target, mode=0o600, max_bytes=None)
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (b"first", 0o600)
    with pytest.raises(SandboxFileTooLargeError):
        await write_host_file(stream(b"second" * 10), target, mode=0o600, max_bytes=20)
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    assert target.read_bytes() == b"first"


async def test_single_file_never_follows_a_link(host: Path) -> None:
    (host / "link").symlink_to(host / "secret" / "key")
    await write_host_file(stream(b"new"), host / "link", mode=0o600, max_bytes=None)
    assert (host / "secret" / "key").read_text() == "hush"
    assert (host / "link").read_text() == "new"


async def test_tree_of_the_host_is_packed(host: Path) -> None:
    (host / "tree" / "empty").mkdir(parents=True)
    (host / "tree" / "bad-\udcff").write_bytes(b"x")
    (host / "tree" / "link").symlink_to("/etc")
    os.mkfifo(host / "tree" / "fifo")
    data = b"".join([chunk async for chunk in pack_host_tree(host / "tree")])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {os.path.normpath(info.name): info for info in archive}
    assert sorted(found) == [".", "bad-\udcff", "empty", "link"]
    assert found["link"].linkname == "/etc"
    assert all((info.uid, info.uname) == (0, "") for info in found.values()), "no user of the host is named"


async def test_packing_may_be_left_early(host: Path) -> None:
    (host / "big").write_bytes(os.urandom(4 << 20))
    packing = pack_host_tree(host)
    await anext(packing)
    await packing.aclose()  # type: ignore[attr-defined]
    reading = read_host_file(host / "big")
    assert await anext(reading) == (host / "big").read_bytes()[: 256 * 1024]
    await reading.aclose()  # type: ignore[attr-defined]


async def test_mode_of_a_folder_is_never_set_through_a_link(host: Path) -> None:
    (host / "out").mkdir()
    (host / "out" / "way").symlink_to(host / "secret")
    before = (host / "secret").stat().st_mode
    try:
        await unpack_to_host(stream(tar(folder("way", 0o777))), host / "out", max_bytes=None)
    except SandboxFileError:
        pass
    assert (host / "secret").stat().st_mode == before


async def test_size_below_nothing_does_not_make_room_for_more(host: Path) -> None:
    block = bytearray(tar(member("f", b"x" * 2000)))
    block[124:136], block[148:156] = b"\xff" * 12, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    with pytest.raises(SandboxFileError):
        await unpack_to_host(stream(bytes(block)), host / "out", max_bytes=1000)


async def test_whoever_goes_on_after_the_end_is_not_listened_to(host: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield tar(member("f"))
        while True:
            yield bytes(1 << 20)

    await unpack_to_host(endless(), host / "out", max_bytes=1000)
    assert (host / "out" / "f").read_bytes() == b"x"


async def test_zeros_take_no_room_on_the_host(host: Path) -> None:
    content = b"a" + bytes(20 << 20) + b"b"
    await write_host_file(stream(content, 100_000), host / "single", mode=0o644, max_bytes=None)
    await unpack_to_host(stream(tar(member("f", content)), 100_000), host / "out", max_bytes=None)
    for path in (host / "single", host / "out" / "f"):
        assert path.read_bytes() == content
        assert path.stat().st_blocks * 512 < 1 << 20


async def test_small_holes_between_blocks_take_no_room_either(host: Path) -> None:
    content = (b"x" * 4096 + bytes(60 * 1024)) * 256
    await write_host_file(stream(content, 100_001), host / "single", mode=0o644, max_bytes=None)
    await unpack_to_host(stream(tar(member("f", content)), 100_001), host / "out", max_bytes=None)
    for path in (host / "single", host / "out" / "f"):
        assert path.read_bytes() == content
        assert path.stat().st_blocks * 512 < 6 << 20


@pytest.mark.parametrize("inner", [folder("docs/api"), member("docs/api/x.html")])
async def test_a_link_of_the_host_where_the_sandbox_has_a_folder_is_named(
    tmp_path: Path, inner: tuple[tarfile.TarInfo, bytes]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "host/docs").mkdir(parents=True)
    (tmp_path / "host/docs/api").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SandboxFileError, match="'docs/api' is a folder in the sandbox and a link on") as caught:
        await unpack_to_host(stream(tar(member("a"), inner)), tmp_path / "host", max_bytes=None)
    assert "'docs/api'" in str(caught.value.hint)
    assert str(tmp_path) not in str(caught.value)
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_what_stands_in_the_way_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "docs/api/x").mkdir(parents=True)
    with pytest.raises(SandboxFileError, match="can't write 'docs/api'"):
        await unpack_to_host(stream(tar(member("docs/api"))), tmp_path, max_bytes=None)
