"""What comes back."""

import pytest

from corral.results import Capabilities, ExecResult, FileInfo, Usage


def result(output: bytes) -> ExecResult:
    return ExecResult(0, "exited", Usage(0.0), output_bytes=output, stdout_bytes=output)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 0),
        (b"plain", 0),
        ("grüße 😀".encode(), 0),
        (b"\xff", 1),
        (b"a\xffb\xfe", 2),
        (b"\xc3", 1),
        (b"\xe2\x82", 2),
        (b"\xed\xa0\x80", 3),
        (bytes(range(256)), 128),
    ],
)
def test_bytes_that_are_no_text_are_counted(data: bytes, count: int) -> None:
    assert result(data).replaced_bytes == count


@pytest.mark.timeout(20)  # a guard against quadratic work: what is linear takes a few hundredths of a second
def test_counting_is_linear() -> None:
    assert result(b"\xff" * (1 << 20)).replaced_bytes == 1 << 20


def test_ok_is_a_clean_end_only() -> None:
    assert result(b"").ok
    assert not ExecResult(0, "timeout", Usage(0.0)).ok
    assert not ExecResult(3, "exited", Usage(0.0)).ok


def test_limits_are_hard_only_if_all_are() -> None:
    assert Capabilities("x", "hard", "hard", "hard", "hard").limits == "hard"
    assert Capabilities("x", "hard", "hard", "none", "hard").limits == "soft"


@pytest.mark.parametrize(("path", "name"), [("/a/b", "b"), ("/a", "a"), ("/", "/"), ("/a/new\nline", "new\nline")])
def test_name_is_the_last_part(path: str, name: str) -> None:
    assert FileInfo(path, "file", 0, 0, 0.0, 0, 0).name == name
