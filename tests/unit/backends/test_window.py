"""What the gate of an embedded sandbox is told, and what programs inside are told."""

import os
import sys
from pathlib import Path

import pytest

from corral.errors import BackendUnavailableError
from corral.spec import NetworkLimits, NetworkPolicy, make_spec

if sys.platform != "linux":
    pytest.skip("the engine is Linux only", allow_module_level=True)

from corral.backends.embedded import window
from corral.backends.embedded.registries import Registries
from corral.network import denials
from corral.network.denials import DenialLog
from corral.network.settings import Upstream

NO_REGISTRIES = Registries()


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def test_settings_carry_the_policy_and_its_limits() -> None:
    limits = NetworkLimits(connections=7, attempts_per_second=2.5, total_bytes="1m")
    policy = NetworkPolicy("allow", ("example.org:443", "192.0.2.0/24"), limits)
    told = window.make_settings(make_spec(network=policy), NO_REGISTRIES)
    assert (told.mode, told.rules) == ("allow", ("example.org:443", "192.0.2.0/24"))
    assert (told.limits.connections, told.limits.attempts_per_second) == (7, 2.5)
    assert (told.limits.total_bytes, told.limits.bytes_per_second) == (1 << 20, None)
    assert "example.org:443" in told.described


@pytest.mark.parametrize(
    ("variables", "upstream"),
    [
        ({}, Upstream()),
        (
            {"HTTPS_PROXY": "http://a:3128", "NO_PROXY": "localhost, .example.org"},
            Upstream(https="http://a:3128", no_proxy=("localhost", ".example.org")),
        ),
        ({"http_proxy": "a:1"}, Upstream(http="http://a:1")),
        ({"ALL_PROXY": "http://u:p@a:1"}, Upstream(http="http://u:p@a:1", https="http://u:p@a:1")),
    ],
)
def test_the_hosts_proxy_is_used(
    variables: dict[str, str], upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert window.make_settings(make_spec(network="open"), NO_REGISTRIES).upstream == upstream
    assert window.make_settings(make_spec(), NO_REGISTRIES).upstream == Upstream()
    assert window.has_upstream() == bool(variables)


@pytest.mark.parametrize("url", ["https://u:hidden@a:1", "socks5://a:1", "http://", "http://u:hidden@a:port"])
def test_a_proxy_that_a_gate_cannot_use_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(BackendUnavailableError) as caught:
        window.make_settings(make_spec(network="open"), NO_REGISTRIES)
    assert "hidden" not in str(caught.value)
    assert "http://HOST:PORT" in str(caught.value.hint)
    with pytest.raises(BackendUnavailableError):
        window.has_upstream()  # so `corral doctor` says the same
    window.make_settings(make_spec(), NO_REGISTRIES)


def test_programs_are_told_of_the_proxy_only_where_they_need_it() -> None:
    policy = NetworkPolicy.parse("example.org")
    assert "HTTP_PROXY" not in window.variables(policy, None)
    assert window.variables(NetworkPolicy("open"), None) == {}
    told = window.variables(policy, 3128)
    for name in ("HTTP_PROXY", "https_proxy", "ALL_PROXY", "npm_config_proxy"):
        assert told[name] == "http://127.77.0.1:3128"
    assert "127.0.0.1" in told["NO_PROXY"].split(",")
    assert "HTTP_PROXY" not in window.variables(NetworkPolicy(), 3128)


@pytest.mark.parametrize(
    "policy",
    [NetworkPolicy(), NetworkPolicy("open", ("10.0.0.0/8",)), NetworkPolicy("allow", (), NetworkLimits(connections=1))],
)
def test_a_policy_is_stored_and_read(policy: NetworkPolicy) -> None:
    assert window.policy_from(window.describe(policy)) == policy


def test_sandboxes_of_earlier_versions_have_no_network() -> None:
    assert window.policy_from(None) == NetworkPolicy()


def test_denials_are_read_from_the_sandboxs_folder(tmp_path: Path) -> None:
    file = tmp_path / "denials"
    assert (denials.count(file), window.read_denials(file, since=0)) == (0, ())
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        log = DenialLog(descriptor)
        for _ in range(3):
            log.add("example.org", 443, "policy")
    finally:
        os.close(descriptor)
    assert denials.count(file) == 3
    (denial,) = window.read_denials(file, since=1)
    assert (denial.host, denial.port, denial.rule, denial.count) == ("example.org", 443, "policy", 2)
