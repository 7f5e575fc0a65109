"""The database: one file, one serving process, numbered migrations."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from corral.backends.embedded.datafolder import make_part
from corral.errors import BackendUnavailableError
from corral.inside.nolinks import on_error
from corral.server.store.migrations import MIGRATIONS

FILE = "corral.db"
LOCK = "server.lock"
Row = tuple[Any, ...]


class Database:
    """An open database. `serving=True` also locks the folder for one server, until the process ends."""

    def __init__(self, folder: Path, *, serving: bool) -> None:
        """Raises: BackendUnavailableError, when another server uses it, it is damaged or of a newer format, or another
        user could write into the data folder."""
        make_part(folder.parent, folder.name, op="open")  # readable and writable by this user only
        self._folder = folder
        self._lock = _claim(folder) if serving else None
        try:
            with _reporting("can't be used"):
                self._connection = _open(folder / FILE)
        except BaseException:
            if self._lock is not None:
                os.close(self._lock)
            raise
        self._version = -1
        self.failing = False
        """Whether the last write failed."""

    def close(self) -> None:
        """Close the file and release the folder. Idempotent."""
        self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """What a query finds. Raises: BackendUnavailableError."""
        with _reporting("can't be read"):
            return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """One change, committed; returns how many rows it touched. Raises: BackendUnavailableError, and did nothing."""
        with self._writing():
            return self._connection.execute(sql, values).rowcount

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Several changes that happen together or not at all. No await inside. Raises: as `run`."""
        with self._writing():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it already
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with _reporting("can't be written"):
                yield
        except BackendUnavailableError:
            self.failing = True
            raise
        self.failing = False

    def try_again(self) -> None:
        """After a write that failed: whether one succeeds now. Raises: as `run`."""
        if self.failing:
            self.run("UPDATE migrations SET at = at")

    def is_in_place(self) -> bool:
        """Whether the folder that was locked is still the one at its path."""
        if self._lock is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._lock), (self._folder / LOCK).stat())
        except OSError:
            return False

    def changed_by_others(self) -> bool:
        """Whether another process (`corral key …`) has written since we asked last."""
        ((version,),) = self.rows("PRAGMA data_version")
        changed: bool = version != self._version
        self._version = version
        return changed

    def sync(self) -> None:
        """Make everything so far survive a power cut, not only a killed process."""
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


@contextlib.contextmanager
def _reporting(what: str) -> Iterator[None]:
    """A full disk or a damaged file is a problem for the operator, not a bug."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.DatabaseError as error:
        raise BackendUnavailableError(
            f"the server's database {what}: {error}",
            hint="check the disk; restore a damaged database from a backup, or move it away and lose the sandboxes",
        ) from error


def _claim(folder: Path) -> int:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise BackendUnavailableError(
            "another server is using this data folder", hint="stop it, or use another folder with --data-dir"
        ) from None
    return lock


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # readable by this user only, like its WAL
    connection = sqlite3.connect(path, isolation_level=None, timeout=10.0)
    with on_error(connection.close):
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        _migrate(connection)
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")  # another process may be at it as well
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, at REAL DEFAULT (unixepoch()))"
        )
        (done,) = connection.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()
        if done > len(MIGRATIONS):
            raise BackendUnavailableError(
                f"the server's database is of a newer format ({done}) than this version of Corral ({len(MIGRATIONS)})",
                hint="upgrade Corral, or use another folder with --data-dir",
            )
        for number, script in enumerate(MIGRATIONS[done:], start=done + 1):
            for statement in script.split(";"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute("INSERT INTO migrations (number) VALUES (?)", (number,))
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
