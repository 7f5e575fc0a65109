"""The conformance suite that every backend, ours or yours, must pass.

    report = await run_checks(MyBackend(), skip={"python": "the image has none"})
    print(report)

With pytest it is shorter still, see `corral.testing.pytest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from corral.protocol import Backend
from corral.testing import checks
from corral.testing.check import NEEDS, POWERS, Check, Count, Verdict, run_check

ALL_CHECKS: tuple[Check, ...] = checks.ALL
"""Every check, in no order that matters: each opens its own sandboxes."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the suite showed."""

    backend: str
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """The promises that were broken."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == "failed")

    @property
    def skipped(self) -> tuple[Verdict, ...]:
        """What was not tried, each with its reason."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == "skipped")

    def __str__(self) -> str:
        passed = len(self.verdicts) - len(self.failed) - len(self.skipped)
        lines = [f"{self.backend}: {passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"]
        lines += [f"  skipped {v.name}: {v.detail}" for v in self.skipped]
        lines += [f"  FAILED {v.name} [{v.promise}] {v.title}\n{v.detail}" for v in self.failed]
        return "\n".join(lines)


async def run_checks(backend: Backend, *, skip: Mapping[str, str] | None = None, count: Count | None = None) -> Report:
    """Run all checks, one after the other. The backend is the caller's to close.

    `skip` gives a reason by the name of a check or of a need (see `corral.testing.check.Need`); `count` says how many
    sandboxes live, for backends without `count_living()`.

    Raises:
        ValueError: `skip` names something that there is not.
    """
    skip = skip or {}
    check_names(skip)
    verdicts = [await run_check(item, backend, cannot=skip, count=count) for item in ALL_CHECKS]
    return Report(backend.name, tuple(verdicts))


def check_names(cannot: Mapping[str, str]) -> None:
    """A list of what a backend can't must not rot. Raises: ValueError."""
    known = {item.name for item in ALL_CHECKS} | NEEDS | POWERS
    if unknown := sorted(set(cannot) - known):
        raise ValueError(f"there is no check or need named {', '.join(unknown)}")
