"""The one line about refused attempts: what it names, what it proposes, and what it never shows."""

from __future__ import annotations

import pytest

from corral.base.denials import describe_denials
from corral.results import Denial
from corral.spec import NetworkPolicy


def _line(*denied: Denial, network: str | None = "packages,a.org", door="library") -> str:
    return describe_denials(denied, NetworkPolicy.parse(network), door=door)


def test_says_what_was_blocked_what_is_allowed_and_how_to_ask():
    assert _line(Denial("example.org", 443, "policy")) == (
        "network: blocked example.org:443; allowed are package registries, a.org; "
        'ask for it with network="packages,a.org,example.org:443"'
    )


def test_speaks_in_the_words_of_its_door():
    denied = Denial("example.org", None, "policy")
    assert _line(denied, door="command line").endswith("; ask for it with --network packages,a.org,example.org")
    assert _line(denied, door="model").endswith("; if it is needed, ask the user to allow it")
    assert _line(denied, door="server").endswith("; ask for it with domainAllowList or networkAllowList: example.org")


def test_a_sandbox_without_a_network_is_said_to_have_none():
    assert _line(Denial("example.org", None, "no network"), network=None) == (
        'network: blocked example.org: this sandbox has no network; ask for it with network="example.org"; '
        'for pip, npm and the like: network="packages"'
    )


def test_repeats_are_counted_and_a_lookup_is_left_out_beside_its_connection():
    line = _line(
        Denial("a.net", None, "policy"), Denial("a.net", 443, "policy"), Denial("a.net", 443, "policy", count=2)
    )
    assert "blocked a.net:443 (3 times);" in line


def test_is_bounded_whatever_was_tried_inside():
    names = [Denial(f"{number}.{'x' * 60}.{'y' * 60}.net", 443, "policy") for number in range(10_000)]
    line = _line(*names)
    assert len(line) < 1500
    assert " and 9995 more" in line


def test_a_long_list_of_hosts_is_not_repeated():
    hosts = ",".join(f"h{number}.org" for number in range(500))
    line = _line(Denial("example.org", 443, "policy"), network=hosts)
    assert "h4.org and 495 more" in line
    assert line.endswith('network="…,example.org:443"')


@pytest.mark.parametrize(
    "host", ["\x1b[2J", "a\nnetwork: none", "x; rm -rf /", "*.org", "127.1", "\u202egro.elpmaxe", "", "a" * 10_000]
)
def test_odd_names_are_shown_escaped_and_never_proposed(host):
    line = _line(Denial(host, 443, "policy"), door="command line")
    assert line.isprintable()
    assert line.replace("…", "").isascii()
    assert len(line) < 400
    assert line.endswith("--network packages,a.org,HOST")


def test_an_international_name_is_shown_as_it_is_on_the_wire():
    assert "blocked xn--bcher-kva.example:443;" in _line(Denial("bücher.example", 443, "policy"))


def test_a_private_address_is_proposed_but_not_a_name_that_leads_to_one():
    assert _line(Denial("10.0.0.5", 80, "private"), network="open").endswith('network="open,10.0.0.5:80"')
    assert _line(Denial("intranet.example", 80, "private"), network="open").endswith('network="open,HOST"')
    assert "reached only if the address itself is listed" in _line(Denial("fd00::1", 80, "private"))
    assert "169.254" not in _line(Denial("169.254.169.254", 80, "private"), network="open").partition("ask for")[2]


def test_a_limit_is_explained_without_asking_for_hosts():
    assert _line(Denial("a.org", 443, "connections")) == (
        "network: blocked a.org:443: more than 256 connections at once"
    )


def test_a_wildcard_of_the_policy_is_quoted_for_a_shell():
    assert _line(Denial("b.net", None, "policy"), network="*.a.org", door="command line").endswith(
        "--network '*.a.org,b.net'"
    )


def test_an_address_with_a_port_can_be_read_back():
    assert str(Denial("fd00::1", 80, "private")) == "[fd00::1]:80"
    assert str(Denial("fd00::1", None, "private")) == "fd00::1"


def test_nothing_refused_is_no_line():
    assert _line() == ""
