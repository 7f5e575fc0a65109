"""The conformance suite that every backend, ours or yours, must pass.

    report = await run_checks(MyBackend(), skip={"python": "the image has none"}, on_verdict=print)
    print(report)

`corral.testing.pytest` makes a pytest test of each check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from corral.protocol import Backend
from corral.testing import checks
from corral.testing.check import NEEDS, POWERS, Check, Count, Verdict, run_check

ALL_CHECKS: tuple[Check, ...] = checks.ALL
"""Every check. Their order does not matter: each opens its own sandboxes."""


@dataclass(frozen=True, slots=True)
class Report:
    """The verdicts of the suite on one backend."""

    backend: str
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """The checks that failed."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == "failed")

    @property
    def skipped(self) -> tuple[Verdict, ...]:
        """The checks that were not run; `detail` has the reason of each."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == "skipped")

    def __str__(self) -> str:
        passed = len(self.verdicts) - len(self.failed) - len(self.skipped)
        lines = [f"{self.backend}: {passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"]
        return "\n".join([*lines, *(f"  {verdict}" for verdict in (*self.skipped, *self.failed))])


async def run_checks(
    backend: Backend, *, skip: Mapping[str, str] | None = None, count: Count | None = None,
    on_verdict: Callable[[Verdict], object] = lambda verdict: None,
) -> Report:  # fmt: skip
    """Run all checks, one after the other. The caller closes the backend.

    `skip` maps names of checks and needs (see `corral.testing.check.Need`) to the reason; `count` counts the living
    sandboxes, for backends without `count_living()`; `on_verdict` gets each verdict as its check ends, e.g. `print`.

    Raises:
        ValueError: `skip` has the name of no check or need.
    """
    check_names(skip := skip or {})
    verdicts = []
    for item in ALL_CHECKS:
        verdicts.append(await run_check(item, backend, cannot=skip, count=count))
        on_verdict(verdicts[-1])
    return Report(backend.name, tuple(verdicts))


def check_names(cannot: Mapping[str, str]) -> None:
    """Refuse names that no check or need has, so that such a list stays correct. Raises: ValueError."""
    known = {item.name for item in ALL_CHECKS} | NEEDS | POWERS
    if unknown := sorted(set(cannot) - known):
        raise ValueError(f"no check or need is named {', '.join(unknown)}")
