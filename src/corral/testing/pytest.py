"""The conformance suite as pytest tests. A backend's whole test file:

from corral.testing.pytest import conformance_tests

test_conformance = conformance_tests(lambda: MyBackend(), cannot={"watch": "the service has no such call"})
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from corral.protocol import Backend
from corral.testing.check import Check, Count, run_check
from corral.testing.conformance import ALL_CHECKS, check_names


def conformance_tests(
    make: Callable[[], Backend],
    *,
    cannot: Mapping[str, str] | None = None,
    count: Count | None = None,
    marks: Callable[[Check], Sequence[pytest.MarkDecorator]] = lambda item: (),
) -> Callable[..., None]:
    """Give one test for each check. The backend is created for the first and closed after the last of them.

    Each check runs in a new event loop, so the backend as a whole is used from many. `marks` gives pytest marks for a
    check, for example to run some of them less often on a slow backend.

    Raises:
        ValueError: `cannot` has the name of no check or need.
    """
    reasons = dict(cannot or {})
    check_names(reasons)
    made: list[Backend] = []

    @pytest.mark.parametrize("item", [pytest.param(item, id=item.name, marks=marks(item)) for item in ALL_CHECKS])
    def test_conformance(item: Check, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        if not made:
            made.append(make())
            module = request.node.getparent(pytest.Module)
            module.addfinalizer(lambda: asyncio.run(made.pop().aclose()))
        verdict = asyncio.run(run_check(item, made[0], cannot=reasons, count=count, scratch=tmp_path, make=make))
        gc.collect()  # so that a warning about something unclosed appears in this test, not in a later one
        if verdict.outcome == "skipped":
            pytest.xfail(verdict.detail)  # not a skip, which a strict run would count as a failure
        if verdict.outcome == "failed":
            pytest.fail(f"{item}\n{verdict.detail}", pytrace=False)

    return test_conformance
