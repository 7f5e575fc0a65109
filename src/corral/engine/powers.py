"""What the holder of a sandbox can do with it besides ending it: snapshots, pauses, other limits, another network.

The launcher and the keepers are single-threaded and serve others meanwhile, so a child makes the copy. If one of them
is killed, nothing stays frozen: the child thaws, its parent thaws again when the child has ended, and a sweeper thaws
if both were killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from corral.engine import syscalls, wire
from corral.engine.box import Box
from corral.engine.errors import EngineError, RefusedError, UnsupportedError, describe
from corral.engine.forking import fork_reader
from corral.engine.layers import LayerStore, ensure_not_too_deep
from corral.engine.recipe import Limits
from corral.engine.state import DataFolder, note_limits, note_network, read_state
from corral.engine.storage import loop
from corral.engine.storage.copying import TreeCopy, copy_sparse

OPERATIONS = frozenset(("snapshot", "pause", "resume", "resize", "stop"))
_ANSWER_BYTES = 65536

Watch = Callable[[int, Callable[[], None]], None]


class Powers:
    """One per holder. A request during a copy waits for its end."""

    def __init__(
        self,
        data: DataFolder,
        *,
        watch: Watch,
        unwatch: Callable[[int], None],
        stop: Callable[[Box, socket.socket], None],
    ) -> None:
        self._data = data
        self._watch = watch
        self._unwatch = unwatch
        self._stop = stop
        self._waiting: dict[int, list[tuple[wire.Message, socket.socket]]] = {}

    def answer(self, box: Box, message: wire.Message, reply: socket.socket) -> None:
        """Carry out one of `OPERATIONS`. The answer may come later; `reply` is closed here in any case."""
        queue = self._waiting.get(box.pid)
        if queue is not None:
            queue.append((message, reply))
            return
        try:
            operation = str(message["op"])
            if operation == "snapshot":
                self._begin_snapshot(box, message, reply)
                return
            if operation == "stop":
                if box.recipe.ephemeral:
                    raise RefusedError(
                        "an ephemeral sandbox can't be stopped: its files are in memory", code="ephemeral"
                    )
                self._stop(box, reply)
                return
            if operation == "resize":
                resize(box, dict(message["limits"]))
            else:
                box.ask_init({"op": operation})
                box.paused = operation == "pause"
        except (OSError, EngineError, LookupError, TypeError, ValueError) as error:
            wire.answer(reply, describe(error))
        else:
            wire.answer(reply, {"ok": True})

    def _begin_snapshot(self, box: Box, message: wire.Message, reply: socket.socket) -> None:
        store = LayerStore(self._data)
        if box.recipe.ephemeral:
            raise RefusedError("an ephemeral sandbox can't be snapshotted: its files are in memory", code="ephemeral")
        ensure_not_too_deep(len(box.recipe.layers))
        store.ensure_name_free(message.get("name"))
        held = box.disk_fd is None
        if held:
            box.ask_init({"op": "hold"})  # it has no file system that could be frozen
        try:
            reader = fork_reader(lambda writer: _copy(box, self._data, message, writer))
        except OSError:
            if held:
                box.ask_init({"op": "release"})
            raise
        self._waiting[box.pid] = []
        self._watch(reader, lambda: self._end_snapshot(box, reader, reply, held=held))

    def _end_snapshot(self, box: Box, reader: int, reply: socket.socket, *, held: bool) -> None:
        self._unwatch(reader)
        said = os.read(reader, _ANSWER_BYTES)
        os.close(reader)
        if box.disk_fd is not None:
            loop.thaw(box.disk_fd)
        elif held:
            with contextlib.suppress(OSError, EngineError):
                box.ask_init({"op": "release"})
        answer = json.loads(said) if said else {"error": "gone", "text": "the copy was interrupted"}
        if not wire.answer(reply, answer) and "snapshot" in answer:
            with contextlib.suppress(OSError, EngineError):
                LayerStore(self._data).delete(answer["snapshot"])  # the client has gone, and does not know its id
        for message, waiting in self._waiting.pop(box.pid):
            self.answer(box, message, waiting)


def change_network(box: Box, message: wire.Message, descriptors: list[int], reply: socket.socket) -> None:
    """Other settings of a running sandbox's network, in the first descriptor. The answer comes when no connection is
    left that they do not permit; `reply` is closed in any case."""
    try:
        if message.get("redirect"):
            box.open_window()
        if box.window is None:
            raise UnsupportedError("the sandbox was created without a window")
        state = read_state(box.folder) or {}
        note_network(
            box.folder,
            state,
            redirect=box.recipe.redirect,
            described=message.get("network"),
            env={str(name): str(value) for name, value in message["env"].items()},
            secrets=list(message.get("secrets", ())),
        )
        settings_fd = descriptors.pop(0)
    except (OSError, EngineError, LookupError, TypeError, ValueError, AttributeError) as error:
        wire.answer(reply, describe(error))
        return
    answer = {"ok": True, "proxy_port": box.window.proxy_port}
    box.window.change(settings_fd, lambda: wire.answer(reply, answer))


def give_settings(box: Box, reply: socket.socket) -> None:
    """The settings of a sandbox's network, for whoever changes a part of them: as a sealed memory file, which is not
    read here."""
    if box.window is None:
        wire.answer(reply, describe(UnsupportedError("the sandbox was created without a window")))
    else:
        wire.answer(reply, {"ok": True}, (box.window.settings_fd,))


def await_judging(box: Box, reply: socket.socket) -> None:
    """Answer when the connections that programs have made so far are judged; `reply` is closed then."""
    if box.window is None:
        wire.answer(reply, {"ok": True})
    else:
        box.window.finish_judging(lambda: wire.answer(reply, {"ok": True}))


def resize(box: Box, given: dict[str, Any]) -> None:
    """Other limits for a running sandbox.

    Raises:
        RefusedError: this sandbox can't be given them.
        OSError: the kernel refused.
    """
    limits = dataclasses.replace(box.recipe.limits, **given)
    if "cpus" in given and "cpu" not in box.group.limited:
        hint = "run as root, or get a cgroup from systemd: systemd-run --user --scope -p Delegate=yes …"
        raise RefusedError("cpus= needs a cgroup, and none is available", code="no_such_limit", hint=hint)
    if "disk_bytes" in given:
        _resize_disk(box, limits)
    box.group.set_limits(limits)
    box.ask_init({"op": "limits", "limits": dataclasses.asdict(limits)})
    box.recipe = dataclasses.replace(box.recipe, limits=limits)
    note_limits(box.folder, read_state(box.folder) or {}, given)


def _resize_disk(box: Box, limits: Limits) -> None:
    if box.disk_watch is not None:
        box.disk_watch.set_limits(limit_bytes=limits.disk_bytes, limit_inodes=limits.inodes)
        return
    if box.disk_fd is None:
        raise RefusedError("the disk of an ephemeral sandbox can't be resized", code="no_such_limit")
    try:
        loop.grow(str(box.folder / "disk.img"), box.disk_fd, limits)
    except OSError as error:
        if error.errno == errno.EINVAL:
            text, hint = "a disk can be enlarged, but not shrunk", "create a smaller one from a snapshot of it"
        else:
            text, hint = f"this kernel can't enlarge a mounted disk: {error.strerror}", "stop the sandbox first"
        raise RefusedError(text, code="no_such_limit", hint=hint) from error


def _copy(box: Box, data: DataFolder, request: wire.Message, writer: int) -> NoReturn:
    """The child: copies, publishes, reports the result, and never returns."""
    answer: wire.Message
    draft: Path | None = None
    store = LayerStore(data)
    try:
        syscalls.close_all_but((0, 1, 2, writer, *([] if box.disk_fd is None else [box.disk_fd])))
        first_uid = box.uids.first if box.uids else None
        kind = "folder" if box.disk_fd is None else "loop"
        at_rest = (read_state(box.folder) or {}).get("first_uid", first_uid)
        draft = store.draft(box.recipe, kind=kind, first_uid=at_rest)
        if box.disk_fd is not None:
            _copy_image(box.disk_fd, str(box.folder / "disk.img"), str(draft / "disk.img"))
        else:
            _copy_folders(box, draft / "disk")
        below = tuple(layer.name for layer in box.recipe.layers)
        name, passing = request.get("name"), request.get("passing")
        snapshot = store.publish(draft, below=below, name=name, sandbox_id=box.recipe.sandbox_id, passing=passing)
        answer = {"ok": True, "snapshot": snapshot.snapshot_id}
    except (OSError, EngineError) as error:
        answer = describe(error)
    except BaseException as error:  # noqa: BLE001 - this process must never return into its parent's loop
        answer = {"error": "fault", "text": repr(error)[:2000]}
    if "error" in answer and draft is not None:
        with contextlib.suppress(OSError):
            draft.rename(data.trash / f"{draft.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        os.write(writer, json.dumps(answer).encode()[:_ANSWER_BYTES])
    os._exit(0)


def _copy_image(disk_fd: int, source: str, target: str) -> None:
    loop.freeze(disk_fd)
    try:
        copy_sparse(source, target)
    finally:
        loop.thaw(disk_fd)


def _copy_folders(box: Box, target: Path) -> None:
    source = box.folder / "disk"
    target.mkdir(mode=0o700)
    root = os.geteuid() == 0
    if root:
        owner = os.stat(source)
        os.chown(target, owner.st_uid, owner.st_gid)
    for index, tree in enumerate(box.recipe.trees):
        if tree.writable:
            upper = target / str(index) / "u"
            upper.mkdir(parents=True)
            if root:
                owner = os.stat(source / str(index))
                os.chown(upper.parent, owner.st_uid, owner.st_gid)
            TreeCopy(str(source / str(index) / "u"), str(upper), owners=root).run()
