"""What a gate is told: strict to read, sealed, and without a value in any message."""

import fcntl
import json
import os

import pytest

from corral.network.settings import (
    Alias,
    Authority,
    GateCredential,
    GateLimits,
    GateSecret,
    GateSettings,
    SettingsError,
    Upstream,
)

FULL = GateSettings(
    mode="allow",
    rules=("example.org", "*.example.com:443", "192.0.2.0/24"),
    limits=GateLimits(connections=8, attempts_per_second=2.5, bytes_per_second=1000, total_bytes=10_000),
    upstream=Upstream(http="http://me:word@proxy:3128", no_proxy=(".corp", "10.0.0.0/8")),
    ca_file="/etc/ssl/ca.pem",
    secrets=(GateSecret("corral-placeholder-1", "s3cret", ("api.example.org",), "X-Key"),),
    credentials=(GateCredential("index.example.org:443", "Authorization", "Basic Zm9v"),),
    aliases=(Alias("index.internal", 8080, "127.0.0.1", 9090),),
    authority=Authority("CERTIFICATE", "KEY"),
    described="example.org, *.example.com:443, 192.0.2.0/24",
)


def test_settings_survive_the_way_through_a_memory_file() -> None:
    descriptor = FULL.to_memfd()
    try:
        assert GateSettings.from_memfd(descriptor) == FULL
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(descriptor)


def test_a_file_that_is_not_sealed_is_refused() -> None:
    descriptor = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, FULL.to_bytes())
        with pytest.raises(SettingsError, match="sealed"):
            GateSettings.from_memfd(descriptor)
    finally:
        os.close(descriptor)


def change(**values: object) -> bytes:
    return json.dumps(json.loads(FULL.to_bytes()) | values).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{" * 5000,
        b"[" * 300_000,
        change(mode="everything"),
        change(rules=["exa mple.org"]),
        change(rules="example.org"),
        change(rules=[1]),
        change(unknown=1),
        change(limits=None),
        change(limits={"connections": 0}),
        change(limits={"connections": True}),
        change(limits={"attempts_per_second": float("nan")}),
        change(limits={"total_bytes": -1}),
        change(upstream={"http": "ftp://proxy"}),
        change(upstream={"https": "http://"}),
        change(secrets=[{"placeholder": "p"}]),
        change(secrets=[{"placeholder": "", "value": "v"}]),
        change(secrets=[{"placeholder": "p", "value": "a\r\nHost: b"}]),
        change(secrets=[{"placeholder": "p", "value": "v", "header": "X: y"}]),
        change(secrets=[{"placeholder": "p", "value": "v", "hosts": ["192.0.2.7"]}]),
        change(credentials=[{"host": "a.example", "header": "A", "value": 7}]),
        change(aliases=[{"name": "a", "port": 70000, "host": "b", "host_port": 1}]),
        change(authority={"certificate": "c", "key": None}),
    ],
)
def test_everything_else_is_refused_without_a_value_in_the_message(data: bytes) -> None:
    with pytest.raises(SettingsError) as caught:
        GateSettings.from_bytes(data)
    assert "s3cret" not in str(caught.value)


def test_no_secret_is_in_the_text_of_an_object() -> None:
    assert not [word for word in ("s3cret", "Zm9v", "KEY", "word") if word in repr(FULL)]
