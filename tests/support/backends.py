"""Which checks a backend that speaks to a service goes through in every run, and which with `make backends`."""

import pytest

from corral.testing.check import Check

_SOMETIMES = frozenset({"running_is_cancel_safe"})
"""Under load, a file that is on its way to a service when its call is cancelled may still arrive there."""


def set_apart(item: Check) -> list[pytest.MarkDecorator]:
    """The ten rules of the contract are tried always; the details of single methods take minutes more."""
    return [] if item.promise.isdigit() and item.name not in _SOMETIMES else [pytest.mark.backends]
