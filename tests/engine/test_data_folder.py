"""Other users of the machine can't change a data folder, and files that they once could change are not trusted.

Most of it needs root, to act as other users. The data folders are in places that every user can reach.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.backends.embedded import seam
from corral.backends.embedded.backend import EmbeddedBackend
from corral.backends.embedded.keepers import sweep_now
from corral.client.sandbox import AsyncSandbox
from corral.spec import Spec
from support.user import OrdinaryUser, find_python

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only"),
]

LOGINS = range(1, 0x7000_0000)
"""Ids of users who may log in: all but root's, and those of sandboxes."""

# Walks as deep as it can and says what it could read, list or put something into.
WALK = """
import os, sys
reached = []
def walk(path):
    for name in ("", "json.py", "home/daytona/.local"):
        spot = os.path.join(path, name).rstrip("/")
        try:
            os.stat(spot)
            reached.append(spot)
        except OSError:
            pass
    try:
        descriptor = os.open(os.path.join(path, "planted"), os.O_WRONLY | os.O_CREAT)
    except OSError:
        pass
    else:
        reached.append("wrote into " + path)
    try:
        names = os.listdir(path)
    except OSError:
        return
    for name in names:
        spot = os.path.join(path, name)
        if os.path.isdir(spot) and not os.path.islink(spot):
            walk(spot)
        else:
            reached.append(spot)
for path in sys.argv[1:]:
    walk(path)
print("\\n".join(reached))
"""


def reached_by(uid: int, *paths: Path) -> list[str]:
    argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--", str(find_python())]
    argv += ["-I", "-c", WALK, *map(str, paths)]
    done = subprocess.run(argv, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach, as /var/lib."""
    folder = Path(tempfile.mkdtemp(prefix="corral-public-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def backend(public: Path) -> AsyncIterator[EmbeddedBackend]:
    before = os.umask(0)  # whatever mode is not asked for shows
    backend = EmbeddedBackend(public / "data")
    yield backend
    os.umask(before)
    for info in await backend.list():
        await backend.delete(info.sandbox_id)
    await backend.aclose()


async def see(box: AsyncSandbox) -> str:
    """What a program that trusts its home and its /tmp comes to run."""
    result = await box.exec(
        "ls -A /tmp /var/tmp ~/.local 2>/dev/null | grep -v : ; cd /tmp; python3 -c 'import json; print(json.__file__)'"
    )
    return result.stdout


def make_as_of_old(data: Path) -> None:
    """A data folder of an earlier version, to whose base another user has added a file."""
    base = data / "base"
    for skeleton in list(base.iterdir()):
        # Under the names of then, and in case they are the names of now, under those too.
        shutil.copytree(skeleton, base / "0123456789abcdef", symlinks=True, dirs_exist_ok=True)
    for skeleton in base.iterdir():
        os.chown(skeleton / "home/daytona", 1000, 1000)
        for name in ("tmp/json.py", "var/tmp/planted", "home/daytona/.local/bin/git"):
            (skeleton / name).parent.mkdir(parents=True, exist_ok=True)
            (skeleton / name).write_text("planted")
    base.chmod(0o755)
    data.chmod(0o755)


@pytest.mark.needs_root
@pytest.mark.parametrize("uid", [1000, 12340])
async def test_another_user_reaches_nothing(backend: EmbeddedBackend, uid: int) -> None:
    box = await backend.create(Spec())
    await box.detach()
    folders = [path for path in backend.data_folder.rglob("*") if path.is_dir() and not path.is_symlink()]
    assert folders
    assert reached_by(uid, backend.data_folder, *folders) == [str(backend.data_folder)]  # that it is there, no more
    await box.kill()


@pytest.mark.needs_root
async def test_nothing_belongs_to_anybody_who_logs_in(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        result = await box.exec("stat -c %u:%g ~ /workspace /tmp; touch ~/x /workspace/x; ls -n ~")
        assert result.stdout.split()[:3] == ["1000:1000", "1000:1000", "0:0"]
        assert "1000 1000" in result.stdout
        root = await box.exec("cd /home/daytona; mkdir .made /workspace/y; stat -c %u:%g .made .", user="root")
        assert root.stdout.split() == ["0:0", "1000:1000"]
        for path in (backend.data_folder, *backend.data_folder.rglob("*")):
            found = path.lstat()
            assert found.st_uid not in LOGINS, path
            assert found.st_gid not in LOGINS, path


@pytest.mark.needs_root
async def test_everything_above_what_sandboxes_see_is_closed(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()):
        pass
    folders = [path for path in backend.data_folder.iterdir() if path.is_dir()]
    assert {"base", "sandboxes"} <= {path.name for path in folders}
    for path in (backend.data_folder, *folders):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


async def test_what_is_made_up_is_the_same_whatever_the_umask(backend: EmbeddedBackend, tmp_path: Path) -> None:
    """A skeleton is made once: by a careless caller it must be no more open inside, by a careful one no less."""
    (tmp_path / "data").mkdir(mode=0o700)
    seen = []
    for umask, each in ((0, backend), (0o077, EmbeddedBackend(tmp_path / "data"))):
        os.umask(umask)
        async with await each.create(Spec()) as box:
            find = "find /etc /opt /home /workspace /srv /var /tmp -xdev ! -type l -printf '%p %m\\n' | sort"
            seen.append((await box.exec(find)).stdout)
        await each.aclose()
    assert "/etc/passwd 644" in seen[0].splitlines()
    assert seen[0] == seen[1]


@pytest.mark.needs_root
async def test_what_others_put_into_an_old_base_is_not_seen(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        clean = await see(box)
    await backend.aclose()
    make_as_of_old(backend.data_folder)
    later = EmbeddedBackend(backend.data_folder)
    async with await later.create(Spec()) as box:
        assert await see(box) == clean
    await later.aclose()
    assert reached_by(1000, backend.data_folder, *backend.data_folder.glob("base/*")) == [str(backend.data_folder)]
    assert [path for path in backend.data_folder.rglob("*") if path.name in ("json.py", "planted", "git")] == []
    assert len(list((backend.data_folder / "base").iterdir())) == 1


@pytest.mark.needs_root
async def test_a_stopped_sandbox_starts_from_a_base_that_nobody_touched(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    clean = await see(box)
    await box.files.write("kept", b"mine")
    await box.detach()
    await box.aclose()
    await backend.stop(box.id)
    make_as_of_old(backend.data_folder)
    later = EmbeddedBackend(backend.data_folder)
    box = await later.start(box.id)
    assert await see(box) == clean
    assert await box.files.read("kept") == b"mine"
    await box.files.write("/workspace/new", b"x")
    await box.kill()
    await later.aclose()


@pytest.mark.needs_root
async def test_what_a_running_sandbox_stands_on_goes_with_it(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.detach()
    make_as_of_old(backend.data_folder)
    assert sweep_now(backend.data_folder) == []
    assert (await box.exec("cat /etc/hostname")).stdout == "corral\n"
    await box.kill()
    sweep_now(backend.data_folder)
    assert list((backend.data_folder / "base").iterdir()) == []


async def test_a_base_that_another_version_removes_is_made_again(
    backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier Corral that starts at the same moment sweeps what is not its own; here it does so at the worst one."""
    ask = seam.ask
    swept: list[str] = []

    async def sweep_before(peer: Any, message: Any, *rest: Any) -> Any:
        if ("recipe" in message or "lowers" in message) and swept.count(message["op"]) < 2:
            swept.append(message["op"])
            shutil.rmtree(backend.data_folder / "base")
        return await ask(peer, message, *rest)

    monkeypatch.setattr(seam, "ask", sweep_before)
    box = await backend.create(Spec())
    assert (await box.exec("cat /etc/hostname")).stdout == "corral\n"
    await box.detach()
    await box.aclose()
    await backend.stop(box.id)
    again = await backend.start(box.id)
    assert (await again.exec("cat /etc/hostname")).stdout == "corral\n"
    assert swept == ["create", "create", "start", "start"]
    await again.kill()


@pytest.mark.needs_root
async def test_a_package_that_others_could_write_is_not_shown_again(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()):
        pass
    await backend.aclose()
    packages = backend.data_folder / "packages"
    for name in ("good", "bad", "foreign"):
        (packages / name / "module").mkdir(parents=True)
        (packages / name / "module/__init__.py").touch(mode=0o644)
    for path in packages.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (packages / "bad/module/__init__.py").chmod(0o666)
    os.chown(packages / "foreign/module", 1000, 1000)
    packages.chmod(0o755)
    backend.data_folder.chmod(0o755)
    sweep_now(backend.data_folder)
    assert [path.name for path in packages.iterdir()] == ["good"]
    assert stat.S_IMODE(packages.stat().st_mode) == 0o700


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.needs_root
def test_a_users_data_folder_is_closed_to_the_others(ordinary_user: OrdinaryUser) -> None:
    script = """
import os
os.umask(0o002)
from corral import Sandbox
with Sandbox() as box:
    print(box.exec("touch ~/x /workspace/x && echo fine").stdout)
"""
    ordinary_user.home.chmod(0o755)
    done = ordinary_user.run(script)
    assert done.stdout == "fine\n\n", done.stderr
    data = ordinary_user.home / ".local/share/corral"
    folders = [path for path in data.rglob("*") if path.is_dir() and not path.is_symlink()]
    assert reached_by(1000, data, *folders) == [str(data)]
