"""Every route and websocket: with no key, an invalid one, another organisation's, and one with too few scopes."""

import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import inspect

from corral.server.auth import SCOPES
from corral.server.routing import Route
from corral.server.settings import ServerLimits
from corral.server.tables import all_places, all_routes, make_router
from server.conftest import InProcess, OpenInProcess

ROUTES = list(all_routes())
PLACES = list(all_places())
LOCKED = [(path, route) for path, route in PLACES if route.area != "open"]


def example(kind: Any) -> Any:
    """A value of a type, as plain JSON: of an object only what must be there."""
    kind = kind if isinstance(kind, inspect.Type) else inspect.type_info(kind)
    match kind:
        case inspect.StructType(fields=fields):
            return {field.encode_name: example(field.type) for field in fields if field.required}
        case inspect.ListType(item_type=item):
            return [example(item)]
        case inspect.DictType():
            return {}
        case inspect.StrType(min_length=length):
            return "x" * (length or 1)
        case inspect.IntType(ge=least) | inspect.FloatType(ge=least):
            return least or 1
        case inspect.BoolType():
            return True
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.UnionType(types=kinds):
            return example(kinds[0])
        case inspect.AnyType() | inspect.NoneType():
            return None
    raise AssertionError(f"a new kind of type in a model: {kind}")


def fill(path: str, sandbox_id: str, *, snapshot_id: str = "1") -> str:
    """A path with values for its parameters."""
    parts = []
    for part in path.split("/"):
        name = part.strip("{}")
        if name.startswith("sandboxId"):
            parts.append(sandbox_id)
        elif name == "id" and "/snapshots/" in path:
            parts.append(snapshot_id)
        else:
            parts.append({"isPublic": "true"}.get(name, "1") if part.startswith("{") else part)
    return "/".join(parts)


async def ask(
    running: InProcess, path: str, route: Route, *, key: str | None, sandbox_id: str, snapshot_id: str = "1"
) -> int:
    """A request in which nothing is wrong but, perhaps, who sends it."""
    url = running.url.removesuffix("/api") + fill(path, sandbox_id, snapshot_id=snapshot_id)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    query = example(route.query) if route.query is not None else {}
    if route.websocket:
        try:
            async with running.session.ws_connect(url, headers=headers, params=query):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status
    body = example(route.body) if route.body is not None else None
    async with running.session.request(route.method, url, headers=headers, params=query, json=body) as response:
        return response.status


async def test_every_route_wants_a_key(open_in_process: OpenInProcess) -> None:
    assert len(LOCKED) > 100
    assert any(route.websocket for _, route in LOCKED)
    async with open_in_process(limits=ServerLimits(bad_keys_per_minute=100_000)) as running:
        for path, route in LOCKED:
            assert await ask(running, path, route, key=None, sandbox_id="x") == 401, path
            assert await ask(running, path, route, key="wrong", sandbox_id="x") == 401, path


async def test_what_is_open_is_open_on_purpose() -> None:
    assert {route.name for _, route in ROUTES if route.area == "open"} == {
        "get_health", "get_ready", "get_metrics", "get_config", "connect_events", "get_openapi", "get_api_health",
        "get_api_ready", "get_welcome", "get_docs", "get_api",
    }  # fmt: skip
    assert {route.name for _, route in ROUTES if route.signed} <= {"download_file", "upload_file"}


async def test_what_is_foreign_is_not_there(in_process: InProcess) -> None:
    """Asked for with good values, so that nothing but whose it is can be the reason."""
    url, headers = in_process.url, in_process.headers()
    async with in_process.session.post(url + "/sandbox", json={"name": "mine"}, headers=headers) as response:
        mine = (await response.json())["id"]
    async with in_process.session.post(url + "/snapshots", json={"name": "kept"}, headers=headers) as response:
        kept = (await response.json())["id"]
    foreign = in_process.new_key("others")
    # An unsupported route answers 501 to everyone, whichever sandbox it names.
    about = [(path, route) for path, route in LOCKED if "{sandboxId" in path or "/snapshots/{" in path]
    about = [(path, route) for path, route in about if route.area == "toolbox" or 501 not in route.answers]
    assert len(about) > 100
    assert any(route.websocket for _, route in about)
    before = in_process.server.sandboxes.find(mine, organisation_id=None).row
    seen = (before.active_at, before.labels, before.public, before.auto_stop, before.signing_key)
    for sandbox_id, snapshot_id in ((mine, kept), ("mine", "kept")):
        for path, route in about:
            status = await ask(in_process, path, route, key=foreign, sandbox_id=sandbox_id, snapshot_id=snapshot_id)
            assert status == 404, (path, status)
    assert seen == (before.active_at, before.labels, before.public, before.auto_stop, before.signing_key)
    async with in_process.session.get(url + "/sandbox", headers=in_process.headers(foreign)) as response:
        assert (await response.json())["items"] == []
    async with in_process.session.get(url + "/snapshots", headers=in_process.headers(foreign)) as response:
        assert [row["name"] for row in (await response.json())["items"]] == ["default"]
    # A name is only taken for those who can see it.
    for path, name in (("/sandbox", "mine"), ("/snapshots", "kept")):
        async with in_process.session.post(
            url + path, json={"name": name}, headers=in_process.headers(foreign)
        ) as response:
            assert response.status == 200
    async with in_process.session.post(
        url + "/sandbox", json={"snapshot": kept}, headers=in_process.headers(foreign)
    ) as response:
        assert response.status == 404
    async with in_process.session.get(url + f"/sandbox/{mine}", headers=headers) as response:
        assert response.status == 200


async def test_a_scope_is_enough_for_its_own_routes_alone(in_process: InProcess) -> None:
    keys = {scope: in_process.new_key("default", scopes=[scope]) for scope in SCOPES}
    for path, route in LOCKED:
        for scope, key in keys.items():
            status = await ask(in_process, path, route, key=key, sandbox_id="x")
            assert (status == 403) == (scope != route.scope), (path, scope, status)


async def test_keys_end(in_process: InProcess) -> None:
    key = in_process.new_key("default", lifetime_seconds=3600)
    url = in_process.url + "/sandbox"
    async with in_process.session.get(url, headers=in_process.headers(key)) as response:
        assert response.status == 200
    in_process.server.keyring.keys[-1].expires_at = time.time()
    async with in_process.session.get(url, headers=in_process.headers(key)) as response:
        assert response.status == 401
    in_process.server.keyring.revoke(in_process.server.keyring.keys[0].id)
    async with in_process.session.get(url, headers=in_process.headers()) as response:
        assert response.status == 401


async def test_a_key_is_not_kept_as_it_is(in_process: InProcess) -> None:
    folder = in_process.server.settings.state_folder
    assert all(in_process.key.encode() not in file.read_bytes() for file in folder.iterdir())
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Host": "evil.example:3986"}, {"Host": "127.0.0.1@x"}])
async def test_a_foreign_host_is_not_answered(in_process: InProcess, headers: dict[str, str]) -> None:
    for path, route in ROUTES:
        if route.websocket or route.method != "GET":
            continue
        url = in_process.url.removesuffix("/api") + fill(path, "x")
        async with in_process.session.get(url, headers={**in_process.headers(), **headers}) as response:
            assert response.status == 421, path


async def test_a_foreign_origin_is_not_answered(in_process: InProcess) -> None:
    base = in_process.url.removesuffix("/api")
    foreign = {**in_process.headers(), "Origin": "https://evil.example"}
    for path, route in ROUTES:
        if route.websocket:
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await in_process.session.ws_connect(base + fill(path, "x"), headers=foreign)
            assert caught.value.status == 403, path
        else:
            async with in_process.session.request(route.method, base + fill(path, "x"), headers=foreign) as response:
                assert response.status == 403, path
    async with in_process.session.get(
        in_process.url + "/sandbox", headers={**in_process.headers(), "Origin": base}
    ) as ok:
        assert ok.status == 200


async def test_wrong_keys_are_slowed_down(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(bad_keys_per_minute=3)) as running:
        statuses = []
        for _ in range(5):
            async with running.session.get(running.url + "/sandbox", headers=running.headers("wrong")) as response:
                statuses.append(response.status)
                retry = response.headers.get("Retry-After")
        assert statuses == [401, 401, 401, 429, 429]
        assert int(retry or 0) >= 1


async def test_a_key_has_a_rate(open_in_process: OpenInProcess) -> None:
    async with (
        open_in_process(limits=ServerLimits(rate_per_key=0.01)) as running,
        running.session.get(running.url + "/sandbox", headers=running.headers()) as response,
    ):
        assert response.status == 429
        assert int(response.headers["Retry-After"]) > 1


async def test_a_quota_holds(in_process: InProcess) -> None:
    keyring = in_process.server.keyring
    small = keyring.organisation_named("small")
    keyring.set_quota(small, sandboxes=1, cpu=None, memory_gib=2, disk_gib=None)
    headers = in_process.headers(in_process.new_key("small"))
    url = in_process.url + "/sandbox"
    async with in_process.session.post(url, json={"memory": 4}, headers=headers) as response:
        assert response.status == 403
    async with in_process.session.post(url, json={}, headers=headers) as response:
        assert response.status == 200
    async with in_process.session.post(url, json={}, headers=headers) as response:
        assert (response.status, "1 sandboxes" in (await response.json())["message"]) == (403, True)


def test_no_two_routes_are_at_one_place() -> None:
    places = [(route.method, path) for path, route in ROUTES]
    assert len(places) == len(set(places))
    router = make_router()
    for path, route in ROUTES:
        found, _ = router.find(route.method, tuple(part for part in fill(path, "x").split("/") if part))
        assert found is route, path


def test_the_keyring_forgets_nothing_between_processes(tmp_path: Path) -> None:
    from corral.server.auth import Keyring
    from corral.server.store.database import Database

    serving, other = Database(tmp_path, serving=True), Database(tmp_path, serving=False)
    try:
        ring, beside = Keyring(serving), Keyring(other)
        key, secret = beside.create(organisation=beside.organisation_named("default"), name="made-beside")
        identity = ring.identify(secret)
        assert identity is not None
        assert identity.key_id == key.id
        beside.revoke("made-beside")
        assert ring.identify(secret) is None
        assert key.created_at <= time.time()
    finally:
        serving.close()
        other.close()
