"""The network of a sandbox: what is not permitted is refused at once and told, and the policy changes while it runs.

Nothing here may reach a real network, whatever the backend does wrong. Names end in `.invalid`, which no resolver knows
and which a backend refuses without asking one; and no address is tried before the sandbox is seen to have no way out.
"""

from __future__ import annotations

from corral.client.sandbox import AsyncSandbox
from corral.errors import SpecError
from corral.results import Denial, ExecResult
from corral.spec import NetworkPolicy
from corral.testing.check import REAL, Context, check, equal, raises, true

_LOOK_UP = "import socket, sys; socket.getaddrinfo(sys.argv[1], 443)"
_OTHERS = "ls /sys/class/net 2>/dev/null || sed '1,2d;s/:.*//' /proc/net/dev"
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 443), timeout=20)
except OSError as error:
    print(type(error).__name__, error.errno)
"""
_DOCUMENTATION = "192.0.2.1"
"""An address that belongs to nobody."""


async def _look_up(box: AsyncSandbox, name: str) -> ExecResult:
    result = await box.run_code(_LOOK_UP, args=[name], timeout=50)
    true(not result.timed_out, f"looking up {name} fails at once")
    true("gaierror" in result.stderr, f"looking up {name} fails: {result.output[-300:]}")
    return result


def _rules(denied: tuple[Denial, ...]) -> set[tuple[str, str]]:
    return {(denial.host, denial.rule) for denial in denied}


@check("network", "network='none' has no way out", needs=f"network_none {REAL} python")
async def none_has_no_way_out(box: AsyncSandbox) -> None:
    interfaces = set((await box.exec(_OTHERS)).stdout.split()) - {"lo"}
    equal(interfaces, set(), "interfaces besides loopback; nothing was sent")
    result = await box.run_code(_CONNECT, args=[_DOCUMENTATION], timeout=50)
    true("Error" in result.stdout and not result.timed_out, f"connecting fails at once: {result.output[-300:]}")


@check("network", "Without a network a lookup fails at once, and the result tells it", needs=f"denials {REAL} python")
async def lookup_without_a_network_is_told(box: AsyncSandbox) -> None:
    result = await _look_up(box, "refused.invalid")
    equal(_rules(result.denied), {("refused.invalid", "no network")})
    equal((await box.exec("true")).denied, (), "the result of the next program")
    equal(_rules(await box.denials()), {("refused.invalid", "no network")})


@check("network", "What a policy does not list is refused at once, and the result tells it",
       needs=f"denials set_network {REAL} python")  # fmt: skip
async def lookup_beyond_the_list_is_told(context: Context) -> None:
    box = await context.open(network="permitted.invalid")
    equal(box.spec.network, NetworkPolicy("allow", ("permitted.invalid",)))
    result = await _look_up(box, "refused.invalid")
    equal(_rules(result.denied), {("refused.invalid", "policy")})
    process = await box.start(["python3", "-c", _LOOK_UP, "again.invalid"])
    equal(_rules((await process.wait(timeout=50)).denied), {("again.invalid", "policy")}, "of a background program")


@check("set_network", "A policy changes while the sandbox runs, and is that of its spec", needs="set_network",
       raises="SpecError")  # fmt: skip
async def policy_changes_while_running(context: Context) -> None:
    box = await context.open()
    for wanted in ("a.invalid,*.b.invalid:443", "none", ["c.invalid"]):
        await box.set_network(wanted)
        equal(box.spec.network, NetworkPolicy.parse(wanted))
    for wrong in ("a,,b", "none,a.invalid", "http://a.invalid"):
        await raises(SpecError, box.set_network(wrong))
    equal(box.spec.network, NetworkPolicy("allow", ("c.invalid",)), "a refused change changes nothing")
    if "detach" in context.powers:
        await box.detach()
        other = context.adopt(await context.backend.connect(box.id))
        equal(other.spec.network, box.spec.network, "the policy, for another handle")


@check("set_network", "A new policy holds for programs that run already", needs=f"denials set_network {REAL} python")
async def new_policy_holds_at_once(context: Context) -> None:
    box = await context.open()
    for wanted, rule in (("none", "no network"), ("other.invalid", "policy"), ("none", "no network")):
        await box.set_network(wanted)
        equal(_rules((await _look_up(box, "refused.invalid")).denied), {("refused.invalid", rule)}, wanted)
