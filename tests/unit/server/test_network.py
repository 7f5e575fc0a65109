"""What clients may ask for beneath what the operator permits: one pure function, and the lists of the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.network.rules import Rule, read_address, read_rule
from corral.server.faults import Fault
from corral.server.network import find_beyond, narrow, read_hosts, within
from corral.spec import NetworkLimits, NetworkPolicy

REGISTRIES = ("files.registry.test:443", "*.mirror.test")


@pytest.mark.parametrize(
    ("ceiling", "permitted", "refused"),
    [
        (
            "none",
            ["none", []],
            ["packages", "open", "a.org", "files.registry.test:443", "192.0.2.0/24"],
        ),
        (
            "packages",
            ["none", [], "packages", "files.registry.test:443", "a.mirror.test", "packages,b.mirror.test:443"],
            ["open", "a.org", "files.registry.test", "files.registry.test:80", "mirror.test", "packages,a.org",
             "evil-mirror.test", "9.9.9.0/24"],
        ),
        (
            "packages,*.a.org,10.1.0.0/16",
            ["x.a.org", "*.b.a.org:443", "packages,c.a.org", "10.1.2.0/24", "10.1.2.3:80", "a.mirror.test"],
            ["a.org", "10.0.0.0/8", "10.2.0.1", "aa.org", "*.org.a"],
        ),
        (
            "a.org,*.b.org:443",
            ["a.org", "a.org:80", "x.b.org:443", "none", []],
            ["b.org", "x.b.org", "x.b.org:80", "packages", "open", "files.registry.test:443", "open,a.org"],
        ),
        (
            "open",
            ["open", "packages", "a.org", "*.a.org:443", "9.9.9.0/24", "2606:4700::/32", "open,a.org", "none"],
            ["10.0.0.1", "127.0.0.0/8", "169.254.169.254", "0.0.0.0/0", "8.0.0.0/5", "::/0", "fd00::1", "64:ff9b::/96",
             "2002::/16", "192.168.0.0/16:80", "198.18.0.1", "224.0.0.0/4", "open,10.0.0.1", "100.64.0.0/10"],
        ),
        # A wide range permits no inner addresses, and so none of those is beneath it; nor are this machine's own.
        ("0.0.0.0/0", ["9.9.9.0/24", "0.0.0.0/0", "8.0.0.0/5"], ["10.0.0.0/8", "10.0.0.1", "127.0.0.1", "a.org"]),
        ("open,10.1.0.0/16:8080", ["10.1.2.3:8080", "a.org"], ["10.1.2.3", "10.1.2.3:80", "10.2.0.0/16:8080"]),
    ],
)  # fmt: skip
def test_ceiling_permits_what_lies_beneath_it_and_nothing_else(
    ceiling: str, permitted: list[str | list[str]], refused: list[str]
) -> None:
    most = NetworkPolicy.parse(ceiling)
    for wanted in permitted:
        assert within(NetworkPolicy.parse(wanted), most, registries=REGISTRIES), wanted
    for wanted in refused:
        assert not within(NetworkPolicy.parse(wanted), most, registries=REGISTRIES), wanted


def test_host_without_a_port_is_narrowed_to_the_ports_that_are_permitted() -> None:
    def narrowed(hosts: list[str], ceiling: str) -> tuple[str, ...]:
        return narrow(hosts, NetworkPolicy.parse(ceiling), registries=["a.mirror.test:443", "a.mirror.test:80"])

    assert narrowed(["a.mirror.test"], "packages") == ("a.mirror.test:443", "a.mirror.test:80")
    assert narrowed(["x.a.org", "b.org"], "*.a.org:443,b.org") == ("x.a.org:443", "b.org")
    assert narrowed(["a.org"], "open,a.org:443") == ("a.org",)
    assert narrowed(["c.org", "*.a.org"], "a.org:443") == ("c.org", "*.a.org")  # beyond it, and refused as such


def test_registries_count_beneath_packages_only() -> None:
    wanted = NetworkPolicy.parse("a.mirror.test")
    assert not within(wanted, NetworkPolicy.parse("a.org"), registries=REGISTRIES)
    assert not within(wanted, NetworkPolicy(), registries=REGISTRIES)
    assert not within(wanted, NetworkPolicy("packages"))


def test_limits_are_part_of_the_ceiling() -> None:
    ceiling = NetworkPolicy("open", limits=NetworkLimits(connections=10, total_bytes=1000))
    assert find_beyond(NetworkPolicy("open", limits=NetworkLimits(connections=11, total_bytes=1)), ceiling) is not None
    assert find_beyond(NetworkPolicy("open", limits=NetworkLimits(connections=10)), ceiling) == "total_bytes=None"
    assert within(NetworkPolicy("open", limits=NetworkLimits(connections=5, total_bytes=1000)), ceiling)


WORDS = (
    *("none", "packages", "open", "a.org", "*.a.org", "a.org:443", "packages,b.org", "open,10.0.0.0/8"),
    *("10.0.0.0/8", "10.1.0.0/16:80", "9.9.9.9", "x.y.a.org", "*.y.a.org:443"),
)
POLICIES = st.builds(NetworkPolicy.parse, st.sampled_from(WORDS))


@given(POLICIES, POLICIES, POLICIES)
def test_what_is_within_something_within_is_within(
    one: NetworkPolicy, two: NetworkPolicy, three: NetworkPolicy
) -> None:
    assert within(one, one, registries=REGISTRIES)
    if within(one, two, registries=REGISTRIES) and within(two, three, registries=REGISTRIES):
        assert within(one, three, registries=REGISTRIES)


@given(
    st.sampled_from(["a.org", "*.a.org", "*.b.a.org", "x.a.org", "10.0.0.0/8", "10.1.2.3", "2001:db8::/32"]),
    st.sampled_from(["a.org", "*.a.org", "*.b.a.org", "y.b.a.org", "10.1.0.0/16", "10.1.2.3", "2001:db8::1"]),
    st.sampled_from([None, 80, 443]),
    st.sampled_from([None, 80, 443]),
)
def test_rule_covers_another_only_if_it_permits_all_of_it(outer: str, inner: str, first: int, second: int) -> None:
    one, two = Rule(read_rule(outer).host, first), Rule(read_rule(inner).host, second)
    names, addresses = ("a.org", "x.a.org", "b.a.org", "y.b.a.org"), ("10.0.0.1", "10.1.2.3", "2001:db8::1")
    if not one.covers(two):
        return
    for port in (80, 443):
        assert {name for name in names if two.permits_name(name, port)} <= {
            name for name in names if one.permits_name(name, port)
        }
        for address in map(read_address, addresses):
            assert address is not None
            assert one.permits_address(address, port) or not two.permits_address(address, port)


def test_lists_of_the_wire_are_read_as_the_hosted_service_reads_them() -> None:
    assert read_hosts(None, None) is None
    assert read_hosts("", "") is None
    assert read_hosts(" 192.168.1.0/16, ,10.0.0.0/24", None) == ("192.168.0.0/16", "10.0.0.0/24")
    assert read_hosts(None, "Example.org,*.b.org") == ("Example.org", "*.b.org")
    assert read_hosts("10.0.0.0/8", "a.org") == ("10.0.0.0/8", "a.org")


@pytest.mark.parametrize(
    ("networks", "domains"),
    [
        ("10.0.0.1", None), ("10.0.0.0/33", None), ("10.0.0.256/24", None), ("2001:db8::/32", None), ("a.org", None),
        (",".join(["10.0.0.0/8"] * 11), None), (None, "10.0.0.0/8"), (None, "localhost"), (None, "*.org"),
        (None, "http://a.org"), (None, "a.org:443"), (None, "*"), (None, "a..org"), (None, "127.1"),
        (None, ",".join(["a.org"] * 11)), (" , ", None), ("１0.0.0.0/8", None),
    ],
)  # fmt: skip
def test_wrong_lists_are_400(networks: str | None, domains: str | None) -> None:
    with pytest.raises(Fault) as caught:
        read_hosts(networks, domains)
    assert caught.value.status == 400
