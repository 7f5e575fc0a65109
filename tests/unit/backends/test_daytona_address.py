"""Key and address of a Daytona service: every mixture of sources, and that no key goes to the address of another."""

import itertools
import os

import pytest

from corral.backends.daytona.address import (
    HOSTED,
    VARIABLES,
    Address,
    choose_address,
    fill_from_environment,
    read_address,
)
from corral.errors import SpecError


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def source(name: str, what: str) -> Address:
    """`k` has a key, `u` an address."""
    values = {}
    if "k" in what:
        values["DAYTONA_API_KEY"] = f"key of {name}"
    if "u" in what:
        values["DAYTONA_API_URL"] = f"http://{name}/api/"
    return read_address(values, source=name)


REFUSED = "refused"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("", "", None),
        ("u", "", None),
        ("", "u", None),
        ("u", "u", None),
        ("k", "", ("key of one", HOSTED)),
        ("ku", "", ("key of one", "http://one/api")),
        ("", "k", ("key of two", HOSTED)),
        ("", "ku", ("key of two", "http://two/api")),
        ("ku", "u", ("key of one", "http://one/api")),
        ("ku", "k", ("key of one", "http://one/api")),
        ("ku", "ku", ("key of one", "http://one/api")),
        ("k", "k", ("key of one", HOSTED)),
        ("k", "ku", ("key of one", HOSTED)),
        ("k", "u", REFUSED),
        ("u", "k", REFUSED),
        ("u", "ku", REFUSED),
    ],
)
def test_first_source_with_a_key_gives_the_address_too(first: str, second: str, expected: object) -> None:
    sources = source("one", first), source("two", second)
    if expected is REFUSED:
        with pytest.raises(SpecError, match="not sent to a URL from another source") as caught:
            choose_address(sources)
        assert "key of" not in str(caught.value)
        return
    found = choose_address(sources)
    assert (found and (found.api_key, found.url)) == expected


def test_table_has_every_mixture_and_no_key_meets_the_address_of_another() -> None:
    for first, second in itertools.product(["", "k", "u", "ku"], repeat=2):
        try:
            found = choose_address((source("one", first), source("two", second)))
        except SpecError:
            continue
        if found is not None and found.api_url is not None:
            assert str(found.api_key).removeprefix("key of ") in found.api_url


def test_same_address_in_two_sources_is_no_quarrel() -> None:
    theirs = Address(api_url="http://one/api", source="two")
    found = choose_address((theirs, source("one", "ku")))
    assert found is not None
    assert found.api_key == "key of one"


@pytest.mark.parametrize("name", ["DAYTONA_API_URL", "DAYTONA_SERVER_URL"])
def test_arguments_win_over_variables_of_the_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "of the process")
    monkeypatch.setenv(name, "http://process/api")
    monkeypatch.setenv("DAYTONA_TARGET", "eu")
    found = fill_from_environment(Address())
    assert (found.api_key, found.url, found.target) == ("of the process", "http://process/api", "eu")
    found = fill_from_environment(Address(api_key="given", api_url="http://given/api", target="us"))
    assert (found.api_key, found.url, found.target) == ("given", "http://given/api", "us")
    found = fill_from_environment(Address(jwt_token="given", organization_id="ours"))
    assert (found.api_key, found.jwt_token, found.organization_id) == (None, "given", "ours")


def test_token_counts_as_a_key() -> None:
    values = {"DAYTONA_JWT_TOKEN": "t", "DAYTONA_ORGANIZATION_ID": "o"}
    found = choose_address((source("one", ""), read_address(values, source="two")))
    assert found is not None
    assert (found.jwt_token, found.organization_id, found.url) == ("t", "o", HOSTED)
    with pytest.raises(SpecError):
        choose_address((read_address(values, source="one"), source("two", "u")))


def test_keys_are_never_shown() -> None:
    assert "secret" not in repr(Address(api_key="secret", jwt_token="secret"))
    assert "DAYTONA_API_KEY" not in os.environ
