"""Attacks a sandbox with every probe, and judges what came of it.

Green only by proof: a program that printed nothing, crashed or ran out of time has proven nothing. Before the first
probe the sandbox must be able to run a program at all, and after each it must still be, or say that it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from corral.client.sandbox import AsyncSandbox
from corral.errors import CapabilityError, CorralError, InvalidCommandError, SandboxGoneError
from corral.results import ExecResult, OutputChunk
from corral.spec import Resources
from corral.testing.hostile.canary import Canaries, check_host_works, find_processes
from corral.testing.hostile.neighbour import VICTIM_PORT, MakeSandbox, Neighbour, open_neighbour
from corral.testing.hostile.prelude import compose
from corral.testing.hostile.probe import (
    GRACE_SECONDS,
    Finding,
    HostView,
    Probe,
    Scene,
    Verdict,
    breached,
    held,
    unproven,
)

RESOURCES = Resources(
    cpus=1.0, memory_bytes=192 << 20, disk_bytes=96 << 20, processes=64, inodes=4000, open_files=1024
).as_usual()
"""Small limits, so that a bomb beyond them is a small bomb. Make the sandboxes that are attacked with these."""

_CONTROL_SECONDS = 15.0
_PATIENCE_SECONDS = 20.0
"""How long after its timeout a probe's call may keep the host waiting before that is the finding."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one probe showed."""

    probe: Probe
    finding: Finding
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As a message."""
        return {
            "name": self.probe.name,
            "area": self.probe.area,
            "severity": self.probe.severity,
            "stopped_by": self.probe.what_stops_it,
            "verdict": str(self.finding.verdict),
            "evidence": self.finding.evidence,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What an attack showed."""

    outcomes: tuple[Outcome, ...]

    def count(self, verdict: Verdict) -> int:
        """How many probes ended so."""
        return sum(outcome.finding.verdict is verdict for outcome in self.outcomes)

    @property
    def ok(self) -> bool:
        """Whether every probe was stopped, provably, as far as the backend promises to stop it."""
        good = self.count(Verdict.HELD) + self.count(Verdict.UNPROMISED)
        return bool(self.outcomes) and good == len(self.outcomes)


OnProgress = Callable[[Outcome], None]

NEEDS_HARD = {
    "memory-bomb-in-nameless-files": "memory",
    "memory-bomb-in-pipes": "memory",
    "memory-bomb-in-socket-buffers": "memory",
    "memory-bomb-in-system-v-segments": "memory",
    "fill-the-disk-with-deleted-files": "disk",
    "watch-and-lock-the-devices-of-the-host": "devices",
}
"""Probes that only a limit of the kernel's own can stop: adding up what is in sight does not see what they take. And
one that comes through where sandboxes have the host's device nodes."""


async def attack(
    sandbox: AsyncSandbox, *, canaries: Canaries, probes: Iterable[Probe] | None = None,
    make: MakeSandbox | None = None, on_progress: OnProgress | None = None,
    soft: frozenset[str] = frozenset(),
) -> Report:  # fmt: skip
    """Attack a sandbox with all probes, or some.

    `soft` names limits ("memory", "disk") of which the backend says that they are soft, and what it shares with the
    host ("devices"): what only a hard one could stop is then not promised. `make` opens further sandboxes of the same
    kind: the neighbour, and those that a probe has for itself. Without it the probes that need one stay unproven.

    Raises:
        CorralError: the sandbox could not even run a harmless program.
    """
    from corral.testing.hostile import ALL

    outcomes: list[Outcome] = []
    async with besiege(sandbox, canaries=canaries, make=make, soft=soft) as siege:
        for probe in ALL if probes is None else probes:
            outcomes.append(await siege.try_probe(probe))
            if on_progress is not None:
                on_progress(outcomes[-1])
    return Report(tuple(outcomes))


@contextlib.asynccontextmanager
async def besiege(
    sandbox: AsyncSandbox, *, canaries: Canaries, make: MakeSandbox | None = None, soft: frozenset[str] = frozenset()
) -> AsyncIterator[Siege]:
    """An attack that is told one probe at a time. The arguments are those of `attack`, and so is what it raises."""
    async with contextlib.AsyncExitStack() as stack:
        neighbour = await stack.enter_async_context(open_neighbour(make)) if make is not None else None
        siege = Siege(sandbox, canaries, make, neighbour, stack, soft)
        if (lack := await siege.ask_control(sandbox)) is not None:
            raise CorralError(f"the sandbox can't run a harmless program: {lack}", sandbox_id=sandbox.id, op="attack")
        yield siege


class Siege:
    """One attack under way."""

    def __init__(
        self, sandbox: AsyncSandbox, canaries: Canaries, make: MakeSandbox | None, neighbour: Neighbour | None,
        stack: contextlib.AsyncExitStack, soft: frozenset[str],
    ) -> None:  # fmt: skip
        self._stack = stack
        self._soft = soft
        self._sandbox = sandbox
        self._canaries = canaries
        self._make = make
        self._neighbour = neighbour

    async def ask_control(self, sandbox: AsyncSandbox) -> str | None:
        """The positive control: what is wrong, or None when the sandbox works."""
        try:
            result = await sandbox.run_code("print(6 * 7)", "python", timeout=_CONTROL_SECONDS)
        except CorralError as error:
            return f"{type(error).__name__}: {error}"
        return None if result.stdout.strip() == "42" else f"6 * 7 gave {result.output[-200:]!r} ({result.reason})"

    async def ask_quickly(self, sandbox: AsyncSandbox) -> str | None:
        """The same by a shell, for the many times in between."""
        try:
            result = await sandbox.exec(["/bin/sh", "-c", "echo $((6 * 7))"], timeout=_CONTROL_SECONDS)
        except CorralError as error:
            return f"{type(error).__name__}: {error}"
        return None if result.stdout.strip() == "42" else f"6 * 7 gave {result.output[-200:]!r} ({result.reason})"

    async def try_probe(self, probe: Probe) -> Outcome:
        """Run one probe and judge it."""
        started = time.monotonic()
        finding = await self._try_patiently(probe)
        if finding.verdict is Verdict.BREACHED and NEEDS_HARD.get(probe.name) in self._soft:
            finding = Finding(Verdict.UNPROMISED, finding.evidence)
        return Outcome(probe, finding, time.monotonic() - started)

    async def _try_patiently(self, probe: Probe) -> Finding:
        """Run one probe in its sandbox. The host must never wait forever."""
        patience = probe.timeout + _PATIENCE_SECONDS
        try:
            async with asyncio.timeout(patience):
                return await self._try_where_it_belongs(probe)
        except TimeoutError:
            return breached(f"the host still waited after {patience:.0f} s")

    async def _try_where_it_belongs(self, probe: Probe) -> Finding:
        if probe.victim and self._neighbour is None:
            return unproven("there is no neighbour to attack")
        if not probe.alone:
            return await self._run(probe, await self._renew())
        if self._make is None:
            return unproven("there is no sandbox for this probe alone")
        token = _new_token()
        async with self._make() as sandbox:
            await sandbox.files.exists("/")  # start the file agent, so that it can be attacked
            finding = await self._run(probe, sandbox, token=token)
        left = await self._wait_until_gone(token)
        if left and finding.verdict is Verdict.HELD:
            return breached(f"{len(left)} processes outlived the sandbox")
        return finding

    async def _renew(self) -> AsyncSandbox:
        """The sandbox, or a new one when a probe before has ended it."""
        if self._make is not None and await self.ask_quickly(self._sandbox) is not None:
            self._sandbox = await self._stack.enter_async_context(self._make())
        return self._sandbox

    async def _run(self, probe: Probe, sandbox: AsyncSandbox, *, token: str | None = None) -> Finding:
        token = token or _new_token()
        code = compose(probe, targets=self._targets(probe, sandbox, token))
        look = asyncio.Event()
        watching = asyncio.create_task(self._look_while_holding(probe, look))

        async def say_when_looked() -> AsyncIterator[bytes]:
            await asyncio.wait((watching,))
            yield b"\n"

        def on_output(chunk: OutputChunk) -> None:
            if b"\nholding\n" in chunk.data:
                look.set()

        ended_honestly = False
        try:
            result = await self._execute(probe, sandbox, code, token, on_output, say_when_looked())
            troubles = await _settle(watching, look)
            after = await self._afterwards(probe, sandbox, result, token)
        except SandboxGoneError:
            if not probe.may_end:
                return breached("the sandbox ended by this")
            ended_honestly, troubles, after = True, None, None
            result = None
        except (CapabilityError, InvalidCommandError) as error:
            if probe.user is not None:
                return held(f"there is no such user inside: {error}")
            return unproven(f"{type(error).__name__}: {error}")
        except CorralError as error:
            return unproven(f"{type(error).__name__}: {error}")
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        view = HostView(self._canaries.words, troubles, probe.timeout)
        finding = held("the sandbox ended, and said so") if result is None else _judge(probe, result, view, after)
        if (worse := self._look_from_outside(result, troubles)) is not None:
            finding = worse
        elif probe.must_go and (left := await self._wait_until_gone(token)):
            finding = breached(f"{len(left)} processes outlived their call")
        if finding.verdict is Verdict.HELD and not ended_honestly:
            finding = await self._check_still_there(probe, sandbox, finding)
        await self._clear_up(sandbox, token)
        return finding

    def _targets(self, probe: Probe, sandbox: AsyncSandbox, token: str) -> dict[str, Any]:
        targets = {**self._canaries.targets(), "token": token, "limits": _limits(sandbox)}
        if self._neighbour is not None:
            targets |= {
                "victim": self._neighbour.token,
                "victim_port": VICTIM_PORT,
                "victim_outer_uid": self._neighbour.outer_uid,
            }
        return targets

    async def _execute(
        self, probe: Probe, sandbox: AsyncSandbox, code: str, token: str, on_output: Callable[[OutputChunk], None],
        stdin: AsyncIterator[bytes],
    ) -> ExecResult:  # fmt: skip
        if probe.user is None:
            return await sandbox.run_code(
                code, probe.language, args=[token], timeout=probe.timeout, on_output=on_output, stdin=stdin
            )
        return await sandbox.exec(
            ["python3", "-", token], stdin=code, user=probe.user, timeout=probe.timeout, on_output=on_output
        )

    async def _afterwards(self, probe: Probe, sandbox: AsyncSandbox, result: ExecResult, token: str) -> Finding | None:
        if probe.after is None:
            return None
        paths, limits = self._canaries.paths, _limits(sandbox)
        secrets, folders = self._canaries.secrets, self._canaries.folders
        return await probe.after(Scene(sandbox, result, token, paths, secrets, limits, folders))

    async def _look_while_holding(self, probe: Probe, look: asyncio.Event) -> list[str]:
        """While the probe holds what it took: does the host still work, and the neighbour?"""
        await look.wait()
        troubles = []
        if (trouble := await asyncio.to_thread(check_host_works)) is not None:
            troubles.append(trouble)
        if self._neighbour is not None:
            program = compose(
                Probe("neighbour", probe.area, probe.severity, "-", f"{probe.neighbour_code}\nheld(6 * 7)"), targets={}
            )
            try:
                result = await self._neighbour.sandbox.run_code(program, "python", timeout=_CONTROL_SECONDS)
            except CorralError as error:
                troubles.append(f"the neighbour: {type(error).__name__}: {error}")
            else:
                if '"held"' not in result.stdout:
                    troubles.append(f"the neighbour is hampered: {result.output.strip()[-200:]}")
        return troubles

    def _look_from_outside(self, result: ExecResult | None, troubles: tuple[str, ...] | None) -> Finding | None:
        """What outweighs whatever the program says of itself."""
        if touched := self._canaries.find_touched():
            return breached("; ".join(touched))
        if result is not None:
            output = result.stdout_bytes + result.stderr_bytes
            if any(secret.encode() in output for secret in self._canaries.secrets):
                return breached("a secret of the host was printed")
        if troubles:
            return breached("; ".join(troubles))
        if self._neighbour is not None and (touch := self._neighbour.touched()) is not None:
            self._neighbour.heard[1:] = []
            return breached(touch)
        return None

    async def _check_still_there(self, probe: Probe, sandbox: AsyncSandbox, finding: Finding) -> Finding:
        lack = await self.ask_quickly(sandbox)
        ended = lack is not None and lack.startswith(("SandboxGoneError", "SandboxClosedError"))
        if lack is not None and not (probe.may_end and ended):
            return breached(f"the sandbox no longer works: {lack}")
        if self._neighbour is not None and (lack := await self.ask_quickly(self._neighbour.sandbox)) is not None:
            return breached(f"the neighbour no longer works: {lack}")
        return finding

    async def _wait_until_gone(self, token: str) -> tuple[int, ...]:
        deadline = time.monotonic() + GRACE_SECONDS
        # Nothing tells when a process of a sandbox is gone: look again.
        while (left := find_processes(token)) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return left

    async def _clear_up(self, sandbox: AsyncSandbox, token: str) -> None:
        """End what a probe has left in the background, from inside, so that the next one starts even."""
        if find_processes(token):
            with contextlib.suppress(CorralError):
                await sandbox.run_code(_CLEAR_UP, "python", args=[token[:-1]], timeout=_CONTROL_SECONDS)


# Told all but the last letter of the token, so that it does not find itself.
_CLEAR_UP = """
import os, sys
for name in os.listdir("/proc"):
    try:
        with open(f"/proc/{name}/cmdline") as file:
            arguments = file.read().split("\\0")
        if name.isdigit() and any(len(a) == len(sys.argv[1]) + 1 and a.startswith(sys.argv[1]) for a in arguments):
            os.kill(int(name), 9)
    except OSError:
        pass
"""


async def _settle(watching: asyncio.Task[list[str]], look: asyncio.Event) -> tuple[str, ...] | None:
    return tuple(await watching) if look.is_set() else None


def _judge(probe: Probe, result: ExecResult, view: HostView, after: Finding | None) -> Finding:
    said = _read_verdict(result)
    if said is not None and said.verdict is Verdict.BREACHED:
        return said
    if after is not None and after.verdict is not Verdict.HELD:
        return after
    if probe.expect is not None and (judged := probe.expect(result, view)) is not None:
        return judged
    if said is None:
        tail = result.output.strip()[-300:]
        return unproven(f"no verdict: ended by {result.reason} with {result.exit_code}: {tail!r}")
    if "holding" in result.stdout and view.while_holding is None:
        return unproven("nobody looked while it held what it took")
    return after or said


def _read_verdict(result: ExecResult) -> Finding | None:
    for line in reversed(result.stdout.splitlines()):
        if line.startswith('{"verdict"'):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                said = json.loads(line)
                return Finding(Verdict(said["verdict"]), str(said["evidence"]))
    return None


def _limits(sandbox: AsyncSandbox) -> dict[str, int]:
    wished = sandbox.spec.resources
    return {
        "memory_bytes": wished.memory,
        "disk_bytes": wished.disk,
        "processes": wished.processes,
        "inodes": wished.inodes,
        "open_files": wished.open_files,
    }


def _new_token() -> str:
    return f"probe-{secrets.token_hex(8)}"


async def prove(
    make: MakeSandbox,
    *,
    canaries: Canaries,
    probes: Iterable[Probe] | None = None,
    on_progress: OnProgress | None = None,
    soft: frozenset[str] = frozenset(),
) -> Report:
    """Open a sandbox and attack it. Raises: as `attack`, and as opening does."""
    async with make() as sandbox:
        return await attack(sandbox, canaries=canaries, probes=probes, make=make, on_progress=on_progress, soft=soft)
