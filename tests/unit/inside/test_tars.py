"""The one reader and writer of tars: hostile headers are bounded, holes are kept, and other programs agree."""

import io
import os
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.inside.refusal import RefusedError
from corral.inside.tars.inflating import Inflated
from corral.inside.tars.reading import MAX_EXTENSION_BYTES, BrokenArchiveError, Member, MemberReader
from corral.inside.tars.unpacking import unpack_tree
from corral.inside.tars.writing import RestlessTreeError, pack_tree

END = bytes(1024)
PIECE = 64 * 1024


def header(name: str = "f", *, size: bytes = b"00000000001\0", kind: bytes = b"0") -> bytes:
    """One block, with a size as it stands there and a right sum."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136], block[156:157], block[148:156] = size, kind, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extended(fields: bytes, *, size: int | None = None) -> bytes:
    length = len(fields) if size is None else size
    return header(kind=b"x", size=b"%011o\0" % length) + fields + bytes(-len(fields) % 512)


def field(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length += 1
    return str(length).encode() + rest


def read(data: bytes) -> list[tuple[Member, bytes]]:
    source = io.BytesIO(data)
    reader = MemberReader(source.read)
    return [(member, b"".join(piece for _, piece in reader.content(member))) for member in reader]


SPARSE = field(b"GNU.sparse.major", b"1") + field(b"GNU.sparse.minor", b"0") + field(b"GNU.sparse.name", b"s")


@pytest.mark.parametrize(
    "data",
    [
        header(size=b"\xff" * 12) + END,
        header(size=b"-0000000001\0") + END,
        header(size=b"\x80" + b"\xff" * 11) + END,
        extended(field(b"size", b"-5")) + header() + END,
        extended(field(b"size", "²".encode())) + header() + END,
        extended(field(b"path", b"a\0b")) + header(size=b"0\0") + END,
        extended(b"99999999999999999999999 x=y\n") + header() + END,
        extended(b"5 \n") + header() + END,
        extended(SPARSE + field(b"GNU.sparse.realsize", b"10"), size=None)
        + header(size=b"%011o\0" % 513) + b"1\n20\n1\n".ljust(512, b"\0") + b"x" + bytes(511) + END,
        extended(SPARSE + field(b"GNU.sparse.realsize", b"9")) + header(size=b"%011o\0" % 512) + b"9" * 512 + END,
        extended(field(b"GNU.sparse.map", b"5,5,0,5") + field(b"GNU.sparse.size", b"10"))
        + header(size=b"%011o\0" % 10) + bytes(512) + END,
        extended(field(b"path", b"a/" * 100_000)) + header(size=b"0\0", kind=b"5") + END,
        extended(field(b"x", b"y")) * 17 + header(size=b"0\0") + END,
        header(size=b"0\0"),
        b"",
    ],
    ids=["base-256", "minus", "too large", "pax minus", "pax digit", "nul", "digits", "empty record", "map beyond",
         "map without end", "map backwards", "half a million folders", "many extensions", "no end", "empty"],
)  # fmt: skip
def test_header_that_lies_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenArchiveError):
        read(data)


@pytest.mark.parametrize("kind", [b"x", b"L", b"K", b"g"])
def test_header_costs_little_memory_whatever_it_says(kind: bytes) -> None:
    given = 0

    def endless(size: int) -> bytes:
        nonlocal given
        given += size
        return header(kind=kind, size=b"%011o\0" % (700 << 20)) if given == 512 else b"a" * size

    tracemalloc.start()
    try:
        with pytest.raises(BrokenArchiveError):
            list(MemberReader(endless))
        assert tracemalloc.get_traced_memory()[1] < 2 * MAX_EXTENSION_BYTES
    finally:
        tracemalloc.stop()
    assert given < 2 * MAX_EXTENSION_BYTES


def make_tree(root: Path) -> None:
    (root / "sub").mkdir(parents=True)
    (root / "sub" / ("long" * 60)).write_bytes(b"long name")
    (root / "sub" / "empty").touch()
    os.link(root / "sub" / "empty", root / "twice")
    (root / os.fsdecode(b"odd-\xff")).write_text("odd")
    (root / "link").symlink_to("sub/empty")
    with (root / "sparse").open("wb") as file:
        file.truncate(50 << 20)
        file.seek(10 << 20)
        file.write(b"data")


def pack(root: Path) -> bytes:
    sink = io.BytesIO()
    assert pack_tree(str(root), sink.write) == []
    return sink.getvalue()


def unpack_with_python(data: bytes, target: Path) -> None:
    how = {"filter": "fully_trusted"} if hasattr(tarfile, "tar_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(target, **how)  # type: ignore[arg-type]  # the filter is not in every Python


def unpack_with_ours(data: bytes, target: Path) -> None:
    unpack_tree(str(target), [data[at : at + 999] for at in range(0, len(data), 999)])


@pytest.mark.parametrize("unpack", [unpack_with_ours, unpack_with_python], ids=["ours", "python"])
def test_tree_comes_back_as_it_was(tmp_path: Path, unpack: Callable[[bytes, Path], None]) -> None:
    make_tree(tmp_path / "tree")
    data = pack(tmp_path / "tree")
    assert len(data) < 1 << 20
    unpack(data, tmp_path / "back")
    for path in sorted((tmp_path / "tree").rglob("*")):
        copy = tmp_path / "back" / path.relative_to(tmp_path / "tree")
        assert copy.is_symlink() == path.is_symlink()
        if path.is_file():
            assert copy.read_bytes() == path.read_bytes()
    assert (tmp_path / "back" / "sparse").stat().st_blocks * 512 < 1 << 20
    assert (tmp_path / "back" / "twice").stat().st_nlink == 2


class Mover:
    """Takes an archive, and moves the one large file of the tree ahead whenever it is being read."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._names = [folder / f"{number:02}" for number in range(20)]
        for name in self._names:
            name.touch()
        self._names[0].write_bytes(b"x" * 100_000)
        self.taken = 0
        time.sleep(0.2)  # older than the packing by more than a tick of the clock that files are dated by

    def write(self, data: bytes) -> None:
        self.taken += len(data)
        if data[:1] == b"x" and len(self._names) > 1:
            self._names.pop(0).rename(self._names[0])


def test_file_that_is_moved_ahead_of_its_reader_does_not_make_an_endless_archive(tmp_path: Path) -> None:
    free, bound = Mover(tmp_path / "free"), Mover(tmp_path / "bound")
    pack_tree(str(tmp_path / "free"), free.write)
    assert free.taken > 1_000_000
    with pytest.raises(RestlessTreeError, match="more than 300000 bytes changed"):
        pack_tree(str(tmp_path / "bound"), bound.write, max_changing_bytes=300_000)
    assert bound.taken < 450_000


def test_tree_at_rest_is_packed_whatever_its_size(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    time.sleep(0.2)
    assert pack_tree(str(tmp_path), lambda _: None, max_changing_bytes=1000) == []


def test_file_that_shrinks_meanwhile_leaves_the_archive_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * (1 << 20))
    written: list[bytes] = []

    def write(data: bytes) -> None:
        if not written:
            os.truncate(tmp_path / "f", 10)
        written.append(data)

    pack_tree(str(tmp_path / "f"), write)
    (found,) = read(b"".join(written))
    assert found[1] == b"x" * 10 + bytes((1 << 20) - 10)


def test_member_never_goes_through_a_link_that_leads_out(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    target = tmp_path / "target"
    (target / "a" / "b").mkdir(parents=True)
    (target / "l").symlink_to("a/b")
    (target / "away").symlink_to("../out")
    for name in ("away/x", "l/../../../x", "../x"):
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w") as tar:
            tar.addfile(tarfile.TarInfo(name))
        with pytest.raises(RefusedError, match="outside the target folder"):
            unpack_tree(str(target), [sink.getvalue()])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "target"]
    assert not list((tmp_path / "out").iterdir())


def test_what_unpacks_to_much_is_unpacked_in_pieces() -> None:
    bomb = __import__("gzip").compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        source = Inflated([bomb])
        while source.read(PIECE):
            pass
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
