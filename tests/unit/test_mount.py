"""What `mounts=` takes, and what it refuses."""

from typing import Any

import pytest

from corral.errors import SpecError
from corral.mount import MAX_MOUNTS, Mount, read_mounts
from corral.results import VolumeInfo
from corral.spec import Spec, make_spec


@pytest.mark.parametrize(
    "path",
    [
        "data", "", "/", "//", "/proc", "/proc/x", "/sys/fs", "/dev", "/dev/shm/x", "/etc", "/etc/ssh", "/usr/local",
        "/bin", "/lib64/x", "/run/x", "/opt/corral/bin", "/home", "/tmp", "/var", "/root", "/data/../etc", "/data/./x",
        "/a\0b", "/a\nb", "/" + "x" * 2000, 7,
    ],
)  # fmt: skip
def test_paths_that_the_sandbox_needs_and_odd_ones_are_refused(path: Any) -> None:
    with pytest.raises(SpecError):
        Mount(path, volume="data")


def test_paths_become_normal() -> None:
    assert Mount("//data//raw/", volume="v").path == "/data/raw"
    assert Mount("/data", volume="v", subpath="a//b/").subpath == "a/b"


@pytest.mark.parametrize("subpath", ["/a", "..", "a/../b", "./a", "a\0", 3])
def test_subpaths_lead_downwards_only(subpath: Any) -> None:
    with pytest.raises(SpecError):
        Mount("/data", volume="v", subpath=subpath)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "x" * 129, "a:ro", 5])
def test_names_of_volumes_are_plain(name: Any) -> None:
    with pytest.raises(SpecError):
        Mount("/data", volume=name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"volume": "v", "source": "/x"},
        {"volume": "v", "mode": "overlay"},
        {"volume": "v", "mode": "copy"},
        {"volume": "v", "mode": "write"},
        {"source": "/x", "subpath": "a"},
        {"source": "/x", "exclusive": True},
        {"source": ""},
        {"source": "a\0"},
    ],
)
def test_combinations_without_a_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Mount("/data", **options)


def test_a_volume_is_writable_and_a_folder_of_the_host_is_not_unless_asked() -> None:
    assert Mount("/data", volume="v").mode == "rw"
    assert Mount("/data", source="/srv/x").mode == "ro"


@pytest.mark.parametrize("second", ["/data", "/data/", "/data/raw"])
def test_mounts_that_hide_each_other_are_refused(second: str) -> None:
    beside = Mount("/data-old", volume="v")
    with pytest.raises(SpecError, match="overlap"):
        Spec(mounts=(Mount(second, volume="v"), beside, Mount("/data", volume="w")))
    assert Spec(mounts=(beside, Mount("/data", volume="v"))).mounts[0] is beside


def test_the_short_form_names_volumes() -> None:
    info = VolumeInfo("1b4e28ba-2fa1-11d2-883f-0016d3cca427", "embedded", "named")
    spec = make_spec(mounts={"/data": "one", "/in": "two:ro", "/out": info, "/all": Mount("/ignored", volume="four")})
    assert spec.mounts == (
        Mount("/data", volume="one"),
        Mount("/in", volume="two", mode="ro"),
        Mount("/out", volume=info.volume_id),
        Mount("/all", volume="four"),
    )
    assert make_spec(mounts=None).mounts == ()


@pytest.mark.parametrize("value", [{"/data": 3}, {"/data": "v:copy"}, {"/data": ""}, "v", [("/data", "v")], {3: "v"}])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(SpecError):
        read_mounts(value)


def test_the_number_of_mounts_is_bounded() -> None:
    with pytest.raises(SpecError, match="too many"):
        read_mounts([Mount(f"/data/{number}", volume="v") for number in range(MAX_MOUNTS + 1)])
