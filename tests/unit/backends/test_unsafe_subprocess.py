"""The backend without isolation: loud, never chosen by itself, refused by servers, and gone with its owner."""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import corral
from corral.backends import unsafe_subprocess
from corral.backends.memory import MemoryBackend
from corral.backends.unsafe_subprocess import UnsafeSubprocessBackend, UnsafeWarning
from corral.client.registry import backend_names, get_backend, need_isolation
from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    BackendUnavailableError,
    CapabilityError,
    SandboxGoneError,
    SandboxPermissionError,
)
from corral.inside.files import TEMPORARY_PREFIX
from corral.server.beginning import Beginning
from corral.server.settings import ServerSettings
from corral.spec import make_spec

ROOM = "unsafe_subprocess"
HANG_SECONDS = 60.0

quiet = pytest.mark.filterwarnings("ignore::corral.backends.unsafe_subprocess.UnsafeWarning")


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait, but not for ever."""
    guard = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < guard, what
        time.sleep(0.02)


def running(marker: str) -> list[str]:
    """Processes of this machine that carry a marker in their arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in words and folder.name != str(os.getpid()):
            found.append(folder.name)
    return found


# Loud.


def test_each_sandbox_warns_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        backend = UnsafeSubprocessBackend(tmp_path)
        for _ in range(2):
            caplog.clear()
            with pytest.warns(UnsafeWarning, match="NO ISOLATION"):
                await (await backend.create(make_spec())).aclose()
            assert [record.levelno for record in caplog.records if record.name == "corral.unsafe"] == [logging.WARNING]
        capabilities = await backend.capabilities()
        assert capabilities.isolation == "none"
        assert any("NO ISOLATION" in note for note in capabilities.notes)

    asyncio.run(use())


def test_the_docs_say_it_in_their_first_sentence() -> None:
    text = (Path(__file__).parents[3] / "docs" / "backends.md").read_text(encoding="utf-8")
    section = text.partition("\n## unsafe-subprocess\n")[2].strip()
    assert section.startswith("**It has no isolation")
    assert str(unsafe_subprocess.__doc__).startswith("NO ISOLATION")


# Never by itself.


def test_only_the_registry_knows_it() -> None:
    source = Path(corral.__file__).parent
    room = source / "backends" / ROOM
    named = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if room not in path.parents and any(word in path.read_text("utf-8") for word in (ROOM, "unsafe-subprocess"))
    ]
    assert named == ["client/registry.py"], "another module that names it might fall back to it"
    assert "unsafe-subprocess" in backend_names()


def test_an_engine_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.client.registry._opened", {})
    monkeypatch.setattr("corral.backends.embedded.sys", SimpleNamespace(platform="darwin"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BackendUnavailableError, match="needs Linux"):
            get_backend()
        with pytest.raises(BackendUnavailableError, match="needs Linux"):
            corral.Sandbox()


def test_windows_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.client.registry._opened", {})
    monkeypatch.setattr(unsafe_subprocess, "os", SimpleNamespace(name="nt"))
    with pytest.raises(BackendUnavailableError, match="WSL"):
        get_backend("unsafe-subprocess")


@pytest.mark.parametrize("network", ["a.org", "packages", "open,10.0.0.7"])
async def test_a_network_that_nothing_would_enforce_is_refused(network: str, tmp_path: Path) -> None:
    backend = UnsafeSubprocessBackend(tmp_path / "unsafe")
    with pytest.raises(CapabilityError, match="does not support network="):
        await backend.create(make_spec(network=network))
    await backend.aclose()


# Refused by servers.


def test_a_server_refuses_what_isolates_nothing(tmp_path: Path) -> None:
    class Foreign(MemoryBackend):
        name = "foreign"
        isolated = False

    async def begin(backend: MemoryBackend | UnsafeSubprocessBackend) -> None:
        await Beginning(ServerSettings(data_folder=tmp_path / "data", version="0"), backend).close()

    for backend in (UnsafeSubprocessBackend(tmp_path / "unsafe"), Foreign()):
        with pytest.raises(CapabilityError, match=f"the server does not take the backend '{backend.name}'"):
            asyncio.run(begin(backend))
    assert not (tmp_path / "data").exists()
    asyncio.run(begin(MemoryBackend()))
    need_isolation(MemoryBackend(), who="anybody")


def test_corral_serve_refuses_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "corral.cli", "serve", "--backend", "unsafe-subprocess", "--port", "0"]
    env = {**os.environ, "CORRAL_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1, done.stderr
    assert "the server does not take the backend 'unsafe-subprocess': it does not isolate code" in done.stderr
    assert "embedded" in done.stderr
    assert "Traceback" not in done.stderr


# Its folder is not the host.


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder of the host; not in /tmp, which is the sandbox's own for the file methods."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


@quiet
def test_files_outside_are_read_and_not_changed(tmp_path: Path, outside: Path) -> None:
    (outside / "file").write_text("theirs")

    async def use() -> None:
        async with await UnsafeSubprocessBackend(tmp_path / "unsafe").create(make_spec()) as box:
            assert await box.files.read(str(outside / "file")) == b"theirs"
            await box.files.symlink("link", str(outside))
            for folder in (str(outside), "link"):
                for work in (
                    box.files.write(f"{folder}/file", "x"),
                    box.files.write(f"{folder}/new", "x"),
                    box.files.edit(f"{folder}/file", "theirs", "ours"),
                    box.files.chmod(f"{folder}/file", 0o777),
                    box.files.remove(f"{folder}/file"),
                    box.files.mkdir(f"{folder}/new"),
                    box.files.symlink(f"{folder}/new", "x"),
                    box.files.move(f"{folder}/file", "taken"),
                ):
                    with pytest.raises(SandboxPermissionError):
                        await work
            await box.files.remove("link")

    asyncio.run(use())
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "theirs"


@quiet
@pytest.mark.parametrize("how", ["edit", "replace"])
def test_a_change_cancelled_while_it_is_written_leaves_no_temporary_file(tmp_path: Path, how: str) -> None:
    """The task is stopped just then, so that the cancellation meets it there; its warden continues it."""

    async def use() -> None:
        async with await UnsafeSubprocessBackend(tmp_path / "unsafe").create(make_spec()) as box:
            await box.files.write("file", "e" + "x" * 8_000_000)
            folder = Path(box.spec.workdir)
            met = False
            while not met:
                change = box.files.edit("file", "e", "e") if how == "edit" else box.files.replace("e", "e")
                task = asyncio.ensure_future(change)
                met = await asyncio.to_thread(_stop_while_writing, folder, task.done)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert [path.name for path in folder.iterdir()] == ["file"]
            assert (folder / "file").stat().st_size == 8_000_001

    asyncio.run(use())


def _stop_while_writing(folder: Path, done: Callable[[], bool]) -> bool:
    """Stop the process that writes a temporary file. False if it was faster."""
    while not done():
        for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.name.split("-")[1]), signal.SIGSTOP)
            return path.exists()
    return False


@quiet
def test_the_requested_workdir_is_a_name_of_the_real_one(tmp_path: Path) -> None:
    async def use() -> None:
        async with await UnsafeSubprocessBackend(tmp_path).create(make_spec(workdir="/srv/work")) as box:
            await box.files.write("/srv/work/sub/file", "x")
            await box.files.write("/tmp/file", "y")
            assert Path(box.spec.workdir, "sub", "file").read_text() == "x"
            seen = await box.exec('pwd; cat file; echo; cat "$TMPDIR/file"', cwd="/srv/work/sub")
            assert seen.stdout == f"{box.spec.workdir}/sub\nx\ny"
            assert (await box.exec("pwd", cwd="/")).stdout == "/\n"

    asyncio.run(use())
    assert list(tmp_path.iterdir()) == []


# Trees.


@quiet
def test_a_daemon_that_hides_in_every_way_is_ended(tmp_path: Path) -> None:
    marker = f"hidden-{secrets.token_hex(8)}"
    hide = f"env -i setsid sh -c '(setsid sh -c \"cd /; while :; do sleep 0.1; done # {marker}\" &) ; exit 0'"

    async def use(box: AsyncSandbox) -> None:
        result = await box.exec(f"{hide} >/dev/null 2>&1 </dev/null & sleep 1000", timeout=1.0)
        assert result.reason == "timeout"
        until(lambda: not running(marker), "it goes on after its call's timeout")
        await box.exec(f"{hide} >/dev/null 2>&1 </dev/null; echo left")
        until(lambda: bool(running(marker)), "it does not live on after its call's good end")

    async def make() -> None:
        async with await UnsafeSubprocessBackend(tmp_path).create(make_spec()) as box:
            await use(box)
        assert running(marker) == [], "it goes on after the sandbox"

    asyncio.run(make())


@quiet
def test_a_program_that_kills_its_warden_is_ended(tmp_path: Path) -> None:
    marker = f"orphan-{secrets.token_hex(8)}"

    async def use() -> None:
        async with await UnsafeSubprocessBackend(tmp_path).create(make_spec()) as box:
            result = await box.exec(f"kill -9 $PPID; sleep 1000 # {marker}")
            assert (result.reason, result.exit_code) == ("signalled", 137)
            until(lambda: not running(marker), "it goes on without its warden")
            assert (await box.exec("echo fine")).stdout == "fine\n"

    asyncio.run(use())


# Owners that go.

OWNER = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
from corral.backends.unsafe_subprocess import UnsafeSubprocessBackend
from corral.spec import make_spec

async def main():
    backend = UnsafeSubprocessBackend(sys.argv[1])
    box = await backend.create(make_spec())
    await box.files.write("shut/file", "x")
    await box.files.chmod("shut", 0)
    process = await box.start(f"setsid sh -c 'while :; do sleep 0.1; done # {sys.argv[2]}' & echo on; sleep 1000")
    await anext(process.output())
    print("READY", box.primitives._agents.owner.process.pid, flush=True)
    if sys.argv[3] == "wait":
        await process.wait()
    return box

box = asyncio.run(main())
if sys.argv[3] == "gone":
    sys.exit(3)
"""


def start_owner(folder: Path, marker: str, how: str) -> tuple[subprocess.Popen[str], int]:
    """A process with a sandbox in which something runs; and its agent's number."""
    argv = [sys.executable, "-c", OWNER, str(folder), marker, how]
    owner = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        word, pid = owner.stdout.readline().split()
    assert word == "READY"
    return owner, int(pid)


def is_free(lock: Path) -> bool:
    with lock.open() as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def others(marker: str, owner: subprocess.Popen[str]) -> list[str]:
    return [pid for pid in running(marker) if pid != str(owner.pid)]


@pytest.mark.parametrize("how", ["killed", "exits without an event loop"])
def test_nothing_outlives_its_owner(tmp_path: Path, how: str) -> None:
    marker = f"owned-{secrets.token_hex(8)}"
    owner, _ = start_owner(tmp_path, marker, "wait" if how == "killed" else "gone")
    if how == "killed":
        owner.send_signal(signal.SIGKILL)
        owner.wait(HANG_SECONDS)
    else:
        assert owner.wait(HANG_SECONDS) == 3
        assert list(tmp_path.iterdir()) == [], "the exit has waited for the end"
    until(lambda: not others(marker, owner), "its programs go on")
    until(lambda: list(tmp_path.iterdir()) == [], "its folder is still there")


@quiet
def test_what_a_killed_agent_left_is_swept(tmp_path: Path) -> None:
    marker = f"swept-{secrets.token_hex(8)}"
    owner, agent = start_owner(tmp_path, marker, "wait")
    owner.send_signal(signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    until(lambda: not others(marker, owner), "its programs go on")
    owner.send_signal(signal.SIGKILL)
    owner.wait(HANG_SECONDS)
    assert len(list(tmp_path.iterdir())) == 2, "folder and lock"
    until(lambda: is_free(next(tmp_path.glob("*.lock"))), "a killed process loses its arguments before its files")

    async def use() -> list[str]:
        async with await UnsafeSubprocessBackend(tmp_path).create(make_spec()) as box:
            return [box.id, *(path.name.removesuffix(".lock") for path in tmp_path.iterdir())]

    assert len(set(asyncio.run(use()))) == 1, "only the new one's are there"


@quiet
def test_an_agent_that_is_killed_is_the_end_of_its_sandbox(tmp_path: Path) -> None:
    async def use() -> None:
        box = await UnsafeSubprocessBackend(tmp_path).create(make_spec())
        process = await box.start("sleep 1000")
        os.kill(box.primitives._agents.owner.process.pid, signal.SIGKILL)
        with pytest.raises(SandboxGoneError):
            await process.wait()
        with pytest.raises(SandboxGoneError):
            await box.files.list()
        await box.aclose()

    asyncio.run(use())
