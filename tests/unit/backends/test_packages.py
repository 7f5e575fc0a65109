"""Packages from an index that lies: pip and uv are real, the index is a folder of wheels made by hand."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from corral.backends.embedded import packages as room
from corral.backends.embedded.packages import provide_packages
from corral.errors import BackendUnavailableError, SpecError
from corral.spec import Spec
from support.wheels import make_evil_project, make_wheel

UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
INSTALLERS = ["pip", pytest.param("uv", marks=pytest.mark.skipif(UV is None, reason="uv is not installed here"))]


class Index:
    """A folder of wheels, what pip and uv are told about it, and the evil project beside it."""

    def __init__(self, tmp_path: Path) -> None:
        self.wheels = tmp_path / "wheels"
        self.wheels.mkdir()
        self.mark = tmp_path / "evil-ran"
        self.project = make_evil_project(tmp_path / "evil", self.mark)
        self.data = tmp_path / "data"

    def add(self, name: str, version: str = "1.0", *requires: str) -> Path:
        return make_wheel(self.wheels, name, version, requires=requires)

    async def provide(self, *packages: str) -> dict[str, str]:
        """Names and versions that a sandbox would see."""
        folder = await provide_packages(self.data, Spec(packages=packages).packages)
        found = (path.name.removesuffix(".dist-info") for path in folder.glob("*.dist-info"))
        return dict(name.split("-") for name in found)

    def nothing_is_left(self) -> bool:
        return not self.mark.exists() and not list((self.data / "packages").glob(".new*"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index(tmp_path)
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = {"PIP_CONFIG_FILE": "[global]\nno-index = true\nfind-links = {}\n"}
    settings["UV_CONFIG_FILE"] = 'no-index = true\nfind-links = ["{}"]\n'
    for name, text in settings.items():
        file = tmp_path / name
        file.write_text(text.format(made.wheels.as_uri()))  # a path with a space would be two of them
        monkeypatch.setenv(name, str(file))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return made


@pytest.fixture(params=INSTALLERS)
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "uv":
        assert UV is not None
        monkeypatch.setenv("PATH", str(Path(UV).parent), prepend=":")
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)  # a Python without pip
    return str(request.param)


@pytest.mark.check
async def test_evil_project_is_evil(index: Index) -> None:
    """The bait works: what is asserted below would fail if pip were let at it."""
    command = [sys.executable, "-m", "pip", "install", "--only-binary=:all:", "--target", str(index.data)]
    subprocess.run([*command, f"evil @ {index.project.as_uri()}"], capture_output=True, check=False)
    assert index.mark.exists()


@pytest.mark.usefixtures("installer")
async def test_packages_come_with_what_they_need(index: Index) -> None:
    index.add("top", "2.0", "middle>=1", "absent; python_version < '3'", "unasked; extra == 'more'")
    index.add("middle", "1.5", "bottom[fast]<2", "top")
    index.add("bottom", "1.9", "fast-part; extra == 'fast'", "evil @ file:///x ; extra == 'slow'")
    index.add("bottom", "2.0")
    index.add("fast_part", "0.1")
    assert await index.provide("Top>1") == {"top": "2.0", "middle": "1.5", "bottom": "1.9", "fast_part": "0.1"}
    (folder,) = (index.data / "packages").iterdir()
    assert (folder / "bottom.py").read_text() == "version = '1.9'\n"


@pytest.mark.check
@pytest.mark.usefixtures("installer")
async def test_only_what_applies_here_is_fetched(index: Index) -> None:
    index.add("one")
    assert await index.provide("one; python_version > '3'", "two; python_version < '3'") == {"one": "1.0"}
    assert await index.provide("two; python_version < '3'") == {}


@pytest.mark.usefixtures("installer")
@pytest.mark.parametrize("how", ["folder", "wheel"])
async def test_wheel_that_depends_on_an_address_is_refused(index: Index, tmp_path: Path, how: str) -> None:
    address = index.project if how == "folder" else make_wheel(tmp_path / "aside", "evil")
    index.add("bad", "1.0", f"evil @ {address.as_uri()}")
    index.add("good", "1.0", "bad")
    with pytest.raises(SpecError, match="evil"):
        await index.provide("good")
    assert index.nothing_is_left()


@pytest.mark.check
async def test_pip_follows_nothing_where_it_judges_otherwise(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip has a `packaging` of its own: for an older one `sys_platform > "a"` holds, for ours it never does.

    Then it would fetch what lies there. It can't build it, but it unpacks it first, and older ones write through links.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    archive = tmp_path / "evil-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("evil-1.0/link")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        for member in (tarfile.TarInfo("evil-1.0/setup.py"), link, tarfile.TarInfo("evil-1.0/link/planted")):
            tar.addfile(member)
    index.add("one", "1.0", f'evil @ {archive.as_uri()} ; sys_platform > "a"')
    index.add("two", "1.0", f"evil @ {archive.as_uri()}")
    assert await index.provide("one") == {"one": "1.0"}
    monkeypatch.setattr("corral.backends.embedded.wheels._applies", lambda requirement, _: requirement.url is None)
    assert await index.provide("two") == {"two": "1.0"}  # whatever pip's version
    assert not list(outside.iterdir())
    assert index.nothing_is_left()


@pytest.mark.check
@pytest.mark.usefixtures("installer")
async def test_working_folder_is_not_looked_at(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's project: modules that shadow pip, files named like the requested packages, settings for uv."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("pip.py", "runpy.py", "zipfile.py", "sitecustomize.py"):
        (here / name).write_text(f"import os; os.close(os.open({str(index.mark)!r}, os.O_CREAT))\n")
    shutil.copytree(index.project, here / "one")
    (here / "uv.toml").write_text("[pip]\nno-deps = true\n")
    index.add("one", "1.0", "two")
    index.add("two")
    monkeypatch.chdir(here)
    monkeypatch.delenv("UV_CONFIG_FILE")  # with it, uv looks for no other file
    own = tmp_path / "config/uv/uv.toml"  # the user's, which holds all the same
    own.parent.mkdir(parents=True)
    own.write_text(f'no-index = true\nfind-links = ["{index.wheels}"]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    index.data = Path("data")  # which may be given relative to it all the same
    assert await index.provide("one") == {"one": "1.0", "two": "1.0"}
    assert list((here / "data/packages").glob("*/two.py"))
    assert index.nothing_is_left()


@pytest.mark.check
@pytest.mark.usefixtures("installer")
async def test_source_is_not_built_whatever_the_settings_say(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is an sdist of that name, and the environment names it in every way that pip and uv have."""
    shutil.make_archive(str(index.wheels / "evil-1.0"), "gztar", tmp_path, "evil")
    listed = tmp_path / "requirements.txt"
    listed.write_text(f"evil @ {index.project.as_uri()}\n")
    for name, value in (
        ("NO_BINARY", ":all:"), ("REQUIREMENT", str(listed)), ("EDITABLE", str(index.project)),
        ("CONSTRAINT", str(listed)), ("OVERRIDE", str(listed)),
    ):  # fmt: skip
        monkeypatch.setenv(f"PIP_{name}", value)
        monkeypatch.setenv(f"UV_{name}", value)
    with pytest.raises(SpecError, match="evil"):
        await index.provide("evil")
    assert index.nothing_is_left()


async def test_address_is_refused_below_the_spec_too(index: Index) -> None:
    with pytest.raises(SpecError, match="is not a package"):
        await provide_packages(index.data, (f"evil @ {index.project.as_uri()}",))
    assert index.nothing_is_left()


async def test_pip_can_start_no_program(tmp_path: Path) -> None:
    """The second wall: whatever pip is led to, building takes a process, and it can't have one."""
    mark = tmp_path / "evil-ran"
    project = make_evil_project(tmp_path / "evil", mark)
    done = subprocess.run(
        [*room.pip_command(), "install", "--no-index", "--target", str(tmp_path / "target"), str(project)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "pip may not start" in done.stderr
    assert not mark.exists()


async def test_host_without_pip_and_uv_says_so(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BackendUnavailableError, match="pip or uv"):
        await index.provide("one")
