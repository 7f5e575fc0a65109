"""Optional powers: what a backend has not got it says, and never in silence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from corral.client.wishes import make_spec
from corral.errors import CapabilityError, SandboxClosedError, SandboxGoneError
from corral.testing.check import Context, check, equal, raises, true


@check(promise="CapabilityError", title="A power that capabilities() does not list answers CapabilityError",
       raises=("exec:CapabilityError", "start:CapabilityError", "detach:CapabilityError", "files.watch:CapabilityError",
               "Backend.connect:CapabilityError"))  # fmt: skip
async def missing_power_is_said(context: Context) -> None:
    box = await context.open()
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
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")


@check(promise="CapabilityError", title="Powers of later days answer CapabilityError where they are not there yet")
async def power_of_later_days_is_said(context: Context) -> None:
    box = await context.open()
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "snapshot": box.snapshot, "fork": box.fork, "stop": box.stop, "pause": box.pause,
        "resume": box.resume, "resize": box.resize,
        "expose": lambda: box.expose(8000),
    }  # fmt: skip
    for name, call in calls.items():
        if name not in context.powers and not (name == "resume" and "pause" in context.powers):
            error = await raises(CapabilityError, call())
            true(name in str(error) and isinstance(error, NotImplementedError), f"{error!r} names {name}")


@check(promise="Backend", title="A backend is closed twice without harm, and ends what is owned")
async def backend_is_closed(context: Context) -> None:
    other = context.make()
    box = await other.create(make_spec())
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")
    await other.aclose()
    await other.aclose()
    await raises(SandboxGoneError, box.exec("true"))
    await box.aclose()
    await raises(SandboxClosedError, box.exec("true"))
