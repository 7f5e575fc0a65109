"""The output of one program that runs on by itself, as files in the sandbox's folder: NUMBER.log and NUMBER.json."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

from corral.engine import wire
from corral.engine.errors import ExhaustedError, ProtocolError
from corral.engine.recordfile import MAX_BUDGET_BYTES, DiskBudget

MAX_LOGS = 1000
"""Then the program that was started first among those that have ended gives up its log."""
MAX_LOG_BYTES = 8 * 1024 * 1024
"""A longer log goes on in a new file; the one before it is kept as NUMBER.log.1, and older ones are dropped."""


class KeptLog:
    """Owned by a keeper."""

    def __init__(
        self, stem: str, reader: int, channel: socket.socket, argv: list[str], budget: DiskBudget | None = None
    ) -> None:
        self._budget = budget or DiskBudget(MAX_BUDGET_BYTES)
        self._stem = stem
        self.reader = reader
        self.channel = channel
        self.ended = False
        self._about: dict[str, Any] = {"argv": argv, "started": time.time(), "state": "running"}
        self._file = os.open(f"{stem}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = self._older_size = 0
        self._save()

    def take(self) -> bool:
        """Move output to the log; False at its end."""
        data = os.read(self.reader, 1 << 16)
        if not data:
            return False
        if self._size + len(data) > MAX_LOG_BYTES:
            self._turn_over()
        with contextlib.suppress(OSError):  # a full host disk must not stop the program
            self._size += os.write(self._file, data)
        self._budget.update(self)
        return True

    @property
    def stored_bytes(self) -> int:
        """See `Stored`."""
        return self._size + self._older_size

    droppable_bytes = stored_bytes

    def drop_oldest(self) -> None:
        """See `Stored`."""
        with contextlib.suppress(OSError):
            if self._older_size:
                os.unlink(f"{self._stem}.log.1")
            else:
                os.truncate(f"{self._stem}.log", 0)
                self._size = 0
        self._older_size = 0

    def _turn_over(self) -> None:
        os.close(self._file)
        os.replace(f"{self._stem}.log", f"{self._stem}.log.1")
        self._file = os.open(f"{self._stem}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._older_size, self._size = self._size, 0

    def hear(self) -> bool:
        """A message about the program; True when there will be no more."""
        try:
            received = wire.receive(self.channel, allow_large=False)
        except ProtocolError:
            received = None
        if received is None:
            self._finish({"state": "gone"})
            return True
        message, descriptors = received
        wire.close_all(descriptors)
        if "error" in message:
            self._finish({"state": "failed", "text": str(message.get("text"))})
            return True
        if message.get("ended"):
            self._finish({"state": "ended", "exit_code": message.get("code"), "reason": message.get("reason")})
            return True
        self._about["pid"] = message.get("started")
        self._save()
        return False

    def _finish(self, how: dict[str, Any]) -> None:
        self.ended = True
        self._about.update(how, ended=time.time())
        self._save()

    def _save(self) -> None:
        with contextlib.suppress(OSError):
            temporary = f"{self._stem}.json.new"
            with open(temporary, "w") as file:
                json.dump(self._about, file)
            os.replace(temporary, f"{self._stem}.json")

    def close_reader(self) -> None:
        """No more output will come."""
        os.close(self.reader)
        os.close(self._file)
        self.reader = -1

    def delete(self) -> None:
        """Remove it, when no more output will come."""
        self._budget.remove(self)
        for suffix in ("log", "log.1", "json"):
            with contextlib.suppress(OSError):
                os.unlink(f"{self._stem}.{suffix}")


def make_room(logs: dict[int, KeptLog]) -> None:
    """For one more. Raises: ExhaustedError, all of them belong to programs that run."""
    while len(logs) >= MAX_LOGS:
        oldest = next((number for number, log in logs.items() if log.ended and log.reader < 0), None)
        if oldest is None:
            raise ExhaustedError(f"{MAX_LOGS} background programs run in this sandbox, which is the limit: end some")
        logs.pop(oldest).delete()
