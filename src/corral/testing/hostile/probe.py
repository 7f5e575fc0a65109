"""What a hostile probe is, what the host sees of it, and what can be said afterwards.

A probe is a small program that tries one attack from inside and prints one JSON line,
`{"verdict": "held" | "breached",
    "evidence": "..."}`. Where the inside view can lie, the host judges: by canaries, by its
own list of processes, by the neighbour. Silence, a crash and a timeout are never a success.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from corral.client.sandbox import AsyncSandbox
from corral.results import ExecResult

Area = Literal["files", "kernel", "proc", "resources", "network", "lifetime", "terminal", "lateral"]
Severity = Literal["escape", "host_leak", "lateral", "host_dos", "neighbour_dos", "info"]

GRACE_SECONDS = 3.0
"""How long after its timeout an attack may take to be gone."""


class Verdict(StrEnum):
    """What a probe showed."""

    HELD = "held"
    BREACHED = "breached"
    UNPROVEN = "unproven"
    UNPROMISED = "unpromised"
    """It came through, and the backend says of itself that this limit is soft here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with what speaks for it."""

    verdict: Verdict
    evidence: str


@dataclass(frozen=True, slots=True)
class HostView:
    """What the host saw of one probe, once it was over."""

    words: tuple[str, ...] = ()
    """Names of this host (paths, host name) that nothing inside may know."""
    while_holding: tuple[str, ...] | None = None
    """What went wrong at the neighbour or on the host while the probe held what it took; None: it never held."""
    deadline: float = 0.0
    """The probe's timeout."""


@dataclass(frozen=True, slots=True)
class Scene:
    """For the host's own part of a probe: the sandbox after the program has run."""

    sandbox: AsyncSandbox
    result: ExecResult
    token: str
    canary_paths: tuple[str, ...]
    secrets: tuple[str, ...]
    limits: dict[str, int]
    folders: tuple[str, ...] = ()
    """Folders of this host that a sandbox must not have: the data folder is among them."""

    def find_secret(self, data: bytes) -> str | None:
        """Say which secret of the host is in there."""
        return next((f"a secret of the host came along: {s[:14]}…" for s in self.secrets if s.encode() in data), None)


Expect = Callable[[ExecResult, HostView], Finding | None]
"""The host's judgement; None leaves it to what the program printed."""

After = Callable[[Scene], Awaitable[Finding | None]]
"""What the host does next, such as reading what the program has laid out as a trap; None when nothing was wrong."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One attack."""

    name: str
    area: Area
    severity: Severity
    what_stops_it: str
    code: str
    language: Literal["python", "bash"] = "python"
    timeout: float = 10.0
    user: str | None = None
    """Run as this user inside; where the sandbox has no such user, there is nothing to attack."""
    alone: bool = False
    """In a sandbox of its own, which is closed before the host looks for survivors."""
    neighbour_code: str = ""
    """What the neighbour must be able to do while the probe holds what it took."""
    may_end: bool = False
    """The sandbox may end by this, as long as it says so."""
    must_go: bool = False
    """Every process of it must be gone with its call."""
    victim: bool = False
    """Needs a second sandbox with something to attack."""
    expect: Expect | None = None
    after: After | None = None

    def __post_init__(self) -> None:
        if not self.code.strip() or not self.what_stops_it:
            raise ValueError(f"{self.name}: a probe needs a program and the defence that stops it")


def held(evidence: str) -> Finding:
    """It was stopped."""
    return Finding(Verdict.HELD, evidence)


def breached(evidence: str) -> Finding:
    """It got through."""
    return Finding(Verdict.BREACHED, evidence)


def unproven(evidence: str) -> Finding:
    """Nobody can say."""
    return Finding(Verdict.UNPROVEN, evidence)


def expect_no_host_words(result: ExecResult, view: HostView) -> Finding | None:
    """What the program printed names nothing of this host."""
    for word in view.words:
        if word in result.output:
            return breached(f"shows {word!r} of the host")
    return None


def expect_gone_at_timeout(result: ExecResult, view: HostView) -> Finding:
    """It ran into its timeout, was ended at once, and left no process."""
    late = result.usage.wall_seconds - view.deadline
    if "armed" not in result.stdout:
        return unproven(f"it never came to its attack: {result.output[-200:]!r}")
    if result.reason != "timeout":
        return unproven(
            f"ended by {result.reason} with {result.exit_code} before its timeout: {result.output[-200:]!r}"
        )
    if late > GRACE_SECONDS:
        return breached(f"the timeout came {late:.1f} s late")
    return held(f"gone {max(late, 0.0) * 1000:.0f} ms after the timeout, no process left")


def expect_stopped_or_killed(result: ExecResult, view: HostView) -> Finding | None:
    """A bomb may be refused, which it says itself, or be killed, which the result says."""
    if result.reason == "oom":
        return held("ended by the kernel for want of memory")
    if result.limit:
        return held(f"ended by the limit of {result.limit}")
    return None


def expect_stopped_or_ended(result: ExecResult, view: HostView) -> Finding | None:
    """The same for a probe that is ended by SIGKILL or says that it got through: not every wire names the limit."""
    if result.reason == "signalled" and result.exit_code == 137:
        return held("ended by SIGKILL before it could say that it got through")
    return expect_stopped_or_killed(result, view)
