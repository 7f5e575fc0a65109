"""Secrets through the official SDK, and in a server with a backend that keeps them in memory."""

import base64
import os
import sqlite3
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daytona import (
    AsyncDaytona,
    CreateSecretParams,
    Daytona,
    DaytonaValidationError,
    UpdateSecretParams,
)
from daytona_api_client.exceptions import ApiException, NotFoundException

from corral.errors import BackendUnavailableError
from corral.secret import Secret
from corral.server.store.vault import FILE, Vault
from server.conftest import InProcess, OpenInProcess
from support.serving import ServedProcess, make_client

CANARY = "canary-value-of-a-stored-secret"


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def made(daytona: Daytona) -> Iterator[Any]:
    """A stored secret."""
    secret = daytona.secret.create(
        CreateSecretParams(name=unique("key"), value=CANARY, description="for tests", hosts=["API.example.org"])
    )
    yield secret
    for each in daytona.secret.list(name=secret.name).items:
        daytona.secret.delete(each.id)


def test_secret_is_stored_and_never_returned(daytona: Daytona, made: Any) -> None:
    assert made.hosts == ["api.example.org"]
    assert made.description == "for tests"
    assert made.placeholder.startswith("dtn_secret_")
    assert daytona.secret.get(made.id) == made
    assert CANARY not in repr(daytona.secret.list())


def test_secret_is_changed_and_deleted(daytona: Daytona, made: Any) -> None:
    changed = daytona.secret.update(
        made.id, UpdateSecretParams(hosts=["*.example.org", "b.example.org"], value="other")
    )
    assert (changed.placeholder, changed.description) == (made.placeholder, "for tests")
    assert changed.hosts == ["*.example.org", "b.example.org"]
    assert changed.updated_at > made.updated_at
    daytona.secret.delete(made.id)
    for act in (daytona.secret.get, daytona.secret.delete):
        with pytest.raises(NotFoundException):
            act(made.id)


def test_name_is_taken_once(daytona: Daytona, made: Any) -> None:
    with pytest.raises(ApiException) as refused:
        daytona.secret.create(CreateSecretParams(name=made.name, value="x"))
    assert refused.value.status == 409


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "1x"}, "name"),
        ({"name": "a b"}, "name"),
        ({"value": CANARY + "\r\nX-Evil: 1"}, "line break"),
        ({"value": CANARY + "\n"}, "strip"),
        ({"hosts": ["10.0.0.0/8"]}, "address"),
        ({"hosts": ["https://a.example.org/"]}, "hosts"),
    ],
)
def test_invalid_secret_is_refused_without_its_value(daytona: Daytona, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiException) as refused:
        daytona.secret.create(CreateSecretParams(**{"name": unique("bad"), "value": CANARY, "hosts": None, **given}))
    assert refused.value.status == 400
    assert message in str(refused.value.body)
    assert CANARY not in str(refused.value)


async def test_list_goes_by_pages(async_daytona: AsyncDaytona) -> None:
    mark = unique("page")
    made = [await async_daytona.secret.create(CreateSecretParams(name=f"{mark}-{i}", value="v")) for i in range(5)]
    seen, cursor = [], None
    while True:
        page = await async_daytona.secret.list(cursor=cursor, limit=2, name=mark, sort="name", order="asc")
        assert page.total == 5
        seen += [each.name for each in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert seen == [each.name for each in made]
    newest = await async_daytona.secret.list(name=mark)
    assert [each.id for each in newest.items] == [each.id for each in reversed(made)]
    with pytest.raises(DaytonaValidationError):
        await async_daytona.secret.list(limit=0)
    for each in made:
        await async_daytona.secret.delete(each.id)


# In one process, with sandboxes in memory.


async def call(
    server: InProcess, method: str, path: str, body: Any = None, *, key: str | None = None
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key or server.key}"}
    async with server.session.request(method, server.url + path, json=body, headers=headers) as response:
        return response.status, await response.json() if response.status != 204 else None


async def given_to(server: InProcess, sandbox_id: str) -> dict[str, Secret]:
    """The secrets that a sandbox has at its backend."""
    living = next(each for each in server.server.sandboxes if each.id == sandbox_id)
    assert living.handle is not None
    return {each.name: each for each in living.handle.box.spec.secrets}


async def store(server: InProcess, name: str = "my-key", **given: Any) -> Any:
    body = {"name": name, "value": CANARY, "hosts": ["api.example.org"], **given}
    status, made = await call(server, "POST", "/secret", body)
    assert status == 201, made
    return made


async def test_sandbox_gets_the_value_and_programs_the_placeholder(in_process: InProcess) -> None:
    stored = await store(in_process, unique("key"), hosts=["*.example.org"])
    status, box = await call(in_process, "POST", "/sandbox", {"secrets": [{"API_KEY": stored["name"]}]})
    assert status == 200
    (secret,) = (await given_to(in_process, box["id"])).values()
    assert (secret.name, secret.value, secret.placeholder) == ("API_KEY", CANARY, stored["placeholder"])
    assert secret.hosts == ("*.example.org", "example.org")
    assert secret.header == "*"
    assert CANARY not in str(box)


async def test_new_value_reaches_sandboxes_that_run(in_process: InProcess) -> None:
    stored = await store(in_process, unique("key"))
    _, box = await call(in_process, "POST", "/sandbox", {"secrets": [{"A": stored["name"]}, {"B": stored["name"]}]})
    status, _ = await call(in_process, "PATCH", f"/secret/{stored['id']}", {"value": "new", "header": "X-Key"})
    assert status == 200
    given = await given_to(in_process, box["id"])
    assert {(each.value, each.header, each.placeholder) for each in given.values()} == {
        ("new", "X-Key", stored["placeholder"])
    }
    assert (await call(in_process, "DELETE", f"/secret/{stored['id']}"))[0] == 204
    assert await given_to(in_process, box["id"]) == {}


async def test_secrets_of_a_sandbox_are_replaced(in_process: InProcess) -> None:
    first, second = await store(in_process, unique("key")), await store(in_process, unique("key"))
    _, box = await call(in_process, "POST", "/sandbox", {"secrets": [{"A": first["name"]}]})
    path = f"/sandbox/{box['id']}/secrets"
    assert (await call(in_process, "PUT", path, {"secrets": [{"B": second["name"]}]}))[0] == 200
    assert list(await given_to(in_process, box["id"])) == ["B"]
    assert (await call(in_process, "PUT", path, {"secrets": [{"B": "no-such-secret"}]}))[0] == 400
    assert list(await given_to(in_process, box["id"])) == ["B"]
    assert (await call(in_process, "PUT", path, {"secrets": []}))[0] == 200
    assert await given_to(in_process, box["id"]) == {}


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ([{"A": "no-such-secret"}], "no secret"),
        ([{"A": "HERE", "B": "HERE"}], "each entry"),
        ([{}], "each entry"),
        ([{"A": "HERE"}, {"A": "HERE"}], "twice"),
        ([{"A B": "HERE"}], "variable"),
    ],
)
async def test_what_can_not_be_given_is_refused(in_process: InProcess, secrets: Any, message: str) -> None:
    name = (await store(in_process, unique("key")))["name"]
    wanted = [{variable: name if value == "HERE" else value for variable, value in each.items()} for each in secrets]
    status, answer = await call(in_process, "POST", "/sandbox", {"secrets": wanted})
    assert (status, message in answer["message"]) == (400, True), answer


async def test_secret_without_hosts_is_stored_but_not_given(in_process: InProcess) -> None:
    stored = await store(in_process, unique("key"), hosts=[])
    status, answer = await call(in_process, "POST", "/sandbox", {"secrets": [{"A": stored["name"]}]})
    assert (status, "names no hosts" in answer["message"]) == (400, True)


async def test_secret_of_another_organisation_does_not_exist(open_in_process: OpenInProcess, tmp_path: Path) -> None:
    async with open_in_process() as server:
        stored = await store(server)
        other = server.new_key("others")
        for method, body in (("GET", None), ("PATCH", {"value": "x"}), ("DELETE", None)):
            assert (await call(server, method, f"/secret/{stored['id']}", body, key=other))[0] == 404
        assert (await call(server, "GET", "/secret", key=other))[1] == []
        assert (await call(server, "GET", "/secret/paginated", key=other))[1]["items"] == []
        assert (await call(server, "POST", "/sandbox", {"secrets": [{"A": "my-key"}]}, key=other))[0] == 400
        assert (await call(server, "POST", "/secret", {"name": "my-key", "value": "y"}, key=other))[0] == 201


# At rest.


def test_value_is_sealed_with_a_key_of_its_owner(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    sealed = vault.seal(CANARY, about="1")
    assert CANARY.encode() not in sealed
    assert base64.b64encode(CANARY.encode()) not in sealed
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [FILE]
    assert Vault(tmp_path).open(sealed, about="1") == CANARY
    assert vault.seal(CANARY, about="1") != sealed


@pytest.mark.parametrize("change", ["gone", "readable", "short", "other", "moved"])
def test_value_that_can_not_be_opened_is_an_error_with_what_to_do(tmp_path: Path, change: str) -> None:
    sealed = Vault(tmp_path).seal(CANARY, about="1")
    key = tmp_path / FILE
    match change:
        case "gone":
            key.unlink()
        case "readable":
            key.chmod(0o644)
        case "short":
            key.write_bytes(b"x")
        case "other":
            key.write_bytes(os.urandom(32))
    with pytest.raises(BackendUnavailableError) as refused:
        Vault(tmp_path).open(sealed, about="2" if change == "moved" else "1")
    assert refused.value.hint
    assert str(tmp_path) not in str(refused.value)


def test_database_has_no_value(own_server: ServedProcess) -> None:
    make_client(own_server).secret.create(CreateSecretParams(name="at-rest", value=CANARY))
    own_server.kill()
    files = [each for each in Path(own_server.data_folder).rglob("*") if each.is_file() and not each.is_symlink()]
    database = next(each for each in files if each.name == "corral.db")
    assert all(CANARY.encode() not in each.read_bytes() for each in files)
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT name FROM secrets").fetchall() == [("at-rest",)]
