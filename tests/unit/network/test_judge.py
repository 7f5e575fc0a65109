"""Decisions of a policy, over a resolver that says what a test wants."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import pytest

from corral.network.checking import read_target
from corral.network.judge import Judge, NoSuchNameError, RefusedError, Target
from corral.network.rules import Address
from corral.network.settings import Alias, GateSettings

PUBLIC, OTHER, OWN = "93.184.215.14", "2a00:1450::1", "11.255.255.1"


@dataclass
class Names:
    known: dict[str, list[str]]
    asked: list[str] = field(default_factory=list)

    async def look_up(self, name: str) -> Sequence[Address]:
        self.asked.append(name)
        if name not in self.known:
            raise NoSuchNameError
        return [ip_address(text) for text in self.known[name]]


NAMES = {
    "example.org": [PUBLIC, OTHER],
    "inner.example.org": ["10.0.0.5"],
    "mixed.example.org": ["127.0.0.1", PUBLIC, "::ffff:10.0.0.1", "fe80::1"],
    "own.example.org": [OWN],
    "meta.example.org": ["169.254.169.254"],
    "mapped.example.org": ["::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:a00:1::"],
}


def make(mode: str, *rules: str, **more: Any) -> Judge:
    settings = GateSettings(mode=mode, rules=rules, **more)
    return Judge(settings, Names(NAMES), is_own=lambda address: str(address) == OWN)


async def decide(judge: Judge, host: str, port: int = 443) -> str:
    target = read_target(f"[{host}]" if ":" in host else host, port=port)
    if target is None:
        return "no target"
    try:
        return " ".join(map(str, (await judge.judge(target)).addresses))
    except RefusedError as error:
        return error.rule
    except NoSuchNameError:
        return "no name"


@pytest.mark.parametrize(
    ("mode", "rules", "host", "expected"),
    [
        ("none", (), "example.org", "no network"),
        ("none", (), PUBLIC, "no network"),
        ("none", (), "127.0.0.1", "no network"),
        ("allow", (), "example.org", "policy"),
        ("allow", (), PUBLIC, "policy"),
        ("allow", ("example.org",), "example.org", f"{PUBLIC} {OTHER}"),
        ("allow", ("example.org",), "EXAMPLE.org.", f"{PUBLIC} {OTHER}"),
        ("allow", ("example.org",), "www.example.org", "policy"),
        ("allow", ("example.org",), "example.org.evil.test", "policy"),
        ("allow", ("example.org",), "xn--exmple-cua.org", "policy"),
        ("allow", ("example.org",), "ex\u0430mple.org", "no target"),
        ("allow", ("example.org:80",), "example.org", "policy"),
        ("allow", ("example.org",), PUBLIC, "policy"),  # its address is another thing
        ("allow", ("*.example.org",), "example.org", "policy"),
        ("allow", ("*.example.org",), "inner.example.org", "private"),
        ("allow", ("*.example.org", "10.0.0.0/8"), "inner.example.org", "10.0.0.5"),
        ("allow", ("*.example.org", "10.0.0.0/8:80"), "inner.example.org", "private"),
        ("allow", ("*.example.org",), "mixed.example.org", PUBLIC),
        ("allow", ("*.example.org",), "mapped.example.org", "private"),
        ("allow", ("*.example.org",), "own.example.org", "private"),
        ("allow", ("*.example.org",), "nothing.example.org", "no name"),
        ("allow", ("10.0.0.0/8",), "10.0.0.5", "10.0.0.5"),
        ("allow", ("10.0.0.0/8",), "::ffff:10.0.0.5", "10.0.0.5"),
        ("allow", ("10.0.0.0/8",), "169.254.169.254", "private"),
        ("open", (), "168.63.129.16", "private"),
        ("open", ("168.63.129.16",), "168.63.129.16", "168.63.129.16"),
        ("open", (), "example.org", f"{PUBLIC} {OTHER}"),
        ("open", (), PUBLIC, PUBLIC),
        ("open", (), OWN, "private"),
        ("open", (), "own.example.org", "private"),
        ("open", (), "meta.example.org", "private"),
        ("open", (), "127.0.0.1", "private"),
        ("open", (), "::1", "private"),
        ("open", (), "::ffff:127.0.0.1", "private"),
        ("open", (), "64:ff9b::7f00:1", "private"),
        ("open", (), "198.18.0.1", "private"),
        ("open", (), "0.0.0.0", "private"),
        ("open", (), "2002:a9fe:a9fe::", "private"),
        ("open", (), "64:ff9b:1::a9fe:a9fe", "private"),  # as each of these, whatever the version of Python says of it
        ("open", (), "5f00::1", "private"),
        ("open", (), "100::1", "private"),
        ("open", (), "3fff::1", "private"),
        ("open", (), "fd00:ec2::254", "private"),
        ("open", (), "2600::1", "2600::1"),
        ("open", ("169.254.169.254",), "169.254.169.254", "169.254.169.254"),
        ("open", (), "127.1", "no target"),
        ("open", (), "2130706433", "no target"),
        ("open", (), "0x7f000001", "no target"),
        ("open", (), "0177.0.0.1", "no target"),
        ("open", (), "127.0.0.01", "no target"),
        ("open", (), "fe80::1%eth0", "no target"),
    ],
)  # fmt: skip
async def test_a_policy_decides(mode: str, rules: tuple[str, ...], host: str, expected: str) -> None:
    assert await decide(make(mode, *rules), host) == expected


async def test_each_connection_is_judged_anew() -> None:
    """Rebinding: the address is looked up each time, and the one that was judged is the one that is given out."""
    names = Names({"example.org": [PUBLIC]})
    judge = Judge(GateSettings(mode="allow", rules=("example.org",)), names, is_own=lambda address: False)
    assert await decide(judge, "example.org") == PUBLIC
    names.known["example.org"] = ["169.254.169.254"]
    assert await decide(judge, "example.org") == "private"


async def test_a_lookup_is_judged_without_a_port() -> None:
    judge = make("allow", "example.org:443", "*.example.org")
    await judge.judge_lookup("example.org")
    for name, rule in (("inner.example.org", "private"), ("evil.test", "policy")):
        with pytest.raises(RefusedError) as caught:
            await judge.judge_lookup(name)
        assert caught.value.rule == rule


async def test_an_alias_leads_where_the_operator_says() -> None:
    judge = make("packages", aliases=(Alias("index.internal", 8080, "127.0.0.1", 9090),))
    permit = await judge.judge(Target("index.internal", 8080))
    assert ([str(address) for address in permit.addresses], permit.port) == (["127.0.0.1"], 9090)
    await judge.judge_lookup("index.internal")
    assert await decide(judge, "index.internal", 8081) == "policy"
    assert await decide(judge, "127.0.0.1", 9090) == "private"


async def test_behind_a_proxy_names_are_not_looked_up_and_local_ones_not_reached() -> None:
    names = Names({})
    settings = GateSettings(mode="open", rules=("wiki.internal",))
    judge = Judge(settings, names, is_own=lambda address: False, by_proxy=lambda host, port: True)
    assert await decide(judge, "example.org") == ""
    assert await decide(judge, "wiki.internal") == ""
    for host in ("intranet", "localhost", "metadata.google.internal", "169.254.169.254"):
        assert await decide(judge, host) == "private"
    assert names.asked == []


async def test_local_names_are_looked_up_only_for_a_list() -> None:
    names = Names({"printer.lan": [PUBLIC], "db.internal": ["10.0.0.5"], "intranet": ["10.0.0.5"]})
    for rules, found in (((), "private"), (("intranet",), "private"), (("10.0.0.0/8",), "10.0.0.5")):
        judge = Judge(GateSettings(mode="open", rules=rules), names, is_own=lambda address: False)
        assert await decide(judge, "db.internal") == found
        with contextlib.suppress(RefusedError):
            await judge.judge_lookup("db.internal")
    assert set(names.asked) == {"db.internal"}
    assert len(names.asked) == 2
    judge = Judge(GateSettings(mode="allow", rules=("printer.lan",)), names, is_own=lambda address: False)
    assert await decide(judge, "printer.lan") == PUBLIC


async def test_a_connection_may_go_on_only_if_its_address_is_still_permitted() -> None:
    before, after = make("allow", "example.org", "10.0.0.0/8"), make("allow", "example.org")
    name, address = Target("example.org", 443), ip_address("10.0.0.5")
    assert before.still_permits(name, address)
    assert not after.still_permits(name, address)
    assert after.still_permits(name, ip_address(PUBLIC))
    assert not make("none").still_permits(name, ip_address(PUBLIC))
    assert not after.still_permits(Target("10.0.0.5", 443, address), address)


@pytest.mark.parametrize("wide", ["0.0.0.0/0", "0.0.0.0/1", "8.0.0.0/6", "128.0.0.0/1"])
async def test_a_wide_range_is_the_internet_and_nothing_of_ours(wide: str) -> None:
    for judge in (make("allow", wide, "own.example.org", "inner.example.org"), make("open", wide)):
        for host in ("127.0.0.1", "10.0.0.5", "169.254.169.254", OWN, "own.example.org", "inner.example.org"):
            assert await decide(judge, host) == "private", (wide, host)
    assert await decide(make("allow", "0.0.0.0/0"), PUBLIC) == PUBLIC
    assert await decide(make("allow", "8.0.0.0/6"), OWN.replace("11.", "10.")) == "private"


async def test_a_range_of_inner_addresses_and_an_address_itself_are_meant() -> None:
    assert await decide(make("allow", "10.0.0.0/8"), "10.0.0.5") == "10.0.0.5"
    assert await decide(make("allow", OWN), OWN) == OWN
    assert await decide(make("allow", "fc00::/7"), "fd00::1") == "fd00::1"
    assert await decide(make("allow", "::/0"), "fd00::1") == "private"
