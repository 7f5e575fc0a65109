"""Init: PID 1 of one sandbox. Starts programs, knows their trees, reaps, and reports how each ended.

One single-threaded loop. It trusts its control sockets (from the host) and nothing from inside. It exits when its owner
or its keeper has gone, and the kernel then ends the whole sandbox.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import socket
import time
from typing import NoReturn

from corral.engine import syscalls, wire
from corral.engine.agent.worker import serve_files
from corral.engine.call import Call
from corral.engine.child import Program, program_steps
from corral.engine.counting import LOOK_SECONDS, LockWatch, SharedWatch
from corral.engine.dialling import begin_dial
from corral.engine.errors import ExhaustedError, RefusedError, SetupError, describe
from corral.engine.pausing import Pausing
from corral.engine.perform import Stage, perform
from corral.engine.plan import plan_redirect
from corral.engine.recipe import CODE_GID, CODE_UID, Limits
from corral.engine.soft import MemoryWatch, count_processes
from corral.engine.spare import Spare
from corral.engine.trees import CgroupTrees, ReaperTrees, Trees, signal_one
from corral.inside.ready import Ready

_LOOK_SECONDS = 0.1


class Init:
    """The loop and its state."""

    def __init__(
        self,
        stage: Stage,
        *,
        host: socket.socket,
        owner: socket.socket,
        group_fd: int | None,
        oom_fd: int | None,
        memory_limited: bool,
    ) -> None:
        self._stage = stage
        self._host = host
        self._owned_by: socket.socket | None = owner
        self._oom_fd = oom_fd
        self._trees: Trees = CgroupTrees(group_fd) if group_fd is not None else ReaperTrees()
        self._pausing = Pausing(self._trees)
        self._soft = not memory_limited
        self._memory = MemoryWatch(stage.recipe.limits.memory_bytes) if self._soft else None
        self._locks = LockWatch(stage.locks_fd) if stage.locks_fd is not None else None
        self._shared = SharedWatch() if stage.identity.rootless else None
        program_steps(stage, CODE_UID, CODE_GID)  # before any fork, so that no child has to plan it
        # True if code runs under our own uid, and can therefore stop and kill our helpers.
        self._uid_shared = stage.identity.rootless
        self._spare: Spare | None = None
        self._spare_refused = False
        self._calls: dict[int, Call] = {}
        self._last_use = time.monotonic()
        self._unfinished: set[int] = set()
        self._controls: dict[int, socket.socket] = {}
        self._next = 0
        self._ready = Ready()
        self._wakeup, wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        """Serve until the last client has gone."""
        # From inside, PID 1 gets only signals that it has a handler for: SIGCHLD alone, which does no harm.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._ready.watch(self._wakeup, self._reap)
        self._ready.watch(self._host.fileno(), self._hear_host)
        if self._owned_by is not None:
            self._serve(self._owned_by)
        while True:
            waiting = self._spare is not None or self._spare_refused or self._pausing.still
            if not self._ready.serve(self._patience() if waiting else 0) and not waiting:
                self._fork_ahead()
            self._look_at_clocks()

    def _serve(self, control: socket.socket) -> None:
        control.setblocking(True)
        self._controls[control.fileno()] = control
        self._ready.watch(control.fileno(), lambda: self._hear(control))
        if self._pausing.held:
            self._ready.hold(control.fileno())

    def _hear_host(self) -> None:
        received = wire.receive(self._host)
        if received is None:
            os._exit(0)  # the launcher or keeper has gone: the sandbox ends with it
        message, descriptors = received
        operation = message.get("op")
        if operation == "detach":
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 0)
            self._owned_by = None
            wire.send(self._host, {"ok": True})
        elif operation == "control":
            self._serve(socket.socket(fileno=descriptors.pop(0)))
        elif operation == "disk_full":
            self._end_all("disk")
        elif operation in ("pause", "resume", "hold", "release"):
            wire.send(self._host, self._stand_still(str(operation)))
        elif operation == "redirect":
            self._redirect()
        elif operation == "limits":
            self._set_limits(Limits(**message["limits"]))
            wire.send(self._host, {"ok": True})
        wire.close_all(descriptors)

    def _stand_still(self, operation: str) -> wire.Message:
        """Pause, resume, hold or release. While held, requests wait in their sockets; while paused, they fail."""
        was_held = self._pausing.held
        done = getattr(self._pausing, operation)()
        if self._pausing.held != was_held:
            for descriptor in self._controls:
                if was_held:
                    self._ready.release(descriptor)
                else:
                    self._ready.hold(descriptor)
        if done is False:
            return {"error": "not_still", "text": "a process waits for something and can't be stopped now"}
        return {"ok": True}

    def _redirect(self) -> None:
        """Give the host side the listeners, because the sandbox may reach something from now on."""
        self._stage.recipe = dataclasses.replace(self._stage.recipe, redirect=True)
        try:
            perform(plan_redirect(self._stage.recipe), self._stage)
        except SetupError as error:
            wire.send(self._host, describe(error))
            return
        self._stage.send_window(self._host, {"ok": True})

    def _set_limits(self, limits: Limits) -> None:
        """Set the limits of later programs; the kernel's own limits have been set from outside."""
        self._stage.recipe = dataclasses.replace(self._stage.recipe, limits=limits)
        if self._memory is not None:
            self._memory.limit_bytes = limits.memory_bytes
        if self._spare is not None:
            self._drop_spare(self._spare)  # it has the old limits already

    def _hear(self, control: socket.socket) -> None:
        try:
            received = wire.hear(control)
        except ExhaustedError:
            return  # the client notices that its channel is closed
        if received is None:
            if control is self._owned_by:
                os._exit(0)
            self._ready.unwatch(control.fileno())
            del self._controls[control.fileno()]
            control.close()
            return
        message, descriptors = received
        if not descriptors:
            return  # the client has gone
        channel = socket.socket(fileno=descriptors.pop(0))
        try:
            if self._pausing.paused and message.get("op") in ("start", "files", "dial"):
                raise RefusedError("the sandbox is paused", code="paused")
            if message.get("op") == "start":
                self._start(Program.from_message(message, tuple(descriptors)), channel)
            elif message.get("op") == "files":
                self._start_agent(descriptors.pop(0))
                wire.answer(channel, {"ok": True})
            elif message.get("op") == "dial":
                self._last_use = time.monotonic()
                with begin_dial(message.get("port"), six=bool(message.get("six"))) as begun:
                    wire.answer(channel, {"ok": True}, (begun.fileno(),))
            else:
                wire.answer(channel, self._answer(message))
        except RefusedError as refusal:
            wire.answer(channel, describe(refusal))
        except OSError:
            channel.close()  # the client is gone
        finally:
            wire.close_all(descriptors)

    def _answer(self, message: wire.Message) -> wire.Message:
        """Requests that are answered at once, without descriptors."""
        operation = message.get("op")
        if operation == "ping":
            idle = time.monotonic() - self._last_use
            return {"ok": True, "calls": len(self._calls), "idle_seconds": idle}
        if operation == "usage":
            return self._usage()
        if operation == "end_rest":
            if message.get("tree") in self._unfinished:
                self._trees.kill(message["tree"])
            return {"ok": True}
        return {"error": "unknown", "text": str(operation)}

    def _fork_ahead(self) -> None:
        """Fork a child for the next call, while there is nothing else to do."""
        try:
            self._spare = self._fork_spare()
        except OSError:
            self._spare_refused = True  # no process can be created now; the next call tries again

    def _fork_spare(self) -> Spare:
        self._next += 1
        return Spare.fork(self._next, self._stage, self._trees, soft_limits=self._soft)

    def _start(self, program: Program, channel: socket.socket) -> None:
        spare, self._spare, self._spare_refused = self._spare, None, False
        oom_count = self.oom_count()
        self._uid_shared = self._uid_shared or program.uid == self._stage.identity.init_uid
        if self._uid_shared and spare is not None:
            self._trees.wake_helpers()
            signal_one(spare.started.program_pid, signal.SIGCONT)
        try:
            call = Call.start(spare or self._fork_spare(), program, channel, oom_count=oom_count)
        except OSError as error:
            text = f"can't start a process: {error.strerror}"
            raise RefusedError(text, code="fork", errno=error.errno or 0) from error
        self._calls[call.number] = call
        self._last_use = time.monotonic()
        self._ready.watch(call.report_fd, lambda: self._hear_report(call))
        self._ready.watch(channel.fileno(), lambda: self._hear_channel(call))
        if call.status_fd is not None:
            self._ready.watch(call.status_fd, lambda: self._read_status(call))

    def _hear_report(self, call: Call) -> None:
        """The report is empty if execve closed it: the program runs. Otherwise it says why it does not."""
        self._ready.unwatch(call.report_fd)
        call.read_report()

    def _hear_channel(self, call: Call) -> None:
        """A message of the client about its call; closing the channel cancels the call."""
        received = wire.hear(call.channel)
        if received is None:
            self._ready.unwatch(call.channel.fileno())
            if not call.program.outlive_client and call.reason == "":
                self._end(call, "cancelled")
            return
        message, descriptors = received
        wire.close_all(descriptors)
        operation = message.get("op")
        if operation == "kill":
            self._end(call, str(message.get("reason", "cancelled")))
        elif operation == "signal":
            call.signal(int(message["number"]), group=bool(message.get("group", True)))

    def _end(self, call: Call, reason: str) -> None:
        if not call.ended and not call.reason:
            call.reason = reason
        self._trees.kill(call.number)

    def _end_all(self, limit: str) -> None:
        for call in list(self._calls.values()):
            call.limit = limit
            self._end(call, "signalled")
        for number in list(self._unfinished):
            self._trees.kill(number)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)
        by_pid = {call.pid: call for call in self._calls.values()}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            call = by_pid.get(pid)
            if call is None:
                self._lose_spare(pid)
                continue
            if call.status_fd is None:
                cpu = usage.ru_utime + usage.ru_stime
                self._finish(call, status, cpu_seconds=cpu, peak_kib=usage.ru_maxrss)
            else:
                self._read_status(call)
        self._unfinished = {number for number in self._unfinished if not self._trees.finish(number)}

    def _lose_spare(self, pid: int) -> None:
        if self._spare is not None and self._spare.started.pid == pid:
            self._drop_spare(self._spare)
            self._spare_refused = True  # killed, perhaps out of memory: start the next one on demand

    def _drop_spare(self, spare: Spare) -> None:
        spare.drop()
        self._unfinished.add(spare.number)
        self._spare = None

    def _read_status(self, call: Call) -> None:
        """A subreaper reports how its program ended, or was killed from inside before it could."""
        if call.ended or call.status_fd is None:
            return
        try:
            line = os.read(call.status_fd, 200).split()
        except BlockingIOError:
            line = []  # it was killed while its program, not yet exec'd, held the other end as well
        self._ready.unwatch(call.status_fd)
        if len(line) == 3:
            status, cpu, peak = int(line[0]), float(line[1]), int(line[2])
            self._finish(call, status, cpu_seconds=cpu, peak_kib=peak)
        else:
            # The program's tree has lost its root: kill all orphans rather than lose track of them.
            self._trees.kill(call.number)
            self._finish(call, int(signal.SIGKILL), cpu_seconds=None, peak_kib=None)

    def _finish(self, call: Call, status: int, *, cpu_seconds: float | None, peak_kib: int | None) -> None:
        oom = call.judge(status, oom_count=self.oom_count())
        if oom or call.reason in ("timeout", "cancelled"):
            # Again, for processes that were being forked the first time. Out of memory ends a call as a whole.
            self._trees.kill(call.number)
        unjudged = self._stage.has_unjudged
        call.finish(status, cpu_seconds=cpu_seconds, peak_kib=peak_kib, trees=self._trees, unjudged=unjudged)
        for descriptor in (call.channel.fileno(), call.report_fd, call.status_fd):
            if descriptor is not None:
                self._ready.unwatch(descriptor)
        call.close()
        del self._calls[call.number]
        self._last_use = time.monotonic()
        if not self._trees.finish(call.number):
            self._unfinished.add(call.number)

    def oom_count(self) -> int:
        """How often the kernel's OOM killer has killed a process."""
        if self._memory is not None:
            return self._memory.kills
        if self._oom_fd is None:
            return 0
        for line in os.pread(self._oom_fd, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def _patience(self) -> float:
        waits = [60.0]
        now = time.monotonic()
        waits += [call.deadline - now for call in self._calls.values() if call.deadline is not None]
        if self._calls or self._unfinished:
            waits.append(_LOOK_SECONDS if self._uid_shared or self._memory is not None else LOOK_SECONDS)
        return max(0.0, min(waits))

    def _look_at_clocks(self) -> None:
        now = time.monotonic()
        for call in list(self._calls.values()):
            if call.deadline is not None and now >= call.deadline:
                call.deadline = None
                self._end(call, "timeout")
        if self._calls or self._unfinished:
            if self._memory is not None:
                self._memory.look(now)
            self._look_at_counters(now)
            if self._uid_shared and not self._pausing.still:
                self._trees.wake_helpers()

    def _look_at_counters(self, now: float) -> None:
        """Resources that cgroups do not cover: kill the programs of a sandbox that holds too much of them."""
        if self._locks is not None and self._locks.look(now):
            self._end_all("locks")
        if self._shared is not None and (short := self._shared.look(now)) is not None:
            self._end_all(short)

    def _start_agent(self, channel_fd: int) -> None:
        """Fork the file agent: it acts on files as the code's user, and the code can't signal it (own uid as root)."""
        pid = os.fork()
        if pid == 0:
            serve_files(channel_fd, self._stage)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # as it does itself: whichever comes first, so that its group can be signalled
        os.close(channel_fd)  # else the host would not notice the agent's end
        self._trees.protect(pid)

    def _usage(self) -> wire.Message:
        """Usage that init can measure where no cgroup does, and the size of the files."""
        disk = os.statvfs("/")
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        memory, processes, cpu = count_processes()
        return {
            "ok": True,
            "cpu_seconds": children.ru_utime + children.ru_stime + cpu,
            "memory_bytes": memory,
            "processes": processes,
            "oom_kills": self.oom_count(),
            "disk_bytes": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        }
