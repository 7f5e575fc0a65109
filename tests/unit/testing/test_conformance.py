"""The suite without pytest: verdicts as they come, and a report."""

import pytest

from corral.backends.memory import MemoryBackend
from corral.testing import conformance
from corral.testing.check import Check, Verdict


async def test_each_verdict_is_shown_when_its_check_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    async def fails() -> None:
        raise AssertionError(f"after {len(shown)}")

    async def passes() -> None:
        assert shown

    checks = [Check(name, "1", "a promise", body) for name, body in (("a", fails), ("b", passes), ("c", fails))]
    monkeypatch.setattr(conformance, "ALL_CHECKS", checks)
    backend = MemoryBackend()

    def show(verdict: Verdict) -> None:
        shown.append(str(verdict))

    report = await conformance.run_checks(backend, skip={"c": "it takes long"}, on_verdict=show)
    assert shown[0].startswith("FAILED a [1] a promise\nTraceback")
    assert "AssertionError: after 0" in shown[0]
    assert shown[1:] == ["passed b", "skipped c: it takes long"]
    assert str(report) == "\n  ".join(["memory: 1 passed, 1 failed, 1 skipped", shown[2], shown[0]])
    await backend.aclose()
