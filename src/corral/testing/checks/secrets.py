"""Secrets: programs see placeholders, and values are in no text about the sandbox. Nothing is sent to any host."""

from __future__ import annotations

from corral.client.sandbox import AsyncSandbox
from corral.errors import SpecError
from corral.secret import Pending, Secret
from corral.testing.check import REAL, Context, check, equal, raises, true

_VALUE = "the-value-of-a-secret"
_HOSTS = ["a.invalid", "b.invalid"]


async def _see(box: AsyncSandbox, name: str) -> str:
    return (await box.exec(["printenv", name])).stdout.strip()


@check("set_secrets", "Programs see a placeholder, which stays when the secrets are replaced", needs=f"secrets {REAL}",
       raises="SpecError")  # fmt: skip
async def programs_see_placeholders(context: Context) -> None:
    key = Secret("CHECK_KEY", _VALUE, _HOSTS)
    box = await context.open(network=",".join(_HOSTS), secrets=[key])
    seen = await _see(box, "CHECK_KEY")
    true(seen != "" and _VALUE not in seen, f"programs see a placeholder: {seen!r}")
    equal(box.spec.secrets[0].placeholder, seen)
    await box.set_secrets([Secret("CHECK_KEY", "another", _HOSTS), Secret("CHECK_MORE", _VALUE, _HOSTS, "X-Key")])
    equal(await _see(box, "CHECK_KEY"), seen, "the placeholder, with another value")
    more = await _see(box, "CHECK_MORE")
    true(more not in ("", seen), "another secret has another placeholder")
    for wrong in ([key, key], ["CHECK_KEY"], [Secret("CHECK_KEY", Pending(), _HOSTS)]):
        await raises(SpecError, box.set_secrets(wrong))  # type: ignore[arg-type] # as a caller may get it wrong
    equal([each.name for each in box.spec.secrets], ["CHECK_KEY", "CHECK_MORE"], "a refused change changes nothing")
    for text in (repr(box.spec), repr(await box.info()), str(box)):
        true(_VALUE not in text, f"no value in {text[:40]}…")
    if "detach" in context.powers:
        await box.detach()
        other = context.adopt(await context.backend.connect(box.id))
        equal(await _see(other, "CHECK_KEY"), seen, "the placeholder, for another handle")
    await box.set_secrets([])
    equal(await _see(box, "CHECK_KEY"), "", "a secret that was removed")
