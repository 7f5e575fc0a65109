"""Values for placeholders, in the named header of requests to the named hosts, and nowhere else."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.network.rules import RuleError, read_rule
from corral.network.settings import GateCredential, GateSecret
from corral.network.substitution import (
    ANY_HEADER,
    SecretRefusedError,
    Substitution,
    check_header,
    check_value,
    make_placeholder,
    overlap,
    read_hosts,
)

PLACEHOLDER = make_placeholder()
VALUE = "the-real-value"
KEY = GateSecret(PLACEHOLDER, VALUE, ("api.example.org:443", "*.deep.example"))
TO: Any = {"host": "api.example.org", "port": 443}


def fill(*headers: tuple[str, str], host: str = "api.example.org", port: int = 443, secret: GateSecret = KEY) -> str:
    """The headers as they leave."""
    done = Substitution([secret]).apply(headers, host=host, port=port, secure=True)
    return "\n".join(f"{name}: {content}" for name, content in done)


@pytest.mark.parametrize("scheme", ["", "Bearer ", "token ", "Key id="])
def test_placeholder_in_the_header_becomes_the_value(scheme: str) -> None:
    assert fill(("authorization", scheme + PLACEHOLDER)) == f"authorization: {scheme}{VALUE}"


def test_placeholder_in_a_basic_login_becomes_the_value() -> None:
    packed = base64.b64encode(f"user:{PLACEHOLDER}".encode()).decode()
    expected = base64.b64encode(f"user:{VALUE}".encode()).decode()
    assert fill(("Authorization", f"Basic {packed}")) == f"Authorization: Basic {expected}"
    assert fill(("Authorization", f"Basic {PLACEHOLDER}")) == f"Authorization: Basic {VALUE}"
    assert fill(("Authorization", "Basic %%%")) == "Authorization: Basic %%%"


@pytest.mark.parametrize(
    ("host", "port"),
    [("api.example.org", 8443), ("example.org", 443), ("x.api.example.org", 443), ("deep.example", 443),
     ("evil.example", 443), ("api.example.org.evil.example", 443), ("192.0.2.1", 443)],
)  # fmt: skip
def test_placeholder_stays_for_another_host_or_port(host: str, port: int) -> None:
    assert VALUE not in fill(("Authorization", PLACEHOLDER), host=host, port=port)
    assert not Substitution([KEY]).concerns(host, port)


def test_placeholder_stays_in_another_header() -> None:
    assert VALUE not in fill(("X-Api-Key", PLACEHOLDER), ("Cookie", PLACEHOLDER), ("Authorization2", PLACEHOLDER))


def test_any_header_is_every_header_but_those_that_frame() -> None:
    secret = GateSecret(PLACEHOLDER, VALUE, ("api.example.org",), ANY_HEADER)
    done = fill(("X-Api-Key", PLACEHOLDER), ("Host", PLACEHOLDER), ("Connection", PLACEHOLDER), secret=secret)
    assert done == f"X-Api-Key: {VALUE}\nHost: {PLACEHOLDER}\nConnection: {PLACEHOLDER}"


def test_wildcard_is_for_all_names_below() -> None:
    assert VALUE in fill(("Authorization", PLACEHOLDER), host="a.b.deep.example", port=9)


def test_value_that_contains_another_placeholder_is_not_read_again() -> None:
    other = GateSecret(make_placeholder(), "other", ("api.example.org",))
    first = GateSecret(PLACEHOLDER, f"x{other.placeholder}", ("api.example.org",))
    sent = [("Authorization", PLACEHOLDER)]
    done = Substitution([first, other]).apply(sent, host="api.example.org", port=443, secure=True)
    assert done == (("Authorization", first.value),)


def test_header_that_is_given_twice_is_refused() -> None:
    with pytest.raises(SecretRefusedError, match="twice"):
        fill(("Authorization", PLACEHOLDER), ("authorization", "x"))


def test_nothing_is_sent_without_tls() -> None:
    sent = [("Authorization", PLACEHOLDER)]
    with pytest.raises(SecretRefusedError, match="TLS only"):
        Substitution([KEY]).apply(sent, host="api.example.org", port=443, secure=False)
    assert Substitution([KEY]).apply(sent, host="other.example", port=80, secure=False) == tuple(sent)


def test_credential_is_added_in_place_of_what_was_sent() -> None:
    index = GateCredential("index.example:8080", "Authorization", "Basic abc", secure=False)
    mine = Substitution([], [index])
    assert mine.concerns("index.example", 8080)
    assert not mine.concerns("index.example", 80)
    for sent in ([("Accept", "*")], [("Accept", "*"), ("authorization", "mine")]):
        done = mine.apply(sent, host="index.example", port=8080, secure=False)
        assert done == (("Accept", "*"), ("Authorization", "Basic abc"))
    assert mine.apply([("Accept", "*")], host="other.example", port=8080, secure=False) == (("Accept", "*"),)


def test_credential_is_for_reading_and_as_secret_as_its_url_was() -> None:
    """The login of an index does not publish packages, and that of an https URL never leaves without TLS."""
    mine = Substitution([], [GateCredential("index.example:443", "Authorization", "Basic abc")])
    to: Any = {"host": "index.example", "port": 443}
    assert mine.apply([], **to, secure=True, method="HEAD") == (("Authorization", "Basic abc"),)
    for method in ("POST", "PUT", "DELETE", "get"):
        assert mine.apply([], **to, secure=True, method=method) == ()
    assert mine.apply([], **to, secure=False) == ()


@pytest.mark.parametrize("method", ["TRACE", "trace", "TRACK"])
def test_request_whose_answer_is_the_request_is_refused(method: str) -> None:
    with pytest.raises(SecretRefusedError, match="would show it"):
        Substitution([KEY]).apply([("Authorization", PLACEHOLDER)], **TO, secure=True, method=method)
    sent = (("Authorization", "mine"),)
    assert Substitution([KEY]).apply(sent, **TO, secure=True, method=method) == sent


def test_secret_without_a_value_is_refused_where_it_would_be_put_in() -> None:
    """After a stop, until the value is given again; elsewhere its placeholder is a word like others."""
    mine = Substitution([GateSecret(PLACEHOLDER, "", ("api.example.org",))])
    for content in (PLACEHOLDER, "Basic " + base64.b64encode(f"u:{PLACEHOLDER}".encode()).decode()):
        with pytest.raises(SecretRefusedError, match="has to be given again"):
            mine.apply([("Authorization", content)], host="api.example.org", port=443, secure=True)
    sent = (("X-Other", PLACEHOLDER),)
    assert mine.apply(sent, host="api.example.org", port=443, secure=True) == sent


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Transfer-Encoding", "Connection", "a ", "", "X:", "é", "X\n"]
)
def test_header_that_frames_or_is_none_is_refused(name: str) -> None:
    with pytest.raises(RuleError):
        check_header(name)


@pytest.mark.parametrize("value", ["", " x", "x\n", "a\r\nX-Evil: 1", "a\0", "x" * 40_000, "\udcff", "€"])
def test_value_that_can_not_stand_in_a_header_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(RuleError) as refused:
        check_value(value)
    assert not value.strip() or value not in str(refused.value)


@pytest.mark.parametrize("hosts", [[], ["10.0.0.1"], ["10.0.0.0/8"], ["*"], ["https://example.org"], ["*.org"]])
def test_hosts_are_names(hosts: list[str]) -> None:
    with pytest.raises(RuleError):
        read_hosts(hosts)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("a.org", "a.org", True), ("a.org:443", "a.org", True), ("a.org:443", "a.org:80", False),
     ("*.a.org", "x.a.org", True), ("x.a.org", "*.a.org", True), ("*.a.org", "a.org", False),
     ("*.x.a.org", "*.a.org", True), ("a.org", "10.0.0.0/8", False)],
)  # fmt: skip
def test_overlap(one: str, other: str, expected: bool) -> None:
    assert overlap(read_rule(one), read_rule(other)) is expected


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=60)), max_size=5))
def test_headers_without_the_placeholder_are_left_alone(headers: list[tuple[str, str]]) -> None:
    assert Substitution([KEY]).apply(headers, host="api.example.org", port=443, secure=True) == tuple(headers)


def test_values_are_in_no_repr() -> None:
    assert VALUE not in repr(KEY)
    assert "hidden" not in repr(GateCredential("a.example", "Authorization", "hidden"))
