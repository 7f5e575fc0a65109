"""Multipart bodies as streams: however the bytes are cut, the parts are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.server.faults import Fault
from corral.server.multipart import MultipartFraming, MultipartReader, boundary_of

BOUNDARY = b"xyz"


class Pieces:
    """A body that comes in pieces."""

    def __init__(self, body: bytes, size: int) -> None:
        self._pieces = [body[start : start + size] for start in range(0, len(body), size)]

    async def readany(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def build(*parts: tuple[str, bytes]) -> bytes:
    body = b""
    for name, content in parts:
        body += b'--xyz\r\nContent-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + content + b"\r\n"
    return body + b"--xyz--\r\n"


async def read(
    body: bytes, *, size: int = 7, max_parts: int = 100, boundary: bytes = BOUNDARY
) -> list[tuple[str, bytes]]:
    reader = MultipartReader(Pieces(body, size), boundary=boundary, max_parts=max_parts, patience_seconds=60)
    return [(part.name, b"".join([piece async for piece in part.content])) async for part in reader.parts()]


@given(
    contents=st.lists(st.binary(max_size=60) | st.sampled_from([b"\r\n", b"--xy", b"\r\n--xy", b"\r\n\r\n--x"])),
    size=st.integers(1, 40),
)
async def test_parts_are_the_same_however_the_body_is_cut(contents: list[bytes], size: int) -> None:
    parts = [(f"p{number}", content) for number, content in enumerate(contents) if b"--xyz" not in content]
    assert await read(build(*parts), size=size) == parts


async def test_a_part_that_nobody_reads_is_passed_over() -> None:
    reader = MultipartReader(
        Pieces(build(("a", b"1" * 1000), ("b", b"2")), 13), boundary=BOUNDARY, max_parts=9, patience_seconds=60
    )
    assert [part.name async for part in reader.parts()] == ["a", "b"]


async def test_text_may_stand_before_the_first_boundary() -> None:
    assert await read(b"hello\r\n" + build(("a", b"1"))) == [("a", b"1")]


async def test_quotes_in_a_name_may_be_escaped() -> None:
    assert await read(build(('a\\"b', b"1"))) == [('a"b', b"1")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing like it",
        b"--xyz",
        build(("a", b"1"))[:-6],
        build(("a", b"123456"))[:-16],
        b"--xyz\r\n\r\nno headers\r\n--xyz--",
        b"--xyz\r\nContent-Type: text/plain\r\n\r\nno name\r\n--xyz--",
        b"--xyzzy\r\n\r\n\r\n--xyz--",
        b"--xyz\r\n" + b"x" * 100_000,
        b"x" * 100_000,
    ],
)
async def test_a_broken_body_is_refused(body: bytes) -> None:
    with pytest.raises(Fault) as refusal:
        await read(body, size=1000)
    assert refusal.value.status == 400


async def test_too_many_parts_are_refused() -> None:
    with pytest.raises(Fault, match="more than 2 parts"):
        await read(build(("a", b""), ("b", b""), ("c", b"")), max_parts=2)


async def test_a_field_that_is_too_long_is_refused() -> None:
    reader = MultipartReader(
        Pieces(build(("a", b"1" * 5000)), 100), boundary=BOUNDARY, max_parts=9, patience_seconds=60
    )
    part = await anext(aiter(reader.parts()))
    with pytest.raises(Fault, match="longer than 4096"):
        await part.read_text(max_bytes=4096)


def test_a_boundary_is_found_in_a_content_type() -> None:
    assert boundary_of("multipart/form-data; boundary=abc") == b"abc"
    assert boundary_of('Multipart/Form-Data; charset=utf-8; Boundary="a b"') == b"a b"
    for wrong in ("", "application/json", "multipart/form-data", "multipart/mixed; boundary=a"):
        with pytest.raises(Fault):
            boundary_of(wrong)


async def test_what_we_write_can_be_read_again() -> None:
    framing = MultipartFraming()
    body = b""
    for name, content in (("file", b"one"), ("error", b""), ("file", b"\r\n--")):
        head = framing.begin(name=name, filename='a"ü\r\n.txt', content_type="text/plain", size=len(content))
        assert b"filename*=utf-8''a%22%C3%BC%0D%0A.txt\r\n" in head
        body += head + content
    body += framing.end()
    found = await read(body, size=11, boundary=boundary_of(framing.content_type))
    assert found == [("file", b"one"), ("error", b""), ("file", b"\r\n--")]


async def test_an_answer_without_parts_is_whole() -> None:
    framing = MultipartFraming()
    reader = MultipartReader(
        Pieces(framing.end(), 5), boundary=framing.boundary.encode(), max_parts=9, patience_seconds=60
    )
    assert [part.name async for part in reader.parts()] == []
