"""Layers, stops and pauses on the real kernel, while programs write and when any process is killed."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from corral.backends.embedded import EmbeddedBackend, keepers, seam
from corral.backends.embedded.pipoutput import Tell
from corral.backends.embedded.sandbox import EmbeddedSandbox
from corral.engine import wire
from corral.engine.layers import LayerStore, Snapshot
from corral.engine.state import DataFolder, read_state
from corral.engine.storage import loop
from corral.engine.uidrange import claim_range
from corral.errors import CapabilityError, SandboxGoneError, SandboxStoppedError
from corral.spec import Lifetime, Resources, Spec
from support.leftovers import instance_mark, list_files, list_groups, list_loops, wait_until
from support.user import OrdinaryUser

MIB = 2**20

# Two files that are always replaced in this order: at any moment the first is as new as the second, or one newer.
PAIR = """
import os
n = 0
while True:
    n += 1
    for name in ("first", "second"):
        with open(f"{name}.new", "w") as file:
            file.write(str(n))
        os.rename(f"{name}.new", name)
"""

# What an upper has and a plain folder has not: deleted and replaced files, links, and unreadable files.
ODDITIES = """
rm /etc/hostname /etc/motd 2>/dev/null
rm -r /etc/alternatives && mkdir /etc/alternatives && echo mine > /etc/alternatives/mine
echo secret > closed; chmod 000 closed
mkdir -p shut/inner; echo deep > shut/inner/f; chmod 000 shut
echo both > one; ln one two; ln -s one three
mkfifo fifo; chmod 0604 fifo; truncate -s 100M hole; mkdir empty
touch -d '2001-02-03 04:05:06 UTC' old
"""
LOOK = """
ls /etc/alternatives; ls /etc/hostname 2>&1
chmod 400 closed; cat closed; chmod 700 shut; cat shut/inner/f
cat two three; stat -c '%h %a' one; stat -c '%F %a' fifo; du -k hole | cut -f1; stat -c '%s' hole; ls -d empty
stat -c '%Y' old
"""
SEEN = """mine
ls: cannot access '/etc/hostname': No such file or directory
secret
deep
both
both
2 644
fifo 604
0
104857600
empty
981173106
"""


class ClosingBackend(EmbeddedBackend):
    """Remembers what it made and adopted."""

    def __init__(self, data_folder: Path) -> None:
        super().__init__(data_folder)
        self.held: list[EmbeddedSandbox] = []

    async def make(self, spec: Spec, *, parent_id: str | None = None, tell: Tell | None = None) -> EmbeddedSandbox:
        self.held.append(await super().make(spec, parent_id=parent_id, tell=tell))
        return self.held[-1]

    async def adopt(self, sandbox_id: str) -> EmbeddedSandbox:
        self.held.append(await super().adopt(sandbox_id))
        return self.held[-1]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    """One of which nothing is left after the test."""
    backend = ClosingBackend(tmp_path / "data")
    yield backend
    for sandbox in backend.held:
        await sandbox.aclose()
    for info in await backend.list():
        await backend.delete(info.sandbox_id)
    for snapshot in await backend.list_snapshots():
        await backend.delete_snapshot(snapshot.snapshot_id)
    await backend.aclose()
    assert wait_until(lambda: nothing_is_left(backend)), what_is_left(backend)


def what_is_left(backend: EmbeddedBackend) -> object:
    folder = backend.data_folder
    return list_files(folder), list_loops(folder), list_groups(instance_mark(folder))


def nothing_is_left(backend: EmbeddedBackend) -> bool:
    return not any(what_is_left(backend))  # type: ignore[call-overload]  # a tuple of sets


def read_known_state(backend: EmbeddedBackend, sandbox_id: str) -> dict[str, object]:
    state = read_state(backend.data_folder / "sandboxes" / sandbox_id)
    assert state is not None
    return state


@pytest.mark.needs_root
async def test_snapshots_are_of_one_moment_while_a_program_writes(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.files.write("pair.py", PAIR)
    process = await box.start("python3 pair.py")
    while not await box.files.exists("second"):
        await asyncio.sleep(0.01)
    for _ in range(5):
        async with await backend.create(Spec(snapshot=await box.snapshot())) as other:
            first, second = int(await other.files.read("first")), int(await other.files.read("second"))
            assert first - second in (0, 1)
    await process.kill()


@pytest.mark.needs_root
async def test_whatever_an_upper_holds_is_in_a_snapshot(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.exec(ODDITIES, user="root")
    await box.exec("echo mine > /usr/local/changed; chown -R daytona: .", user="root", check=True)
    other = await box.fork()
    again = await other.fork()
    for one in (other, again):
        result = await one.exec(LOOK)
        assert result.output == SEEN
        assert (await one.exec("cat /usr/local/changed; stat -c %U:%u /usr/local/changed one")).stdout == (
            "mine\nroot:0\ndaytona:1000\n"
        )


@pytest.mark.needs_root
async def test_stopped_sandbox_has_nothing_but_files(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec(name="resting"))
    await box.files.write("f", b"kept")
    await box.pause()
    assert repr(box) == f"<AsyncSandbox {box.id} paused>"
    await box.resume()
    await box.stop()
    assert repr(box) == f"<AsyncSandbox {box.id} stopped>"
    folder = backend.data_folder
    assert wait_until(lambda: not list_loops(folder) and not list_groups(instance_mark(folder)))
    keepers.sweep_now(folder)
    assert [(info.name, info.state) for info in await backend.list()] == [("resting", "stopped")]
    await backend.aclose()  # the launcher goes, and with it whatever is owned
    other = ClosingBackend(folder)
    again = await other.start("resting")
    assert await again.files.read("f") == b"kept"
    await again.aclose()
    await other.aclose()


@pytest.mark.needs_root
async def test_sandbox_starts_under_other_ids_if_its_own_are_taken(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.exec("echo mine > f; mkdir d", check=True)
    await box.exec("echo root > /usr/local/f", user="root", check=True)
    await box.stop()
    first = read_known_state(backend, box.id)["first_uid"]
    assert isinstance(first, int)
    with contextlib.closing(claim_range(Path("/elsewhere"), preferred=first)) as squatter:
        assert squatter.first == first
        again = await backend.start(box.id)
        assert (await again.exec("cat f; echo more >> f; touch d/g; stat -c %u:%g f d/g /usr/local/f")).stdout == (
            "mine\n1000:1000\n1000:1000\n0:0\n"
        )
        snapshot_id = await again.snapshot()
        await again.stop()
    again = await backend.start(box.id)
    assert (await again.exec("cat f; stat -c %u d/g")).stdout == "mine\nmore\n1000\n"
    async with await backend.create(Spec(snapshot=snapshot_id)) as other:
        assert (await other.exec("cat f; stat -c %u d/g")).stdout == "mine\nmore\n1000\n"


@pytest.mark.needs_root
async def test_disk_of_a_stopped_sandbox_grows(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec(resources=Resources(disk_bytes=32 * MIB, inodes=400)))
    await box.exec("head -c 20M /dev/zero > fill", check=True)
    await box.stop()
    with pytest.raises(CapabilityError):
        await backend.resize(box.id, disk_bytes=16 * MIB)
    await backend.resize(box.id, disk_bytes=96 * MIB, processes=77)
    again = await backend.start(box.id)
    assert (again.spec.resources.disk, again.spec.resources.processes) == (96 * MIB, 77)
    assert (await again.exec("head -c 60M /dev/zero > more && stat -c %s fill more")).stdout == "20971520\n62914560\n"


@pytest.mark.needs_root
async def test_disk_grows_while_it_is_used_or_it_is_said_why_not(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec(resources=Resources(disk_bytes=32 * MIB, inodes=400))) as box:
        refusal = ""
        try:
            await box.resize(disk_bytes=96 * MIB)
        except CapabilityError as error:  # the kernel asks for CAP_SYS_RESOURCE, which a container may not have
            refusal = str(error)
        if refusal:
            assert "stop the sandbox first" in refusal
            assert box.spec.resources.disk == 32 * MIB
        else:
            assert (await box.exec("head -c 60M /dev/zero > more && stat -c %s more")).stdout == "62914560\n"
        with pytest.raises(CapabilityError, match="shrunk"):
            await box.resize(disk_bytes=8 * MIB)
        assert (await box.exec("head -c 20M /dev/zero > fill && echo fine")).stdout == "fine\n"


@pytest.mark.needs_root
async def test_limits_of_a_running_sandbox_are_the_kernels(backend: EmbeddedBackend) -> None:
    hog = "x = bytearray(200 * 2**20); print(len(x))"
    async with await backend.create(Spec(resources=Resources(memory_bytes="128MiB"))) as box:
        assert (await box.run_code(hog)).reason == "oom"
        await box.resize(memory_bytes=512 * MIB)
        assert (await box.run_code(hog)).stdout == "209715200\n"
        await box.resize(memory_bytes=128 * MIB)
        assert (await box.run_code(hog)).reason == "oom"


@pytest.mark.needs_root
async def test_paused_sandbox_ends_at_its_deadline(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.detach(lifetime_seconds=4)  # time to pause it, on a busy machine too
    process = await box.start("sleep 1000")
    await box.pause()
    assert [info.state for info in await backend.list()] == ["paused"]
    async with asyncio.timeout(60):
        with pytest.raises(SandboxGoneError):
            await process.wait()
        while await backend.list():
            await asyncio.sleep(0.05)


@pytest.mark.needs_root
async def test_keeper_killed_while_its_disk_is_frozen_leaves_nothing(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.detach()
    state = read_known_state(backend, box.id)
    keeper = state["keeper"]
    assert isinstance(keeper, int)
    disk = next(
        path
        for path in Path(f"/proc/{keeper}/fd").iterdir()
        if path.stat().st_dev >> 8 == 7 and path.is_dir()  # the only folder it has open on a loop device
    )
    descriptor = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    loop.freeze(descriptor)
    os.close(descriptor)
    os.kill(keeper, signal.SIGKILL)
    assert wait_until(lambda: box.id in keepers.sweep_now(backend.data_folder))
    assert wait_until(lambda: nothing_is_left(backend)), what_is_left(backend)
    await box.aclose()


@pytest.mark.needs_root
async def test_start_that_is_cancelled_at_any_moment_loses_no_files(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.files.write("f", b"kept")
    await box.stop()
    for delay in (0.0, 0.003, 0.01, 0.02, 0.03, 0.05):
        starting = asyncio.ensure_future(backend.start(box.id))
        await asyncio.sleep(delay)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        again = await backend.start(box.id)
        assert await again.files.read("f") == b"kept"
        await again.stop()


@pytest.mark.needs_root
async def test_launcher_killed_during_a_start_loses_no_files(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.files.write("f", b"kept")
    await box.stop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        # As `start` does, but never handed to a keeper.
        answer = backend._launcher.ask({"op": "start", "id": box.id}, (theirs.fileno(),))
        hello = backend._launcher.ask({"op": "hello"})
        os.kill(hello["pid"], signal.SIGKILL)
    assert Path(answer["cgroups"][0]).name.endswith(box.id)
    again = await backend.start(box.id)
    assert await again.files.read("f") == b"kept"


@pytest.mark.needs_root
async def test_cancelled_snapshot_is_forgotten(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.exec("head -c 30M /dev/urandom > f", check=True)
    given = []
    for delay in (0.0, 0.001, 0.01, 0.03):
        making = asyncio.ensure_future(box.snapshot())
        await asyncio.sleep(delay)
        making.cancel()
        given += [made for made in await asyncio.gather(making, return_exceptions=True) if isinstance(made, str)]
        assert (await box.exec("echo fine > g && cat g")).stdout == "fine\n"
    given.append(await box.snapshot())  # those before it are through
    assert {info.snapshot_id for info in await backend.list_snapshots()} == set(given)
    await box.aclose()


@pytest.mark.parametrize("form", ["snapshot", "fork", "by id"])
async def test_snapshot_that_was_made_when_its_caller_was_cancelled_is_forgotten(
    backend: EmbeddedBackend, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was sent but not yet read: an id that will never be used."""
    box = await backend.create(Spec())
    await box.files.write("f", b"x")
    if form == "by id":
        await box.detach()
    replies: list[socket.socket] = []
    answer = seam.answer

    def noting(reply: socket.socket, **how: Any) -> Awaitable[wire.Message]:
        replies.append(reply)
        return answer(reply, **how)

    monkeypatch.setattr(seam, "answer", noting)
    work = {"snapshot": box.snapshot, "fork": box.fork, "by id": lambda: backend.snapshot(box.id)}[form]
    making = asyncio.ensure_future(work())
    async with asyncio.timeout(60):
        while not replies:
            await asyncio.sleep(0)
    assert select.select(replies, [], [], 60)[0]  # blocking: this event loop does not come to read it
    assert len(list((backend.data_folder / "snapshots").iterdir())) == 1
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert list((backend.data_folder / "snapshots").iterdir()) == []
    await box.kill()


async def test_cancelled_snapshot_of_a_stopped_one_is_forgotten(
    backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await backend.create(Spec())
    await box.stop()
    published, go_on = threading.Event(), threading.Event()
    publish = LayerStore.publish

    def publish_slowly(self: LayerStore, *what: Any, **how: Any) -> Snapshot:
        made = publish(self, *what, **how)
        published.set()
        go_on.wait(60)
        return made

    monkeypatch.setattr(LayerStore, "publish", publish_slowly)
    making = asyncio.ensure_future(backend.snapshot(box.id))
    assert await asyncio.to_thread(published.wait, 60)
    for _ in range(2):
        making.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert list((backend.data_folder / "snapshots").iterdir()) == []
    await backend.delete(box.id)


@pytest.mark.needs_root
async def test_ephemeral_sandbox_can_begin_with_a_snapshot_and_give_none(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    await box.files.write("f", b"x")
    async with await backend.create(Spec(snapshot=await box.snapshot(), ephemeral=True)) as other:
        assert await other.files.read("f") == b"x"
        for work in (other.snapshot(), other.fork(), other.stop()):
            with pytest.raises(CapabilityError, match="ephemeral"):
                await work
    await box.aclose()


@pytest.mark.needs_root
@pytest.mark.check
async def test_many_snapshots_stack(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    for number in range(40):
        await box.files.write(f"f{number}", str(number).encode())
        await box.stop()
        await backend.snapshot(box.id)
        box = await backend.start(box.id)
    assert (await box.exec("cat f0 f20 f39; ls | wc -l")).stdout == "0203940\n"


@pytest.mark.needs_root
async def test_idle_deadline_holds_after_a_start(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec(lifetime=Lifetime(idle_seconds=0.5)))
    await box.stop()
    await asyncio.sleep(1.5)  # a stopped one has no deadline
    assert [info.state for info in await backend.list()] == ["stopped"]
    again = await backend.start(box.id)
    folder = backend.data_folder / "sandboxes" / box.id
    async with asyncio.timeout(60):
        while folder.exists():  # to ask its keeper would be to use it
            await asyncio.sleep(0.05)
    with pytest.raises(SandboxGoneError) as caught:
        await again.exec("true")
    assert not isinstance(caught.value, SandboxStoppedError)


AS_USER = """
import asyncio, json, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Spec, Resources

async def main():
    oddities, look, pair = sys.argv[1:4]
    backend = EmbeddedBackend()
    box = await backend.create(Spec())
    await box.exec(oddities)
    seen = []
    other = await box.fork()
    seen.append((await other.exec(look)).output)
    await box.files.write("pair.py", pair)
    process = await box.start("python3 pair.py")
    while not await box.files.exists("second"):
        await asyncio.sleep(0.01)
    apart = []
    for _ in range(5):
        moment = await backend.create(Spec(snapshot=await box.snapshot()))
        apart.append(int(await moment.files.read("first")) - int(await moment.files.read("second")))
        await moment.aclose()
    await process.kill()
    await box.stop()
    states = [info.state for info in await backend.list()]
    await backend.snapshot(box.id, "rest")
    again = await backend.start(box.id)
    seen.append((await again.exec(look)).output)
    await backend.rollback(box.id, "rest")
    again = await backend.start(box.id)
    seen.append((await again.exec(look)).output)
    await again.pause()
    states += [info.state for info in await backend.list()]
    await backend.delete(box.id)
    for info in await backend.list_snapshots():
        await backend.delete_snapshot(info.snapshot_id)
    await other.aclose()
    await backend.aclose()
    left = [str(path) for name in ("layers", "snapshots", "sandboxes", "trash")
            for path in (backend.data_folder / name).iterdir()]
    print(json.dumps({"seen": seen, "apart": apart, "states": states, "left": left}))

asyncio.run(main())
"""


@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_all_of_it_as_an_ordinary_user(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(AS_USER, args=[ODDITIES, LOOK, PAIR], timeout=100)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["seen"] == [SEEN, SEEN, SEEN]
    assert set(report["apart"]) <= {0, 1}
    assert report["states"] == ["stopped", "paused"]
    assert report["left"] == []


def test_data_folder_names_are_known() -> None:
    data = DataFolder("/data")
    assert (str(data.layers), str(data.snapshots)) == ("/data/layers", "/data/snapshots")
