"""`corral serve` and `corral key`: what they refuse, and what they say."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from corral.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CORRAL_DATA_DIR", str(tmp_path))
    return str(tmp_path)


def test_without_the_extra_there_is_a_hint(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command in (["serve"], ["key", "list"]):
        assert main(command) == 1
        assert "pip install 'corral[server]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--tls-cert", "a.pem"], "--tls-key"),
        (["--public-url", "nowhere"], "is not the base URL of a server"),
        (["--public-url", "http://a/b"], "is not the base URL of a server"),
    ],
)
def test_what_can_not_be_is_refused(
    folder: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["serve", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_key_is_shown_once_and_ends(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--name", "ci", "--scope", "read", "--expires", "1d", "--organisation", "team", "--max-sandboxes", "3"]
    assert main(["key", "create", *arguments]) == 0
    secret = capsys.readouterr().out.strip()
    assert len(bytes.fromhex(secret.removeprefix("corral_"))) == 32
    assert main(["key", "list", "--json"]) == 0
    shown = capsys.readouterr().out
    (key,) = json.loads(shown)
    assert secret not in shown
    assert secret.startswith(key["begins"].rstrip("…"))
    assert (key["name"], key["organisation"], key["scopes"]) == ("ci", "team", ["read"])
    assert key["state"] == "good"
    assert datetime.fromisoformat(key["expires"]) - datetime.fromisoformat(key["created"]) == timedelta(days=1)
    assert main(["key", "revoke", "ci"]) == 0
    assert main(["key", "revoke", "ci"]) == 2
    assert "no API key matches" in capsys.readouterr().err
    assert main(["key", "list"]) == 0
    assert "revoked" in capsys.readouterr().out


def test_two_keys_of_an_organisation_have_two_names(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [main(["key", "create"]) for _ in range(2)] == [0, 0]
    assert main(["key", "create", "--name", "key-2"]) == 2
    assert "corral key revoke key-2" in capsys.readouterr().err
    assert main(["key", "create", "--name", "key-2", "--organisation", "team"]) == 0
    assert main(["key", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(key["name"], key["organisation"]) for key in listed] == [
        ("key", "default"), ("key-2", "default"), ("key-2", "team"),
    ]  # fmt: skip


def test_a_chosen_key_must_be_long(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_API_KEY", "short")
    assert main(["serve", "--port", "0", "--backend", "memory"]) == 2
    assert "16 or more" in capsys.readouterr().err


def test_a_damaged_database_is_no_bug(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(folder) / "server").mkdir()
    (Path(folder) / "server" / "corral.db").write_bytes(b"no database at all" * 1000)
    for command in (["serve", "--port", "0", "--backend", "memory"], ["key", "list"]):
        assert main(command) == 1
        said = capsys.readouterr().err
        assert "the server's database can't be used" in said
        assert "bug" not in said
