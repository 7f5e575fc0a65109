"""Redirects of programs whose preview shares an origin with the API: what a client follows with its key."""

from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.server.preview.heads import MalformedError
from corral.server.preview.redirects import keep_below

PREFIX = "/preview/box/8000"


def kept(location: str, *, target: str = "/a/b?c", scheme: str = "http", host: str = "localhost:3986") -> str:
    return keep_below(PREFIX, location, target=target, scheme=scheme, host=host)


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        ("/login?next=/x#y", "/preview/box/8000/login?next=/x#y"),
        ("/", "/preview/box/8000/"),
        ("next", "/preview/box/8000/a/next"),
        ("./next/", "/preview/box/8000/a/next/"),
        ("../next", "/preview/box/8000/next"),
        ("..", "/preview/box/8000/"),
        ("?page=2", "?page=2"),
        ("#part", "#part"),
        ("/preview/box/8000/login", "/preview/box/8000/login"),  # it knows X-Forwarded-Prefix
        ("/preview/box/8000", "/preview/box/8000/"),
        ("http://localhost:3986/login", "/preview/box/8000/login"),  # it has built it from the Host
        ("HTTP://LOCALHOST.:3986", "/preview/box/8000/"),
        ("//localhost:3986/login", "/preview/box/8000/login"),
        ("http://127.0.0.1:3986/x", "http://127.0.0.1:3986/x"),  # another host: clients leave their key out
        ("https://example.org/x?y", "https://example.org/x?y"),
        ("//example.org", "//example.org"),
        ("mailto:a@example.org", "mailto:a@example.org"),
        ("/a//b", "/preview/box/8000/a//b"),
        ("//[::1]:3986/", "//[::1]:3986/"),
    ],
)
def test_redirect_stays_below_its_preview(location: str, seen: str) -> None:
    assert kept(location) == seen


@pytest.mark.parametrize(
    "location",
    [
        "../../../../api/sandbox", "/../../../api/sandbox", "/preview/box/8000/../../../api/sandbox",
        "/preview/box/8000/%2e%2e/.%2E/%2E./api", "%2e%2e/%2e%2e/%2e%2e/%2e%2e/api", "/preview/box/80001/x",
        "/preview/other/8000/x", "/api/sandbox", "http://localhost:3986/api/sandbox",
        "http://localhost:3986/preview/box/8000/../../../api", "///localhost:3986/api", "/preview/box/8000/..",
    ],
)  # fmt: skip
def test_redirect_never_leads_to_the_api(location: str) -> None:
    try:
        seen = kept(location)
    except MalformedError:
        return
    assert urljoin(f"http://localhost:3986{PREFIX}/a/b", seen).startswith(f"http://localhost:3986{PREFIX}/"), seen
    assert "%2e" not in seen.lower()


@pytest.mark.parametrize(
    "location",
    ["\\api", "/\\localhost:3986/api", "http:/api", "http:api", "http:///api", "http://x@localhost:3986/api", "/a b",
     "/\tapi", "http://ｌocalhost:3986/api", "http://%6cocalhost:3986/api", "https:/localhost/api"],
)  # fmt: skip
def test_redirect_that_clients_understand_differently_is_refused(location: str) -> None:
    with pytest.raises(MalformedError):
        kept(location)


@pytest.mark.parametrize(
    ("location", "host"),
    [("http://2130706433:3986/api", "127.0.0.1:3986"), ("http://0x7f.1:3986/api", "127.0.0.1:3986"),
     ("http://[0:0:0:0:0:0:0:1]:3986/api", "[::1]:3986"), ("https://h/api", "h"), ("http://h:80/api", "h")],
)  # fmt: skip
def test_same_host_in_another_spelling_is_the_same_host(location: str, host: str) -> None:
    assert kept(location, host=host) == f"{PREFIX}/api"


@given(st.text(st.sampled_from("/.%2eE?#:@ahtplocs\\[]"), max_size=40), st.text(st.sampled_from("/a"), max_size=8))
def test_no_redirect_leaves_its_preview_at_its_host(location: str, target: str) -> None:
    try:
        seen = kept(location, target="/" + target, host="h")
    except MalformedError:
        return
    try:
        parts = urlsplit(urljoin(f"http://h{PREFIX}/{target}", seen))
    except ValueError:
        return  # nobody can follow it
    if parts.netloc == "h":
        assert parts.path.startswith(f"{PREFIX}/")
