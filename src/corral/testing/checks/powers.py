"""Optional powers: snapshots, forks, stops, pauses and other limits; a backend reports which it has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    CapabilityError,
    SandboxClosedError,
    SandboxGoneError,
    SandboxPausedError,
    SandboxStoppedError,
    SnapshotNotFoundError,
    SpecError,
)
from corral.results import SandboxInfo
from corral.spec import Resources, make_spec
from corral.testing.check import REAL, Context, check, equal, raises, still_works, true, until

FORK = "fork snapshot"
STOP = "stop detach"
PAUSE = f"pause {REAL}"
COUNT = "i=0; while true; do i=$((i+1)); echo $i; sleep 0.01; done"


async def find_info(context: Context, sandbox_id: str) -> SandboxInfo | None:
    """Find one sandbox in the backend's list."""
    return next((info for info in await context.backend.list() if info.sandbox_id == sandbox_id), None)


@check("snapshot", "A sandbox from a snapshot has its files, and is separate from the first sandbox", needs="snapshot")
async def snapshot_keeps_the_files_of_a_moment(context: Context, box: AsyncSandbox) -> None:
    await box.files.write("kept", b"then")
    await box.files.write("folder/removed", b"later")
    snapshot_id = await box.snapshot()
    await box.files.write("kept", b"now")
    await box.files.remove("folder/removed")
    other = await context.open(snapshot=snapshot_id)
    equal(await other.files.read("kept"), b"then")
    equal(await other.files.read("folder/removed"), b"later")
    await other.files.remove("kept")
    await other.files.write("new", b"of the other")
    equal(await box.files.read("kept"), b"now")
    true(not await box.files.exists("new"), "what one sandbox wrote is visible in the other")
    third = await context.open(snapshot=snapshot_id)
    equal(await third.files.read("kept"), b"then", "the snapshot itself never changes")
    await context.backend.delete_snapshot(snapshot_id)


@check("snapshot", "Snapshots are listed, found by name, and deleted; sandboxes from them keep working",
       needs="snapshot")  # fmt: skip
async def snapshots_go_in_any_order(context: Context, token: str) -> None:
    backend = context.backend
    box = await context.open()
    await box.files.write("f", b"first")
    first = await box.snapshot(token)
    error = await raises(SpecError, box.snapshot(token))
    true(token in str(error), f"{error} names it")
    await raises(SpecError, box.snapshot("not a name"))
    other = await context.open(snapshot=token)
    await other.files.write("g", b"second")
    second = await other.snapshot()
    listed = {info.snapshot_id: info for info in await backend.list_snapshots()}
    equal((listed[first].name, listed[first].sandbox_id), (token, box.id))
    equal(listed[second].sandbox_id, other.id)
    await backend.delete_snapshot(token)
    await box.kill()
    equal(await other.files.read("f"), b"first", "the files below it are kept")
    third = await context.open(snapshot=second)
    await other.kill()
    await backend.delete_snapshot(second)
    equal((await third.files.read("f"), await third.files.read("g")), (b"first", b"second"))
    left = {info.snapshot_id for info in await backend.list_snapshots()} & {first, second}
    equal(left, set())


@check("snapshot", "A missing snapshot is SnapshotNotFoundError, and no sandbox is created", needs="snapshot")
async def unknown_snapshot_is_said(context: Context, before: int) -> None:
    error = await raises(SnapshotNotFoundError, context.backend.create(make_spec(snapshot="no-such")))
    true("no-such" in str(error) and isinstance(error, LookupError), f"{error!r} names it")
    await raises(SnapshotNotFoundError, context.backend.delete_snapshot("no-such"))
    equal(await context.count(), before)


@check("snapshot", "A sandbox from a snapshot may have other resources", needs="snapshot")
async def snapshot_takes_new_resources(context: Context, box: AsyncSandbox) -> None:
    await box.files.write("f", b"x")
    snapshot_id = await box.snapshot()
    resources = Resources(memory_bytes="256MiB", open_files=512)
    other = await context.open(snapshot=snapshot_id, resources=resources)
    equal(other.spec.resources, resources)
    equal(await other.files.read("f"), b"x")
    await context.backend.delete_snapshot(snapshot_id)


@check("fork", "A fork starts with the same files, and leaves no snapshot behind", needs=FORK)
async def fork_begins_with_the_same_files(context: Context) -> None:
    box = await context.open(env={"GIVEN": "before"})
    await box.files.write("f", b"one")
    before = len(await context.backend.list_snapshots())
    other = context.adopt(await box.fork())
    true(other.id != box.id, "it is another one")
    await box.files.write("f", b"two")
    equal(await other.files.read("f"), b"one")
    equal(dict(other.spec.env), {"GIVEN": "before"})
    again = context.adopt(await other.fork(make_spec(env={"GIVEN": "after"})))
    equal(await again.files.read("f"), b"one")
    equal(dict(again.spec.env), {"GIVEN": "after"})
    equal(len(await context.backend.list_snapshots()), before)


@check("stop", "A stopped sandbox keeps its files, id and name, is listed, and starts again", needs=STOP)
async def stopped_sandbox_starts_again(context: Context, token: str) -> None:
    backend = context.backend
    box = await context.open(env={"GIVEN": "value"}, name=token)
    await box.files.write("f", b"kept")
    await box.stop()
    await box.stop()
    try:
        info = await find_info(context, box.id)
        equal((info and info.state, info and info.name), ("stopped", token))
        for work in (box.exec("true"), box.files.read("f"), backend.connect(token)):
            error = await raises(SandboxStoppedError, work)
            true(isinstance(error, SandboxGoneError) and "start" in str(error), f"{error!r} says what to do")
        again = context.adopt(await backend.start(token))
        equal((again.id, dict(again.spec.env)), (box.id, {"GIVEN": "value"}))
        equal(await again.files.read("f"), b"kept")
        info = await find_info(context, box.id)
        equal(info and info.state, "running")
        more = await backend.start(box.id)
        equal(await more.files.read("f"), b"kept", "starting a running sandbox connects to it")
        await more.aclose()
        await backend.stop(box.id)
        await backend.stop(box.id)
    finally:
        await backend.delete(box.id)
    equal(await find_info(context, box.id), None)
    await raises(SandboxGoneError, backend.start(box.id))


@check("stop", "Stopping ends every process", needs=f"{STOP} {REAL}")
async def stop_ends_every_process(context: Context, box: AsyncSandbox) -> None:
    process = await box.start("echo begun > marker; sleep 1000")
    await until(lambda: box.files.exists("marker"), True, "the program has begun")
    await box.stop()
    await raises(SandboxGoneError, process.wait())
    again = context.adopt(await context.backend.start(box.id))
    equal((await again.exec("ps ax 2>/dev/null | grep -c 'sleep 100[0]'")).stdout, "0\n")


@check("stop", "A stopped sandbox can be snapshotted, forked and rolled back", needs=f"{STOP} {FORK}")
async def stopped_sandbox_is_rolled_back(context: Context) -> None:
    backend = context.backend
    box = await context.open()
    await box.files.write("f", b"one")
    await box.stop()
    try:
        snapshot_id = await backend.snapshot(box.id)
        again = context.adopt(await backend.start(box.id))
        equal(await again.files.read("f"), b"one")
        await again.files.write("f", b"two")
        await again.files.write("g", b"new")
        await raises(SnapshotNotFoundError, backend.rollback(box.id, "no-such"))
        equal(await again.files.read("f"), b"two", "a refused rollback changes nothing")
        await backend.rollback(box.id, snapshot_id)
        info = await find_info(context, box.id)
        equal(info and info.state, "stopped")
        other = context.adopt(await backend.fork(box.id))
        equal(await other.files.read("f"), b"one")
        again = context.adopt(await backend.start(box.id))
        equal(await again.files.read("f"), b"one")
        true(not await again.files.exists("g"), "what came later is gone")
        await backend.delete_snapshot(snapshot_id)
    finally:
        await backend.delete(box.id)


@check("pause", "A paused sandbox is frozen, refuses calls, and continues when resumed", needs=PAUSE)
async def paused_sandbox_stands_still(box: AsyncSandbox) -> None:
    process = await box.start(COUNT)
    output = process.output()
    await anext(output)
    await box.pause()
    await box.pause()
    equal((await box.info()).state, "paused")
    await raises(SandboxPausedError, box.exec("true"))
    await raises(SandboxPausedError, box.files.read("f"))
    await raises(SandboxPausedError, box.files.write("f", b"x"))
    await box.resume()
    await box.resume()
    equal((await box.info()).state, "running")
    seen = [await anext(output) for _ in range(20)]
    numbers = [int(line) for line in b"".join(chunk.data for chunk in seen).split()]
    equal(numbers, list(range(numbers[0], numbers[0] + len(numbers))), "nothing was lost")
    await box.files.write("f", b"x")
    equal((await box.exec("cat f")).stdout, "x")
    await process.kill()


@check("pause", "A paused sandbox can be ended", needs=PAUSE)
async def paused_sandbox_can_be_ended(box: AsyncSandbox) -> None:
    process = await box.start("sleep 1000")
    await box.pause()
    await box.kill()
    async with asyncio.timeout(30):
        await raises(SandboxGoneError, process.wait())


@check("resize", "Limits change while programs run; an invalid limit is refused", needs="resize")
async def limits_change_while_running(context: Context) -> None:
    box = await context.open(resources=Resources(memory_bytes="256MiB", processes=64))
    await box.resize(memory_bytes=512 * 2**20, processes=128)
    equal((box.spec.resources.memory, box.spec.resources.processes), (512 * 2**20, 128))
    await box.resize()
    await raises(SpecError, box.resize(memory_bytes=1))
    await raises(SpecError, box.resize(processes=0))
    await still_works(box)


# Unsupported powers raise CapabilityError.


@check("CapabilityError", "A power that capabilities() does not list raises CapabilityError",
       raises="exec:CapabilityError start:CapabilityError "
               "detach:CapabilityError files.watch:CapabilityError Backend.connect:CapabilityError")  # fmt: skip
async def missing_power_is_said(context: Context, box: AsyncSandbox) -> None:
    powers = context.powers
    if "pty" not in powers:
        await raises(CapabilityError, box.start("true", pty=True))
    if "users" not in powers:
        await raises(CapabilityError, box.exec("true", user="root"))
        await raises(CapabilityError, box.start("true", user="nobody"))
    if "views" not in powers:
        await raises(CapabilityError, box.exec("true", read_only=["/tmp"]))
        await raises(CapabilityError, box.exec("true", hidden=["/tmp"]))
    if "watch" not in powers:
        await raises(CapabilityError, anext(box.files.watch()))
    if "detach" not in powers:
        await raises(CapabilityError, box.detach())
        await raises(CapabilityError, context.backend.connect(box.id))
    await still_works(box)


@check("CapabilityError", "Optional operations that a backend does not have raise CapabilityError",
       raises="set_network:CapabilityError set_secrets:CapabilityError")  # fmt: skip
async def power_of_later_days_is_said(context: Context, box: AsyncSandbox) -> None:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "snapshot": box.snapshot, "fork": box.fork, "stop": box.stop, "pause": box.pause,
        "resume": box.resume, "resize": box.resize,
        "expose": lambda: box.expose(8000), "set_network": lambda: box.set_network("none"),
        "diff": box.diff, "secrets": lambda: box.set_secrets([]),
    }  # fmt: skip
    for name, call in calls.items():
        if name not in context.powers and not (name == "resume" and "pause" in context.powers):
            error = await raises(CapabilityError, call())
            true(name in str(error) and isinstance(error, NotImplementedError), f"{error!r} names {name}")


@check("Backend", "A backend may be closed twice, and ends its owned sandboxes")
async def backend_is_closed(context: Context) -> None:
    other = context.make()
    box = await other.create(make_spec())
    await still_works(box)
    await other.aclose()
    await other.aclose()
    await raises(SandboxGoneError, box.exec("true"))
    await box.aclose()
    await raises(SandboxClosedError, box.exec("true"))
