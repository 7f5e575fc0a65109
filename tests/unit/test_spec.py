"""Specs, validated once."""

import dataclasses
import json
import math
import re
from typing import Any, cast

import pytest

from corral.errors import SpecError
from corral.secret import Secret
from corral.spec import Lifetime, NetworkLimits, NetworkPolicy, Resources, Spec, make_spec, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (5, 5),
        ("7", 7),
        ("1k", 1024),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("512m", 536_870_912),
        ("512MiB", 512 << 20),
        ("1.5G", 3 << 29),
        (" 2 gib ", 2 << 30),
        ("1TB", 10**12),
    ],
)
def test_size_is_parsed(text: int | str, size: int) -> None:
    assert parse_size(text, what="x") == size


@pytest.mark.parametrize("text", ["512m", "512M", "512mb", "512MiB", "524288k", 536_870_912, "0.5g"])
def test_size_is_parsed_as_docker_does(text: int | str) -> None:
    assert parse_size(text, what="mem_limit", as_docker=True) == 536_870_912


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e9", "1 X", "1MBB", True, 1.5, None])
def test_impossible_size_is_refused(text: Any) -> None:
    with pytest.raises(SpecError, match="memory"):
        parse_size(text, what="memory")


class Theirs:
    """As the vendor's own, and the adapters' classes that stand for it."""

    cpu, memory, disk, gpu = 1, 2, None, None


@pytest.mark.parametrize(
    "given",
    [
        {"cpus": 1, "memory_bytes": "2GiB"},
        {"cpus": 1, "memory": "2g"},
        {"cpu": 1, "memory": 2, "disk": None},
        Theirs(),
    ],
)
def test_resources_may_be_a_mapping_or_the_vendors_object(given: Any) -> None:
    wanted = Resources(cpus=1, memory_bytes=2 << 30)
    assert Resources.parse(given) == Spec(resources=given).resources == make_spec(resources=given).resources == wanted


@pytest.mark.parametrize("given", [{"cores": 1}, {"cpu": 1, "cpus": 2}, {"gpu": 1}, 2, "1g", object()])
def test_other_things_are_no_resources_and_the_error_says_what_is(given: Any) -> None:
    with pytest.raises(SpecError, match="resources") as caught:
        make_spec(resources=given)
    assert "cpus" in str(caught.value.hint)


def test_network_of_a_spec_may_be_a_text() -> None:
    assert Spec(network="open").network == NetworkPolicy("open")  # type: ignore[arg-type]  # as callers of Spec do


@pytest.mark.parametrize(
    "options",
    [
        {"cpus": 0},
        {"cpus": math.nan},
        {"cpus": math.inf},
        {"cpus": "2"},
        {"memory_bytes": "1MB"},
        {"disk_bytes": 0},
        {"processes": 0},
        {"processes": True},
        {"inodes": 1.5},
        {"open_files": -1},
    ],
)
def test_impossible_resources_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        Resources(**options)
    assert next(iter(options)) in str(caught.value)
    assert caught.value.hint


def test_resources_know_their_bytes() -> None:
    resources = Resources(memory_bytes="512MiB", disk_bytes="1GB")
    assert (resources.memory, resources.disk) == (512 << 20, 10**9)


@pytest.mark.parametrize(
    "options",
    [
        {"workdir": "relative"},
        {"workdir": "/a/../b"},
        {"workdir": "/a\0"},
        {"name": ""},
        {"name": "-x"},
        {"name": "a b"},
        {"name": "x" * 64},
        {"hostname": ""},
        {"hostname": "a_b"},
        {"hostname": "-a"},
        {"packages": "numpy"},
        {"packages": ["--index"]},
        {"packages": ["a\nb"]},
        {"env": {"A=B": "x"}},
        {"env": {"A": 1}},
        {"exec_timeout": 0},
        {"exec_timeout": math.nan},
        {"output_limit_bytes": 0},
        {"output_limit_bytes": True},
    ],
)
def test_impossible_spec_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Spec(**options)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, "5"])
def test_impossible_lifetime_is_refused(seconds: Any) -> None:
    with pytest.raises(SpecError):
        Lifetime(seconds=seconds)
    with pytest.raises(SpecError):
        Lifetime(idle_seconds=seconds)


def test_spec_is_frozen_and_copies_what_it_is_given() -> None:
    env, labels = {"A": "1"}, {"k": "v"}
    spec = Spec(env=env, labels=labels, packages=["numpy"])  # type: ignore[arg-type]
    env["A"], labels["k"] = "2", "w"
    assert (spec.env, spec.labels, spec.packages) == ({"A": "1"}, {"k": "v"}, ("numpy",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.workdir = "/x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "mode", "hosts"),
    [
        (None, "none", ()),
        ("none", "none", ()),
        ("open", "open", ()),
        ("packages", "packages", ()),
        ("OPEN", "open", ()),
        ("a.org, b.org", "allow", ("a.org", "b.org")),
        ("packages,A.org.", "packages", ("a.org",)),
        ("open,10.1.2.3:80", "open", ("10.1.2.3:80",)),
        (["*.a.org:443", "10.0.0.0/8"], "allow", ("*.a.org:443", "10.0.0.0/8")),
    ],
)
def test_network_policy_is_parsed(text: str | list[str] | None, mode: str, hosts: tuple[str, ...]) -> None:
    policy = NetworkPolicy.parse(text)
    assert (policy.mode, policy.hosts) == (mode, hosts)
    assert NetworkPolicy.parse(policy) is policy
    assert NetworkPolicy.parse(str(policy)) == policy


@pytest.mark.parametrize(
    "policy",
    [
        NetworkPolicy(),
        NetworkPolicy("packages", ("a.org",)),
        NetworkPolicy("allow", ("*.b.org:443",), NetworkLimits(connections=3, total_bytes="1MiB")),
    ],
)
def test_network_policy_survives_json(policy: NetworkPolicy) -> None:
    told = policy.to_json()
    assert NetworkPolicy.from_json(json.loads(json.dumps(told))) == policy
    assert ("limits" in told) == (policy.limits != NetworkLimits())  # as earlier releases wrote it


def test_empty_list_of_hosts_permits_nothing() -> None:
    assert not NetworkPolicy.parse([]).permits_something
    assert not NetworkPolicy().permits_something
    assert NetworkPolicy("packages").permits_something


@pytest.mark.parametrize("value", ["", "a.org,", ",", "a,,b", 5, [5]])
def test_what_is_no_policy_is_refused(value: Any) -> None:
    with pytest.raises(SpecError, match=re.escape(f"network={value!r} is not a valid policy")):
        NetworkPolicy.parse(value)


@pytest.mark.parametrize("word", ["open", "Packages", "package", "pakages", "allow", "internet", "true"])
def test_a_word_for_a_policy_is_no_host(word: str) -> None:
    """Else `str` of the policy would be read as another one; and whoever writes it does not mean a host."""
    with pytest.raises(SpecError, match="is not a host"):
        NetworkPolicy("allow", (word,))
    assert NetworkPolicy("allow", (f"{word}:443",)).hosts == (f"{word.lower()}:443",)


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("localhost:11434", "inside, localhost is the sandbox itself"),
        ("*.a.localhost", "inside, localhost is the sandbox itself"),
        ("10.0.0.5/8", "write 10.0.0.0/8"),
        ("https://a.org/x", "write its host alone"),
    ],
)
def test_a_host_that_is_refused_says_what_to_write(host: str, told: str) -> None:
    with pytest.raises(SpecError, match=re.escape(told)):
        NetworkPolicy.parse([host])


def test_value_of_a_variable_is_never_shown() -> None:
    with pytest.raises(SpecError) as caught:
        Spec(env={"TOKEN": "hush\0"})
    assert "hush" not in str(caught.value)


def test_keywords_make_a_spec() -> None:
    spec = make_spec(lifetime=5, keep_on_failure=True, network="open", resources=Resources(cpus=1))
    assert spec.lifetime == Lifetime(seconds=5, keep_on_failure=True)
    assert make_spec(lifetime=Lifetime(7), keep_on_failure=True).lifetime == Lifetime(7, keep_on_failure=True)
    assert spec.network.mode == "open"
    with pytest.raises(SpecError, match="no_such_option"):
        make_spec(no_such_option=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "options",
    [
        {"labels": {"a": "x" * 70_000}},
        {"env": {"A": "x" * 1_100_000}},
        {"workdir": "/" + "x" * 5000},
        {"snapshot": "x" * 5000},
        {"client_token": "x" * 5000},
        {"image": "x" * 5000},
        {"packages": ["a" * 70_000]},
        {"network": ",".join(f"host{number}.example.org" for number in range(10_000))},
    ],
    ids=lambda options: next(iter(options)),
)
def test_texts_that_are_kept_are_bounded(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="bytes exceed the limit"):
        Spec(**options)


def test_resources_tell_what_was_asked_for_by_name() -> None:
    asked = Resources(cpus=2.0, memory_bytes="1GiB")
    assert asked == Resources(), "they are the usual values"
    assert asked.asked == {"cpus", "memory_bytes"}
    assert Resources().asked == frozenset()
    assert dataclasses.replace(Resources(), processes=256).asked == {"processes"}
    assert Resources.parse({"cpu": 1}).asked == {"cpus"}
    usual = Resources(cpus=0.5, inodes=100).as_usual()
    assert (usual, usual.asked) == (Resources(cpus=0.5, inodes=100), frozenset())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("cpus", "Resources(cpus=…)"), ("memory", "Resources(memory_bytes=…)"), ("workdi", "did you mean 'workdir'?")],
)
def test_an_unknown_option_leads_to_the_right_one(given: str, wanted: str) -> None:
    with pytest.raises(SpecError, match=re.escape(wanted)):
        make_spec(**cast("Any", {given: 1}))


CANARY = "canary-of-the-secret-value"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "1X"}, "name of a variable"),
        ({"name": "A B"}, "name of a variable"),
        ({"value": ""}, "empty"),
        ({"value": CANARY + "\n"}, "strip"),
        ({"value": f"{CANARY}\r\nX: 1"}, "line break"),
        ({"value": None}, "strings"),
        ({"hosts": []}, "names no hosts"),
        ({"hosts": ["10.0.0.0/8"]}, "address"),
        ({"hosts": ["https://a.org"]}, "page"),
        ({"hosts": None}, "list"),
        ({"hosts": [1]}, "secret 'KEY'"),
        ({"header": "Host"}, "can't carry"),
        ({"header": "X\r\nY"}, "not the name"),
        ({"placeholder": "short"}, "16 to 200"),
    ],
)
def test_invalid_secret_is_refused_without_showing_its_value(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"name": "KEY", "value": CANARY, "hosts": ["api.example.org"], **changes}
    with pytest.raises(SpecError, match=message) as refused:
        Secret(**given)
    assert CANARY not in f"{refused.value!r}{refused.value}{refused.value.hint}"


def test_secret_is_in_no_repr() -> None:
    spec = make_spec(secrets=[Secret("KEY", CANARY, hosts="API.example.org")], network="api.example.org")
    assert spec.secrets[0].hosts == ("api.example.org",)
    assert CANARY not in repr(spec)
    assert CANARY not in repr(spec.secrets)


def test_secret_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", CANARY)
    assert Secret.from_env("KEY", hosts="a.example.org").value == CANARY
    assert Secret.from_env("OTHER", hosts=["a.example.org"], variable="KEY").name == "OTHER"
    monkeypatch.delenv("KEY")
    with pytest.raises(SpecError, match="not set"):
        Secret.from_env("KEY", hosts="a.example.org")


def test_name_of_a_variable_is_given_once() -> None:
    for needed in ("PATH", "HOME", "LD_PRELOAD"):
        with pytest.raises(SpecError, match="programs need"):
            Secret(needed, CANARY, hosts=["a.example.org"])
    key = Secret("KEY", CANARY, hosts=["a.example.org"])
    with pytest.raises(SpecError, match="twice"):
        Spec(secrets=(key, key))
    with pytest.raises(SpecError, match="twice"):
        Spec(secrets=(key,), env={"KEY": "x"})
    with pytest.raises(SpecError, match="list of Secret"):
        Spec(secrets=cast(Any, [CANARY]))


@pytest.mark.parametrize("network", ["none", "b.example.org", "a.example.org:80", ""])
def test_secret_whose_host_is_not_permitted_is_refused_with_what_permits_it(network: str) -> None:
    secrets = [Secret("KEY", CANARY, hosts=["a.example.org:443"])]
    with pytest.raises(SpecError, match="does not permit") as refused:
        make_spec(secrets=secrets, network=network or [])
    fixed = re.search(r"network='(.*)'", str(refused.value.hint))
    assert fixed is not None
    assert make_spec(secrets=secrets, network=fixed[1]).secrets


@pytest.mark.parametrize("network", ["open", "packages", "*.example.org", "a.example.org"])
def test_secret_combines_with_a_broad_network(network: str) -> None:
    assert make_spec(secrets=[Secret("KEY", CANARY, hosts=["a.example.org:443"])], network=network).secrets
