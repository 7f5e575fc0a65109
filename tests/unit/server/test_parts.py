"""Small parts of the server, alone: rates, paths, routes, rows, Host and Origin."""

import sqlite3
from pathlib import Path

import pytest

from corral.errors import BackendUnavailableError, SpecError
from corral.server.dispatch import parse_body, split_path
from corral.server.fairness import Rates
from corral.server.faults import Fault
from corral.server.settings import ServerSettings
from corral.server.store.database import Database
from corral.server.store.migrations import MIGRATIONS
from corral.server.store.rows import Organisation, Snapshot, load_all


def test_a_rate_allows_a_burst_and_then_its_pace() -> None:
    now = 0.0
    rates = Rates(per_second=2, burst=3, clock=lambda: now)
    assert [rates.take("a") for _ in range(3)] == [0, 0, 0]
    assert rates.take("a") == pytest.approx(0.5)
    assert rates.take("b") == 0
    now = 0.5
    assert rates.take("a") == 0
    assert rates.take("a") > 0
    now = 1000.0
    assert [rates.take("a") for _ in range(4)].count(0) == 3


def test_many_names_are_not_remembered_for_ever() -> None:
    rates = Rates(per_second=1, burst=1)
    for number in range(10_000):
        rates.take(str(number))
    assert len(rates._buckets) <= 4096


def test_a_path_is_decoded_once() -> None:
    assert split_path("/api//sandbox/a%2Fb/") == ("api", "sandbox", "a/b")
    assert split_path("/a/%252e%252e") == ("a", "%2e%2e")
    for path in ("/a/../b", "/a/%2e%2e/b", "/a/./b", "/a/%00", "/a/%0a", "/a/%ff"):
        with pytest.raises(Fault) as caught:
            split_path(path)
        assert caught.value.status == 400


def test_depth_is_counted_outside_of_texts() -> None:
    assert parse_body(list[str], b'["' + b"[" * 1000 + b'"]', max_depth=5, max_items=100) == ["[" * 1000]
    assert parse_body(list[str], b'["\\"' + b"[" * 1000 + b'"]', max_depth=5, max_items=100) == ['"' + "[" * 1000]
    with pytest.raises(Fault, match="deeper than 5"):
        parse_body(list, b"[" * 6 + b"]" * 6, max_depth=5, max_items=100)


def test_rows_come_back_as_they_went(tmp_path: Path) -> None:
    database = Database(tmp_path, serving=True)
    Organisation(id="o", name="team", created_at=1.5, max_cpu=3).save(database)
    row = Snapshot(id="s", organisation_id="o", name="n", cpu=1, memory=2, disk=3, entrypoint=["a", "[b]"])
    row.save(database)
    row.state = "error"
    row.save(database)
    assert load_all(Snapshot, database) == [row]
    assert load_all(Organisation, database)[0].max_cpu == 3
    orphan = Snapshot(id="t", organisation_id="nobody", name="n", cpu=1, memory=2, disk=3)

    def change() -> None:
        with database.transaction():
            row.erase(database)
            orphan.save(database)

    with pytest.raises(sqlite3.IntegrityError):
        change()
    assert load_all(Snapshot, database) == [row]
    database.close()


def test_a_newer_database_is_not_touched(tmp_path: Path) -> None:
    Database(tmp_path, serving=True).close()
    Database(tmp_path, serving=True).close()
    connection = sqlite3.connect(tmp_path / "corral.db")
    with connection:
        assert connection.execute("SELECT count(*) FROM migrations").fetchone() == (len(MIGRATIONS),)
        connection.execute("INSERT INTO migrations (number) VALUES (?)", (len(MIGRATIONS) + 1,))
    connection.close()
    with pytest.raises(BackendUnavailableError, match="newer"):
        Database(tmp_path, serving=True)


def test_one_server_for_a_folder(tmp_path: Path) -> None:
    first = Database(tmp_path, serving=True)
    with pytest.raises(BackendUnavailableError, match="another server"):
        Database(tmp_path, serving=True)
    Database(tmp_path, serving=False).close()
    first.close()
    Database(tmp_path, serving=True).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_tls(tmp_path: Path, host: str) -> None:
    assert ServerSettings(data_folder=tmp_path, host=host).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_the_rest_does(tmp_path: Path, host: str) -> None:
    with pytest.raises(SpecError, match="without TLS"):
        ServerSettings(data_folder=tmp_path, host=host)
    assert not ServerSettings(data_folder=tmp_path, host=host, insecure=True).is_loopback
