"""Making sandboxes: what is refused, what is told, and what makes create repeatable."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from corral.client.sandbox import AsyncSandbox
from corral.client.wishes import make_spec
from corral.errors import CapabilityError, SpecError
from corral.results import Event
from corral.testing.check import Context, check, equal, raises, true


@check(promise="Backend.create", title="A wish that can't be met is SpecError, and nothing is made",
       raises=("Backend.create:SpecError",))  # fmt: skip
async def impossible_wish_is_refused(context: Context) -> None:
    before = await context.count()
    wishes: tuple[dict[str, Any], ...] = (
        {"workdir": "relative"}, {"workdir": "/a/../b"}, {"workdir": "/nul\0"}, {"name": "with space"}, {"name": ""},
        {"hostname": "under_score"}, {"packages": "numpy"}, {"packages": ["-x"]}, {"lifetime": -1},
        {"env": {"A=": "x"}}, {"network": "a.org,,b.org"},
    )  # fmt: skip
    for wish in wishes:
        await raises(SpecError, _open(context, wish))
    equal(await context.count(), before, "sandboxes")


@check(promise="Backend.create", title="A wish that this backend can't meet is CapabilityError, never a silent no",
       raises=("Backend.create:CapabilityError",))  # fmt: skip
async def unmet_wish_is_refused(context: Context) -> None:
    capabilities = await context.backend.capabilities()
    before = await context.count()
    if "images" not in capabilities.powers:
        await raises(CapabilityError, context.open(image="debian:12"))
    if "open" not in capabilities.network:
        await raises(CapabilityError, context.open(network="open"))
    if "allow" not in capabilities.network:
        await raises(CapabilityError, context.open(network="example.org"))
    for power, wish in (("packages", {"packages": ["iniconfig"]}), ("venv", {"venv": "/no/such"})):
        if power not in capabilities.powers:
            await raises(CapabilityError, context.open(**wish))
    equal(await context.count(), before, "sandboxes")


@check(promise="Backend.capabilities", title="capabilities() speaks in known words")
async def capabilities_are_told(context: Context) -> None:
    capabilities = await context.backend.capabilities()
    for name in ("memory", "processes", "cpu", "disk"):
        true(getattr(capabilities, name) in ("hard", "soft", "none"), name)
    true(capabilities.isolation, "isolation says something")
    true(capabilities.limits == "hard" or capabilities.notes, "what is not hard is explained in the notes")
    true(context.backend.name, "a backend has a name")


@check(promise="AsyncSandbox", title="id, spec and info() tell what was made")
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


@check(promise="AsyncSandbox", title="Two sandboxes share nothing")
async def sandboxes_share_nothing(context: Context) -> None:
    one, two = await context.open(), await context.open()
    await one.files.write("mine", "x")
    await one.files.write("/tmp/mine", "x")
    equal([await two.files.exists(path) for path in ("mine", "/tmp/mine")], [False, False])


@check(promise="8", title="The same client token gives the same sandbox, another token another")
async def token_makes_create_repeatable(context: Context) -> None:
    before = await context.count()
    token = secrets.token_hex(8)
    first = await context.open(client_token=token)
    await first.files.write("mark", "x")
    again = await context.open(client_token=token)
    equal(again.id, first.id)
    equal(await again.files.read("mark"), b"x")
    other = await context.open(client_token=token + "-other")
    true(other.id != first.id, "another token is another sandbox")
    equal(await context.count(), before + 2, "sandboxes")


@check(promise="8", title="Creates with one token at the same time make one sandbox")
async def token_holds_for_creates_at_once(context: Context) -> None:
    before = await context.count()
    token = secrets.token_hex(8)
    boxes = await asyncio.gather(*(context.open(client_token=token) for _ in range(5)))
    equal(len({box.id for box in boxes}), 1, "different sandboxes for one token")
    equal(await context.count(), before + 1, "sandboxes")


@check(promise="7", title="A token whose sandbox has ended makes a new one, and never hands out the dead")
async def token_of_an_ended_sandbox_is_free(context: Context) -> None:
    token = secrets.token_hex(8)
    first = await context.open(client_token=token)
    await first.aclose()
    second = await context.open(client_token=token)
    true(second.id != first.id, "a closed sandbox was handed out")
    equal((await second.exec(["echo", "fine"])).stdout, "fine\n")
    third = await context.open(client_token=token + "-short", lifetime=0.3)
    while True:
        try:
            await third.exec(["sleep", "1000"])
        except Exception:  # noqa: BLE001 - gone, which another check looks at
            break
    fourth = await context.open(client_token=token + "-short")
    equal((await fourth.exec(["echo", "fine"])).stdout, "fine\n")


@check(promise="AsyncSandbox", title="on_event is told; its own failure harms nobody")
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


@check(promise="AsyncSandbox", title="The door: async with, await, create, and a whole spec", needs=frozenset())
async def door_opens_in_every_way(context: Context) -> None:
    backend = context.backend
    async with AsyncSandbox(backend=backend, env={"A": "1"}) as box:
        equal((await box.exec("echo $A")).stdout, "1\n")
    context.adopt(await AsyncSandbox(backend=backend))
    context.adopt(await AsyncSandbox.create(backend=backend, spec=make_spec(workdir="/srv/x")))
    await raises(TypeError, _both(context))


async def _both(context: Context) -> object:
    return AsyncSandbox(backend=context.backend, spec=make_spec(), workdir="/x")


async def _open(context: Context, wish: dict[str, Any]) -> object:
    return await context.open(**wish)
