"""Where a git login may go, and which settings of a repository it overrules."""

import pytest

from corral.server.faults import Fault
from corral.server.routes.toolbox.git_login import (
    Credentials,
    Login,
    check_unchanged,
    find_origin,
    find_proxy,
    seal_settings,
    seal_variables,
)

LOGIN = Login(
    credentials=Credentials(username="u", password="hush"), url="https://org@Git.example:443/a/b.git", remote="origin"
)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Git.Example:443/a.git", "https://git.example"),
        ("https://user:word@git.example/a", "https://git.example"),
        ("http://git.example:8080/a", "http://git.example:8080"),
        ("https://good.example@evil.example/a", "https://evil.example"),
        ("http://[::1]:80/a", "http://[::1]"),
    ],
)
def test_hosts_are_told_apart_by_scheme_name_and_port(url: str, origin: str) -> None:
    assert find_origin(url) == origin


@pytest.mark.parametrize(
    "url", ["/srv/a", "git@host:a", "ssh://h/a", "ext::sh -c id", "https://", "https://a:99999/", "https://a\\b/", ""]
)
def test_a_login_means_nothing_elsewhere(url: str) -> None:
    with pytest.raises(Fault, match="http and https"):
        find_origin(url)


def test_a_url_that_a_setting_rewrites_gets_no_login() -> None:
    check_unchanged(["https://git.example/a"], ["", "https://other.example/", "gh:"])
    with pytest.raises(Fault, match="insteadOf"):
        check_unchanged(["https://git.example/a"], ["https://git"])


def test_certificates_are_the_systems_or_the_callers_and_never_the_repositorys() -> None:
    """curl takes a certificate that either the file or the folder has: a repository could name the other one."""
    found = seal_variables(LOGIN, {"PATH": "/opt/x/bin"}, bundle="/etc/ssl/bundle.crt")
    assert (found["GIT_SSL_CAINFO"], found["GIT_SSL_CAPATH"]) == ("/etc/ssl/bundle.crt", "/etc/ssl")
    found = seal_variables(LOGIN, {"GIT_SSL_CAINFO": "/own/ca.pem"}, bundle="/etc/ssl/bundle.crt")
    assert (found["GIT_SSL_CAINFO"], found["GIT_SSL_CAPATH"]) == ("/own/ca.pem", "/own")


def test_settings_for_the_url_with_and_without_its_user_are_overruled_and_name_no_secret() -> None:
    found = dict(seal_settings(LOGIN, proxy=find_proxy(LOGIN.url, {"https_proxy": "http://caller:1"})))
    for url in ("https://git.example/a/b.git", "https://org@git.example/a/b.git"):
        assert found[f"http.{url}.sslVerify"] == "true"
        assert found[f"http.{url}.proxy"] == "http://caller:1"
    assert found["remote.origin.proxy"] == "http://caller:1"
    assert "credential.https://git.example.helper" in found
    assert "hush" not in str(found)
