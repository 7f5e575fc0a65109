"""What the release before this one left on disk is opened by this one: data folders, snapshots, runs."""

import os
import sys
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.errors import BackendUnavailableError
from corral.forge import read_run
from corral.spec import Spec
from support.releases import FIXTURES, restore_data, restore_run
from support.serving import ServedProcess, make_client
from support.user import OrdinaryUser

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only"),
]
RELEASES = sorted(path.name for path in FIXTURES.iterdir())

# Run here as root, and by an ordinary user as a program of its own.
OPEN = """
import asyncio
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Spec

async def open_all(folder):
    backend = EmbeddedBackend(folder)
    (info,) = [info for info in await backend.list() if info.name == "kept-box"]
    assert (info.state, info.labels) == ("stopped", {"team": "blue"}), info
    box = await backend.start("kept-box")
    seen = await box.exec("cat notes.txt later.txt; readlink link; ls -d empty; bin/tool.sh; echo $GREETING")
    assert seen.stdout.split("\\n") == [
        "written by 0.1.0", "after the snapshot", "notes.txt", "empty", "tool", "hello", ""
    ], seen
    recorded = await box.start_recorded("echo once more", name="job-2")
    await recorded.wait(timeout=60)
    await backend.stop("kept-box")
    await box.aclose()
    (snapshot,) = await backend.list_snapshots()
    assert snapshot.name == "before", snapshot
    begun = await backend.create(Spec(snapshot="before"))
    seen = await begun.exec("cat notes.txt; ls")
    assert seen.stdout == "written by 0.1.0\\nbin\\nempty\\nlink\\nnotes.txt\\n", seen
    await begun.aclose()
    await backend.delete("kept-box")
    await backend.delete_snapshot("before")
    assert not await backend.list_snapshots()
    await backend.aclose()
"""


@pytest.mark.needs_root
@pytest.mark.parametrize("release", RELEASES)
async def test_data_folder_of_an_earlier_release_is_opened(release: str, tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(OPEN, names)  # the same text is run by an ordinary user below
    await names["open_all"](restore_data(release, "root", tmp_path))  # type: ignore[operator]


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.parametrize("release", RELEASES)
def test_data_folder_of_an_earlier_release_is_opened_by_an_ordinary_user(
    release: str, ordinary_user: OrdinaryUser
) -> None:
    folder = restore_data(release, "user", ordinary_user.home)
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, ordinary_user.uid, ordinary_user.uid, follow_symlinks=False)
    done = ordinary_user.run(f"{OPEN}\nasyncio.run(open_all({str(folder)!r}))\n")
    assert done.returncode == 0, done.stderr


@pytest.mark.needs_root
@pytest.mark.parametrize("release", RELEASES)
async def test_server_of_an_earlier_release_goes_on(release: str, tmp_path: Path) -> None:
    server = ServedProcess(restore_data(release, "root", tmp_path))
    server.start()
    try:
        client = make_client(server)
        box = client.get("served-box")
        assert box.labels["team"] == "red"
        client.start(box)
        assert box.fs.download_file("sdk.txt") == b"written through the SDK\n"
        assert box.process.exec("echo $GREETING").result == "hi\n"
        client.delete(box)
    finally:
        server.stop()
        await server.end_sandboxes()


@pytest.mark.parametrize("release", RELEASES)
def test_run_of_an_earlier_release_is_read(release: str, tmp_path: Path) -> None:
    run = read_run(restore_run(release, tmp_path))
    assert run.definition["objective"] == "Write the list"
    assert {key: attempt.ok for key, attempt in run.attempts.items()} == {
        ("one", 1): True, ("one", 2): True, ("two", 1): False, ("two", 2): False
    }  # fmt: skip
    assert [(standing.candidate, standing.rank) for standing in run.standings] == [("one", 1), ("two", None)]


async def test_data_folder_of_a_newer_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    backend = EmbeddedBackend(folder)
    box = await backend.create(Spec())
    await box.aclose()
    await backend.aclose()
    assert (folder / "format").read_text() == "1\n"
    (folder / "format").write_text("2\n")
    (folder / "sandboxes" / "of-the-future").mkdir(mode=0o700)
    newer = EmbeddedBackend(folder)
    with pytest.raises(BackendUnavailableError, match="format 2"):
        await newer.create(Spec())
    with pytest.raises(BackendUnavailableError, match="format 2"):
        await newer.list()
    assert (folder / "sandboxes" / "of-the-future").exists()
    await newer.aclose()
