"""The database when it can't be what it was: damaged, full, moved, of an older Corral."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from corral.backends.memory.backend import MemoryBackend
from corral.errors import BackendUnavailableError
from corral.server.living import Sandboxes
from corral.server.store.database import FILE, Database
from corral.server.store.migrations import MIGRATIONS
from corral.server.store.rows import Organisation, Sandbox, load_all


def make_row(database: Database, **options: object) -> Sandbox:
    if not load_all(Organisation, database):
        Organisation(id="o", name="team", created_at=1.0).save(database)
    given: dict[str, object] = {
        "id": "s", "organisation_id": "o", "name": "n", "user": "u", "env": {}, "labels": {}, "target": "t", "cpu": 1,
        "memory": 1, "disk": 1, "state": "started", "desired_state": "started", "auto_stop": 0, "auto_archive": 0,
        "auto_delete": -1, **options,
    }  # fmt: skip
    return Sandbox(**given)  # type: ignore[arg-type]


def fill(database: Database, *, full: bool) -> None:
    """As a disk without room: the file may not grow, and every free page of it is taken."""
    connection = database._connection
    connection.execute("CREATE TABLE IF NOT EXISTS filling (x BLOB)")
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count={pages if full else 1_000_000}")
    with contextlib.suppress(sqlite3.OperationalError):
        while full:
            connection.execute("INSERT INTO filling VALUES (zeroblob(1000))")


BIG = {"big": "x" * 100_000}


@pytest.mark.parametrize("content", [b"no database at all" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(BackendUnavailableError, match="can't be used"):
        Database(tmp_path, serving=True)
    assert (tmp_path / FILE).read_bytes() == content
    (tmp_path / FILE).unlink()
    Database(tmp_path, serving=True).close()


def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    database = Database(tmp_path, serving=True)
    row = make_row(database)
    row.save(database)
    fill(database, full=True)
    row.env = BIG
    with pytest.raises(BackendUnavailableError, match="can't be written"):
        row.save(database)
    with pytest.raises(BackendUnavailableError, match="can't be written"), database.transaction():
        row.save(database)
    assert database.failing
    fill(database, full=False)
    database.try_again()
    assert not database.failing
    with database.transaction():  # the one that failed was not left open
        row.save(database)
    database.close()
    assert load_all(Sandbox, Database(tmp_path, serving=True)) == [row]


def test_a_turn_that_was_not_written_did_not_happen(tmp_path: Path) -> None:
    database = Database(tmp_path, serving=True)
    make_row(database).save(database)
    sandboxes = Sandboxes(database, MemoryBackend())
    told: list[str] = []
    sandboxes.listeners.append(lambda row, before: told.append(row.state))
    sandbox = sandboxes.find("s", organisation_id="o")
    row = sandbox.row
    fill(database, full=True)
    row.set_env, before = dict(BIG), (row.state, row.desired_state, row.intent, row.state_at)
    with pytest.raises(BackendUnavailableError):
        sandbox.turn("stopping", desired="stopped", intent="stop")
    assert (row.state, row.desired_state, row.intent, row.state_at) == before
    assert not told
    assert database.failing
    sandbox.touch()
    with pytest.raises(BackendUnavailableError):
        sandboxes.flush()
    fill(database, full=False)
    sandboxes.flush()
    assert not database.failing
    assert load_all(Sandbox, database)[0].active_at == row.active_at, "what could not be written waits"
    database.close()


def test_a_folder_that_was_moved_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    database = Database(folder, serving=True)
    assert database.is_in_place()
    folder.rename(tmp_path / "elsewhere")
    assert not database.is_in_place()
    other = Database(folder, serving=True)
    assert not database.is_in_place()
    assert other.is_in_place()
    other.close()
    database.close()


def test_rows_of_the_first_schema_are_read(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("CREATE TABLE migrations (number INTEGER PRIMARY KEY, at REAL DEFAULT (unixepoch()))")
    connection.executescript(MIGRATIONS[0])
    connection.execute("INSERT INTO migrations (number) VALUES (1)")
    connection.execute("INSERT INTO organisations (id, name, created_at) VALUES ('o', 'team', 1.0)")
    connection.execute(
        "INSERT INTO sandboxes VALUES ('s', 'o', 'n', 'e', NULL, 'u', '{}', '{}', '{}', 0, 't', 1, 1, 1, 'started',"
        " 'started', NULL, NULL, 0, 0, 0, 0, -1, NULL, 1.0, 1.0, 1.0, 1.0, x'61')"
    )
    connection.commit()
    connection.close()
    database = Database(tmp_path, serving=True)
    (row,) = load_all(Sandbox, database)
    assert (row.engine_id, row.signing_key, row.request_token) == ("e", b"a", None)
    database.close()


def test_a_request_is_known_by_its_token_after_a_restart(tmp_path: Path) -> None:
    database = Database(tmp_path, serving=True)
    row = make_row(database, request_token="t")
    Sandboxes(database, MemoryBackend()).add(row)
    sandboxes = Sandboxes(database, MemoryBackend())
    known = sandboxes.created_by("t", organisation_id="o")
    assert known is not None
    assert known.row == row
    assert sandboxes.created_by("t", organisation_id="another") is None
    assert sandboxes.created_by("", organisation_id="o") is None
    sandboxes.remove(known)
    assert sandboxes.created_by("t", organisation_id="o") is None
    database.close()
