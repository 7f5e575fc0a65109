"""Paths inside."""

from pathlib import Path, PurePosixPath

import pytest

from corral.errors import SandboxFileError
from corral.paths import MAX_PATH_BYTES, SandboxPath, inside


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("a", "/srv/a"),
        ("./a//b/.", "/srv/a/b"),
        ("/abs", "/abs"),
        ("//abs///x", "/abs/x"),
        ("a/../b", "/srv/a/../b"),  # a may be a link
        ("..", "/srv/.."),
        (".", "/srv"),
        ("/", "/"),
        ("~", "/srv/~"),
        ("-x", "/srv/-x"),
        ("new\nline", "/srv/new\nline"),
        ("bad\udcff", "/srv/bad\udcff"),
        (PurePosixPath("a/b"), "/srv/a/b"),
    ],
)
def test_path_is_made_absolute(given: str | PurePosixPath, wanted: str) -> None:
    path = inside(given, workdir="/srv")
    assert path == wanted
    assert isinstance(path, SandboxPath)


@pytest.mark.parametrize("given", ["", "a\0b", "x" * (MAX_PATH_BYTES + 1), "ü" * MAX_PATH_BYTES])
def test_impossible_path_is_refused(given: str) -> None:
    with pytest.raises(SandboxFileError) as caught:
        inside(given, workdir="/srv")
    assert len(str(caught.value)) < 400


def test_path_of_the_host_is_refused(tmp_path: Path) -> None:
    """`pathlib.Path` names a place on this machine, and is a mistake here."""
    with pytest.raises(SandboxFileError, match="host path"):
        inside(tmp_path, workdir="/srv")
