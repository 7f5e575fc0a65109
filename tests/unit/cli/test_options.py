"""`--secret` and `--secret-file`: values come from where others of the machine don't see them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.backends.memory import MemoryBackend
from corral.cli.options import read_secrets
from corral.errors import SpecError
from corral.secret import Secret

Corral = Callable[..., Any]
RUN = ("run", "--backend", "memory", "--network", "api.example.org,b.example.org")
VALUE = "canary-value"


@pytest.fixture(autouse=True)
def value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", VALUE)


def test_programs_get_a_placeholder_for_a_variable_of_this_shell(corral: Corral, memory: MemoryBackend) -> None:
    memory.reply_code("x")
    assert corral(*RUN, "--secret", "KEY@api.example.org", "-c", "x").code == 0
    assert memory.calls[-1].env["KEY"].startswith("corral-secret-")
    assert VALUE not in str(memory.calls[-1].env)


def test_hosts_and_header() -> None:
    (found,) = read_secrets(("KEY@api.example.org,*.b.example.org:8443/X-Api-Key",))
    assert found == Secret("KEY", VALUE, ("api.example.org", "*.b.example.org:8443"), "X-Api-Key")


@pytest.mark.parametrize("given", ["file", "pipe"])
def test_value_from_a_file_comes_first(corral: Corral, memory: MemoryBackend, tmp_path: Path, given: str) -> None:
    file = tmp_path / "keys"
    file.write_text("OTHER=unused\nKEY='from a file'\n")
    assert read_secrets(("KEY@api.example.org",), (file,))[0].value == "from a file"
    memory.reply_code("x")
    options = ("--secret", "NEW@api.example.org", "--no-input", "-c", "x")
    if given == "file":
        file.write_text("NEW=value")
        assert corral(*RUN, "--secret-file", str(file), *options).code == 0
    else:
        assert corral(*RUN, "--secret-file", "-", *options, stdin=b"NEW=value").code == 0
    assert "NEW" in memory.calls[-1].env


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"KEY={VALUE}@api.example.org", "malformed"),
        (f"KEY={VALUE}", "malformed"),
        (VALUE, "malformed"),
        ("UNSET_NAME@api.example.org", "there is no variable of this name"),
        ("KEY@", "secret 'KEY'"),
        ("KEY@192.0.2.1", "address"),
        ("KEY@api.example.org/Host", "can't carry a secret"),
        ("KEY@api.example.org/X:", "not the name of a header"),
    ],
)
def test_malformed_secret_is_refused_and_no_value_shown(text: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_secrets((text,))
    assert message in str(refused.value)
    assert VALUE not in f"{refused.value} {refused.value.hint}"


def test_a_bare_value_in_a_file_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(VALUE)
    with pytest.raises(SpecError, match="keys, line 1: not NAME=VALUE") as refused:
        read_secrets(("KEY@api.example.org",), (tmp_path / "keys",))
    assert VALUE not in str(refused.value)


def test_a_host_that_the_network_does_not_permit_has_a_hint_in_flags(corral: Corral, memory: MemoryBackend) -> None:
    ended = corral("run", "--backend", "memory", "--secret", "KEY@api.example.org", "-c", "x")
    assert ended.code == 2
    assert "--network none,api.example.org" not in ended.stderr
    assert "--network api.example.org" in ended.stderr


def test_secrets_of_a_sandbox_are_shown_and_replaced(corral: Corral, memory: MemoryBackend) -> None:
    on = ("--backend", "memory")
    made = corral("sandbox", "create", *on, *RUN[3:], "--name", "box", "--secret", "KEY@api.example.org")
    assert made.code == 0
    (before,) = json.loads(corral("sandbox", "secrets", *on, "box", "--json").stdout)
    assert (before["name"], before["hosts"], before["known"]) == ("KEY", ["api.example.org"], True)
    shown = corral("sandbox", "secrets", *on, "box", "--secret", "KEY@b.example.org/X-Key")
    assert shown.stdout.splitlines()[1].split() == ["KEY", "b.example.org", "X-Key", "known"]
    (after,) = json.loads(corral("sandbox", "secrets", *on, "box", "--json").stdout)
    assert after["placeholder"] == before["placeholder"]
    assert corral("sandbox", "secrets", *on, "box", "--none").stdout == "no secrets\n"
    assert VALUE not in made.stdout + shown.stdout
