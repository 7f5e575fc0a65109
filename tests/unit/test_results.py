"""What comes back."""

import base64
from pathlib import Path

import pytest

from corral.results import Capabilities, CodeResult, ExecResult, FileInfo, Usage
from corral.sessions.interpreter.events import RunResult


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


def test_pictures_are_told_from_what_only_claims_to_be_one(tmp_path: Path) -> None:
    picture = b"\x89PNG\r\n\x1a\n and so on"
    encoded = base64.encodebytes(picture).decode()
    forged = ({"png": "%%%"}, {"png": 7}, {}, {"png": base64.b64encode(b"GIF89a").decode()})
    plotted = CodeResult(0, "exited", Usage(0.1), charts=({"png": encoded}, *forged))
    assert plotted.pngs == (picture,)
    assert plotted.save_png(tmp_path / "chart.png").read_bytes() == picture
    shown = RunResult(
        "1", "completed", displays=({"image/png": encoded},), result={"image/png": encoded, "text/plain": ""}
    )
    assert shown.pngs == (picture, picture)
    plain = CodeResult(0, "exited", Usage(0.1))
    assert plain.png is None
    with pytest.raises(LookupError, match="no picture"):
        plain.save_png(tmp_path / "none.png")
