"""Lists: every filter, every order, and pages that neither repeat nor lose anything; and deadlines that come true."""

import asyncio
import dataclasses
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from daytona import CreateSandboxFromSnapshotParams, Daytona, ListSandboxesQuery
from daytona_api_client import SandboxState

from server.conftest import InProcess, OpenInProcess
from support.serving import ServedProcess


async def create(running: InProcess, **wanted: Any) -> dict[str, Any]:
    async with running.session.post(running.url + "/sandbox", json=wanted, headers=running.headers()) as response:
        assert response.status == 200, await response.text()
        made: dict[str, Any] = await response.json()
        return made


async def names(running: InProcess, query: str) -> list[str]:
    async with running.session.get(running.url + f"/sandbox?{query}", headers=running.headers()) as response:
        assert response.status == 200, await response.text()
        return [item["name"] for item in (await response.json())["items"]]


async def test_filters(in_process: InProcess) -> None:
    await create(in_process, name="Alpha", cpu=1, memory=1, disk=3, labels={"team": "a", "kind": "x"}, target="north")
    await create(in_process, name="beta", cpu=2, memory=4, disk=5, labels={"team": "a"}, public=True)
    await create(in_process, name="gamma", cpu=4, memory=8, disk=9, ttlMinutes=60)
    for query, expected in {
        "": {"Alpha", "beta", "gamma"},
        "name=al": {"Alpha"},
        "name=BET": {"beta"},
        'labels={"team":"a"}': {"Alpha", "beta"},
        'labels={"team":"a","kind":"x"}': {"Alpha"},
        "states=started": {"Alpha", "beta", "gamma"},
        "states=stopped&states=error": set(),
        "regionIds=north": {"Alpha"},
        "snapshots=default": {"Alpha", "beta", "gamma"},
        "snapshots=other": set(),
        "minCpu=2": {"beta", "gamma"},
        "maxCpu=2": {"Alpha", "beta"},
        "minMemoryGiB=2&maxMemoryGiB=4": {"beta"},
        "minDiskGiB=4": {"beta", "gamma"},
        "minGpu=1": set(),
        "isPublic=true": {"beta"},
        "isPublic=false": {"Alpha", "gamma"},
        "isRecoverable=true": set(),
        "createdAtBefore=2001-01-01T00:00:00Z": set(),
        "createdAtAfter=2001-01-01T00:00:00Z": {"Alpha", "beta", "gamma"},
        "lastEventAfter=2001-01-01T00:00:00Z": {"Alpha", "beta", "gamma"},
        "autoDestroyAtAfter=2001-01-01T00:00:00Z": {"gamma"},
        "sandboxClasses=windows": set(),
    }.items():
        assert set(await names(in_process, query)) == expected, query
    mine = (await create(in_process, name="delta"))["id"]
    assert await names(in_process, f"id={mine[:13].upper()}") == ["delta"]


async def test_orders(in_process: InProcess) -> None:
    for name, cpu in (("b", 1), ("c", 3), ("a", 2)):
        await create(in_process, name=name, cpu=cpu)
    assert await names(in_process, "sort=name&order=asc") == ["a", "b", "c"]
    assert await names(in_process, "sort=cpu&order=desc") == ["c", "a", "b"]
    assert await names(in_process, "sort=createdAt&order=asc") == ["b", "c", "a"]
    assert await names(in_process, "") == ["a", "c", "b"]


@pytest.mark.parametrize("order", ["sort=name&order=asc", "sort=cpu&order=desc", "sort=createdAt&order=desc"])
async def test_pages_hold_still(in_process: InProcess, order: str) -> None:
    for number in range(7):
        await create(in_process, name=f"box-{number}", cpu=1 + number % 2)
    seen: list[str] = []
    cursor = ""
    while True:
        async with in_process.session.get(
            in_process.url + f"/sandbox?limit=2&{order}{cursor}", headers=in_process.headers()
        ) as response:
            page = await response.json()
        seen += [item["name"] for item in page["items"]]
        if not page["nextCursor"]:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert sorted(seen) == [f"box-{number}" for number in range(7)]


async def test_the_older_list(in_process: InProcess) -> None:
    for number in range(5):
        await create(in_process, name=f"box-{number}", labels={"odd": str(number % 2)})
    url = in_process.url + '/sandbox/paginated?page=2&limit=2&labels={"odd":"0"}'
    async with in_process.session.get(url, headers=in_process.headers()) as response:
        page = await response.json()
    assert (page["total"], page["page"], page["totalPages"]) == (3, 2, 2)
    assert [item["name"] for item in page["items"]] == ["box-0"]


async def test_the_older_list_has_its_filters_and_orders(in_process: InProcess) -> None:
    await create(in_process, name="a", cpu=2, target="north")
    await create(in_process, name="b", cpu=1, target="south", public=True)
    await create(in_process, name="c", cpu=3, target="north")
    for query, expected in {
        "labels=null&sort=name&order=asc": ["a", "b", "c"],  # what json.dumps makes of no labels
        "regions=north&sort=name": ["c", "a"],
        "minCpu=2&maxCpu=2": ["a"],
        "states=started&sort=createdAt&order=asc": ["a", "b", "c"],
        "snapshots=none": [],
        "sort=region&order=desc": ["b"],
        "lastEventBefore=2001-01-01T00:00:00Z": [],
    }.items():
        url = in_process.url + f"/sandbox/paginated?{query}"
        async with in_process.session.get(url, headers=in_process.headers()) as response:
            assert response.status == 200, await response.text()
            found = [item["name"] for item in (await response.json())["items"]]
        assert found[: len(expected) or None] == expected, query


@pytest.mark.parametrize(
    ("version", "bare"),
    [("0.27.1", True), ("0.103.0rc1", True), ("0.179.0", True), ("0.180.0", False), ("1.0.0", False), ("?", False)],
)
async def test_clients_from_before_pages_get_a_bare_list(in_process: InProcess, version: str, bare: bool) -> None:
    for name in ("a", "b"):
        await create(in_process, name=name, labels={"name": name})
    headers = {**in_process.headers(), "X-Daytona-SDK-Version": version}
    async with in_process.session.get(in_process.url + "/sandbox?labels=null&limit=1", headers=headers) as response:
        answer = await response.json()
    assert isinstance(answer, list) == bare
    assert len(answer if bare else answer["items"]) == (2 if bare else 1)
    async with in_process.session.get(in_process.url + '/sandbox?labels={"name":"a"}', headers=headers) as response:
        answer = await response.json()
    assert [item["name"] for item in (answer if bare else answer["items"])] == ["a"]


async def test_last_activity_is_what_lists_go_by(in_process: InProcess) -> None:
    for name in ("old", "new"):
        await create(in_process, name=name)
    organisation = in_process.server.keyring.organisation_named("default").id
    in_process.server.sandboxes.find("old", organisation_id=organisation).row.active_at = 1_000_000_000.0
    assert await names(in_process, "lastEventAfter=2010-01-01T00:00:00Z") == ["new"]
    assert await names(in_process, "lastEventBefore=2010-01-01T00:00:00Z") == ["old"]
    assert await names(in_process, "sort=lastActivityAt&order=asc") == ["old", "new"]


@pytest.mark.parametrize(
    "query",
    ["labels=[]", 'labels={"a":1}', "labels={", "limit=0", "limit=x", "cursor=zzz", "sort=size", "order=up", "minCpu=x",
     "isPublic=yes", "createdAtAfter=yesterday"],
)  # fmt: skip
async def test_filters_that_make_no_sense_are_refused(in_process: InProcess, query: str) -> None:
    async with in_process.session.get(in_process.url + f"/sandbox?{query}", headers=in_process.headers()) as response:
        assert response.status == 400
        assert query.partition("=")[0] in (await response.json())["message"]


def test_the_sdk_sends_every_filter(daytona: Daytona) -> None:
    box = daytona.create(CreateSandboxFromSnapshotParams(target="afar", public=True, ttl_minutes=60, labels={"a": "b"}))
    begin, end = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=2)
    fitting = ListSandboxesQuery(
        limit=200, id=box.id[:8], name=box.name[:8], labels={"a": "b"}, states=[SandboxState.STARTED],
        snapshots=["default"], targets=["afar"], min_cpu=1, max_cpu=1, min_memory_gib=1, max_memory_gib=1,
        min_disk_gib=3, max_disk_gib=3, is_public=True, is_recoverable=False, created_at_after=begin,
        created_at_before=end, last_activity_after=begin, last_activity_before=end, auto_destroy_at_after=begin,
        auto_destroy_at_before=end, sort="name", order="asc",
    )  # fmt: skip
    try:
        assert [each.id for each in daytona.list(fitting)] == [box.id]
        for other in (
            {"id": "0000"}, {"name": "zzzz"}, {"labels": {"a": "c"}}, {"states": [SandboxState.STOPPED]},
            {"snapshots": ["x"]}, {"targets": ["near"]}, {"min_cpu": 2}, {"min_memory_gib": 2}, {"min_disk_gib": 4},
            {"is_public": False}, {"is_recoverable": True}, {"created_at_after": end}, {"created_at_before": begin},
            {"last_activity_after": end}, {"last_activity_before": begin}, {"auto_destroy_at_after": end},
            {"auto_destroy_at_before": begin},
        ):  # fmt: skip
            assert list(daytona.list(dataclasses.replace(fitting, **other))) == [], other
    finally:
        daytona.delete(box)


def test_the_sdk_lists_across_pages(server: ServedProcess, daytona: Daytona) -> None:
    boxes = [daytona.create(CreateSandboxFromSnapshotParams(labels={"many": "yes"})) for _ in range(3)]
    found = list(daytona.list(ListSandboxesQuery(labels={"many": "yes"}, limit=1)))
    assert {box.id for box in found} == {box.id for box in boxes}
    for box in boxes:
        daytona.delete(box)


async def test_deadlines_come_true(open_in_process: OpenInProcess) -> None:
    async with open_in_process(sweep_seconds=0.05) as running:
        ended, kept = await create(running, ttlMinutes=1), await create(running, ttlMinutes=5)
        row = running.server.sandboxes.find(ended["id"], organisation_id=None).row
        row.destroy_at = time.time() + 0.1  # a minute is long for a test
        async with asyncio.timeout(20):
            while row.id in running.server.sandboxes:
                await asyncio.sleep(0.02)
        assert await names(running, "") == [kept["name"]]


async def test_use_is_what_moves_a_deadline(in_process: InProcess) -> None:
    made = await create(in_process)
    row = in_process.server.sandboxes.find(made["id"], organisation_id=None).row
    row.active_at = 0.0
    url = in_process.url.removesuffix("/api") + f"/toolbox/{row.id}/work-dir"
    skip = {**in_process.headers(), "X-Daytona-Skip-Last-Activity-Update": "true"}
    async with in_process.session.get(url, headers=skip) as response:
        assert response.status == 200
    assert row.active_at == 0.0
    async with in_process.session.get(url, headers=in_process.headers()) as response:
        assert response.status == 200
    assert row.active_at > time.time() - 60
