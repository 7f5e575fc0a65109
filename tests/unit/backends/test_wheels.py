"""Which wheels a requirement comes to. Wheels are made by hand, and what pip does is done by a fetch of a few lines."""

import shutil
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from corral.backends.embedded import wheels
from corral.backends.embedded.wheels import gather_wheels, read_wheel
from corral.errors import SpecError
from support.wheels import make_wheel


class Index:
    """A folder of wheels that can be fetched from as by `pip download --no-deps`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[list[str]] = []

    def add(self, name: str, version: str = "1.0", *requires: str) -> None:
        make_wheel(self.folder / "index", name, version, requires=requires)

    async def fetch(self, names: list[str], target: Path) -> str | None:
        self.calls.append(names)
        target.mkdir(parents=True, exist_ok=True)
        for asked in map(Requirement, names):
            found = [read_wheel(path) for path in (self.folder / "index").iterdir()]
            fitting = [wheel for wheel in found if wheel.name == asked.name and asked.specifier.contains(wheel.version)]
            if not fitting:
                return f"nothing found for {asked}"
            shutil.copy(max(fitting, key=lambda wheel: wheel.version).path, target)
        return None

    async def gather(self, *packages: str) -> dict[str, str]:
        found = await gather_wheels(packages, self.folder / "work", self.fetch)
        return {wheel.name: str(wheel.version) for wheel in found}


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


async def test_dependencies_are_followed_as_extras_and_markers_say(index: Index) -> None:
    index.add("top", "2.0", "Middle>=1", "absent; python_version < '3'", "unasked; extra == 'more'")
    index.add("middle", "1.5", "bottom[fast]<2", "top")
    index.add("bottom", "1.9", "fast_part; extra == 'fast'", "evil @ file:///x ; extra == 'slow'")
    index.add("bottom", "2.0")
    index.add("fast_part")
    assert await index.gather("top") == {"top": "2.0", "middle": "1.5", "bottom": "1.9", "fast-part": "1.0"}
    assert index.calls == [["top"], ["middle>=1"], ["bottom<2"], ["fast-part"]]


async def test_extra_that_is_asked_for_later_counts(index: Index) -> None:
    index.add("one", "1.0", "part; extra == 'b'", "one[b]; extra == 'a'")
    index.add("two", "1.0", "one[a]")
    index.add("part")
    assert set(await index.gather("one", "two")) == {"one", "two", "part"}


async def test_nothing_is_asked_for_where_nothing_applies(index: Index) -> None:
    assert await index.gather("two; python_version < '3'") == {}
    assert index.calls == []


async def test_version_that_turns_out_too_new_is_taken_back(index: Index) -> None:
    index.add("first", "1.0", "shared")
    index.add("shared", "2.0", "only-for-two")
    index.add("shared", "1.0")
    index.add("only_for_two")
    index.add("second", "1.0", "third")
    index.add("third", "1.0", "shared<2")
    assert await index.gather("first", "second") == {"first": "1.0", "second": "1.0", "third": "1.0", "shared": "1.0"}


async def test_older_version_is_tried_where_the_newest_can_not_be(index: Index) -> None:
    index.add("left", "1.0", "shared<2")
    index.add("right", "3.0", "shared>=2")
    index.add("right", "2.0", "shared")
    index.add("shared", "1.0")
    index.add("shared", "2.0")
    assert await index.gather("left", "right") == {"left": "1.0", "right": "2.0", "shared": "1.0"}


async def test_requirements_that_exclude_each_other_are_named(index: Index) -> None:
    index.add("left", "1.0", "shared<2")
    index.add("right", "1.0", "shared>=2")
    index.add("shared", "1.0")
    index.add("shared", "2.0")
    with pytest.raises(SpecError, match=r"shared<2 \(for left\) and shared>=2 \(for right\)"):
        await index.gather("left", "right")


async def test_package_that_is_not_there_is_named(index: Index) -> None:
    index.add("one")
    with pytest.raises(SpecError, match=r"^none>2: nothing found"):
        await index.gather("one", "none>2")


@pytest.mark.parametrize(
    "requirement",
    ["evil @ file:///x", "evil@https://example.org/evil.whl", "evil @ git+file:///x", "evil===1.zip", "evil.zip"],
)
@pytest.mark.parametrize("deep", [False, True])
async def test_dependency_on_an_address_is_refused(index: Index, requirement: str, deep: bool) -> None:
    index.add("bad", "1.0", requirement)
    index.add("good", "1.0", "bad")
    with pytest.raises(SpecError, match=r"bad 1\.0 depends on 'evil"):
        await index.gather("good" if deep else "bad")
    assert all("evil" not in name for names in index.calls for name in names)


@pytest.mark.parametrize("requirement", ["-r /etc/passwd", "a b", "a\u00a0b", "x" * 5000, "a; extra == " + "(" * 99])
def test_dependency_that_can_not_be_read_is_refused(tmp_path: Path, requirement: str) -> None:
    with pytest.raises(SpecError, match="has an unreadable dependency"):
        read_wheel(make_wheel(tmp_path, "odd", requires=[requirement]))


async def test_chain_without_an_end_is_given_up(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_MAX_ROUNDS", 3)
    for number in range(6):
        index.add(f"link{number}", "1.0", f"link{number + 1}")
    with pytest.raises(SpecError, match="link0 depends on can't be resolved in a bounded number of steps"):
        await index.gather("link0")


async def test_crowd_of_dependencies_is_given_up(index: Index) -> None:
    index.add("one", "1.0", *(f"a{number}" for number in range(600)))
    with pytest.raises(SpecError, match="more than 500 wheels"):
        await index.gather("one")
    index.add("one", "2.0", *(f"a{number}" for number in range(2001)))
    with pytest.raises(SpecError, match="too many packages"):
        await index.gather("one")


@pytest.mark.parametrize("kind", ["none", "bomb", "two", "twice", "dotted", "lie", "not-a-zip", "no-wheel", "version"])
def test_wheel_that_can_not_be_read_is_a_typed_error(tmp_path: Path, kind: str) -> None:
    wheel = make_wheel(
        tmp_path,
        "odd",
        "1.0+x.zip" if kind == "version" else "1.0",
        more="\n" + "x" * (9 << 20) if kind in ("bomb", "lie") else "",
        metadata=kind != "none",
    )
    text = "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n"
    with zipfile.ZipFile(wheel, "a") as file:
        if kind == "two":
            file.writestr("odd-2.0.dist-info/METADATA", text)
        elif kind == "dotted":  # pip takes it for the same, and the last one counts
            file.writestr("odd-1.0.dist-info/./METADATA", text)
        elif kind == "twice":
            with pytest.warns(UserWarning, match="Duplicate name"):
                file.writestr("odd-1.0.dist-info/METADATA", text)
    if kind == "not-a-zip":
        wheel.write_bytes(b"PK no")
    elif kind == "lie":  # the directory says that it is small
        data = wheel.read_bytes()
        with zipfile.ZipFile(wheel) as file:
            size = file.getinfo("odd-1.0.dist-info/METADATA").file_size
        wheel.write_bytes(data.replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little")))
    elif kind == "no-wheel":
        wheel = wheel.rename(tmp_path / "odd-1.0.tar.gz")
    with pytest.raises(SpecError, match="odd"):
        read_wheel(wheel)


@pytest.mark.parametrize("place", ["odd-1.0.dist-info/entry_points.txt", "odd-1.0.dist-info/./entry_points.txt"])
@pytest.mark.parametrize("name", ["/tmp/x", "../../x", "fine = a:b\n../x"])
def test_script_that_would_be_written_elsewhere_is_refused(tmp_path: Path, name: str, place: str) -> None:
    wheel = make_wheel(tmp_path, "odd")
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr(place, f"[types]\ntext/plain = a:b\n[console_scripts]\n{name} = odd:main\n")
    with pytest.raises(SpecError, match="script whose name is a path"):
        read_wheel(wheel)


def test_script_with_a_name_and_other_entry_points_are_taken(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "even")
    with zipfile.ZipFile(wheel, "a") as file:
        text = "[console_scripts]\n# a/b\neven-3.11 = even:main [extra]\n[types]\ntext/plain = even:show\n"
        file.writestr("even-1.0.dist-info/entry_points.txt", text)
    assert read_wheel(wheel).name == "even"
