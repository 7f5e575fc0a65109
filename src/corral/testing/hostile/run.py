"""Attacks a sandbox with every probe, and judges the results.

A probe holds only by proof: a program that printed nothing, crashed or ran out of time has proven nothing. The sandbox
must be able to run a program before the first probe and after each one, unless it reports that it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from corral.client.sandbox import AsyncSandbox
from corral.errors import CapabilityError, CorralError, InvalidCommandError, SandboxGoneError
from corral.results import ExecResult, OutputChunk
from corral.spec import Resources
from corral.testing.hostile.canary import Canaries, check_host_works, find_processes
from corral.testing.hostile.neighbour import VICTIM_PORT, Neighbour, open_neighbour
from corral.testing.hostile.prelude import compose, compose_python
from corral.testing.hostile.probe import (
    GRACE_SECONDS,
    Finding,
    HostView,
    MakeSandbox,
    Probe,
    Scene,
    Verdict,
    breached,
    held,
    read_verdict,
    unproven,
)

RESOURCES = Resources(
    cpus=1.0, memory_bytes=192 << 20, disk_bytes=96 << 20, processes=64, inodes=4000, open_files=1024
).as_usual()
"""The limits of the sandboxes to attack: small, so that a bomb beyond them is small too."""

_CONTROL_SECONDS = 15.0
_PATIENCE_SECONDS = 20.0
"""How long after its timeout a probe's call may go on before that counts as a breach."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one probe showed."""

    probe: Probe
    finding: Finding
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON data."""
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
        """Count the probes with this verdict."""
        return sum(outcome.finding.verdict is verdict for outcome in self.outcomes)

    @property
    def ok(self) -> bool:
        """True if every probe was stopped that the backend promises to stop."""
        good = self.count(Verdict.HELD) + self.count(Verdict.UNPROMISED)
        return bool(self.outcomes) and good == len(self.outcomes)


OnProgress = Callable[[Outcome], None]


async def prove(
    make: MakeSandbox,
    *,
    canaries: Canaries,
    probes: Iterable[Probe] | None = None,
    on_progress: OnProgress | None = None,
    soft: frozenset[str] = frozenset(),
) -> Report:
    """Open a sandbox and attack it with all probes, or some.

    `make` opens the sandbox, and further ones of the same kind: the neighbour, and those for single probes. `soft`
    names the limits ("memory", "disk") that the backend reports as soft, and what it shares with the host ("devices"):
    probes that only a hard limit could stop are then not promised.

    Raises:
        CorralError: the sandbox could not be opened, or could not even run a harmless program.
    """
    from corral.testing.hostile import ALL

    outcomes: list[Outcome] = []
    async with make() as sandbox, besiege(sandbox, canaries=canaries, make=make, soft=soft) as siege:
        for probe in ALL if probes is None else probes:
            outcomes.append(await siege.try_probe(probe))
            if on_progress is not None:
                on_progress(outcomes[-1])
    return Report(tuple(outcomes))


@contextlib.asynccontextmanager
async def besiege(
    sandbox: AsyncSandbox, *, canaries: Canaries, make: MakeSandbox | None = None, soft: frozenset[str] = frozenset(),
    make_neighbour: MakeSandbox | None = None,
) -> AsyncIterator[Siege]:  # fmt: skip
    """Attack a sandbox with one probe at a time; takes and raises the same as `prove`.

    Without `make`, the probes that need a second sandbox stay unproven. `make_neighbour` opens the neighbour, if that
    is to be of another kind.
    """
    async with contextlib.AsyncExitStack() as stack:
        beside = make_neighbour or make
        neighbour = await stack.enter_async_context(open_neighbour(beside)) if beside is not None else None
        siege = Siege(sandbox, canaries, make, neighbour, stack, soft)
        if (lack := await siege.ask_control(sandbox)) is not None:
            raise CorralError(f"the sandbox can't run a harmless program: {lack}", sandbox_id=sandbox.id, op="attack")
        yield siege


@dataclass(slots=True)
class Siege:
    """An attack in progress."""

    sandbox: AsyncSandbox
    canaries: Canaries
    make: MakeSandbox | None
    neighbour: Neighbour | None
    stack: contextlib.AsyncExitStack
    soft: frozenset[str]

    async def ask_control(self, sandbox: AsyncSandbox) -> str | None:
        """Run a harmless program: None if that works, otherwise what is wrong."""
        return await _expect_42(sandbox.run_code("print(6 * 7)", "python", timeout=_CONTROL_SECONDS))

    async def ask_quickly(self, sandbox: AsyncSandbox) -> str | None:
        """`ask_control` by a shell, which is faster, for use after each probe."""
        return await _expect_42(sandbox.exec(["/bin/sh", "-c", "echo $((6 * 7))"], timeout=_CONTROL_SECONDS))

    async def try_probe(self, probe: Probe) -> Outcome:
        """Run one probe and judge it."""
        for heard in self.canaries.heard.values():
            heard.clear()
        started = time.monotonic()
        patience = probe.timeout + _PATIENCE_SECONDS
        try:
            async with asyncio.timeout(patience):
                finding = await self._try_where_it_belongs(probe)
        except TimeoutError:
            finding = breached(f"the host still waited after {patience:.0f} s")
        if finding.verdict is Verdict.BREACHED and probe.needs_hard in self.soft:
            finding = Finding(Verdict.UNPROMISED, finding.evidence)
        return Outcome(probe, finding, time.monotonic() - started)

    async def _try_where_it_belongs(self, probe: Probe) -> Finding:
        if probe.victim and self.neighbour is None:
            return unproven("no neighbour to attack")
        make = probe.make or self.make
        if not probe.alone and probe.make is None:
            return await self._run(probe, await self._renew(), _new_token())
        if make is None:
            return unproven("no second sandbox can be made for this probe")
        token = _new_token()
        async with make() as sandbox:
            await sandbox.files.exists("/")  # start the file agent, so that it can be attacked
            finding = await self._run(probe, sandbox, token)
        left = await self._wait_until_gone(token)
        if left and finding.verdict is Verdict.HELD:
            return breached(f"{len(left)} processes outlived the sandbox")
        return finding

    async def _renew(self) -> AsyncSandbox:
        """Give the sandbox, or a new one if an earlier probe has ended it."""
        if self.make is not None and await self.ask_quickly(self.sandbox) is not None:
            self.sandbox = await self.stack.enter_async_context(self.make())
        return self.sandbox

    async def _run(self, probe: Probe, sandbox: AsyncSandbox, token: str) -> Finding:
        code = compose(probe, targets=self._targets(sandbox, token))
        look = asyncio.Event()
        watching = asyncio.create_task(self._look_while_holding(probe, look))

        async def say_when_looked() -> AsyncIterator[bytes]:
            await asyncio.wait((watching,))
            yield b"\n"

        def on_output(chunk: OutputChunk) -> None:
            if b"\nholding\n" in chunk.data:
                look.set()

        result = troubles = after = None
        try:
            result = await self._execute(probe, sandbox, code, token, on_output, say_when_looked())
            troubles = tuple(await watching) if look.is_set() else None
            if probe.after is not None:
                after = await probe.after(Scene(sandbox, token, self.canaries, _limits(sandbox)))
        except SandboxGoneError:
            if not probe.may_end:
                return breached("the attack ended the sandbox")
            result = troubles = after = None
        except CorralError as error:
            if probe.user is not None and isinstance(error, CapabilityError | InvalidCommandError):
                return held(f"no such user inside: {error}")
            return unproven(f"{type(error).__name__}: {error}")
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        view = HostView(self.canaries.words, troubles, probe.timeout)
        finding = held("the sandbox ended, and reported it") if result is None else _judge(probe, result, view, after)
        if (worse := self._look_from_outside(result, troubles)) is not None:
            finding = worse
        elif probe.must_go and (left := await self._wait_until_gone(token)):
            finding = breached(f"{len(left)} processes outlived their call")
        if finding.verdict is Verdict.HELD and result is not None:
            finding = await self._check_still_there(probe, sandbox, finding)
        await self._clear_up(sandbox, token)
        return finding

    def _targets(self, sandbox: AsyncSandbox, token: str) -> dict[str, Any]:
        targets = {**self.canaries.targets(), "token": token, "limits": _limits(sandbox)}
        if self.neighbour is not None:
            targets |= {
                "victim": self.neighbour.token,
                "victim_port": VICTIM_PORT,
                "victim_outer_uid": self.neighbour.outer_uid,
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

    async def _look_while_holding(self, probe: Probe, look: asyncio.Event) -> list[str]:
        """While the probe holds resources, check that the host and the neighbour still work."""
        await look.wait()
        troubles = []
        if (trouble := await asyncio.to_thread(check_host_works)) is not None:
            troubles.append(trouble)
        if self.neighbour is not None:
            program = compose_python(f"{probe.neighbour_code}\nheld(6 * 7)")
            try:
                result = await self.neighbour.sandbox.run_code(program, "python", timeout=_CONTROL_SECONDS)
            except CorralError as error:
                troubles.append(f"the neighbour: {type(error).__name__}: {error}")
            else:
                if '"held"' not in result.stdout:
                    troubles.append(f"the neighbour is hampered: {result.output.strip()[-200:]}")
        return troubles

    def _look_from_outside(self, result: ExecResult | None, troubles: tuple[str, ...] | None) -> Finding | None:
        """Find breaches that the host sees, which count more than the program's own verdict."""
        if touched := self.canaries.find_touched():
            return breached("; ".join(touched))
        if result is not None:
            output = result.stdout_bytes + result.stderr_bytes
            if any(secret.encode() in output for secret in self.canaries.secrets):
                return breached("a secret of the host was printed")
        if troubles:
            return breached("; ".join(troubles))
        if self.neighbour is not None and (touch := self.neighbour.touched()) is not None:
            self.neighbour.heard[1:] = []
            return breached(touch)
        return None

    async def _check_still_there(self, probe: Probe, sandbox: AsyncSandbox, finding: Finding) -> Finding:
        lack = await self.ask_quickly(sandbox)
        ended = lack is not None and lack.startswith(("SandboxGoneError", "SandboxClosedError"))
        if lack is not None and not (probe.may_end and ended):
            return breached(f"the sandbox no longer works: {lack}")
        if self.neighbour is not None and (lack := await self.ask_quickly(self.neighbour.sandbox)) is not None:
            return breached(f"the neighbour no longer works: {lack}")
        return finding

    async def _wait_until_gone(self, token: str) -> tuple[int, ...]:
        deadline = time.monotonic() + GRACE_SECONDS
        # There is no notification when a process of a sandbox ends: look again.
        while (left := find_processes(token)) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return left

    async def _clear_up(self, sandbox: AsyncSandbox, token: str) -> None:
        """End the probe's remaining processes, from inside, so that they don't affect the next probe."""
        if find_processes(token):
            with contextlib.suppress(CorralError):
                await sandbox.run_code(_CLEAR_UP, "python", args=[token[:-1]], timeout=_CONTROL_SECONDS)


# It gets the token without its last letter, so that it does not find itself.
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


async def _expect_42(running: Awaitable[ExecResult]) -> str | None:
    try:
        result = await running
    except CorralError as error:
        return f"{type(error).__name__}: {error}"
    return None if result.stdout.strip() == "42" else f"6 * 7 gave {result.output[-200:]!r} ({result.reason})"


def _judge(probe: Probe, result: ExecResult, view: HostView, after: Finding | None) -> Finding:
    said = read_verdict(result)
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
        return unproven("the host did not check itself while the probe held resources")
    return after or said


def _limits(sandbox: AsyncSandbox) -> dict[str, int]:
    resources = sandbox.spec.resources
    return {
        "memory_bytes": resources.memory,
        "disk_bytes": resources.disk,
        "processes": resources.processes,
        "inodes": resources.inodes,
        "open_files": resources.open_files,
    }


def _new_token() -> str:
    return f"probe-{secrets.token_hex(8)}"
