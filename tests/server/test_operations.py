"""Every operation of the control plane that the official SDK has, called by the SDK: it works, or says that it is not
here. The clients under the SDK check each answer against its model: a field that is missing or of another type fails.
"""

import importlib
import inspect
import pkgutil
import re
import typing
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import daytona_api_client
import daytona_api_client.api
import httpx
import pytest
from daytona import (
    CreateSandboxFromSnapshotParams,
    CreateSecretParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaError,
    ListSandboxesQuery,
    Resources,
    Sandbox,
    Secret,
    UpdateSecretParams,
)
from daytona._sync import daytona as sync_daytona
from daytona._sync import sandbox as sync_sandbox
from daytona._sync import secret, snapshot, volume, warm_pool
from daytona.common.volume import Volume
from daytona_api_client import ApiClient, SandboxState
from daytona_api_client import exceptions as api_errors
from daytona_api_client.models.create_warm_pool import CreateWarmPool
from daytona_api_client.models.update_warm_pool import UpdateWarmPool
from pydantic import BaseModel

from corral.server.dispatch import split_path
from corral.server.faults import Fault
from corral.server.settings import API
from corral.server.tables import make_router
from support.serving import ServedProcess


@dataclass(slots=True)
class World:
    """A client, a sandbox, and whatever else has to be ended."""

    daytona: Daytona
    box: Sandbox
    made: list[Sandbox] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    volumes: list[Volume] = field(default_factory=list)

    def name(self, word: str) -> str:
        return f"{word}-{uuid.uuid4().hex[:8]}"

    def add(self, box: Sandbox) -> Sandbox:
        self.made.append(box)
        return box

    def secret(self) -> Secret:
        """A stored secret."""
        given = CreateSecretParams(name=self.name("key"), value="value", hosts=["a.example.org"])
        made = self.daytona.secret.create(given)
        self.secrets.append(made.id)
        return made

    def volume(self) -> Volume:
        """A volume."""
        self.volumes.append(self.daytona.volume.create(self.name("data")))
        return self.volumes[-1]

    def keep(self) -> str:
        """A snapshot of the sandbox."""
        self.snapshots.append(self.name("kept"))
        self.box.create_snapshot(self.snapshots[-1])
        return self.snapshots[-1]

    def again(self) -> Sandbox:
        """The sandbox, as the server now says that it is."""
        return self.daytona.get(self.box.id)


@pytest.fixture
def world(daytona: Daytona, sandbox: Sandbox) -> Iterator[World]:
    made = World(daytona, sandbox)
    yield made
    for box in made.made:
        daytona.delete(box)
    for name in made.snapshots:
        daytona.snapshot.delete(name)
    for secret_id in made.secrets:
        daytona.secret.delete(secret_id)
    for each in made.volumes:
        daytona.volume.delete(each)


def stop_and(world: World, call: Callable[[Sandbox], object]) -> Sandbox:
    world.box.stop()
    call(world.box)
    return world.again()


def change(world: World, call: Callable[[Sandbox], object]) -> Sandbox:
    call(world.box)
    return world.again()


def soon(minutes: int) -> datetime:
    return datetime.now(UTC) + timedelta(minutes=minutes)


def has_ttl(box: Sandbox, minutes: int) -> bool:
    assert box.auto_destroy_at is not None
    left = datetime.fromisoformat(box.auto_destroy_at) - datetime.now(UTC)
    return timedelta(minutes=minutes - 5) < left <= timedelta(minutes=minutes)


Check = Callable[[World], object]
HERE: dict[str, Check] = {
    "config_controller_get_config": lambda w: w.daytona._config_api.config_controller_get_config().default_snapshot,
    "create_sandbox": lambda w: w.add(w.daytona.create()).state == SandboxState.STARTED,
    "get_sandbox": lambda w: w.daytona.get(w.box.id).id == w.box.id,
    "list_sandboxes": lambda w: (
        [box.id for box in w.daytona.list(ListSandboxesQuery(id=w.box.id, created_at_before=soon(5), limit=1))]
        == [w.box.id]
    ),
    "delete_sandbox": lambda w: deleted(w.daytona.create()).state == SandboxState.DESTROYED,
    "start_sandbox": lambda w: stop_and(w, lambda box: box.start()).state == SandboxState.STARTED,
    "stop_sandbox": lambda w: change(w, lambda box: box.stop(force=True)).state == SandboxState.STOPPED,
    "archive_sandbox": lambda w: stop_and(w, lambda box: box.archive()).state == SandboxState.ARCHIVED,
    "recover_sandbox": lambda w: stop_and(w, lambda box: box.recover()).state == SandboxState.STARTED,
    "pause_sandbox": lambda w: change(w, lambda box: box.pause()).state == SandboxState.PAUSED,
    "resize_sandbox": lambda w: stop_and(w, lambda box: box.resize(Resources(disk=4))).disk == 4,
    "fork_sandbox": lambda w: w.add(w.box.fork()).state == SandboxState.STARTED,
    "create_sandbox_snapshot": lambda w: w.daytona.snapshot.get(w.keep()).source_sandbox_id == w.box.id,
    "replace_labels": lambda w: change(w, lambda box: box.set_labels({"a": "b"})).labels == {"a": "b"},
    "set_autostop_interval": lambda w: change(w, lambda box: box.set_autostop_interval(3)).auto_stop_interval == 3,
    "set_auto_pause_interval": lambda w: change(w, lambda box: box.set_auto_pause_interval(4)).auto_pause_interval == 4,
    "set_auto_archive_interval": lambda w: (
        change(w, lambda box: box.set_auto_archive_interval(5)).auto_archive_interval == 5
    ),
    "set_auto_delete_interval": lambda w: (
        change(w, lambda box: box.set_auto_delete_interval(6)).auto_delete_interval == 6
    ),
    "set_ttl": lambda w: has_ttl(change(w, lambda box: box.set_ttl(90)), 90),
    "update_public_status": lambda w: change(w, lambda box: box.set_public(True)).public,
    "update_last_activity": lambda w: (
        str(change(w, lambda box: box.refresh_activity()).last_activity_at) >= str(w.box.last_activity_at)
    ),
    "get_sandbox_metrics": lambda w: w.box.get_metrics()[0].mem_total == 2**30,
    "get_sandbox_signing_key": lambda w: w.box.download_url("x"),
    "rotate_signing_key": lambda w: (before := w.box.download_url("x")) and before != rotated(w.box).download_url("x"),
    "get_port_preview_url": lambda w: w.box.get_preview_link(3000).token.startswith("3000."),
    "get_signed_port_preview_url": lambda w: w.box.create_signed_preview_url(3000).port == 3000,
    "expire_signed_port_preview_url": lambda w: w.box.expire_signed_preview_url(3000, "token") is None,
    "get_toolbox_proxy_url": lambda w: (
        w.box._sandbox_api.get_toolbox_proxy_url(w.box.id).url == w.box.toolbox_proxy_url
    ),
    "get_snapshot": lambda w: w.daytona.snapshot.get("default").state == "active",
    "get_all_snapshots": lambda w: (
        "default" in [each.name for each in w.daytona.snapshot.list(page=1, limit=200).items]
    ),
    "create_snapshot": lambda w: create_snapshot(w).state == "active",
    "activate_snapshot": lambda w: w.daytona.snapshot.activate(w.keep()).state == "active",
    "remove_snapshot": lambda w: w.daytona.snapshot.delete(w.keep()) is None and bool(w.snapshots.pop()),
    "get_snapshot_build_logs_url": lambda w: (
        daytona_api_client.SnapshotsApi(api(w)).get_snapshot_build_logs_url(w.daytona.snapshot.get("default").id).url
    ),
    "create_secret": lambda w: w.secret().placeholder,
    "get_secret": lambda w: w.daytona.secret.get(w.secret().id).hosts == ["a.example.org"],
    "list_secrets_paginated": lambda w: w.secret().id in [each.id for each in w.daytona.secret.list(limit=200).items],
    "update_secret": lambda w: (
        w.daytona.secret.update(w.secret().id, UpdateSecretParams(description="new")).description == "new"
    ),
    "delete_secret": lambda w: w.daytona.secret.delete(w.secret().id) is None and bool(w.secrets.pop()),
    "list_volumes": lambda w: w.volume().id in [each.id for each in w.daytona.volume.list()],
    "create_volume": lambda w: w.volume().state == "ready",
    "get_volume_by_name": lambda w: w.daytona.volume.get((made := w.volume()).name).id == made.id,
    "delete_volume": lambda w: w.daytona.volume.delete(w.volume()) is None and bool(w.volumes.pop()),
    "update_sandbox_secrets": lambda w: w.box.update_secrets({}) is None,
    "update_network_settings": lambda w: (
        w.box.update_network_settings(network_block_all=True) is None and w.box.network_block_all is True
    ),
}
NOT_HERE: dict[str, Check] = {
    "get_build_logs_url": lambda w: w.box._sandbox_api.get_build_logs_url(w.box.id),
    "create_ssh_access": lambda w: w.box.create_ssh_access(),
    "revoke_ssh_access": lambda w: w.box.revoke_ssh_access("token"),
    "validate_ssh_access": lambda w: w.box.validate_ssh_access("token"),
    "get_push_access": lambda w: w.daytona._object_storage_api.get_push_access(),
    "list_warm_pools": lambda w: w.daytona.warm_pool.list(),
    "create_warm_pool": lambda w: daytona_api_client.WarmPoolsApi(api(w)).create_warm_pool(
        CreateWarmPool(snapshot="default", pool=1)
    ),
    "update_warm_pool": lambda w: daytona_api_client.WarmPoolsApi(api(w)).update_warm_pool("p", UpdateWarmPool(pool=2)),
    "delete_warm_pool": lambda w: daytona_api_client.WarmPoolsApi(api(w)).delete_warm_pool("p"),
}


def api(world: World) -> ApiClient:
    client: ApiClient = world.daytona._api_client
    return client


def deleted(box: Sandbox) -> Sandbox:
    box.delete(wait=True)
    return box


def rotated(box: Sandbox) -> Sandbox:
    box.rotate_signing_key()
    return box


def create_snapshot(world: World) -> Any:
    world.snapshots.append(world.name("another"))
    return world.daytona.snapshot.create(CreateSnapshotParams(name=world.snapshots[-1], image="default"))


@pytest.mark.parametrize("name", sorted(HERE))
def test_what_is_here_works(world: World, name: str) -> None:
    assert HERE[name](world)


@pytest.mark.parametrize("name", sorted(NOT_HERE))
def test_what_is_not_here_says_so(world: World, name: str) -> None:
    with pytest.raises((DaytonaError, api_errors.ApiException), match="not supported by this server") as caught:
        NOT_HERE[name](world)
    assert 501 in (getattr(caught.value, "status_code", None), getattr(caught.value, "status", None))


def test_table_has_all_that_the_sdk_calls() -> None:
    sources = [inspect.getsource(each) for each in (sync_daytona, sync_sandbox, snapshot, volume, secret, warm_pool)]
    calls = set(re.findall(r"_(?:sandbox|config|object_storage|snapshots|volumes|secret|warm_pools?)_api\.(\w+)",
                           "\n".join(sources)))  # fmt: skip
    assert len(calls - {"api_client"}) > 40
    assert calls - {"api_client"} == (HERE.keys() | NOT_HERE.keys()) & calls


# Everything that the clients under the SDK have, also what the SDK never calls.

ELSEWHERE = {"audit_api", "jobs_api", "runners_api", "users_api", "webhooks_api"}
"""How parts of the platform talk with each other, and its web pages: nothing that has to do with a client."""
OPERATION = re.compile(r"def _(\w+)_serialize\(.*?method='(\w+)',\s+resource_path='([^']+)'", re.DOTALL)
"""How each operation of each generated client is written."""


def test_every_operation_of_the_clients_has_a_route() -> None:
    router = make_router()
    missing, seen = [], 0
    for module in pkgutil.iter_modules(daytona_api_client.api.__path__):
        if module.name in ELSEWHERE:
            continue
        source = inspect.getsource(importlib.import_module(f"{daytona_api_client.api.__name__}.{module.name}"))
        for name, method, path in OPERATION.findall(source):
            seen += 1
            try:
                router.find(method, split_path(API + path.replace("{", "").replace("}", "")))
            except Fault:
                missing.append(f"{name}: {method} {path}")
    assert seen > 100
    assert missing == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/config", "DaytonaConfiguration"),
        ("/sandbox", "ListSandboxesResponse"),
        ("/sandbox/{id}", "Sandbox"),
        ("/sandbox/{id}/telemetry/metrics", "MetricsResponse"),
        ("/sandbox/{id}/toolbox-proxy-url", "ToolboxProxyUrl"),
        ("/snapshots", "PaginatedSnapshots"),
        ("/snapshots/default", "SnapshotDto"),
        ("/organizations", "Organization"),
        ("/regions", "Region"),
        ("/api-keys/current", "ApiKeyList"),
    ],
)
def test_every_key_that_a_model_wants_is_there(server: ServedProcess, sandbox: Sandbox, path: str, kind: str) -> None:
    """Also those that may be null: clients in some languages refuse an object that lacks one."""
    headers = {"Authorization": f"Bearer {server.key}"}
    answer = httpx.get(server.url + path.format(id=sandbox.id), headers=headers, timeout=60).json()
    check_keys(getattr(daytona_api_client, kind), answer[0] if isinstance(answer, list) else answer)


def check_keys(kind: type[BaseModel], value: dict[str, Any]) -> None:
    for name, about in kind.model_fields.items():
        key = about.serialization_alias or name
        assert key in value or not about.is_required(), f"{kind.__name__}.{key}"
        inner = [each for each in typing.get_args(about.annotation) if inspect.isclass(each)]
        if isinstance(value.get(key), list) and value[key] and inner and issubclass(inner[0], BaseModel):
            check_keys(inner[0], value[key][0])


def test_organisations_regions_and_the_key(daytona: Daytona, sandbox: Sandbox) -> None:
    client = daytona._api_client
    organisations = daytona_api_client.OrganizationsApi(client)
    (mine,) = organisations.list_organizations()
    assert organisations.get_organization(mine.id).id == mine.id == sandbox.organization_id
    assert not mine.suspended
    assert [each.sandbox_class for each in organisations.list_available_sandbox_classes(mine.id)] == ["container"]
    (region,) = organisations.list_available_regions()
    assert [each.id for each in daytona_api_client.RegionsApi(client).list_shared_regions()] == [region.id]
    assert organisations.get_region_by_id(region.id).name == region.name
    key = daytona_api_client.ApiKeysApi(client).get_current_api_key()
    assert (key.organization_id, key.expires_at) == (mine.id, None)
    assert "delete:sandboxes" in key.permissions
    assert client.default_headers["Authorization"].removeprefix("Bearer ") != key.value
    with pytest.raises(api_errors.NotFoundException):
        organisations.get_organization(str(uuid.uuid4()))
    with pytest.raises(api_errors.NotFoundException):
        organisations.get_region_by_id("elsewhere")


def test_health_as_clients_ask_for_it(daytona: Daytona) -> None:
    client = daytona_api_client.HealthApi(daytona._api_client)
    client.health_controller_live()
    assert client.health_controller_check().status == "ok"


def test_wish_with_everything_is_kept(daytona: Daytona) -> None:
    wanted = CreateSandboxFromSnapshotParams(
        name=f"Näme {uuid.uuid4().hex[:6]}", language="typescript", env_vars={"A": "1", "B": "ü"}, labels={"x": "y"},
        os_user="daytona", public=True, target="wherever", auto_stop_interval=0, auto_archive_interval=60,
        auto_delete_interval=-1, ttl_minutes=90, network_block_all=True, snapshot="default",
    )  # fmt: skip
    box = daytona.create(wanted, timeout=0)
    try:
        for seen in (box, daytona.get(str(wanted.name)), next(daytona.list(ListSandboxesQuery(name=wanted.name)))):
            assert (seen.name, seen.user, seen.target, seen.snapshot) == (wanted.name, "daytona", "wherever", "default")
            assert seen.labels == {"x": "y", "code-toolbox-language": "typescript"}
            assert (seen.public, seen.network_block_all) == (True, True)
            assert (seen.auto_stop_interval, seen.auto_archive_interval, seen.auto_delete_interval) == (0, 60, -1)
            assert has_ttl(seen, 90)
        assert daytona.get(box.id).env == {"A": "1", "B": "ü"}
        assert box.process.exec("echo $A $B; whoami").result == "1 ü\ndaytona\n"
    finally:
        daytona.delete(box)
