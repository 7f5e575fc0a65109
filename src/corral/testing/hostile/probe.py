"""The types of the hostile suite: a probe, what the host sees of it, and the finding.

A probe is a small program that tries one attack from inside and prints one JSON line,
`{"verdict": "held" | "breached", "evidence": "..."}`. Where a program could be wrong about itself, the host judges: by
canaries, by its own list of processes, by the neighbour. Silence, a crash and a timeout never count as success.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from corral.client.sandbox import AsyncSandbox
from corral.results import ExecResult
from corral.testing.hostile.canary import Canaries

Area = Literal["files", "kernel", "proc", "resources", "network", "lifetime", "terminal", "lateral", "window"]
Severity = Literal["escape", "host_leak", "lateral", "host_dos", "neighbour_dos", "info"]

GRACE_SECONDS = 3.0
"""How long after its timeout a program's processes may take to disappear."""


class Verdict(StrEnum):
    """What a probe showed."""

    HELD = "held"
    BREACHED = "breached"
    UNPROVEN = "unproven"
    UNPROMISED = "unpromised"
    """The attack succeeded, and the backend reports that this limit is soft here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict and its evidence."""

    verdict: Verdict
    evidence: str


@dataclass(frozen=True, slots=True)
class HostView:
    """What the host saw of one probe, after it ended."""

    words: tuple[str, ...] = ()
    """Names of this host (paths, host name) that must not be known inside."""
    while_holding: tuple[str, ...] | None = None
    """What went wrong in the neighbour or on the host while the probe held resources; None if it never did."""
    deadline: float = 0.0
    """The probe's timeout."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The sandbox after a probe's program has run, for the part of a probe that the host carries out."""

    sandbox: AsyncSandbox
    token: str
    canaries: Canaries
    limits: dict[str, int]

    def find_secret(self, data: bytes) -> str | None:
        """Name the secret of the host that is in the data, if any."""
        found = (secret for secret in self.canaries.secrets if secret.encode() in data)
        return next((f"a secret of the host came along: {secret[:14]}…" for secret in found), None)


Expect = Callable[[ExecResult, HostView], Finding | None]
"""The host's judgement; None if the verdict that the program printed decides."""

MakeSandbox = Callable[[], AbstractAsyncContextManager[AsyncSandbox]]

After = Callable[[Scene], Awaitable[Finding | None]]
"""What the host does after the program, such as reading a file that is a trap; None if nothing was wrong."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One attack."""

    name: str
    severity: Severity
    what_stops_it: str
    code: str
    area: Area = field(kw_only=True)
    language: Literal["python", "bash"] = "python"
    timeout: float = 10.0
    user: str | None = None
    """The user to run as; if the sandbox has no such user, the attack is impossible, and counts as held."""
    alone: bool = False
    """Run in a new sandbox, which is closed before the host looks for remaining processes."""
    neighbour_code: str = ""
    """What the neighbour must be able to do while the probe holds resources."""
    may_end: bool = False
    """The attack may end the sandbox, if later calls report that it is gone."""
    must_go: bool = False
    """All of its processes must be gone when its call ends."""
    victim: bool = False
    """Needs a second sandbox, with a process to attack."""
    needs_hard: Literal["", "memory", "disk", "devices"] = ""
    """Only a hard limit stops it, or device nodes of the sandbox's own: sampling does not see what it takes."""
    expect: Expect | None = None
    after: After | None = None
    make: MakeSandbox | None = None
    """Opens the sandbox that it needs instead of the usual one."""

    def __post_init__(self) -> None:
        if not self.code.strip() or not self.what_stops_it:
            raise ValueError(f"{self.name}: a probe needs a program and the defence that stops it")


def held(evidence: str) -> Finding:
    """The attack was stopped."""
    return Finding(Verdict.HELD, evidence)


def breached(evidence: str) -> Finding:
    """The attack succeeded."""
    return Finding(Verdict.BREACHED, evidence)


def unproven(evidence: str) -> Finding:
    """The probe showed nothing."""
    return Finding(Verdict.UNPROVEN, evidence)


def read_verdict(result: ExecResult) -> Finding | None:
    """Find the last verdict that a program printed."""
    for line in reversed(result.stdout.splitlines()):
        if line.startswith('{"verdict"'):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                said = json.loads(line)
                return Finding(Verdict(said["verdict"]), str(said["evidence"]))
    return None


def expect_no_host_words(result: ExecResult, view: HostView) -> Finding | None:
    """Breached if the output contains a name of this host."""
    for word in view.words:
        if word in result.output:
            return breached(f"shows {word!r} of the host")
    return None


def expect_gone_at_timeout(result: ExecResult, view: HostView) -> Finding:
    """Held if the program ran into its timeout and was ended at once."""
    late = result.usage.wall_seconds - view.deadline
    if "armed" not in result.stdout:
        return unproven(f"it ended before its attack: {result.output[-200:]!r}")
    if result.reason != "timeout":
        return unproven(
            f"ended by {result.reason} with {result.exit_code} before its timeout: {result.output[-200:]!r}"
        )
    if late > GRACE_SECONDS:
        return breached(f"the timeout came {late:.1f} s late")
    return held(f"gone {max(late, 0.0) * 1000:.0f} ms after the timeout, no process left")


def expect_stopped_or_killed(result: ExecResult, view: HostView) -> Finding | None:
    """Held if the program was killed by a limit, as the result says; if it was refused more, it says so itself."""
    if result.reason == "oom":
        return held("ended by the kernel: out of memory")
    if result.limit:
        return held(f"ended by the limit of {result.limit}")
    return None


def expect_stopped_or_ended(result: ExecResult, view: HostView) -> Finding | None:
    """`expect_stopped_or_killed`, and SIGKILL counts as a limit: some protocols don't carry the limit's name."""
    if result.reason == "signalled" and result.exit_code == 137:
        return held("ended by SIGKILL before it succeeded")
    return expect_stopped_or_killed(result, view)
