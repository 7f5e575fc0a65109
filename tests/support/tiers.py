"""Which tests belong to which command: `make test`, `make check`, `make check-all`.

A test without a mark of these is in all three. `check` is what `make check` runs besides: another user, another
backend, another client for what one pass has shown already. The marks of pyproject.toml name the rest.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

from corral.testing.check import Check


def second_pass(test: Callable[..., Any]) -> Callable[..., Any]:
    """Marks what an ordinary user's run has as its only pass and root's, where root's own comes first, as a second."""
    return pytest.mark.check(test) if os.geteuid() == 0 else test


def service_checks(item: Check) -> list[pytest.MarkDecorator]:
    """Of the conformance suite on a backend that speaks to a service: one example each, unless everything is asked for.

    Whether a backend keeps the ten rules is tried in every `make check`; the details of single methods, which are
    written once above all backends, by `make check-all`.
    """
    return [pytest.mark.check] if item.promise.isdigit() else [pytest.mark.backends]
