"""The keeper: a separate process for each detached sandbox.

It holds the sandbox, its deadline (on the monotonic clock), and its recorded programs. It is found through its socket
in the sandbox's folder, and ends the sandbox if that folder is deleted. Any process that may open the folder may send
it requests. It reports its version, so that a newer client can use an older keeper.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shutil
import signal
import socket
import time
from typing import Any, NoReturn

from corral.engine import sweep, syscalls, wire
from corral.engine.box import Box
from corral.engine.client import ask, receive_within
from corral.engine.errors import EngineError, ExhaustedError
from corral.engine.powers import OPERATIONS, Powers, await_judging, change_network, give_settings
from corral.engine.recordfile import MAX_BUDGET_BYTES, DiskBudget
from corral.engine.records import Records
from corral.engine.sampling import WALKING_SECONDS
from corral.engine.state import LOCK_NAME, SOCKET_NAME, DataFolder, read_state, write_state
from corral.inside.ready import Loop

VERSION = 3
"""2: programs are started by `record` alone; 1 had `run` as well. 3: `network`, `settings`."""
_LOOK_SECONDS = 0.5
_INIT_SECONDS = 5.0
_BREATH_SECONDS = 0.05


def become_keeper(box: Box, data: DataFolder, info: dict[str, Any]) -> NoReturn:
    """In a child of the launcher: leave its session, let the launcher continue, and keep the box."""
    ready_reader, ready_writer = os.pipe()
    os.setsid()
    if os.fork() != 0:
        os.close(ready_writer)
        os.read(ready_reader, 1)  # the launcher answers only when the keeper listens
        os._exit(0)
    try:
        held = [0, 1, 2, ready_writer, box.host.fileno(), box.pid_fd, box.lock_fd, *box.volume_locks]
        if box.group.unified_fd is not None:
            held.append(box.group.unified_fd)
        if box.uids is not None:
            held += box.uids.descriptors()
            box.uids.sign(data.path)
        if box.disk_fd is not None:
            held.append(box.disk_fd)
        if box.window is not None:
            held += box.window.descriptors()
        if box.disk_watch is not None:
            box.disk_watch.close()  # with its descriptors: the keeper starts its own round
        syscalls.close_all_but(tuple(held))
        syscalls.set_process_name("corral-keeper")
        keeper = Keeper(box, data, info)
        os.close(ready_writer)
        keeper.run()
    except BaseException:  # noqa: BLE001 - see below
        # In any case: a failing keeper must delete its sandbox and never return into the launcher.
        box.kill()
        with contextlib.suppress(Exception):
            box.clear(data)
    os._exit(1)


class Keeper:
    """The loop."""

    def __init__(self, box: Box, data: DataFolder, info: dict[str, Any]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, lambda *_: box.kill())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):  # each recorded program and each listener needs descriptors
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._box = box
        self._data = data
        self._info = info
        self._deadline = _moment(info.get("lifetime_seconds"))
        self._idle_seconds = info.get("idle_seconds")
        self._last_use = time.monotonic()
        self._waiting: list[socket.socket] = []
        self._loop = Loop()
        self._looked = 0.0
        self._control, inner = wire.make_pair()
        wire.send(box.host, {"op": "control"}, (inner.fileno(),))
        inner.close()
        self._control.settimeout(_INIT_SECONDS)  # an init that does not listen must not stop us
        os.chdir(box.folder)
        for folder in ("logs", "records"):  # release 0.1 had logs as well
            shutil.rmtree(folder, ignore_errors=True)  # from before a stop: those programs have ended
        os.makedirs("records", mode=0o700)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET_NAME)  # from before a stop
        self._door.bind(SOCKET_NAME)  # relative: a socket's path may have 107 bytes at most
        self._door.listen(64)
        state = read_state(box.folder) or {}
        state.pop("stopped", None)
        write_state(box.folder, {**state, "detached": True, "info": info, "keeper": os.getpid()})
        box.keep_files = False  # from now on its files are deleted when it ends
        os.chdir("/")
        self._powers = Powers(data, watch=self._loop.watch, unwatch=self._loop.unwatch, stop=self._stop)
        budget = DiskBudget(min(MAX_BUDGET_BYTES, box.recipe.limits.disk_bytes))
        self._records = Records(self._loop, str(box.folder / "records"), self._control, self._give_up, budget=budget)
        self._loop.watch(self._door.fileno(), self._accept)
        self._loop.watch(box.pid_fd, self._ended)
        if box.window is not None:
            box.window.attend(self._loop)

    def run(self) -> NoReturn:
        """Serve until the sandbox ends."""
        while True:
            walking = self._box.disk_watch is not None and self._box.disk_watch.walking
            self._loop.turn(WALKING_SECONDS if walking else _LOOK_SECONDS)
            self._look_around()

    def _look_around(self) -> None:
        now = time.monotonic()
        if now - self._looked < WALKING_SECONDS:
            return  # a flood of output makes many more turns than there are checks to make
        self._looked = now
        over = self._deadline is not None and now >= self._deadline
        idle = self._idle_seconds is not None and now - self._last_use >= self._idle_seconds
        if idle and self._idle_seconds is not None:
            self._last_use = max(self._last_use, now - self._idle_inside())
            idle = now - self._last_use >= self._idle_seconds
        if over or idle or not self._folder_is_there():
            self._box.kill()
        if self._box.disk_watch is not None and self._box.disk_watch.look(now):
            with contextlib.suppress(OSError):
                wire.send(self._box.host, {"op": "disk_full"}, wait=False)

    def _idle_inside(self) -> float:
        """For how long no program has run: clients start programs through init, without us."""
        with contextlib.suppress(EngineError, OSError, TypeError, ValueError):
            with ask(self._control, {"op": "ping"}, ()) as reply:
                answer = receive_within(reply, 2.0)
            return 0.0 if answer["calls"] else float(answer["idle_seconds"])
        return math.inf

    def _folder_is_there(self) -> bool:
        """Checked by its lock: a deleted folder may still hold files that only root may delete."""
        try:
            return os.path.samestat(os.stat(self._box.folder / LOCK_NAME), os.fstat(self._box.lock_fd))
        except OSError:
            return False

    def _ended(self) -> None:
        """The sandbox has ended: clean up and exit."""
        self._box.clear(self._data)
        for reply in self._waiting:
            wire.answer(reply, {"ok": True})
        with contextlib.suppress(OSError):
            sweep.empty_trash_or_leave_it(self._data)
        os._exit(0)

    def _give_up(self) -> None:
        """Kill the sandbox, because init has not done what it should have; a paused one can't."""
        if not self._box.paused:
            self._box.kill()

    def _stop(self, box: Box, reply: socket.socket) -> None:
        self._waiting.append(reply)
        box.rest()

    def _accept(self) -> None:
        try:
            connection, _ = self._door.accept()
        except OSError:
            time.sleep(_BREATH_SECONDS)  # out of descriptors: clients may close some meanwhile
            return
        connection.setblocking(False)
        self._loop.watch(connection.fileno(), lambda: self._hear(connection))

    def _hear(self, connection: socket.socket) -> None:
        try:
            received = wire.hear(connection)
        except (BlockingIOError, ExhaustedError):
            return
        if received is None:
            self._loop.unwatch(connection.fileno())
            connection.close()
            return
        message, descriptors = received
        if not descriptors:
            return
        self._last_use = time.monotonic()
        reply = socket.socket(fileno=descriptors.pop(0))
        try:
            self._answer(message, descriptors, reply)
        except (OSError, EngineError, KeyError, TypeError, ValueError) as error:
            wire.answer(reply, {"error": "refused", "text": f"{type(error).__name__}: {error}"})
        finally:
            wire.close_all(descriptors)

    def _answer(self, message: wire.Message, descriptors: list[int], reply: socket.socket) -> None:
        operation = message.get("op")
        if operation == "destroy":
            self._waiting.append(reply)
            self._box.keep_files = False
            self._box.kill()
        elif operation == "info":
            wire.answer(reply, self._describe())
        elif operation == "control":
            ours, theirs = wire.make_pair()
            with ours, theirs:
                wire.send(self._box.host, {"op": "control"}, (theirs.fileno(),))
                proxy_port = self._box.window.proxy_port if self._box.window is not None else None
                wire.answer(reply, {"ok": True, "proxy_port": proxy_port}, (ours.fileno(),))
        elif operation in OPERATIONS:
            self._powers.answer(self._box, message, reply)
        elif operation == "network":
            change_network(self._box, message, descriptors, reply)
        elif operation == "settings":
            give_settings(self._box, reply)
        elif operation == "judged":
            await_judging(self._box, reply)
        elif operation == "usage":
            wire.answer(reply, {"ok": True, "usage": self._box.usage()})
        elif operation == "record":
            self._records.answer(message, reply)
        elif operation == "deadline":
            self._deadline = _moment(message.get("seconds"))
            wire.answer(reply, {"ok": True})
        else:
            wire.answer(reply, {"error": "unknown", "text": f"unknown operation {operation!r}"})

    def _describe(self) -> wire.Message:
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        return {
            "ok": True,
            "version": VERSION,
            "id": self._box.recipe.sandbox_id,
            "seconds_left": left,
            "paused": self._box.paused,
            "info": (read_state(self._box.folder) or {}).get("info", self._info),  # limits and network change
        }


def _moment(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds
