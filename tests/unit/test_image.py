"""Images by recipe: each step a line, and what could become another line is refused or quoted."""

import json
from pathlib import Path

import pytest

import corral
from corral import Image, SpecError
from corral.backends.embedded import EmbeddedBackend
from corral.errors import CapabilityError
from corral.spec import make_spec


def test_steps_become_lines() -> None:
    image = (
        Image.debian_slim(python="3.12")
        .apt_install("git", "ca-certificates")
        .pip_install("numpy>=2", "six")
        .run("echo one", "echo two")
        .env({"MODE": 'a "b" $c \\d'})
        .workdir("/workspace")
    )
    lines = image.dockerfile.splitlines()
    assert lines[0] == "FROM python:3.12-slim"
    assert "git ca-certificates" in lines[1]
    assert json.loads(lines[2].removeprefix("RUN "))[2] == "python3 -m pip install --no-cache-dir 'numpy>=2' six"
    assert [json.loads(line.removeprefix("RUN "))[2] for line in lines[3:5]] == ["echo one", "echo two"]
    assert lines[5] == 'ENV MODE="a \\"b\\" \\$c \\\\d"'
    assert lines[6] == "WORKDIR /workspace"


def test_each_step_is_a_new_image() -> None:
    base = Image.base("debian:12")
    assert base.run("true") != base
    assert base == Image.base("debian:12")
    assert len({base, Image.base("debian:12")}) == 1
    assert base.dockerfile == "FROM debian:12\n"


def test_command_of_several_lines_stays_one_instruction() -> None:
    image = Image.base("debian:12").run("echo a\nUSER root\necho 'b'")
    assert len(image.dockerfile.splitlines()) == 2


def test_dockerfile_is_taken_as_text_or_from_a_file(tmp_path: Path) -> None:
    text = "# a comment\nARG V=12\nFROM debian:$V"
    assert Image.from_dockerfile(text).dockerfile == text
    assert Image.from_dockerfile(text).run("true").dockerfile.splitlines()[-2:][0] == "FROM debian:$V"
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    assert Image.from_dockerfile(file) == Image.from_dockerfile(str(file)) == Image(text)
    with pytest.raises(SpecError, match="can't be read"):
        Image.from_dockerfile(tmp_path / "missing")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Image("RUN true"),
        lambda: Image(""),
        lambda: Image.base("debian:12\nRUN evil"),
        lambda: Image.base(""),
        lambda: Image.debian_slim(python="latest"),
        lambda: Image.base("x").pip_install(),
        lambda: Image.base("x").pip_install("--index-url=evil"),
        lambda: Image.base("x").apt_install("a\nb"),
        lambda: Image.base("x").run(),
        lambda: Image.base("x").run("  "),
        lambda: Image.base("x").env({"A B": "x"}),
        lambda: Image.base("x").env({"A": "x\nRUN evil"}),
        lambda: Image.base("x").workdir("relative"),
        lambda: Image.base("x").workdir("/a\nRUN evil"),
    ],
    ids=iter(str(number) for number in range(14)),
)
def test_what_is_no_image_is_refused(make: object) -> None:
    with pytest.raises(SpecError):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("image", ["debian:12", Image.base("debian:12")])
async def test_embedded_backend_says_what_to_do_instead(image: str | Image, tmp_path: Path) -> None:
    backend = EmbeddedBackend(tmp_path / "data")
    with pytest.raises(CapabilityError, match=r"packages=.*docker"):
        await backend.create(make_spec(image=image))


def test_image_is_at_the_front_door() -> None:
    assert corral.Image is Image
