"""The launcher: the small single-threaded process that creates sandboxes for one program.

It is exec'd once over a socket pair (the program that uses Corral may have threads and gigabytes, and must not be
forked), forks an init for each sandbox, and ends all its sandboxes when its program ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from corral.engine import cgroup, sweep, syscalls, wire
from corral.engine.box import Box, Resting, Workshop, can_make_devices, can_redirect, make_box
from corral.engine.client import receive_within
from corral.engine.errors import EngineError, ExhaustedError, GoneError, SetupError, describe
from corral.engine.keeper import become_keeper
from corral.engine.layers import LayerStore
from corral.engine.powers import OPERATIONS, Powers, await_judging, change_network, give_settings
from corral.engine.recipe import Recipe
from corral.engine.sampling import WALKING_SECONDS, next_in_turn
from corral.engine.seccomp.install import Prepared
from corral.engine.state import DataFolder, lock, read_state
from corral.engine.storage import choose
from corral.engine.uidrange import has_lock_folder
from corral.inside.nolinks import on_error
from corral.inside.processes import read_stat
from corral.inside.ready import Loop

_DISK_LOOK_SECONDS = 0.5
_INIT_SECONDS = 5.0


class Launcher:
    """The loop."""

    def __init__(self, client: socket.socket, shop: Workshop) -> None:
        self._client = client
        self._shop = shop
        self._boxes: dict[str, Box] = {}
        self._loop = Loop()
        self._loop.watch(client.fileno(), self._hear)
        self._wakeup, wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a helper's end is read at once
        self._loop.watch(self._wakeup, self._wake_up)
        self._leaving: list[socket.socket] | None = None
        self._transparent: bool | None = None
        """Whether connections can be redirected; found out when somebody asks."""
        powers = Powers(shop.data, watch=self._loop.watch, unwatch=self._loop.unwatch, stop=_refuse_stop)
        self._operations: dict[str, Callable[[wire.Message, list[int], socket.socket], None]] = {
            "hello": self._hello,
            "create": self._create,
            "start": self._start,
            "shutdown": self._shutdown,
        }
        self._box_operations: dict[str, Callable[[Box, wire.Message, socket.socket], None]] = {
            "destroy": self._destroy,
            "detach": self._detach,
            "usage": self._usage,
            "settings": lambda box, message, reply: give_settings(box, reply),
            "judged": lambda box, _, reply: await_judging(box, reply),
            **dict.fromkeys(OPERATIONS, powers.answer),
        }

    def run(self) -> None:
        """Serve until the program has ended and nothing of its sandboxes is left."""
        while self._leaving is None or self._boxes:
            self._loop.turn(self._patience())
            self._look_at_disks()
            self._reap_helpers()
        sweep.empty_trash_or_leave_it(self._shop.data)
        for answer in self._leaving:
            wire.answer(answer, {"ok": True})

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)

    def _hear(self) -> None:
        try:
            received = wire.hear(self._client)
        except ExhaustedError:
            return  # the client notices that its answer socket is closed
        if received is None:
            self._loop.unwatch(self._client.fileno())
            self._leave()
            return
        message, descriptors = received
        if not descriptors:
            return
        reply = socket.socket(fileno=descriptors.pop(0))
        operation, box = str(message.get("op")), self._boxes.get(str(message.get("id")))
        try:
            if operation in self._operations:
                self._operations[operation](message, descriptors, reply)
            elif operation != "network" and operation not in self._box_operations:
                wire.answer(reply, {"error": "unknown", "text": f"unknown operation {operation!r}"})
            elif box is None:
                wire.answer(reply, {"error": "gone", "text": "no such sandbox"})
            elif operation == "network":
                change_network(box, message, descriptors, reply)
            else:
                self._box_operations[operation](box, message, reply)
        except (OSError, EngineError, LookupError, TypeError, ValueError) as error:
            # A sandbox that dies during a request must not end the others.
            wire.answer(reply, {"error": "gone", "text": f"{type(error).__name__}: {error}"})
        finally:
            wire.close_all(descriptors)

    def _hello(self, message: wire.Message, descriptors: list[int], reply: socket.socket) -> None:
        shop = self._shop
        if self._transparent is None:
            self._transparent = can_redirect()
        wire.answer(
            reply,
            {
                "transparent": self._transparent,
                "root": shop.root,
                "storage": shop.storage.kind,
                "hard_disk": shop.storage.hard,
                "limited": sorted(shop.hierarchy.limited),
                "own_devices": shop.own_devices,
                "trees": "cgroup" if shop.hierarchy.unified is not None else "subreaper",
                "pid": os.getpid(),
                "uid_locks": not shop.root or has_lock_folder(),
            },
        )

    def _create(self, message: wire.Message, descriptors: list[int], reply: socket.socket) -> None:
        self._make(Recipe.from_json(message["recipe"]), None, descriptors, reply)

    def _start(self, message: wire.Message, descriptors: list[int], reply: socket.socket) -> None:
        """Start a stopped sandbox again, on its files."""
        folder = self._shop.data.folder(str(message["id"]))
        try:
            lock_fd = lock(folder)
        except FileNotFoundError:
            wire.answer(reply, {"error": "gone", "text": "no such sandbox"})
            return
        if lock_fd is None:
            wire.answer(reply, {"error": "held", "text": "another process starts or holds it"})
            return
        with on_error(os.close, lock_fd):
            store = LayerStore(self._shop.data)
            state = store.settle(folder, read_state(folder) or {})
            recipe = Recipe.from_json(state["recipe"])
            layers = store.layers(state.get("layers") or ())
        sweep.discard(self._shop.data, folder / "logs")  # of programs that ended with the stop
        renewed = {str(target): tuple(paths) for target, paths in dict(message.get("lowers", {})).items()}
        trees = tuple(dataclasses.replace(t, lowers=renewed.get(t.target, t.lowers)) for t in recipe.trees)
        redirect = bool(message.get("redirect"))
        recipe = dataclasses.replace(recipe, folder=str(folder), layers=layers, trees=trees, redirect=redirect)
        self._make(recipe, Resting(folder, lock_fd, state), descriptors, reply)

    def _make(self, recipe: Recipe, resting: Resting | None, descriptors: list[int], reply: socket.socket) -> None:
        owner = socket.socket(fileno=descriptors.pop(0))
        settings_fd = descriptors.pop(0) if descriptors else None
        try:
            box = make_box(self._shop, recipe, owner, settings_fd=settings_fd, resting=resting)
        except FileExistsError:
            wire.answer(reply, {"error": "exists", "text": f"there is a sandbox {recipe.sandbox_id!r} already"})
            return
        except EngineError as error:
            wire.answer(reply, describe(error))
            return
        except OSError as error:
            refused = SetupError(f"{error.strerror or error}", errno=error.errno or 0)
            wire.answer(reply, describe(refused))
            return
        finally:
            owner.close()
            if any(self._shop.data.trash.iterdir()):
                sweep.delete_in_background(self._shop.data)  # leftovers of a failed attempt
        self._boxes[recipe.sandbox_id] = box
        self._loop.watch(box.pid_fd, lambda: self._bury(box))
        if box.window is not None:
            box.window.attend(self._loop)
        proxy_port = box.window.proxy_port if box.window is not None else None
        wire.answer(reply, {"ok": True, "pid": box.pid, "cgroups": box.group.paths, "proxy_port": proxy_port})

    def _destroy(self, box: Box, message: wire.Message, reply: socket.socket) -> None:
        box.waiting.append(reply)
        box.kill()

    def _usage(self, box: Box, message: wire.Message, reply: socket.socket) -> None:
        wire.answer(reply, {"ok": True, "usage": box.usage()})

    def _detach(self, box: Box, message: wire.Message, reply: socket.socket) -> None:
        """Hand a sandbox to a keeper, a separate process that outlives the launcher."""
        wire.send(box.host, {"op": "detach"})
        try:
            receive_within(box.host, _INIT_SECONDS)
        except GoneError:
            box.kill()  # a silent init: all other sandboxes wait while we do
            raise
        if box.window is not None:
            box.window.settle()
        pid = os.fork()
        if pid == 0:
            become_keeper(box, self._shop.data, dict(message["info"]))
        os.waitpid(pid, 0)  # it forks once more and exits: the keeper is not our child
        self._forget(box)
        box.let_go()
        wire.answer(reply, {"ok": True})

    def _forget(self, box: Box) -> None:
        self._loop.unwatch(box.pid_fd)
        if box.window is not None:
            box.window.leave()
        del self._boxes[box.recipe.sandbox_id]

    def _bury(self, box: Box) -> None:
        self._forget(box)
        box.clear(self._shop.data)
        for reply in box.waiting:
            wire.answer(reply, {"ok": True})
        if self._leaving is None:
            sweep.delete_in_background(self._shop.data)

    def _shutdown(self, message: wire.Message, descriptors: list[int], reply: socket.socket) -> None:
        self._leave()
        assert self._leaving is not None
        self._leaving.append(reply)

    def _leave(self) -> None:
        if self._leaving is None:
            self._leaving = []
        for box in self._boxes.values():
            box.kill()

    def _patience(self) -> float:
        watches = [box.disk_watch for box in self._boxes.values() if box.disk_watch is not None]
        if any(watch.walking for watch in watches):
            return WALKING_SECONDS
        return _DISK_LOOK_SECONDS if watches else 60.0

    def _look_at_disks(self) -> None:
        now = time.monotonic()
        watched = {box.disk_watch: box for box in self._boxes.values() if box.disk_watch is not None}
        watch = next_in_turn(watched, now)
        if watch is not None and watch.look(now):
            with contextlib.suppress(OSError):
                wire.send(watched[watch].host, {"op": "disk_full"}, wait=False)

    def _reap_helpers(self) -> None:
        inits = {box.pid for box in self._boxes.values()}
        with contextlib.suppress(ChildProcessError):
            while True:
                # WNOWAIT first: the end of an init is read elsewhere, together with its pidfd.
                result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if result is None or result.si_pid in inits:
                    return
                os.waitpid(result.si_pid, os.WNOHANG)


def _refuse_stop(box: Box, reply: socket.socket) -> None:
    """An owned sandbox ends with its owner; only one with a keeper can be stopped."""
    wire.answer(reply, {"error": "owned", "text": "an owned sandbox can't be stopped"})


def hide_arguments() -> None:
    """Overwrite our argument strings: init is forked from here, and its /proc entry would show paths of the host."""
    fields = read_stat("/proc/self")
    # Fields 48 to 51 of proc(5), counted from the one after the name: arguments and environment, start and end.
    arguments_start, arguments_end, environment_start, environment_end = (int(fields[i]) for i in range(45, 49))
    syscalls.overwrite_memory(arguments_start, arguments_end - arguments_start, b"corral")
    syscalls.overwrite_memory(environment_start, environment_end - environment_start, b"")


def open_workshop(data_path: str) -> Workshop:
    """Find out what this machine offers, and clear up after killed processes."""
    data = DataFolder(data_path)
    data.prepare()
    root = os.geteuid() == 0
    sweep.discard_dead(data)
    LayerStore(data).collect()
    sweep.delete_in_background(data)
    return Workshop(
        data, root, cgroup.detect(), choose(data_path, root=root), Prepared(), own_devices=root and can_make_devices()
    )


def main(client_fd: int, settings: dict[str, Any]) -> None:
    """Entry point of the launcher's process."""
    client = socket.socket(fileno=client_fd)
    client.set_inheritable(False)  # else a gate would hold it, and our owner would not notice our end
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; we end after it
    os.umask(0o022)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each sandbox takes some descriptors
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    syscalls.set_process_name("corral-launcher")
    hide_arguments()
    try:
        shop = open_workshop(settings["data"])
        if shop.root:
            syscalls.prctl(syscalls.PR_SET_SECUREBITS, syscalls.SECBIT_NO_SETUID_FIXUP)
    except (OSError, EngineError) as error:
        with contextlib.suppress(OSError):
            wire.send(client, {"error": f"{type(error).__name__}: {error}"})
        return
    wire.send(client, {"ready": True})
    gc.collect()
    gc.freeze()  # these objects are shared with every init: keep the collector from touching their pages
    Launcher(client, shop).run()
