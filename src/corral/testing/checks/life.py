"""Creating sandboxes, and their life: owner, deadline, end, and use after the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from corral.client.sandbox import AsyncSandbox
from corral.errors import CapabilityError, CorralError, SandboxClosedError, SandboxGoneError, SpecError
from corral.results import Event
from corral.spec import Lifetime, make_spec
from corral.testing.check import Context, check, equal, pieces, raises, still_works, true, until


@check("Backend.create", "An invalid spec is SpecError, and no sandbox is created", raises="SpecError")
async def impossible_wish_is_refused(context: Context, before: int) -> None:
    spec_options: tuple[dict[str, Any], ...] = (
        {"workdir": "relative"}, {"workdir": "/a/../b"}, {"workdir": "/nul\0"}, {"name": "with space"}, {"name": ""},
        {"hostname": "under_score"}, {"packages": "numpy"}, {"packages": ["-x"]}, {"lifetime": -1},
        {"env": {"A=": "x"}}, {"network": "a.org,,b.org"},
    )  # fmt: skip
    for options in spec_options:
        await raises(SpecError, context.open(**options))
    equal(await context.count(), before, "sandboxes")


@check("Backend.create", "A spec that this backend can't meet is CapabilityError, never ignored",
       raises="CapabilityError")  # fmt: skip
async def unmet_wish_is_refused(context: Context) -> None:
    capabilities = await context.backend.capabilities()
    before = await context.count()
    spec_options: dict[str, dict[str, Any]] = {
        "images": {"image": "debian:12"}, "packages": {"packages": ["iniconfig"]}, "venv": {"venv": "/no/such"},
    }  # fmt: skip
    networks = {"packages": "packages", "allow": "a.invalid", "open": "open"}
    for power, options in spec_options.items():
        if power not in capabilities.powers:
            await raises(CapabilityError, context.open(**options))
    for mode, network in networks.items():
        if mode not in capabilities.network:
            await raises(CapabilityError, context.open(network=network))
    equal(await context.count(), before, "sandboxes")


@check("Backend.capabilities", "capabilities() has only known values")
async def capabilities_are_told(context: Context) -> None:
    capabilities = await context.backend.capabilities()
    for name in ("memory", "processes", "cpu", "disk"):
        true(getattr(capabilities, name) in ("hard", "soft", "none"), name)
    true(capabilities.isolation, "isolation says something")
    true(capabilities.limits == "hard" or capabilities.notes, "what is not hard is explained in the notes")
    true(context.backend.name, "a backend has a name")


@check("AsyncSandbox", "id, spec and info() describe the sandbox")
async def sandbox_tells_of_itself(context: Context) -> None:
    box = await context.open(labels={"team": "red"}, lifetime=500)
    other = await context.open()
    true(box.id and box.id != other.id, "ids are unique")
    equal(box.spec.labels, {"team": "red"})
    info = await box.info()
    equal((info.sandbox_id, info.backend, info.labels), (box.id, context.backend.name, {"team": "red"}))
    true(info.deadline is not None and 0 < info.deadline <= 500, f"deadline is the seconds left: {info.deadline}")
    true(info.created > 1e9, f"created is seconds since 1970: {info.created}")
    equal((await other.info()).deadline, None)


@check("AsyncSandbox", "Two sandboxes share nothing")
async def sandboxes_share_nothing(context: Context) -> None:
    one, two = await context.open(), await context.open()
    await one.files.write("mine", "x")
    await one.files.write("/tmp/mine", "x")
    equal([await two.files.exists(path) for path in ("mine", "/tmp/mine")], [False, False])


@check("8", "The same client token gives the same sandbox, another token a new one")
async def token_makes_create_repeatable(context: Context, before: int, token: str) -> None:
    first = await context.open(client_token=token)
    await first.files.write("mark", "x")
    again = await context.open(client_token=token)
    equal(again.id, first.id)
    equal(await again.files.read("mark"), b"x")
    other = await context.open(client_token=token + "-other")
    true(other.id != first.id, "another token is another sandbox")
    equal(await context.count(), before + 2, "sandboxes")


@check("8", "Concurrent creates with one token create one sandbox")
async def token_holds_for_creates_at_once(context: Context, before: int, token: str) -> None:
    boxes = await asyncio.gather(*(context.open(client_token=token) for _ in range(5)))
    equal(len({box.id for box in boxes}), 1, "different sandboxes for one token")
    equal(await context.count(), before + 1, "sandboxes")


@check("7", "A token whose sandbox has ended creates a new sandbox")
async def token_of_an_ended_sandbox_is_free(context: Context, token: str) -> None:
    first = await context.open(client_token=token)
    await first.aclose()
    second = await context.open(client_token=token)
    true(second.id != first.id, "a closed sandbox was handed out")
    await still_works(second)
    third = await context.open(client_token=token + "-short", lifetime=0.3)
    while True:
        try:
            await third.exec(["sleep", "1000"])
        except Exception:  # noqa: BLE001 - gone: another check tests which error that is
            break
    fourth = await context.open(client_token=token + "-short")
    await still_works(fourth)


@check("AsyncSandbox", "on_event gets every event; its own errors are ignored")
async def listener_is_told(context: Context) -> None:
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        raise ZeroDivisionError("of the listener's own")

    async with AsyncSandbox(backend=context.backend, on_event=listen) as box:
        await box.exec(["true"])
        await box.exec("exit 3")
    kinds = [event.kind for event in events]
    equal((kinds[0], kinds[-1], kinds.count("exec")), ("created", "closed", 2))
    true(all(event.sandbox_id == box.id and event.backend == context.backend.name for event in events), "who it was")


@check("AsyncSandbox", "A sandbox is opened by async with, await, create, and from a whole spec")
async def door_opens_in_every_way(context: Context) -> None:
    backend = context.backend
    async with AsyncSandbox(backend=backend, env={"A": "1"}) as box:
        equal((await box.exec("echo $A")).stdout, "1\n")
    context.adopt(await AsyncSandbox(backend=backend))
    context.adopt(await AsyncSandbox.create(backend=backend, spec=make_spec(workdir="/srv/x")))
    await raises(TypeError, lambda: AsyncSandbox(backend=backend, spec=make_spec(), workdir="/x"))


# The life of a sandbox: its owner, its deadline, its end, and calls after the end.


def every_call(box: AsyncSandbox) -> dict[str, Callable[[], Awaitable[object]]]:
    """Give a call of every method of a sandbox and its files, for checks that expect the same of all."""
    files = box.files
    return {
        "exec": lambda: box.exec("true"),
        "exec of a long text": lambda: box.exec("true" + " " * 100_000),
        "run_code": lambda: box.run_code("true", "sh"),
        "start": lambda: box.start("true"),
        "usage": box.usage,
        "info": box.info,
        "detach": box.detach,
        "files.read": lambda: files.read("x"),
        "files.read_text": lambda: files.read_text("x"),
        "files.read_stream": lambda: anext(files.read_stream("x")),
        "files.write": lambda: files.write("x", "x"),
        "files.write of a stream": lambda: files.write("x", pieces(b"x")),
        "files.edit": lambda: files.edit("x", "a", "b"),
        "files.stat": lambda: files.stat("x"),
        "files.exists": lambda: files.exists("x"),
        "files.list": files.list,
        "files.glob": lambda: files.glob("*"),
        "files.grep": lambda: files.grep("x"),
        "files.replace": lambda: files.replace("x", "y"),
        "files.move": lambda: files.move("x", "y"),
        "files.remove": lambda: files.remove("x", missing_ok=True),
        "files.mkdir": lambda: files.mkdir("x"),
        "files.symlink": lambda: files.symlink("x", "y"),
        "files.chmod": lambda: files.chmod("x", 0o600),
        "files.pack": lambda: anext(files.pack(".")),
        "files.unpack": lambda: files.unpack("x", pieces(b"")),
        "files.download": lambda: files.download("x", "/no/such/folder"),
    }


async def _expect(kind: type[CorralError], calls: dict[str, Callable[[], Awaitable[object]]]) -> None:
    wrong = []
    for name, call in calls.items():
        try:
            result = await call()
        except kind:
            continue
        except Exception as error:  # noqa: BLE001 - report all calls that differ, not only the first
            wrong.append(f"{name} raised {error!r}")
        else:
            wrong.append(f"{name} gave {result!r:.80}")
    equal(wrong, [], f"instead of {kind.__name__}")


@check("7", "After aclose() every call is SandboxClosedError; aclose() may be called twice",
       raises="AsyncSandbox:SandboxClosedError files:SandboxClosedError")  # fmt: skip
async def use_after_close_is_told(box: AsyncSandbox) -> None:
    calls = every_call(box)
    await box.files.list()
    await box.aclose()
    await box.aclose()
    true(box.closed, "closed says so")
    await _expect(SandboxClosedError, calls)
    await box.kill()


@check("7", "Once it has ended every call is SandboxGoneError, and no new one replaces it",
       raises="AsyncSandbox:SandboxGoneError files:SandboxGoneError")  # fmt: skip
async def use_after_the_end_is_told(context: Context) -> None:
    box = await context.open(lifetime=0.4)
    calls = every_call(box)
    await raises(SandboxGoneError, box.exec(["sleep", "1000"]))
    await _expect(SandboxGoneError, calls)
    await box.aclose()
    await box.kill()


@check("10", "A deadline ends the sandbox with all of its programs, and frees everything")
async def deadline_ends_the_sandbox(context: Context, before: int) -> None:
    box = await context.open(lifetime=2.0)
    equal(await context.count(), before + 1)
    process = await box.start("echo ready; sleep 1000")
    await anext(process.output())
    await raises(SandboxGoneError, process.wait())
    await context.wait_for_count(before)


@check("10", "Closing a sandbox frees everything, also while it is busy")
async def closing_frees_everything(context: Context, before: int, box: AsyncSandbox) -> None:
    busy = [asyncio.ensure_future(box.exec(["sleep", "1000"])) for _ in range(3)]
    await box.files.write("file", "x")
    await box.aclose()
    for outcome in await asyncio.gather(*busy, return_exceptions=True):
        true(isinstance(outcome, SandboxGoneError | SandboxClosedError), f"a running exec got {outcome!r}")
    await context.wait_for_count(before)


@check("10", "A sandbox may be closed by several tasks at once")
async def several_may_close_at_once(context: Context, before: int, box: AsyncSandbox) -> None:
    await asyncio.gather(*(box.aclose() for _ in range(5)), *(box.kill() for _ in range(2)))
    await context.wait_for_count(before)


@check("detach", "A detached sandbox outlives its handle, is listed, and is found by id and by name", needs="detach")
async def detached_sandbox_lives_on(context: Context, token: str) -> None:
    box = await context.open(env={"A": "1"}, workdir="/srv/work", labels={"k": "v"}, exec_timeout=77)
    await box.files.write("kept", "x")
    equal(await box.detach(name=token), box.id)
    equal(await box.detach(), box.id, "twice is fine")
    await box.aclose()
    listed = {info.sandbox_id: info for info in await context.backend.list()}
    true(box.id in listed, "it is on the list")
    equal((listed[box.id].name, listed[box.id].labels), (token, {"k": "v"}))
    for wanted in (box.id, token):
        again = context.adopt(await context.backend.connect(wanted))
        equal(again.id, box.id)
        equal((await again.exec('echo "$A"; pwd; cat kept')).stdout, "1\n/srv/work\nx")
        equal((again.spec.exec_timeout, again.spec.workdir), (77, "/srv/work"))
        await again.aclose()
    await context.backend.delete(token)
    await raises(SandboxGoneError, context.backend.connect(box.id))
    true(box.id not in {info.sandbox_id for info in await context.backend.list()}, "it is off the list")


@check("detach", "Owned sandboxes are not listed, and can't be found or deleted by id",
       needs="detach", raises="Backend.connect:SandboxGoneError Backend.delete:SandboxGoneError")  # fmt: skip
async def owned_sandbox_is_private(context: Context, box: AsyncSandbox) -> None:
    true(box.id not in {info.sandbox_id for info in await context.backend.list()}, "an owned one is listed")
    for wanted in (box.id, "no-such-sandbox", ""):
        await raises(SandboxGoneError, context.backend.connect(wanted))
        await raises(SandboxGoneError, context.backend.delete(wanted))
    await still_works(box)


@check("detach", "Names are unique; an invalid name or lifetime is refused", needs="detach")
async def detached_names_are_unique(context: Context, token: str) -> None:
    one, two = await context.open(), await context.open()
    await one.detach(name=token)
    await raises(SpecError, two.detach(name=token))
    await raises(SpecError, two.detach(name="with space"))
    await raises(SpecError, two.detach(lifetime_seconds=-1))
    await still_works(two, "a refused detach changes nothing")
    await two.aclose()
    await raises(SandboxGoneError, context.backend.connect(two.id))


@check("detach", "Programs keep running when a sandbox is detached and its handle is closed",
       needs="detach shell processes")  # fmt: skip
async def programs_survive_detaching(context: Context, box: AsyncSandbox) -> None:
    process = await box.start("echo one; read line; echo $line; sleep 0.3; echo done > done.txt; sleep 1000")
    reader = process.output()
    await anext(reader)
    await box.detach()
    await process.write("two\n")
    equal((await anext(reader)).data, b"two\n")
    await box.aclose()
    again = context.adopt(await context.backend.connect(box.id))
    await again.exec("(sleep 0.2; echo x > background.txt) &")
    await until(lambda: again.files.exists("background.txt"), True, "a background program")
    await again.kill()


@check("detach", "Two handles share one sandbox, and both see its end", needs="detach")
async def handles_share_a_sandbox(context: Context, box: AsyncSandbox) -> None:
    await box.detach()
    other = context.adopt(await context.backend.connect(box.id))
    await box.files.write("shared", "x")
    equal(await other.files.read("shared"), b"x")
    await other.kill()
    await _expect(SandboxGoneError, {"exec": lambda: box.exec("true"), "files.list": box.files.list})


@check("10", "A detached sandbox may have a new deadline", needs="detach")
async def detached_deadline_holds(context: Context, before: int, box: AsyncSandbox) -> None:
    await box.detach(lifetime_seconds=2.0)
    again = context.adopt(await context.backend.connect(box.id))
    left = (await again.info()).deadline
    true(left is not None and left <= 2.0, f"the seconds left: {left}")
    await raises(SandboxGoneError, again.exec(["sleep", "1000"]))
    await context.wait_for_count(before)


@check("10", "keep_on_failure keeps a sandbox alive after an exception, and only then", needs="detach")
async def sandbox_is_kept_after_a_failure(context: Context) -> None:
    ids = []
    for error in (None, ZeroDivisionError("of the caller's own")):
        try:
            async with AsyncSandbox(backend=context.backend, lifetime=Lifetime(300, keep_on_failure=True)) as box:
                ids.append(box.id)
                await box.files.write("trace", "x")
                if error is not None:
                    raise error
        except ZeroDivisionError:
            pass
    await raises(SandboxGoneError, context.backend.connect(ids[0]))
    kept = context.adopt(await context.backend.connect(ids[1]))
    equal(await kept.files.read("trace"), b"x")
    await kept.kill()
    await raises(SandboxGoneError, context.backend.connect(ids[1]))


@check("1", "An exception in the block ends the sandbox, and is not replaced by another")
async def failing_block_ends_its_sandbox(context: Context, before: int) -> None:
    try:
        async with AsyncSandbox(backend=context.backend) as box:
            raise ZeroDivisionError("of the caller's own")
    except ZeroDivisionError:
        pass
    true(box.closed, "it is closed")
    await context.wait_for_count(before)
